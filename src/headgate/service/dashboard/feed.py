"""The feed: what happens in a namespace, five times a second, to everybody who watches it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from headgate.core.errors import HeadgateError
from headgate.core.runtime import Event, Observer
from headgate.service.dashboard.gauges import SHOWN_MAX, found_in, gauges_of
from headgate.service.dashboard.window import Beat, Place, Pulse

if TYPE_CHECKING:
    from headgate.service.decide.service import Service

# --------------------------------------------------------------------------------------------------
# Hearing every decision of a service, but only while somebody listens.


class Ear:
    """Stands between a service and whoever observed it before; closed, it costs nothing."""

    def __init__(self, service: Service, hear: Observer) -> None:
        self._service = service
        self._hear = hear
        self._before: Observer | None = None
        self._open = False

    def open(self) -> None:
        if not self._open:
            self._open = True
            self._before = self._service.observe(self._heard)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._service.observe(self._before)

    def _heard(self, event: Event) -> None:
        if self._before is not None:
            self._before(event)
        self._hear(event)


# --------------------------------------------------------------------------------------------------
# All that the dashboard asks of the event loop: a beat while somebody watches, and streams.

BEAT_S = 0.2  # five frames a second
WAITING_MAX = 8
LOOK_S = 1.0
STREAM_S_MAX = 600.0  # then the page asks again, and who it is is checked again
HERE = b": here\n\n"  # a comment: keeps the line open, says nothing

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


class Heart:
    """Calls `beat` over and over from `start` to `stop`; a failure is logged and outlived."""

    def __init__(self, beat: Callable[[], Awaitable[None]]) -> None:
        self._beat = beat
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
                await self._beat()
                failed = False
            except Exception:
                if not failed:  # once, not five times a second
                    log.exception("the dashboard's feed failed; it goes on")
                failed = True
            await asyncio.sleep(BEAT_S)


async def relay(viewer: Viewer, receive: Any, send: Any, leaving: Callable[[], bool]) -> None:
    """Frames to a client until it goes, the service ends, or it is time to ask again."""
    loop = asyncio.get_running_loop()
    gone = loop.create_task(_gone(receive))
    until_s = loop.time() + STREAM_S_MAX
    try:
        await send({"type": "http.response.body", "body": HERE, "more_body": True})
        while not gone.done() and not leaving() and loop.time() < until_s:
            frame = await viewer.next()
            await send({"type": "http.response.body", "body": frame or HERE, "more_body": True})
        if not gone.done():
            await send({"type": "http.response.body", "body": b""})
    finally:
        gone.cancel()


async def within_s(limit_s: float, flow: Awaitable[Answer]) -> Answer:
    """What the flow returns, or Late."""
    return await asyncio.wait_for(flow, limit_s)


async def _gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


VIEWERS_MAX = 32
QUIET_BEATS = 10  # where nothing happens, a frame every so many beats
SEARCH_BEATS = 25  # between searches in the store for buckets that others use


class Channel:
    """One namespace that somebody watches."""

    def __init__(self, service: Service, namespace: str) -> None:
        self.pulse = Pulse()
        self.viewers: set[Viewer] = set()
        self.eager = True  # somebody has just come, and waits for a first frame
        self._service = service
        self._namespace = namespace
        self._found: Sequence[Place] = ()
        self._beats = 0

    async def beat(self) -> None:
        """A frame to every viewer, unless there is nothing new to tell."""
        happened = self.pulse.beat()
        place, self._beats = self._beats, self._beats + 1
        if not happened.counts and place % QUIET_BEATS and not self.eager:
            return
        self.eager = False
        frame = event("beat", await self._frame(happened, search=place % SEARCH_BEATS == 0))
        for viewer in self.viewers:
            viewer.push(frame)

    async def _frame(self, happened: Beat, *, search: bool) -> dict[str, Any]:
        try:
            room = await self._service.room(self._namespace)
            if search:
                self._found = await found_in(room)
            places = dict.fromkeys([*self.pulse.busiest(SHOWN_MAX), *self._found])
            now_ms, shown = await gauges_of(room, list(places)[:SHOWN_MAX])
            trouble = False
        except HeadgateError:  # the store is away; what was decided meanwhile is told all the same
            now_ms, shown, trouble = self._service.clock(), [], True
        return {
            "now_ms": now_ms,
            "counts": happened.counts,
            "decisions": [told._asdict() for told in happened.told],
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
        self._ear = Ear(service, self._heard)
        self._heart = Heart(self._beat)

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
        self._ear.open()
        self._heart.start()
        return viewer

    def leave(self, namespace: str, viewer: Viewer) -> None:
        channel = self._channels[namespace]
        channel.viewers.discard(viewer)
        if not channel.viewers:
            del self._channels[namespace]
        if not self._channels:
            self._ear.close()
            self._heart.stop()

    def _heard(self, event: Event) -> None:
        channel = self._channels.get(event.namespace)
        if channel is not None:
            channel.pulse.saw(event)

    async def _beat(self) -> None:
        for channel in list(self._channels.values()):
            await channel.beat()


def event(name: str, value: Any) -> bytes:
    """One server-sent event."""
    return f"event: {name}\ndata: {json.dumps(value, separators=(',', ':'))}\n\n".encode()
