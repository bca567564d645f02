"""The feed: what happens in a namespace, five times a second, to everybody who watches it.

Everything is bounded, whatever the traffic: viewers, frames that wait for a slow one, buckets that
are remembered, decisions that are told. Nobody listens to the service while nobody watches.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from headgate.core.decision import Verdict
from headgate.core.errors import HeadgateError, NamespaceStateError, StoreDenied
from headgate.core.runtime import Event, Observer
from headgate.service.dashboard.gauges import SHOWN_MAX, BucketRef, find_buckets, gauges_of
from headgate.service.decide.answers import reason_for
from headgate.service.decide.problems import Code, ServiceError
from headgate.service.decide.service import Service

VIEWERS_MAX = 32
TICK_S = 0.2  # five frames a second
QUIET_TICKS = 10  # where nothing happens, a frame every so many ticks
SEARCH_TICKS = 25  # between searches in the store for buckets that others use
WAITING_MAX = 8
LOOK_S = 1.0
STREAM_S_MAX = 600.0  # then the page asks again, and who it is is checked again
KEEP_ALIVE = b": here\n\n"  # a comment: keeps the connection open, says nothing

HOT_MAX = 2_000
DECISIONS_MAX = 40
COOLING = 0.97  # by each tick: what was busy stays in view for a few seconds
COLD = 0.05

log = logging.getLogger("headgate.service")


class Viewer:
    """Frames that wait for one browser; a slow one misses the oldest."""

    def __init__(self) -> None:
        self._frames: asyncio.Queue[bytes] = asyncio.Queue(WAITING_MAX)

    def push(self, frame: bytes) -> None:
        if self._frames.full():
            self._frames.get_nowait()
        self._frames.put_nowait(frame)

    async def next(self) -> bytes:
        """The next frame, or a sign of life where there is none for a while."""
        try:
            return await asyncio.wait_for(self._frames.get(), LOOK_S)
        except TimeoutError:
            return KEEP_ALIVE


async def relay(viewer: Viewer, receive: Any, send: Any, leaving: Callable[[], bool]) -> None:
    """Frames to a client until it goes, the service ends, or it is time to ask again."""
    loop = asyncio.get_running_loop()
    gone = loop.create_task(_wait_for_disconnect(receive))
    until_s = loop.time() + STREAM_S_MAX
    frame = KEEP_ALIVE
    try:
        while not gone.done() and not leaving() and loop.time() < until_s:
            await send({"type": "http.response.body", "body": frame, "more_body": True})
            frame = await viewer.next()
        if not gone.done():
            await send({"type": "http.response.body", "body": b""})
    finally:
        gone.cancel()


async def _wait_for_disconnect(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class FeedWindow:
    """One per namespace that somebody watches."""

    def __init__(self, hot_max: int = HOT_MAX) -> None:
        self._hot_max = hot_max
        self._heat: dict[BucketRef, float] = {}
        self._counts = Counter[str]()
        self._decisions = Counter[tuple[str, str, str]]()
        self._refusals: dict[tuple[str, str, str], Verdict] = {}  # the latest of each decision
        self._left_out = 0

    def record(self, event: Event) -> None:
        kind, place = event.kind, (event.entity_id, event.resource)
        if kind == "degraded" and event.detail == "refused":
            kind = "refused"  # degraded is who was admitted
        self._counts[kind] += 1
        self._warm(place)
        key = (kind, *place)
        if key in self._decisions or len(self._decisions) < DECISIONS_MAX:
            self._decisions[key] += 1
            if event.verdict is not None and kind == "refused":
                self._refusals[key] = event.verdict
        else:
            self._left_out += 1

    def tick(self) -> dict[str, Any]:
        """What happened since the last tick: decisions on each bucket, as many as are told, and how
        many are left out. The buckets cool down a little."""
        decisions = [
            {"kind": key[0], "entity_id": key[1], "resource": key[2], "times": times}
            | refusal_json(self._refusals.get(key))
            for key, times in self._decisions.items()
        ]
        found = {
            "counts": dict(self._counts), "decisions": decisions, "left_out": self._left_out
        }  # fmt: skip
        self._counts, self._decisions, self._left_out = Counter(), Counter(), 0
        self._refusals = {}
        self._heat = {
            place: heat * COOLING for place, heat in self._heat.items() if heat * COOLING > COLD
        }
        return found

    def busiest(self, count: int) -> list[BucketRef]:
        return sorted(self._heat, key=lambda place: (-self._heat[place], place))[:count]

    def _warm(self, place: BucketRef) -> None:
        if place not in self._heat and len(self._heat) >= self._hot_max:
            kept = self.busiest(self._hot_max // 2)
            self._heat = {one: self._heat[one] for one in kept}
        self._heat[place] = self._heat.get(place, 0.0) + 1


def refusal_json(verdict: Verdict | None) -> dict[str, Any]:
    """What a refusal lacked, by the limit that has to be waited for longest."""
    violations = [] if verdict is None else verdict.violations
    if not violations:
        return {}
    one = max(violations, key=lambda one: one.retry_after_seconds)
    refusal = {
        "entity_id": one.entity_id,
        "limit_name": one.limit_name,
        "requested": one.requested,
        "available": one.available,
        "capacity": one.limit.capacity,
        "retry_after_ms": one.retry_after_ms,
    }
    return {"refusal": refusal}


class Channel:
    """One namespace that somebody watches."""

    def __init__(
        self, service: Service, namespace: str, degraded_admitted: Callable[[], int]
    ) -> None:
        self.window = FeedWindow()
        self.viewers: set[Viewer] = set()
        self.eager = True  # somebody has just come, and waits for a first frame
        self._service = service
        self._namespace = namespace
        self._found: Sequence[BucketRef] = ()
        self._ticks = 0
        self._degraded_admitted = degraded_admitted  # since the process started
        # When the store answered here last, and how many were admitted without it by then.
        self._well: tuple[int | None, int] = (None, 0)

    async def tick(self) -> None:
        """A frame to every viewer, unless there is nothing new to tell."""
        happened = self.window.tick()
        place, self._ticks = self._ticks, self._ticks + 1
        if not happened["counts"] and place % QUIET_TICKS and not self.eager:
            return
        self.eager = False
        found = await self._frame(happened, search=place % SEARCH_TICKS == 0)
        frame = f"event: beat\ndata: {json.dumps(found, separators=(',', ':'))}\n\n".encode()
        for viewer in self.viewers:
            viewer.push(frame)

    async def _frame(self, happened: dict[str, Any], *, search: bool) -> dict[str, Any]:
        admitted, trouble = self._degraded_admitted(), None
        try:
            ns = await self._service.namespace(self._namespace)
            if search:
                self._found = await find_buckets(ns)
            places = dict.fromkeys([*self.window.busiest(SHOWN_MAX), *self._found])
            now_ms, shown = await gauges_of(ns, list(places)[:SHOWN_MAX])
            self._well = (self._service.clock(), admitted)
        except HeadgateError as error:
            # The store is away; what was decided meanwhile is told all the same.
            now_ms, shown, trouble = self._service.clock(), [], _trouble_code(error)
        since_ms, before = self._well
        return {
            **happened,
            "now_ms": now_ms,
            "buckets": shown,
            "trouble": trouble,
            "outage": {"since_ms": since_ms, "degraded_admitted": admitted - before},
            "breaker": self._service.breaker.value,
        }


def _trouble_code(error: HeadgateError) -> str:
    missing = isinstance(error, ServiceError) and error.code is Code.NOT_FOUND
    if missing or isinstance(error, NamespaceStateError):
        return "no_such_namespace"
    if isinstance(error, StoreDenied):
        return "store_denied"
    return reason_for(error)


class Feed:
    """All channels of a service; it listens and looks only while there are viewers."""

    def __init__(self, service: Service, degraded_admitted: Callable[[], int]) -> None:
        self._service = service
        self._degraded_admitted = degraded_admitted
        self._channels: dict[str, Channel] = {}
        self._before: Observer | None = None  # whoever observed the service before
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return sum(len(channel.viewers) for channel in self._channels.values())

    def join(self, namespace: str) -> Viewer | None:
        """None where there are too many viewers already."""
        if len(self) >= VIEWERS_MAX:
            return None
        channel = self._channels.get(namespace)
        if channel is None:
            channel = self._channels[namespace] = Channel(
                self._service, namespace, self._degraded_admitted
            )
        viewer = Viewer()
        channel.viewers.add(viewer)
        channel.eager = True
        if self._task is None:
            self._before = self._service.observe(self._on_event)
            self._task = asyncio.get_running_loop().create_task(self._run())
        return viewer

    def leave(self, namespace: str, viewer: Viewer) -> None:
        channel = self._channels[namespace]
        channel.viewers.discard(viewer)
        if not channel.viewers:
            del self._channels[namespace]
        if not self._channels and self._task is not None:
            self._service.observe(self._before)
            self._task.cancel()
            self._task = None

    def _on_event(self, event: Event) -> None:
        if self._before is not None:
            self._before(event)
        channel = self._channels.get(event.namespace)
        if channel is not None:
            channel.window.record(event)

    async def _run(self) -> None:
        failed = False
        while True:
            try:
                for channel in list(self._channels.values()):
                    await channel.tick()
                failed = False
            except Exception:
                if not failed:  # once, not five times a second
                    log.exception("the dashboard's feed failed; it goes on")
                failed = True
            await asyncio.sleep(TICK_S)
