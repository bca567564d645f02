"""What happened since the last look: counts, the newest decisions, and where it is busiest. Pure.

Everything is bounded, whatever the traffic: buckets that are remembered, decisions that are told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headgate.core.runtime import Event

HOT_MAX = 2_000
DECISIONS_MAX = 40
COOLING = 0.97  # by each beat: what was busy stays in view for a few seconds
COLD = 0.05

BucketRef = tuple[str, str]  # entity, resource


class DecisionCount(NamedTuple):
    """Decisions of one kind on one bucket within a beat."""

    kind: str
    entity_id: str
    resource: str
    times: int


class WindowSnapshot(NamedTuple):
    """All that happened between two looks; `left_out` decisions are counted but not told."""

    counts: Mapping[str, int]
    decisions: Sequence[DecisionCount]
    left_out: int


class FeedWindow:
    """One per namespace that somebody watches."""

    def __init__(self, hot_max: int = HOT_MAX) -> None:
        self._hot_max = hot_max
        self._heat: dict[BucketRef, float] = {}
        self._counts: dict[str, int] = {}
        self._decisions: dict[tuple[str, str, str], int] = {}
        self._left_out = 0

    def record(self, event: Event) -> None:
        kind, place = event.kind, (event.entity_id, event.resource)
        self._counts[kind] = self._counts.get(kind, 0) + 1
        self._warm(place)
        key = (kind, *place)
        if key in self._decisions or len(self._decisions) < DECISIONS_MAX:
            self._decisions[key] = self._decisions.get(key, 0) + 1
        else:
            self._left_out += 1

    def tick(self) -> WindowSnapshot:
        """What happened since the last beat; the buckets cool down a little."""
        decisions = [DecisionCount(*key, count) for key, count in self._decisions.items()]
        found = WindowSnapshot(self._counts, decisions, self._left_out)
        self._counts, self._decisions, self._left_out = {}, {}, 0
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
