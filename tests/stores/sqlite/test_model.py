"""Random programs, step by step on SQLite and on the reference model: the records are equal."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from headgate.core.decision import Demand, Verdict
from headgate.core.history import UsageQuery
from headgate.core.limits import Limit, Spec
from headgate.core.record import HOUR_MS, BucketKey, Record, Terms, full_at_ms
from headgate.core.runtime import run, wall_clock_ms
from headgate.stores.catalog import Backend
from headgate.stores.memory import open_memory
from headgate.stores.sqlite import CAPABILITIES
from headgate.stores.sqlite.bucket_table import BucketTable
from headgate.stores.sqlite.buckets import SqliteStore
from headgate.stores.sqlite.connection import BlockingSqlitePort
from headgate.stores.sqlite.ledger import SqliteLedger
from headgate.stores.sqlite.records import SqliteCatalog
from headgate.stores.sqlite.schema import SqliteTransaction

STEPS = 400
START_MS = 1_750_000_000_000
KEYS = [BucketKey("ns", entity, resource) for entity in ("a", "b", "a:b") for resource in "xy"]
HUGE = 2**53 - 1
POOL = (
    Limit.per_minute("rpm", 10),
    Limit.per_minute("rpm", 20, burst=40),
    Limit.per_second("rps", 3, soft=True),
    Limit.per_day("daily", 500),
    Limit.custom("once", 30, 0, 1),
    Limit.custom("huge", HUGE, HUGE, 10 * 366 * 24 * 3600),
    Limit.custom("odd", 7, 3, 11),
)


class StillShelf(BucketTable):
    """Never sweeps, so that even records without information can be compared."""

    def sweep_sometimes(self, connection: SqliteTransaction, now_ms: int) -> None:
        return None


def open_on(path: Path, shelf: BucketTable) -> Backend:
    port = BlockingSqlitePort(str(path), 5000, "off")
    store = SqliteStore(port, wall_clock_ms, shelf)
    ledger = SqliteLedger(port, wall_clock_ms, shelf)
    return Backend(store, SqliteCatalog(port), ledger, CAPABILITIES)


class Program:
    """The same random calls for two stores."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now_ms = START_MS
        self.gaps_ms = [0, 0, 1, 37, 900, 60_000, HOUR_MS, 40 * 24 * HOUR_MS, -250]
        self.steady = False
        self.version = 1
        self.terms = [self.new_terms() for _ in KEYS]

    def new_terms(self, *, own: bool = False) -> Terms:
        by_name = {limit.name: limit for limit in self.dice.sample(POOL, self.dice.randint(1, 4))}
        specs = tuple(limit.spec for limit in by_name.values())
        sources = tuple(self.dice.choice(("entity", "system")) for _ in specs)
        self.version += 1
        return Terms(specs, 0 if own else self.version, own=own, sources=sources)

    def pass_time(self) -> None:
        self.now_ms += self.dice.choice(self.gaps_ms)

    def terms_for(self, place: int) -> Terms:
        roll = 1.0 if self.steady else self.dice.random()
        held = self.terms[place]
        if roll < 0.06:
            self.terms[place] = self.new_terms()
            return held  # somebody whose cache is old
        if roll < 0.10:
            return self.new_terms(own=True)
        if roll < 0.20:  # another process: equal, not the same object
            return Terms(held.specs, held.version, own=held.own, sources=held.sources)
        return held

    def demands(self, *, signed: bool = False) -> list[Demand]:
        places = self.dice.sample(range(len(KEYS)), self.dice.choice((1, 1, 1, 2, 3)))
        return [self.demand(place, signed) for place in places]

    def demand(self, place: int, signed: bool) -> Demand:
        terms = self.terms_for(place)
        most = [min(spec.capacity_milli, 10**9) for spec in terms.specs]
        if signed:
            amounts = [self.dice.randint(-bound, bound * 2) for bound in most]
            if self.dice.random() < 0.3:
                amounts = [-abs(amount) for amount in amounts]
        else:
            amounts = [self.dice.randint(0, bound // 2) for bound in most]
        chosen = [amount if self.dice.random() < 0.8 else None for amount in amounts]
        return Demand(KEYS[place], terms, tuple(chosen))

    def step(self, stores: list[Any]) -> list[Any]:
        """What each store answered."""
        self.pass_time()
        now_ms = self.now_ms
        verb = self.dice.choice(("consume",) * 6 + ("adjust",) * 3 + ("forget",))
        if verb == "consume":
            demands = self.demands()
            return [told(run(store.consume(demands, now_ms))) for store in stores]
        if verb == "adjust":
            demands, metered = self.demands(signed=True), self.dice.random() < 0.7
            once = self.dice.choice((None, None, "k1", "k2"))
            return [
                run(store.adjust(demands, now_ms, metered=metered, once=once)) for store in stores
            ]
        keys = self.dice.sample(KEYS, 1)
        return [run(store.forget(keys)) for store in stores]


def told(verdict: Verdict) -> tuple[Any, ...]:
    return verdict.allowed, verdict.outdated, verdict.retry_after_ms, verdict.statuses


@pytest.mark.parametrize("seed", range(8))
def test_every_record_equals_the_reference(seed: int, tmp_path: Path) -> None:
    model, sqlite = open_memory(), open_on(tmp_path / "model.db", StillShelf())
    program = Program(seed)
    for step in range(STEPS):
        answers = program.step([model.store, sqlite.store])
        assert answers[0] == answers[1], step
        seen = [run(b.store.peek(KEYS, program.now_ms)).records for b in (model, sqlite)]
        assert seen[0] == seen[1], step
        assert [cores(r) for r in seen[0]] == [cores(r) for r in seen[1]], step
    assert pages(model, program.now_ms) == pages(sqlite, program.now_ms)
    run(sqlite.store.close())


def cores(record: Record | None) -> Any:
    """What equality of terms leaves out."""
    return record and (record[0].core.specs, record[0].sources)


def pages(backend: Backend, now_ms: int) -> list[Any]:
    """Listings and usage, by pages of odd sizes."""
    found: list[Any] = []
    for entity_id, resource in ((None, None), ("a", None), (None, "y"), ("a:b", "x"), ("no", "x")):
        cursor: str | None = None
        for _ in range(100):
            page = run(
                backend.store.find(
                    "ns", entity_id=entity_id, resource=resource, limit=2, cursor=cursor
                )
            )
            found.append(page)
            if (cursor := page.cursor) is None:
                break
        for window_type in (None, "daily"):
            asked = UsageQuery(entity_id, resource, window_type, limit=7)
            for _ in range(10_000):
                page = run(backend.ledger.usage("ns", asked, now_ms))
                found.append(page)
                if page.cursor is None:
                    break
                asked = UsageQuery(entity_id, resource, window_type, limit=7, cursor=page.cursor)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_expiry_gives_nothing_away(seed: int, tmp_path: Path) -> None:
    """S8: with rows swept at every write, verdicts are the reference's.

    A bucket opened anew counts its millitokens from another moment than one that was kept, so
    waits may differ by the time of one millitoken.
    """
    model, sqlite = open_memory(), open_on(tmp_path / "swept.db", BucketTable(sweep_every=1))
    program = Program(seed)
    program.gaps_ms.remove(-250)
    program.steady = True
    milli_ms = max(spec.period_ms / (spec.amount_milli or HUGE) for spec in map(spec_of, POOL))
    expired = 0
    for step in range(STEPS):
        kept, swept = program.step([model.store, sqlite.store])
        if isinstance(kept, tuple):
            assert kept[:2] == swept[:2], step
            assert (kept[2] is None) == (swept[2] is None), step
            assert abs((swept[2] or 0) - (kept[2] or 0)) <= milli_ms + 1, step
        records = [run(b.store.peek(KEYS, program.now_ms)).records for b in (model, sqlite)]
        for record, rest in zip(*records, strict=True):
            if record is not None and rest is None:
                expired += 1
                full_ms = full_at_ms(record)
                assert full_ms is not None
                assert full_ms <= program.now_ms
    assert expired > 0
    run(sqlite.store.close())


def spec_of(limit: Limit) -> Spec:
    return limit.spec
