"""The feed: what happens in a namespace, five times a second, to everybody who watches it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from headgate.core.errors import HeadgateError
from headgate.core.runtime import Event, Observer
from headgate.service.dashboard.gauges import SHOWN_MAX, find_buckets, gauges_of
from headgate.service.dashboard.window import BucketRef, FeedWindow, WindowSnapshot

if TYPE_CHECKING:
    from headgate.service.decide.service import Service

# --------------------------------------------------------------------------------------------------
# Hearing every decision of a service, but only while somebody listens.


class ObserverHook:
    """Stands between a service and whoever observed it before; closed, it costs nothing."""

    def __init__(self, service: Service, observer: Observer) -> None:
        self._service = service
        self._observer = observer
        self._before: Observer | None = None
        self._open = False

    def open(self) -> None:
        if not self._open:
            self._open = True
            self._before = self._service.observe(self._on_event)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._service.observe(self._before)

    def _on_event(self, event: Event) -> None:
        if self._before is not None:
            self._before(event)
        self._observer(event)


# --------------------------------------------------------------------------------------------------
# All that the dashboard asks of the event loop: a beat while somebody watches, and streams.

TICK_S = 0.2  # five frames a second
WAITING_MAX = 8
LOOK_S = 1.0
STREAM_S_MAX = 600.0  # then the page asks again, and who it is is checked again
KEEP_ALIVE = b": here\n\n"  # a comment: keeps the line open, says nothing

log = logging.getLogger("headgate.service")
Late = TimeoutError
Answer = TypeVar("Answer")


class Viewer:
    """Frames that wait for one browser; a slow one misses the oldest."""

    def __init__(self) -> None:
        self._frames: asyncio.Queue[bytes] = asyncio.Queue(WAITING_MAX)

    def push(self, frame: bytes) -> None:
        if self._frames.full():
            self._frames.get_nowait()
        self._frames.put_nowait(frame)

    async def next(self) -> bytes | None:
        """The next frame; None where there is none for a while."""
        try:
            return await asyncio.wait_for(self._frames.get(), LOOK_S)
        except TimeoutError:
            return None


class PeriodicTask:
    """Calls `beat` over and over from `start` to `stop`; a failure is logged and outlived."""

    def __init__(self, tick: Callable[[], Awaitable[None]]) -> None:
        self._tick = tick
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def _run(self) -> None:
        failed = False
        while True:
            try:
                await self._tick()
                failed = False
            except Exception:
                if not failed:  # once, not five times a second
                    log.exception("the dashboard's feed failed; it goes on")
                failed = True
            await asyncio.sleep(TICK_S)


async def relay(viewer: Viewer, receive: Any, send: Any, leaving: Callable[[], bool]) -> None:
    """Frames to a client until it goes, the service ends, or it is time to ask again."""
    loop = asyncio.get_running_loop()
    gone = loop.create_task(_wait_for_disconnect(receive))
    until_s = loop.time() + STREAM_S_MAX
    try:
        await send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})
        while not gone.done() and not leaving() and loop.time() < until_s:
            frame = await viewer.next()
            await send(
                {"type": "http.response.body", "body": frame or KEEP_ALIVE, "more_body": True}
            )
        if not gone.done():
            await send({"type": "http.response.body", "body": b""})
    finally:
        gone.cancel()


async def within_s(limit_s: float, flow: Awaitable[Answer]) -> Answer:
    """What the flow returns, or Late."""
    return await asyncio.wait_for(flow, limit_s)


async def _wait_for_disconnect(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


VIEWERS_MAX = 32
QUIET_TICKS = 10  # where nothing happens, a frame every so many beats
SEARCH_TICKS = 25  # between searches in the store for buckets that others use


class Channel:
    """One namespace that somebody watches."""

    def __init__(self, service: Service, namespace: str) -> None:
        self.window = FeedWindow()
        self.viewers: set[Viewer] = set()
        self.eager = True  # somebody has just come, and waits for a first frame
        self._service = service
        self._namespace = namespace
        self._found: Sequence[BucketRef] = ()
        self._ticks = 0

    async def tick(self) -> None:
        """A frame to every viewer, unless there is nothing new to tell."""
        happened = self.window.tick()
        place, self._ticks = self._ticks, self._ticks + 1
        if not happened.counts and place % QUIET_TICKS and not self.eager:
            return
        self.eager = False
        frame = event("beat", await self._frame(happened, search=place % SEARCH_TICKS == 0))
        for viewer in self.viewers:
            viewer.push(frame)

    async def _frame(self, happened: WindowSnapshot, *, search: bool) -> dict[str, Any]:
        try:
            ns = await self._service.namespace(self._namespace)
            if search:
                self._found = await find_buckets(ns)
            places = dict.fromkeys([*self.window.busiest(SHOWN_MAX), *self._found])
            now_ms, shown = await gauges_of(ns, list(places)[:SHOWN_MAX])
            trouble = False
        except HeadgateError:  # the store is away; what was decided meanwhile is told all the same
            now_ms, shown, trouble = self._service.clock(), [], True
        return {
            "now_ms": now_ms,
            "counts": happened.counts,
            "decisions": [one._asdict() for one in happened.decisions],
            "left_out": happened.left_out,
            "buckets": shown,
            "trouble": trouble,
            "breaker": self._service.breaker.value,
        }


class Feed:
    """All channels of a service; it listens and looks only while there are viewers."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._channels: dict[str, Channel] = {}
        self._hook = ObserverHook(service, self._on_event)
        self._timer = PeriodicTask(self._tick)

    def __len__(self) -> int:
        return sum(len(channel.viewers) for channel in self._channels.values())

    def join(self, namespace: str) -> Viewer | None:
        """None where there are too many viewers already."""
        if len(self) >= VIEWERS_MAX:
            return None
        channel = self._channels.get(namespace)
        if channel is None:
            channel = self._channels[namespace] = Channel(self._service, namespace)
        viewer = Viewer()
        channel.viewers.add(viewer)
        channel.eager = True
        self._hook.open()
        self._timer.start()
        return viewer

    def leave(self, namespace: str, viewer: Viewer) -> None:
        channel = self._channels[namespace]
        channel.viewers.discard(viewer)
        if not channel.viewers:
            del self._channels[namespace]
        if not self._channels:
            self._hook.close()
            self._timer.stop()

    def _on_event(self, event: Event) -> None:
        channel = self._channels.get(event.namespace)
        if channel is not None:
            channel.window.record(event)

    async def _tick(self) -> None:
        for channel in list(self._channels.values()):
            await channel.tick()


def event(name: str, value: Any) -> bytes:
    """One server-sent event."""
    return f"event: {name}\ndata: {json.dumps(value, separators=(',', ':'))}\n\n".encode()
