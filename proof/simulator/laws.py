"""The promises as monitors: what the server holds, what it was asked, what callers were told.

They watch the server's side: what landed there, not what clients believe. Nothing here raises; the
first violation is kept and ends the run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from headgate.core.decision import Verdict
from headgate.core.errors import Throttled
from proof.model.buckets import (
    ROUNDING_MILLI,
    Bucket,
    Part,
    change_of,
    consumed_of,
    expiry_faults,
    fits,
    level_of,
    part_in,
    resets_after,
    settled_ms,
    time_faults,
    tree_fault,
)
from proof.simulator.network import Action, Call, Place, nothing, shown


class Gauge:
    """Of one limit of one bucket; the largest lateness of a writer's clock either way is kept."""

    def __init__(self) -> None:
        self.excess = 0.0
        self.capacity = 0
        self.capacity_max = 0
        self._at_ms = 0
        self._per_ms = 0.0
        self._per_ms_max = 0.0
        self._behind_ms = 0
        self._ahead_ms = 0
        self._changed = False
        self._shards = 1
        self._quotas: tuple[Part, ...] = ()  # as the last write left them, one for each shard
        self._odd_windows = 0  # capacities more, for clocks and delays

    def _fall(self, at_ms: int) -> None:
        self.excess = max(0.0, self.excess - (at_ms - self._at_ms) * self._per_ms)
        for quota in self._quotas:
            passed = quota.passed(at_ms) - quota.passed(self._at_ms)
            self.excess = max(0.0, self.excess - passed * quota.capacity)
        self._at_ms = at_ms

    def moved(self, amount: int, parts: Sequence[Part], at_ms: int) -> None:
        """Debits are positive; a credit makes room for as much again."""
        self._fall(at_ms)
        self.excess = max(0.0, self.excess + amount)
        if not parts:
            return
        capacity = sum(part.capacity for part in parts)
        per_ms = sum(part.amount / part.period_ms for part in parts)
        quotas = tuple(part for part in parts if part.resets is not None)
        law = (capacity, round(per_ms, 9), {quota.resets for quota in quotas})
        was = (
            self.capacity, round(self._per_ms, 9), {quota.resets for quota in self._quotas}
        )  # fmt: skip
        self._changed = bool(self.capacity) and law != was
        self._shards = len(parts)
        self.capacity, self._per_ms, self._quotas = capacity, per_ms, quotas
        self._per_ms_max = max(self._per_ms_max, per_ms)
        self.capacity_max = max(self.capacity_max, capacity)

    def emptied(self, at_ms: int) -> None:
        """An operator gave a full bucket."""
        self._fall(at_ms)
        self.excess = 0.0

    def judged(self, level: int | None, late_ms: int, *, take: bool) -> str:
        """What is wrong; empty if nothing is. A debit may pass the capacity, into debt; a take
        must not."""
        self._behind_ms = max(self._behind_ms, late_ms)
        self._ahead_ms = max(self._ahead_ms, -late_ms)
        there = self.capacity if level is None else level
        if self._changed:  # an interval over two capacities is held against the new one only
            self.excess = min(self.excess, max(0.0, self.capacity - there))
        rounding = ROUNDING_MILLI * self._shards + 8
        slack = self._behind_ms * self._per_ms_max + rounding + self._odd() * self.capacity
        if there + self.excess > self.capacity + slack:
            return (
                f"has {there} and {self.excess:.0f} were taken beyond its pace, with a capacity "
                f"of {self.capacity} and {slack:.0f} for clocks and delays"
            )
        most = slack + self._ahead_ms * self._per_ms_max
        if take and self.excess > self.capacity + most:
            return f"{self.excess:.0f} were taken beyond its pace; at most {self.capacity + most}"
        return ""

    def _odd(self) -> int:
        """How often a quota may have given its capacity besides, because writers met a reset by
        their own clocks: a write that was late at a reset is beyond it for good. Of sessions it is
        as many as clocks that are apart can begin."""
        apart_ms = self._behind_ms + self._ahead_ms
        for quota in self._quotas if apart_ms else ():
            near = quota.passed(self._at_ms + apart_ms) - quota.passed(self._at_ms - apart_ms)
            if str(quota.resets).startswith("session"):
                near = 1 + apart_ms // (resets_after(str(quota.resets), 0)[0])
            self._odd_windows = max(self._odd_windows, near)
        return self._odd_windows


