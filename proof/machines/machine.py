"""Everything that may be asked of a store, as rules of a state machine, beside the exact model."""

from __future__ import annotations

from typing import Any

from hypothesis import reject, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headgate.core.decision import Demand, Verdict, credits_of
from headgate.core.limits import Limit
from headgate.core.record import TERMS, BucketKey, Record, Terms, cells_of
from headgate.core.runtime import run
from headgate.core.store import Store
from proof.machines.exact import Exact, Row, Spent, Told

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
GAPS_MS = (1, 3, 37, 400, 900, 1000, 60_000, 3_600_000, 40 * 86_400_000)

sets_of_limits = st.lists(
    st.sampled_from(POOL), min_size=1, max_size=3, unique_by=lambda limit: limit.name
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
        self.override = Terms(tuple(limit.spec for limit in limits), own=True)

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
            if record is not None and self.lazy_versions:
                self._learn_version(key, record[TERMS].version)
            seen, expected = self.seen(record), self.expected(key)
            same = seen.keys() == expected.keys() and all(
                self._same(seen[name], expected[name]) for name in expected
            )
            assert same, f"{key} is {seen}, not {expected}"

    def teardown(self) -> None:
        if hasattr(self, "store"):
            run(self.store.close())

    def _learn_version(self, key: BucketKey, version: int) -> None:
        bucket = self.exact.buckets.get(key)
        if bucket is not None and version < bucket.version:
            bucket.version = version

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
        pairs = list(zip(told, expected, strict=True))
        return all(
            one.name == other.name
            and abs(one.available - other.available) <= 1
            and abs((one.wait_ms or 0) - (other.wait_ms or 0)) <= other.step_ms * self.slack_milli
            for one, other in pairs
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
        gauges = {name: gauge.now(self.now_ms) for name, gauge in bucket.gauges.items()}
        cells = {
            name: (gauge.spec, int(gauge.level // 1), gauge.consumed)
            for name, gauge in gauges.items()
        }
        return {"version": bucket.version, **cells}

    def _terms(self, limits: list[Limit]) -> Terms:
        self.version += 1
        specs = tuple(limit.spec for limit in limits)
        return Terms(specs, self.version, sources=("system",) * len(specs))

    def _demand(self, place: int, caller: str, line: tuple[Any, ...], sign: int = 1) -> Demand:
        terms = self._terms_for(place, caller)
        amounts = tuple(
            None if share is None else sign * -(-spec.capacity_milli * share // 100_000) * 1000
            for spec, share in zip(terms.specs, line, strict=False)
        )
        return Demand(KEYS[place], terms, amounts)

    def _terms_for(self, place: int, caller: str) -> Terms:
        if caller == "own":
            return self.override
        if caller == "stale":
            return self.stale[place]
        held = self.fresh[place]
        if caller == "twin":  # another process: equal, not the same object
            return Terms(held.specs, held.version, own=held.own, sources=held.sources)
        return held


def steady(examples: int, steps: int = 40) -> settings:
    """The same programs every time; a search for new ones raises the numbers."""
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
    )
