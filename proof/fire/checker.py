"""Holds what everybody was given against what was promised. Pure: journals in, findings out.

Every acquire takes one `x` and one `y` of a bucket in one step, and only `y` is ever given back. So
the store's own counters tell exactly what happened: `tc` of `x` is what was taken, and how far `tc`
of `y` is below it is what was given back.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from proof.fire.journal import Life
from proof.fire.recovery import NEVER_MS, Fault, Times, longest_ms


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


@dataclass(frozen=True)
class Bucket:
    """What one bucket gave, by the journals and by the store."""

    name: str
    admitted: int
    taken: int
    excess: float  # the most any interval goes above capacity + rate * length; below it: negative
    may_leak: int  # calls under way or not answered: only they may have taken for nobody
    may_forget: int  # admitted so shortly before a crash that the engine may have lost it
    credits_sure: int
    credits_seen: int
    credits_sent: int

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


@dataclass(frozen=True)
class Findings:
    """What happened, in figures; `broken` names every promise that was not kept."""

    buckets: tuple[Bucket, ...]
    refused: int
    unanswered: int
    under_way: int  # when their processes died
    longest_ms: int
    until_one_ms: tuple[int, ...]  # after each fault
    until_all_ms: tuple[int, ...]
    silences_ms: tuple[int, ...]
    broken: tuple[str, ...]

    @property
    def admitted(self) -> int:
        return sum(bucket.admitted for bucket in self.buckets)

    @property
    def excess(self) -> float:
        return max(bucket.excess for bucket in self.buckets)

    @property
    def leaked(self) -> int:
        return sum(max(0, bucket.taken - bucket.admitted) for bucket in self.buckets)

    @property
    def may_leak(self) -> int:
        return sum(bucket.may_leak for bucket in self.buckets)

    @property
    def forgotten(self) -> int:
        return sum(max(0, bucket.admitted - bucket.taken) for bucket in self.buckets)

    @property
    def credits(self) -> tuple[int, int, int]:
        """Confirmed, seen by the store, sent."""
        return (
            sum(bucket.credits_sure for bucket in self.buckets),
            sum(bucket.credits_seen for bucket in self.buckets),
            sum(bucket.credits_sent for bucket in self.buckets),
        )


def examine(bout: Bout) -> Findings:
    buckets = tuple(_bucket(bout, name) for name in sorted(bout.counts))
    times = Times(bout.lives, bout.counts)
    until_one_ms = tuple(map(times.until_one_ms, bout.faults))
    longest = longest_ms(bout.lives, bout.faults)
    broken = [text for bucket in buckets for text in bucket.broken(bout)]
    if longest > (bout.promise.deadline_s + bout.promise.late_s) * 1000:
        broken.append(f"a call took {longest} ms; its deadline is {bout.promise.deadline_s:g} s")
    if NEVER_MS in until_one_ms:
        broken.append("nobody was admitted after a fault")
    return Findings(
        buckets=buckets,
        refused=_total(bout, "r"),
        unanswered=_total(bout, "u"),
        under_way=sum(life.under_way(name) for life in bout.lives for name in bout.counts),
        longest_ms=longest,
        until_one_ms=until_one_ms,
        until_all_ms=tuple(map(times.until_all_ms, bout.faults)),
        silences_ms=tuple(map(times.silence_ms, bout.faults)),
        broken=tuple(broken),
    )


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


def _bucket(bout: Bout, name: str) -> Bucket:
    lives = bout.lives
    ordered_ms = sorted(at_ms for life in lives for other, at_ms in life.admitted if other == name)
    sent = sum(life.count("c", name) for life in lives)
    count = bout.counts[name]
    return Bucket(
        name=name,
        admitted=len(ordered_ms),
        taken=count.x,
        excess=excess(ordered_ms, bout.terms),
        may_leak=sum(life.under_way(name) + life.count("u", name) for life in lives),
        may_forget=_may_forget(bout, ordered_ms),
        credits_sure=sum(life.count("d", name) for life in lives),
        credits_seen=count.x - count.y,
        credits_sent=sent,
    )


def _may_forget(bout: Bout, ordered_ms: Sequence[int]) -> int:
    reach_ms = bout.promise.crash_s * 1000
    return sum(
        bisect_right(ordered_ms, fault.began_ms)
        - bisect_left(ordered_ms, fault.began_ms - reach_ms)
        for fault in bout.faults
        if fault.kind in bout.promise.crashes
    )


def _total(bout: Bout, kind: str) -> int:
    return sum(life.count(kind, name) for life in bout.lives for name in bout.counts)
