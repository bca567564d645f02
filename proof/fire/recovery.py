"""How long it took after each fault until callers were served again, and the longest call."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from proof.fire.journal import Life

NEVER_MS = -1


class Fault(NamedTuple):
    """Something that was done to them. Wall times: an engine that is killed is dead at `began_ms`;
    at `over_ms` it is healed."""

    kind: str
    began_ms: int
    over_ms: int
    life: int | None = None  # the process it was done to, by its place among the lives


class Times:
    """When answers came, in order: of each bucket and of each life."""

    def __init__(self, lives: Sequence[Life], buckets: Iterable[str]) -> None:
        self._admitted = [
            sorted(
                answer.wall_ms
                for life in lives
                for answer in life.answers
                if answer.kind == "a" and answer.bucket == bucket
            )
            for bucket in buckets
        ]
        self._told = [
            sorted(answer.wall_ms for answer in life.answers if answer.kind != "u")
            for life in lives
        ]

    def until_one_ms(self, fault: Fault) -> int:
        """From the fault's end until somebody was admitted, to every bucket."""
        waits = [_wait_ms(admitted, fault.over_ms) for admitted in self._admitted]
        return NEVER_MS if NEVER_MS in waits else max(waits)

    def silence_ms(self, fault: Fault) -> int:
        """The longest time around the fault in which nobody was admitted to some bucket."""
        return max(_gap_ms(admitted, fault) for admitted in self._admitted)

    def until_all_ms(self, fault: Fault) -> int:
        """From the fault's end until each process that lived on had an answer."""
        waits = [
            _wait_ms(told, fault.over_ms)
            for told in self._told
            if told and told[0] < fault.began_ms and told[-1] >= fault.over_ms
        ]
        return max(waits, default=NEVER_MS)


def _wait_ms(ordered: Sequence[int], from_ms: int) -> int:
    place = bisect_left(ordered, from_ms)
    return ordered[place] - from_ms if place < len(ordered) else NEVER_MS


def _gap_ms(ordered: Sequence[int], fault: Fault) -> int:
    """The longest step between two moments that touches the fault."""
    first = max(0, bisect_left(ordered, fault.began_ms) - 1)
    last = bisect_left(ordered, fault.over_ms) + 1
    around = ordered[first:last]
    return max((later - early for early, later in pairwise(around)), default=0)


def longest_ms(lives: Sequence[Life], faults: Sequence[Fault]) -> int:
    """The longest call during which its own process was not stopped."""
    found = 0
    for place, life in enumerate(lives):
        stops = [fault for fault in faults if fault.kind == "stop_worker" and fault.life == place]
        for answer in life.answers:
            if answer.took_ms > found and not _overlaps(answer.wall_ms, answer.took_ms, stops):
                found = answer.took_ms
    return found


def _overlaps(ended_ms: int, took_ms: int, stops: Sequence[Fault]) -> bool:
    began_ms = ended_ms - took_ms
    return any(began_ms <= stop.over_ms and stop.began_ms <= ended_ms for stop in stops)
