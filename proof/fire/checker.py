"""Holds what everybody was given against what was promised. Pure: journals in, findings out.

Every acquire takes one `x` and one `y` of a bucket in one step, and only `y` is ever given back. So
the store's own counters tell exactly what happened: `tc` of `x` is what was taken, and how far `tc`
of `y` is below it is what was given back.

A journal is what one process did, line by line in a file that survives its death:

    t BUCKET                       about to ask
    a BUCKET STORE_MS TOOK_MS WALL_MS   admitted, at that time of the store
    r BUCKET TOOK_MS WALL_MS       refused
    u BUCKET TOOK_MS WALL_MS       no answer: it may have been admitted
    c BUCKET                       about to give one token back
    d BUCKET                       given back
    l BUCKET                       no answer: it may have been given back

Each line is one write to the kernel, so a killed process leaves every line it wrote. A `t` or `c`
without an end was under way when the process died.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ENDS = "aru"


class Pen:
    """Writes the journal of this process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, kind: str, bucket: str, *numbers: int) -> None:
        line = " ".join((kind, bucket, *map(str, numbers)))
        os.write(self._file, line.encode() + b"\n")


class Answer(NamedTuple):
    """One call that came back: admitted, refused or not answered."""

    kind: str
    bucket: str
    wall_ms: int
    took_ms: int


@dataclass
class Life:
    """One process from its start to its end."""

    answers: list[Answer] = field(default_factory=list)
    admitted: list[tuple[str, int]] = field(default_factory=list)  # bucket, time of the store
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)  # by kind and bucket

    def count(self, kinds: str, bucket: str) -> int:
        return sum(self.counts[kind, bucket] for kind in kinds)

    def under_way(self, bucket: str) -> int:
        """Calls that had not come back when the process ended."""
        return self.count("t", bucket) - self.count(ENDS, bucket)


def read(path: Path) -> Life:
    with path.open() as lines:
        return parse(lines)


def parse(lines: Iterable[str]) -> Life:
    """A last line without its end is a write that death cut off: it does not count."""
    life = Life()
    for line in lines:
        if not line.endswith("\n"):
            continue
        kind, bucket, *numbers = line.split()
        life.counts[kind, bucket] += 1
        if kind in ENDS:
            *store_ms, took_ms, wall_ms = map(int, numbers)
            life.answers.append(Answer(kind, bucket, wall_ms, took_ms))
            if kind == "a":
                life.admitted.append((bucket, store_ms[0]))
    return life


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
            began_ms, ended_ms = answer.wall_ms - answer.took_ms, answer.wall_ms
            if not any(began_ms <= stop.over_ms and stop.began_ms <= ended_ms for stop in stops):
                found = max(found, answer.took_ms)
    return found


class Terms(NamedTuple):
    """The limit `x` of every bucket."""

    capacity: int
    rate_per_s: int


class Count(NamedTuple):
    """What the store says is consumed of a bucket."""

    x: int
    y: int


@dataclass(frozen=True)
class Promise:
    """How far an engine may go, as documented.

    `slack_s`: by how many seconds of refill clocks may differ. `crash_s`: how much of the latest
    past a fault of the kinds in `crashes` may make it forget. `deadline_s`: no call takes longer,
    except for what a busy machine adds (`late_s`).
    """

    deadline_s: float
    late_s: float = 5.0
    slack_s: float = 0.0
    crash_s: float = 0.0
    crashes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bout:
    """Everything that is known once the fire is out."""

    terms: Terms
    promise: Promise
    lives: Sequence[Life]
    faults: Sequence[Fault]
    counts: Mapping[str, Count]


