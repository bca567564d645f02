"""What happened since the last look: counts, the newest decisions, and where it is busiest. Pure.

Everything is bounded, whatever the traffic: buckets that are remembered, decisions that are told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headgate.core.runtime import Event

HOT_MAX = 2_000
TOLD_MAX = 40
COOLING = 0.97  # by each beat: what was busy stays in view for a few seconds
COLD = 0.05

Place = tuple[str, str]  # entity, resource


class Told(NamedTuple):
    """Decisions of one kind on one bucket within a beat."""

    kind: str
    entity_id: str
    resource: str
    times: int


class Beat(NamedTuple):
    """All that happened between two looks; `left_out` decisions are counted but not told."""

    counts: Mapping[str, int]
    told: Sequence[Told]
    left_out: int


class Pulse:
    """One per namespace that somebody watches."""

    def __init__(self, hot_max: int = HOT_MAX) -> None:
        self._hot_max = hot_max
        self._heat: dict[Place, float] = {}
        self._counts: dict[str, int] = {}
        self._told: dict[tuple[str, str, str], int] = {}
        self._left_out = 0

    def saw(self, event: Event) -> None:
        kind, place = event.kind, (event.entity_id, event.resource)
        self._counts[kind] = self._counts.get(kind, 0) + 1
        self._warm(place)
        key = (kind, *place)
        if key in self._told or len(self._told) < TOLD_MAX:
            self._told[key] = self._told.get(key, 0) + 1
        else:
            self._left_out += 1

    def beat(self) -> Beat:
        """What happened since the last beat; the buckets cool down a little."""
        told = [Told(*key, count) for key, count in self._told.items()]
        found = Beat(self._counts, told, self._left_out)
        self._counts, self._told, self._left_out = {}, {}, 0
        self._heat = {
            place: heat * COOLING for place, heat in self._heat.items() if heat * COOLING > COLD
        }
        return found

    def busiest(self, count: int) -> list[Place]:
        return sorted(self._heat, key=lambda place: (-self._heat[place], place))[:count]

    def _warm(self, place: Place) -> None:
        if place not in self._heat and len(self._heat) >= self._hot_max:
            kept = self.busiest(self._hot_max // 2)
            self._heat = {one: self._heat[one] for one in kept}
        self._heat[place] = self._heat.get(place, 0.0) + 1
