"""The feed: what happens in a namespace, five times a second, to everybody who watches it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headgate.core.errors import HeadgateError
from headgate.core.runtime__observe import Event
from headgate.service.dashboard.feed__ear import Ear
from headgate.service.dashboard.feed__port import Heart, Viewer
from headgate.service.dashboard.gauges import SHOWN_MAX, found_in, gauges_of
from headgate.service.dashboard.window import Beat, Place, Pulse

if TYPE_CHECKING:
    from headgate.service.decide.service import Service

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