class Bucket:
    """What one bucket gave, by the journals and by the store."""

    def __init__(self, bout: Bout, name: str) -> None:
        lives, count = bout.lives, bout.counts[name]
        ordered_ms = sorted(
            at_ms for one in lives for other, at_ms in one.admitted if other == name
        )
        self.name = name
        self.admitted = len(ordered_ms)
        self.taken = count.x
        self.excess = excess(ordered_ms, bout.terms)
        # Only calls under way or not answered may have taken for nobody.
        self.may_leak = sum(life.under_way(name) + life.count("u", name) for life in lives)
        # What was admitted so shortly before a crash that the engine may have lost it.
        self.may_forget = _may_forget(bout, ordered_ms)
        self.credits_sure = sum(life.count("d", name) for life in lives)
        self.credits_seen = count.x - count.y
        self.credits_sent = sum(life.count("c", name) for life in lives)

    def broken(self, bout: Bout) -> list[str]:
        allowed = bout.terms.rate_per_s * bout.promise.slack_s + self.may_forget
        leaked, said = self.taken - self.admitted, []
        if self.excess > allowed:
            said.append(f"{self.excess:g} above the limit where {allowed:g} may be")
        if leaked > self.may_leak:
            said.append(f"{leaked} taken for nobody where {self.may_leak} may be")
        if -leaked > self.may_forget:
            said.append(f"{-leaked} admitted and not in the store, {self.may_forget} may be")
        if self.credits_seen > self.credits_sent:
            said.append(f"{self.credits_sent} credits sent, {self.credits_seen} arrived")
        if self.credits_seen < self.credits_sure and not self.may_forget:
            said.append(f"{self.credits_sure} credits confirmed, {self.credits_seen} arrived")
        return [f"{self.name}: {text}" for text in said]


class Findings:
    """What happened to all buckets, in figures; `broken` names every promise that was not kept."""

    def __init__(self, bout: Bout) -> None:
        buckets = [Bucket(bout, name) for name in sorted(bout.counts)]
        times = Times(bout.lives, bout.counts)

        def total(name: str) -> int:
            return sum(getattr(bucket, name) for bucket in buckets)

        def answers(kind: str) -> int:
            return sum(life.count(kind, name) for life in bout.lives for name in bout.counts)

        self.admitted = total("admitted")
        self.refused = answers("r")
        self.unanswered = answers("u")
        self.excess = max(bucket.excess for bucket in buckets)
        self.leaked = sum(max(0, bucket.taken - bucket.admitted) for bucket in buckets)
        self.may_leak = total("may_leak")
        self.forgotten = sum(max(0, bucket.admitted - bucket.taken) for bucket in buckets)
        self.credits = total("credits_sure"), total("credits_seen"), total("credits_sent")
        self.longest_ms = longest_ms(bout.lives, bout.faults)
        self.until_one_ms = tuple(map(times.until_one_ms, bout.faults))  # after each fault
        self.until_all_ms = tuple(map(times.until_all_ms, bout.faults))
        self.silences_ms = tuple(map(times.silence_ms, bout.faults))
        broken = [text for bucket in buckets for text in bucket.broken(bout)]
        promise = bout.promise
        if self.longest_ms > (promise.deadline_s + promise.late_s) * 1000:
            said = f"a call took {self.longest_ms} ms; its deadline is {promise.deadline_s:g} s"
            broken.append(said)
        if NEVER_MS in self.until_one_ms:
            broken.append("nobody was admitted after a fault")
        self.broken = tuple(broken)

    def __repr__(self) -> str:
        return f"Findings({vars(self)})"


def excess(ordered_ms: Sequence[int], terms: Terms) -> float:
    """How far any interval goes above capacity + rate * its length.

    The largest (j - i + 1) - rate * (t_j - t_i) - capacity over all i <= j, in one pass: the best
    start so far is the one with the least i - rate * t_i. In thousandths, so that it is exact.
    """
    if not ordered_ms:
        return -terms.capacity
    best = least = 0
    for place, moment_ms in enumerate(ordered_ms):
        line = place * 1000 - terms.rate_per_s * (moment_ms - ordered_ms[0])
        least = min(least, line)
        best = max(best, line - least)
    return best / 1000 + 1 - terms.capacity


def _may_forget(bout: Bout, ordered_ms: Sequence[int]) -> int:
    reach_ms = bout.promise.crash_s * 1000
    return sum(
        bisect_right(ordered_ms, fault.began_ms)
        - bisect_left(ordered_ms, fault.began_ms - reach_ms)
        for fault in bout.faults
        if fault.kind in bout.promise.crashes
    )
