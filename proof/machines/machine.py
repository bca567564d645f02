"""Everything that may be asked of a store, as rules of a state machine, beside an exact model.

The model tells buckets exactly: levels are rational numbers, and nothing is shared with the
arithmetic of headgate. No epoch, no stored tokens, no floor before somebody looks. The clock never
goes back here; what a clock that does may do is said in the laws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil, floor
from typing import Any, NamedTuple

from hypothesis import reject, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headgate.core.decision import Demand, Verdict, credits_of
from headgate.core.limits import Limit, Spec
from headgate.core.record import TERMS, BucketKey, Record, Terms, cells_of
from headgate.core.runtime import run
from headgate.core.store import Store


@dataclass
class Row:
    """What a caller is told about one limit; and, of a row that was worked out, how many
    millitokens were missing and how long one takes to arrive."""

    name: str
    available: int
    exceeded: bool
    wait_ms: int | None
    missing: Fraction = field(default=Fraction(0), compare=False)
    step_ms: int = field(default=0, compare=False)


class Told(NamedTuple):
    allowed: bool
    outdated: bool
    rows: list[Row]


class Spent(NamedTuple):
    """A demand that was admitted, and the soft limits it passed."""

    demand: Demand
    passed: set[str]


@dataclass(frozen=True)
class Gauge:
    """One limit: its level at a moment, and what was consumed of it in all.

    A quota is reset every `window_ms`: at whole multiples of it, or of a session counted from
    `begun_ms`, the first take of a full one. What calendars are is tried elsewhere.
    """

    spec: Spec
    level: Fraction
    at_ms: int
    consumed: int = 0
    begun_ms: int = 0

    @property
    def window_ms(self) -> int | None:
        """How far its resets are apart, if it is a quota."""
        return None if self.spec.resets is None else WINDOWS_MS[self.spec.resets]

    @property
    def is_session(self) -> bool:
        return self.spec.resets is not None and self.spec.resets.startswith("session")

    def window(self, at_ms: int) -> int:
        """The number of the window that a moment is in."""
        return (at_ms - self.begun_ms * self.is_session) // (self.window_ms or 1)

    @property
    def per_ms(self) -> Fraction:
        return Fraction(self.spec.amount_milli, self.spec.period_ms)

    def now(self, now_ms: int) -> Gauge:
        """The same gauge, read later."""
        arrived = self.per_ms * max(0, now_ms - self.at_ms)
        if self.window_ms is not None:
            passed = self.window(now_ms) - self.window(self.at_ms)
            arrived = Fraction(passed * self.spec.capacity_milli)
        level = min(Fraction(self.spec.capacity_milli), self.level + arrived)
        return replace(self, level=level, at_ms=now_ms)

    def less(self, amount: int) -> Gauge:
        level = min(Fraction(self.spec.capacity_milli), self.level - amount)
        was_full = self.level == self.spec.capacity_milli
        return replace(self, level=level, begun_ms=self.at_ms if was_full else self.begun_ms)

    def counted(self, amount: int) -> Gauge:
        return replace(self, consumed=self.consumed + amount)

    def under(self, spec: Spec) -> Gauge:
        """The level goes along, cut at the brim. A part of a millitoken that is under way becomes
        whole milliseconds at the new pace, and is nothing where a limit was full."""
        whole, part = floor(self.level), self.level - floor(self.level)
        after = replace(self, spec=spec)
        if spec.rate == self.spec.rate:
            return after
        if self.is_session and after.is_session and self.level < self.spec.capacity_milli:
            part_ms = (self.at_ms - self.begun_ms) % (self.window_ms or 1)
            part_ms = part_ms * (after.window_ms or 1) // (self.window_ms or 1)
        else:
            part_ms = 0
        after = replace(after, begun_ms=self.at_ms - part_ms)
        if whole >= min(self.spec.capacity_milli, spec.capacity_milli):
            level = Fraction(min(whole, spec.capacity_milli))
            return replace(after, level=level, begun_ms=self.at_ms)
        if spec.resets is not None or self.spec.resets is not None:
            return replace(after, level=Fraction(whole))
        if after.per_ms == self.per_ms:
            return after
        begun = floor(part / after.per_ms) * after.per_ms if after.per_ms else 0
        return replace(after, level=whole + Fraction(begun))

    def row(self, wanted: int, after: Gauge) -> Row:
        missing = wanted - self.level
        wait_ms: int | None = 0
        if missing > 0:
            wait_ms = None if wanted > self.spec.capacity_milli else self._wait_ms(missing)
        left, step_ms = floor(after.level) // 1000, ceil(1 / self.per_ms) if self.per_ms else 0
        return Row(self.spec.name, left, wait_ms != 0, wait_ms, Fraction(missing), step_ms)

    def _wait_ms(self, missing: Fraction) -> int | None:
        if self.window_ms is not None:
            window = self.window(self.at_ms) + ceil(missing / self.spec.capacity_milli)
            return window * self.window_ms + self.begun_ms * self.is_session - self.at_ms
        return ceil(missing / self.per_ms) if self.per_ms else None


@dataclass
class Bucket:
    """All limits that a bucket knows, also those that nobody asks for at present."""

    terms: Terms
    version: int
    gauges: dict[str, Gauge]


class Exact:
    """The store as it should be."""

    def __init__(self) -> None:
        self.buckets: dict[BucketKey, Bucket] = {}
        self._once: dict[tuple[str, str], int] = {}
        self.spent: list[Spent] = []  # by the last call that was allowed

    def consume(self, demands: Sequence[Demand], now_ms: int) -> Told:
        held = [self._held(demand, now_ms) for demand in demands]
        taken = [_taken(bucket, demand) for bucket, demand in zip(held, demands, strict=True)]
        allowed = None not in taken
        rows: list[Row] = []
        outdated = False
        for demand, bucket, gauges in zip(demands, held, taken, strict=True):
            after = gauges if allowed and gauges is not None else bucket.gauges
            rows += [
                bucket.gauges[name].row(wanted, after[name])
                for name, wanted in demand.named()
                if name in bucket.gauges
            ]
            outdated = outdated or (not demand.terms.own and demand.terms.version < bucket.version)
            if allowed or demand.key in self.buckets:
                self.buckets[demand.key] = replace(bucket, gauges=after)
        if allowed:
            self.spent = [
                Spent(
                    demand,
                    {name for name, wanted in demand.named() if _passes(bucket, name, wanted)},
                )
                for demand, bucket in zip(demands, held, strict=True)
            ]
        return Told(allowed, outdated, rows)

    def undo(self, spent: Sequence[Spent], now_ms: int) -> None:
        """What was taken comes back; what was only counted is counted no longer."""
        for demand, passed in spent:
            if demand.key not in self.buckets:
                continue
            bucket = self._held(demand, now_ms)
            for limit, amount in demand.named():
                if limit in bucket.gauges:
                    gauge = bucket.gauges[limit].counted(-amount)
                    bucket.gauges[limit] = gauge if limit in passed else gauge.less(-amount)
            self.buckets[demand.key] = bucket

    def adjust(
        self, demands: Sequence[Demand], now_ms: int, *, metered: bool, once: str | None
    ) -> bool:
        if once is not None:
            name = (demands[0].key.namespace, once)
            if self._once.get(name, now_ms) > now_ms:
                return False
            self._once[name] = now_ms + 86_400_000
        for demand in demands:
            gives_only = all(amount <= 0 for _, amount in demand.named())
            if gives_only and demand.key not in self.buckets:
                continue
            bucket = self._held(demand, now_ms)
            for limit, amount in demand.named():
                if limit in bucket.gauges:
                    gauge = bucket.gauges[limit].less(amount)
                    bucket.gauges[limit] = gauge.counted(amount) if metered else gauge
            self.buckets[demand.key] = bucket
        return True

    def forget(self, key: BucketKey) -> None:
        self.buckets.pop(key, None)

    def full(self, key: BucketKey, now_ms: int) -> bool:
        """Whether the bucket carries no information: it may be gone without anybody noticing."""
        return all(
            gauge.now(now_ms).level == gauge.spec.capacity_milli
            for gauge in self.buckets[key].gauges.values()
        )

    def _held(self, demand: Demand, now_ms: int) -> Bucket:
        """A copy of the bucket at this moment, under the terms that count."""
        found, asked = self.buckets.get(demand.key), demand.terms
        if found is None:
            return Bucket(
                asked, asked.version, {spec.name: _fresh(spec, now_ms) for spec in asked.specs}
            )
        gauges = {name: gauge.now(now_ms) for name, gauge in found.gauges.items()}
        if not asked.own and asked.version < found.version:
            return Bucket(found.terms, found.version, gauges)
        for spec in asked.specs:
            gauge = gauges.get(spec.name)
            gauges[spec.name] = _fresh(spec, now_ms) if gauge is None else gauge.under(spec)
        return Bucket(asked, max(found.version, asked.version), gauges)


def _fresh(spec: Spec, now_ms: int) -> Gauge:
    return Gauge(spec, Fraction(spec.capacity_milli), now_ms)


def _passes(bucket: Bucket, name: str, wanted: int) -> bool:
    gauge = bucket.gauges.get(name)
    return gauge is not None and gauge.spec.soft and wanted > gauge.level


def _taken(bucket: Bucket, demand: Demand) -> dict[str, Gauge] | None:
    after = dict(bucket.gauges)
    for name, wanted in demand.named():
        gauge = after.get(name)
        if gauge is None:
            continue
        if wanted <= gauge.level:
            gauge = gauge.less(wanted)
        elif not gauge.spec.soft:
            return None
        after[name] = gauge.counted(wanted)
    return after


START_MS = 1_767_225_600_000
KEYS = [BucketKey("spaceship-1", entity, "r") for entity in ("a", "b", "a:b")]
POOL = (
    Limit.per_minute("rpm", 10),
    Limit.per_minute("rpm", 20, burst=40),
    Limit.per_second("rpm", 7, soft=True),
    Limit.per_day("daily", 500),
    Limit.custom("daily", 3, 1, 604_800),
    Limit.custom("once", 30, 0, 1),
    Limit.custom("once", 40, 0, 60),
    Limit.custom("odd", 7, 3, 11),
    Limit.custom("odd", 5, 7, 13),
    Limit.custom("odd", 6, 5, 17, soft=True),
    Limit.custom("many", 2 * 10**11, 10**9 + 7, 3600),
)
# Quotas, and what a store has in their place that keeps none.
QUOTAS = {
    Limit.quota("daily", 40, every="day"): POOL[3],
    Limit.quota("once", 25, reset_after=45): POOL[5],
    Limit.quota("once", 30, reset_after=3600): POOL[6],
    Limit.quota("odd", 9, cron="0 * * * *", soft=True): POOL[9],
    Limit.quota("odd", 12, reset_after=7): POOL[7],
    Limit.quota("rpm", 8, cron="0 * * * *"): POOL[0],
}
WINDOWS_MS = {
    "calendar day UTC": 86_400_000,
    "session 45s": 45_000,
    "session 3600s": 3_600_000,
    "cron 0 * * * * UTC": 3_600_000,
    "session 7s": 7000,
}
GAPS_MS = (1, 3, 37, 400, 900, 1000, 60_000, 3_600_000, 40 * 86_400_000)

sets_of_limits = st.lists(
    st.sampled_from((*POOL, *QUOTAS)), min_size=1, max_size=3, unique_by=lambda limit: limit.name
)
places = st.integers(0, len(KEYS) - 1)
callers = st.sampled_from(("fresh", "fresh", "fresh", "twin", "stale", "own"))
shares = st.one_of(st.none(), st.sampled_from((0, 1, 1, 33, 50, 100)))  # per cent of a capacity
sizes = st.sampled_from((0, 1, 1, 33, 50, 100))
some = st.sampled_from((1, 33, 50, 100))
parts = st.tuples(places, callers, st.tuples(sizes, shares, shares))
changes = st.tuples(places, callers, st.tuples(some, shares, shares))
asked = st.lists(parts, min_size=1, max_size=3, unique_by=lambda part: part[0])
changed = st.lists(changes, min_size=1, max_size=3, unique_by=lambda part: part[0])


class StoreMachine(RuleBasedStateMachine):
    """`opened` gives the store. Where one epoch serves all limits of a bucket, a level is known to
    the millitoken only and `slack_milli` says so; what is told may differ by as much."""

    slack_milli = 0
    expires_ms = 0  # from when on a full bucket is made anew rather than written to; 0 is never
    lazy_versions = False  # whether a refusal notes a newer version only along with new limits
    leaves_traces = False  # whether what was taken and given back leaves a full bucket
    keeps_quotas = True

    def opened(self) -> Store:
        raise NotImplementedError

    @initialize(limits=st.lists(sets_of_limits, min_size=len(KEYS), max_size=len(KEYS)))
    def begin(self, limits: list[list[Limit]]) -> None:
        self.store = self.opened()
        self.exact = Exact()
        self.now_ms = START_MS
        self.version = 0
        self.refused: tuple[list[Demand], int] | None = None
        self.admitted: list[tuple[Verdict, list[Spent]]] = []
        self.fresh = [self._terms(one) for one in limits]
        self.stale = list(self.fresh)
        self.override = Terms((POOL[0].spec,), own=True)

    @rule(wanted=asked)
    def consume(self, wanted: list[Any]) -> None:
        demands = [self._demand(*part) for part in wanted]
        self._ask(demands)

    @rule(early=st.booleans())
    def insist(self, early: bool) -> None:
        """The last that was refused again, when it may pass or one millisecond before."""
        if self.refused is not None:
            demands, wait_ms = self.refused
            self._pass(wait_ms - early)
            self._ask(demands)

    def _ask(self, demands: list[Demand]) -> None:
        verdict = run(self.store.consume(demands, self.now_ms))
        told = self.told(verdict)
        expected = self.exact.consume(demands, self.now_ms)
        if self._answers(told) != self._answers(expected) and self.slack_milli:
            assert self._at_the_border(expected), f"told {told}, not {expected}"
            reject()  # both are right from here on, and go apart
        assert told[:2] == expected[:2], f"told {told}, not {expected}"
        assert self._alike(told.rows, expected.rows), f"told {told}, not {expected}"
        waits_ms = [row.wait_ms for row in expected.rows if row.wait_ms]
        self.refused = None if expected.allowed or not waits_ms else (demands, max(waits_ms))
        if expected.allowed:
            self.admitted.append((verdict, self.exact.spent))
            passed = {
                (place, name) for place, one in enumerate(self.exact.spent) for name in one[1]
            }
            assert set(verdict.untaken) == passed, f"passed {verdict.untaken}, not {passed}"

    @rule(last=st.booleans())
    def take_back(self, last: bool) -> None:
        """One of those that were admitted fails, and all it took is refunded."""
        if self.admitted:
            verdict, spent = self.admitted.pop(-1 if last else 0)
            run(self.store.adjust(credits_of(verdict), self.now_ms))
            self.exact.undo(spent, self.now_ms)

    @rule(
        wanted=changed,
        sign=st.sampled_from((1, -1, 2)),
        metered=st.booleans(),
        once=st.sampled_from((None, None, None, "k1", "k2")),
    )
    def adjust(self, wanted: list[Any], sign: int, metered: bool, once: str | None) -> None:
        if once is not None:  # a key is for one entity, as in top_up
            wanted = wanted[:1]
            once = f"{once} of {wanted[0][0]}"
        demands = [self._demand(*part, sign=sign) for part in wanted]
        done = run(self.store.adjust(demands, self.now_ms, metered=metered, once=once))
        assert done == self.exact.adjust(demands, self.now_ms, metered=metered, once=once)

    @rule(place=places)
    def forget(self, place: int) -> None:
        run(self.store.forget([KEYS[place]]))
        self.exact.forget(KEYS[place])

    @rule(gap_ms=st.sampled_from(GAPS_MS))
    def wait(self, gap_ms: int) -> None:
        self._pass(gap_ms)

    def _pass(self, gap_ms: int) -> None:
        self.now_ms += gap_ms
        for key in list(self.exact.buckets):
            if self.expires_ms and self.exact.full(key, self.now_ms - self.expires_ms):
                run(self.store.forget([key]))  # it may be gone or not; now it is
                self.exact.forget(key)

    @rule(place=places, limits=sets_of_limits)
    def configure(self, place: int, limits: list[Limit]) -> None:
        """A newer version is there; whoever is stale still comes with the one before."""
        self.stale[place], self.fresh[place] = self.fresh[place], self._terms(limits)

    @rule(limits=sets_of_limits)
    def choose_an_override(self, limits: list[Limit]) -> None:
        self.override = Terms(tuple(self._kept(limit).spec for limit in limits), own=True)

    def _kept(self, limit: Limit) -> Limit:
        return limit if self.keeps_quotas else QUOTAS.get(limit, limit)

    @invariant()
    def buckets_are_as_they_should_be(self) -> None:
        if not hasattr(self, "exact"):
            return
        sighting = run(self.store.peek(KEYS, self.now_ms))
        assert sighting.now_ms == self.now_ms
        for key, record in zip(KEYS, sighting.records, strict=True):
            if record is None and key in self.exact.buckets:
                assert self.exact.full(key, self.now_ms), f"{key} is gone, and was not full"
                self.exact.forget(key)
            if record is not None and key not in self.exact.buckets and self.leaves_traces:
                self._check_trace(key, record)
                continue
            bucket = self.exact.buckets.get(key)
            if record is not None and bucket is not None and self.lazy_versions:
                bucket.version = min(bucket.version, record[TERMS].version)
            seen, expected = self.seen(record), self.expected(key)
            same = seen.keys() == expected.keys() and all(
                self._same(seen[name], expected[name]) for name in expected
            )
            assert same, f"{key} is {seen}, not {expected}"

    def teardown(self) -> None:
        if hasattr(self, "store"):
            run(self.store.close())

    def _check_trace(self, key: BucketKey, record: Record) -> None:
        """A bucket that says no more than none would; it goes, so that both begin alike."""
        for cell in cells_of(record):
            assert cell.level_milli(self.now_ms) == cell.spec.capacity_milli
            assert cell.consumed_milli == 0
        run(self.store.forget([key]))

    def _same(self, seen: Any, expected: Any) -> bool:
        if isinstance(seen, int):
            return bool(seen == expected)
        close = abs(seen[1] - expected[1]) <= self.slack_milli
        return close and seen[0] == expected[0] and seen[2] == expected[2]

    def _alike(self, told: list[Row], expected: list[Row]) -> bool:
        if not self.slack_milli:
            return told == expected
        return all(
            one.name == other.name
            and abs(one.available - other.available) <= 1
            and abs((one.wait_ms or 0) - (other.wait_ms or 0)) <= other.step_ms * self.slack_milli
            for one, other in zip(told, expected, strict=True)
        )

    def _answers(self, told: Told) -> tuple[bool, ...]:
        """Whether it passed, and whether each limit had enough: a soft one that had not gives
        nothing."""
        return (told.allowed, *(row.exceeded for row in told.rows))

    def _at_the_border(self, expected: Told) -> bool:
        """Whether some limit has what is wanted, give or take what the store cannot know."""
        return any(-self.slack_milli <= row.missing <= self.slack_milli for row in expected.rows)

    def told(self, verdict: Verdict) -> Told:
        rows = [
            Row(one.limit_name, one.available, one.exceeded, one.retry_after_ms)
            for one in verdict.statuses
        ]
        return Told(verdict.allowed, verdict.outdated, rows)

    def seen(self, record: Record | None) -> dict[str, Any]:
        if record is None:
            return {}
        cells = {
            cell.spec.name: (cell.spec, cell.level_milli(self.now_ms), cell.consumed_milli)
            for cell in cells_of(record)
        }
        return {"version": record[TERMS].version, **cells}

    def expected(self, key: BucketKey) -> dict[str, Any]:
        bucket = self.exact.buckets.get(key)
        if bucket is None:
            return {}
        cells = {
            name: (gauge.spec, floor(gauge.now(self.now_ms).level), gauge.consumed)
            for name, gauge in bucket.gauges.items()
        }
        return {"version": bucket.version, **cells}

    def _terms(self, limits: list[Limit]) -> Terms:
        self.version += 1
        specs = tuple(self._kept(limit).spec for limit in limits)
        return Terms(specs, self.version, sources=("system",) * len(specs))

    def _demand(self, place: int, caller: str, line: tuple[Any, ...], sign: int = 1) -> Demand:
        terms = self._terms_for(place, caller)
        amounts = tuple(
            None if share is None else sign * -(-spec.capacity_milli * share // 100_000) * 1000
            for spec, share in zip(terms.specs, line, strict=False)
        )
        return Demand(KEYS[place], terms, amounts)

    def _terms_for(self, place: int, caller: str) -> Terms:
        held = self.fresh[place]
        if caller == "twin":  # another process: equal, not the same object
            return Terms(held.specs, held.version, own=held.own, sources=held.sources)
        return {"own": self.override, "stale": self.stale[place]}.get(caller, held)


def steady(examples: int, steps: int = 40) -> settings:
    """The same programs every time; a search for new ones raises the numbers."""
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
    )