TRUST_MS = 1000  # how long a layer may refuse by what it has seen


class Laws:
    """`band` says that the store may give away some of a fast limit's burst; `late_ms_max` bounds
    how far a write's own idea of the time may be from the true one."""

    def __init__(self, *, band: bool, late_ms_max: int) -> None:
        self.band = band
        self.late_ms_max = late_ms_max
        self.violations: list[str] = []
        self.checks: Counter[str] = Counter()
        self.gauges: dict[Place, Gauge] = {}
        self.landed: Counter[Place] = Counter()  # debits less credits, as the server has them
        self.granted: Counter[Place] = Counter()  # the same as callers have them, at most
        self.goners: list[str] = []  # buckets that were dropped, one after the other
        self.eased_ms: dict[str, int] = {}  # when a bucket last came to hold more in one step
        self.broken = asyncio.Event()
        self.log: Callable[[str], None] = nothing

    def fail(self, promise: str, text: str) -> None:
        self.violations.append(f"{promise}: {text}")
        self.log(f"BROKEN {promise}: {text}")
        self.broken.set()

    # -- what is written

    def wrote(
        self, call: Call | None, text: str, before: Bucket, after: Bucket, at_ms: int
    ) -> None:
        """One request changed one bucket."""
        self.checks["writes"] += 1
        if self.log is not nothing:  # the words cost more than the check
            self.log(f"{call} wrote {text}: {levels(before, at_ms)} becomes {levels(after, at_ms)}")
        if call is None or text not in call.demands:
            self.fail("S10", f"{call} wrote to {text}, which it does not name")
            return
        for name, fault in time_faults(before, after):
            self.fail("S9" if name == "cv" else "S12", f"{text}: {fault}")
        self._tree(text, after)
        if call.verb == "forget":
            for place in [place for place in self.gauges if place[0] == text]:
                self.gauges[place].emptied(at_ms)
            self.eased_ms[text] = at_ms
            self.goners.append(text)
            return
        late_ms = at_ms - call.moment_ms
        if abs(late_ms) > self.late_ms_max:
            self.fail("S1", f"{call} wrote {late_ms} ms after its own moment")
        limits = {limit for shard in (*before.values(), *after.values()) for limit in shard.parts}
        for limit in sorted(limits):
            self._limit(call, (text, limit), before, after, at_ms)

    def _limit(self, call: Call, place: Place, before: Bucket, after: Bucket, at_ms: int) -> None:
        limit, wanted = place[1], call.wanted.get(place, 0)
        counted = consumed_of(after, limit) - consumed_of(before, limit)
        if counted not in (0, wanted, -wanted if call.undoes else wanted):
            self.fail("S4", f"{call}: {limit} of {place[0]} counts {counted} for {wanted}")
        net = call.net[place] = call.net.get(place, 0) + counted
        if not min(0, wanted) <= net <= max(0, wanted):
            self.fail("S4", f"{call}: {limit} of {place[0]} was moved by {net} in all")
        self.landed[place] += counted
        moved = counted if call.metered else wanted
        if call.verb == "adjust" and moved == wanted:
            moved = dict(call.demands[place[0]].named()).get(limit, 0)
        elif place in call.untaken or any(
            limit in s.parts and s.parts[limit].soft for s in after.values()
        ):  # also one that has become hard since it was passed
            moved = self._soft(call, place, moved, before, after)
        self._given(call, place, moved)
        self._levels(call, place, moved, before, after)
        if moved < 0 or {shard.version for shard in before.values()} != {
            shard.version for shard in after.values()
        }:
            self.eased_ms[place[0]] = at_ms
        gauge = self.gauges.setdefault(place, Gauge())
        self.checks["quotas"] += any(
            s.parts[limit].resets is not None for s in after.values() if limit in s.parts
        )
        gauge.moved(moved, [s.parts[limit] for s in after.values() if limit in s.parts], at_ms)
        late_ms = at_ms - call.moment_ms
        level = level_of(after, limit, at_ms)
        trouble = gauge.judged(level, late_ms, take=call.verb == "take" and moved > 0)
        if trouble:
            self.fail("S1", f"{call}: {limit} of {place[0]}: {trouble}")

    def _soft(self, call: Call, place: Place, moved: int, before: Bucket, after: Bucket) -> int:
        """How many tokens a soft limit may have moved: none where it had not enough."""
        if not moved:
            return 0
        if moved < 0:  # an undo
            return 0 if place in call.untaken else moved
        if _fall(before, after, place[1], call.moment_ms) >= moved - ROUNDING_MILLI:
            return moved
        self.checks["untaken"] += 1
        call.untaken.add(place)
        return 0

    def _given(self, call: Call, place: Place, moved: int) -> None:
        """S4: what comes back was given; pots of prefetching mix what several callers were."""
        action = call.action
        if action is None or not call.metered or action.client.profile.prefetch:
            return
        left = action.tokens[place] = action.tokens.get(place, 0) + moved
        if left < 0:
            self.fail("S4", f"{call}: {place} gets {-left} tokens that it never gave")

    def _levels(self, call: Call, place: Place, moved: int, before: Bucket, after: Bucket) -> None:
        change = change_of(before, after, place[1], call.moment_ms)
        # a merge on the way may add what a clock ahead of time left in debt
        if call.verb == "take" and change.debt and not change.reshaped:
            self.fail("S1", f"{call} left {change.debt} of {place}")
        fault = change.fault(moved, band=self.band)
        if fault:
            self.fail("S5/S7/S9", f"{call}: of {place}, {fault}")

    def _tree(self, text: str, bucket: Bucket) -> None:
        """S5 and S8: the shards are the leaves of one tree; none expires before it is full."""
        fault = tree_fault(bucket)
        if fault:
            self.fail("S5", f"{text}: {fault}")
        for fault in expiry_faults(bucket):
            self.fail("S8", f"{text}: {fault}")

    def swept(self, text: str, before: Bucket, after: Bucket, at_ms: int) -> None:
        """S7, S8: the store drops only what carries no information."""
        self.checks["sweeps"] += 1
        self.goners.append(text)
        self._tree(text, after)
        for number, shard in before.items():
            for limit, part in shard.parts.items() if number not in after else ():
                if part.level(at_ms) < part.capacity:
                    self.fail("S8", f"{limit} of {text} was dropped at {part.level(at_ms)} of "
                                    f"{part.capacity}")  # fmt: skip
        self.eased_ms[text] = at_ms

    # -- what is asked and told

    def arrived(self, call: Call, buckets: dict[str, Bucket]) -> None:
        """A request of the call has reached the server: would it fit as things are now?"""
        if call.since is None:
            call.since = len(self.goners)
        if call.verb == "adjust":
            call.absent.update(text for text in call.demands if not buckets.get(text))
        elif call.verb == "take" and not call.refusable:
            call.refusable = not all(
                fits(buckets.get(text, {}), demand, call.moment_ms)
                for text, demand in call.demands.items()
            )

    def ended(self, call: Call, result: Any) -> None:
        """S2, S4, S6: what the caller is told is what happened."""
        self.checks["calls"] += 1
        if self.log is not nothing:
            self.log(f"{call} ends with {shown(result)}, moved {call.net}")
        net = {place: milli for place, milli in call.net.items() if milli}
        wanted = {place: milli for place, milli in call.wanted.items() if milli}
        gone = self.goners[call.since :] if call.since is not None else ()
        left = {place: milli for place, milli in net.items() if place[0] not in gone}
        # Whoever was cancelled cannot be told that an undo got no answer; everybody else is.
        lossy = call.undoes and call.faulty and not call.strict
        lossy = lossy and isinstance(result, asyncio.CancelledError)
        if isinstance(result, Verdict) and call.verb == "take":
            if result.allowed and net != wanted:
                self.fail("S4", f"{call} was allowed and moved {net}")
            if not result.allowed and left:
                self.fail("S6", f"{call} was refused and moved {net}")
            if not result.allowed and not call.refusable:
                self.fail("S2", f"{call} was refused, and fitted all the time")
        elif isinstance(result, Throttled | asyncio.CancelledError):
            if call.verb == "take" and left and not lossy:
                self.fail("S6", f"{call} ended with {type(result).__name__} and moved {net}")
        elif call.verb == "adjust" and not isinstance(result, BaseException) and call.metered:
            owed = {
                place: milli
                for place, milli in wanted.items()
                if result is not False and not (milli < 0 and place[0] in call.absent)
            }
            if any(net.get(place) != milli for place, milli in owed.items()) or (
                net.keys() - wanted.keys() or (result is False and net)
            ):
                self.fail("S4", f"{call} was done and moved {net}")

    def took(self, action: Action | None, demands: Any) -> None:
        """A caller was let in, or its debit done: the server must have it, or a pot beside it."""
        for place, milli in _places(demands):
            self.granted[place] += milli
            if action is not None:
                action.tab[place] = action.tab.get(place, 0) + milli
            self.check_granted(place)

    def returned(self, action: Action | None, demands: Any) -> None:
        """A caller gives back; whether it arrives or not, it is no longer the caller's."""
        for place, milli in _places(demands):
            self.granted[place] += milli
            if action is not None:
                left = action.tab[place] = action.tab.get(place, 0) + milli
                if left < 0:
                    self.fail("S4", f"event {action.event} gave back {-left} of {place} too much")

    def check_granted(self, place: Place) -> None:
        self.checks["grants"] += 1
        if self.granted[place] > self.landed[place]:
            self.fail(
                "S4", f"callers have {self.granted[place]} of {place}, the server gave "
                      f"{self.landed[place]}",
            )  # fmt: skip

    def refused_here(self, buckets: dict[str, Bucket], demands: Any, now_ms: int) -> None:
        """S2 for a layer that refused by itself: the server would have refused, too."""
        self.checks["local refusals"] += 1
        for demand in demands:
            eased_ms = self.eased_ms.get(demand.key.text, 0)
            if now_ms - eased_ms <= 4 * TRUST_MS:
                return
        if all(fits(buckets.get(demand.key.text, {}), demand, now_ms) for demand in demands):
            self.fail("S2", f"a layer refused {demands}, which fits")


def levels(bucket: Bucket, now_ms: int) -> str:
    """Per shard what its limits hold now."""
    return str({
        number: {
            limit: f"{part.level(now_ms)}/{part.capacity}" for limit, part in shard.parts.items()
        }
        for number, shard in bucket.items()
    })  # fmt: skip


def _fall(before: Bucket, after: Bucket, limit: str, moment_ms: int) -> int:
    """How many tokens a write took from shards that were and are, at its writer's moment; other
    limits begin at the epoch of those before, where that is later."""
    fall = 0
    for number in before.keys() | after.keys():
        old, new = part_in(before, number, limit), part_in(after, number, limit)
        if new is None or before.get(number) == after.get(number):
            continue
        at_ms = settled_ms(old, new, moment_ms)
        there = new.capacity if old is None else min(old.level(at_ms), new.capacity)
        fall += there - new.level(at_ms)
    return fall


def _places(demands: Any) -> list[tuple[Place, int]]:
    return [((one.key.text, limit), milli) for one in demands for limit, milli in one.counts()]
