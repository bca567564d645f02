"""Random programs, step by step on SQLite and on the reference model: the records are equal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.core.decision import Demand, Verdict
from headgate.core.errors import NamespaceNotFoundError, NamespaceStateError
from headgate.core.history import UsageQuery
from headgate.core.limits import Limit, Spec
from headgate.core.record import BucketKey, Record, Terms, full_at_ms
from headgate.core.runtime import run, wall_clock_ms
from headgate.stores.catalog import Backend
from headgate.stores.memory import open_memory
from headgate.stores.sqlite import CAPABILITIES, open_sqlite, records
from headgate.stores.sqlite.bucket_table import BucketTable
from headgate.stores.sqlite.buckets import SqliteStore
from headgate.stores.sqlite.connection import BlockingSqlitePort
from headgate.stores.sqlite.ledger import SqliteLedger
from headgate.stores.sqlite.records import SqliteCatalog, SqliteRecords
from headgate.stores.sqlite.schema import SqliteTransaction
from tests.stores.catalog_suite import NOW_MS, CatalogModel, Pair
from tests.stores.programs import KEYS, Program

STEPS = 400
HUGE = 2**53 - 1
POOL = (
    Limit.per_minute("rpm", 10),
    Limit.per_minute("rpm", 20, burst=40),
    Limit.per_second("rps", 3, soft=True),
    Limit.per_day("daily", 500),
    Limit.custom("once", 30, 0, 1),
    Limit.custom("huge", HUGE, HUGE, 10 * 366 * 24 * 3600),
    Limit.custom("odd", 7, 3, 11),
    Limit.quota("daily", 300, every="day", tz="America/New_York"),
    Limit.quota("monthly", 50, cron="0 6 1,15 * *", tz="Europe/Berlin"),
    Limit.quota("session", 20, reset_after=60),
)


class StillTable(BucketTable):
    """Never sweeps, so that even records without information can be compared."""

    def sweep_sometimes(self, connection: SqliteTransaction, now_ms: int) -> None:
        return None


def open_on(path: Path, table: BucketTable) -> Backend:
    port = BlockingSqlitePort(str(path), 5000, "off")
    store = SqliteStore(port, wall_clock_ms, table)
    ledger = SqliteLedger(port, wall_clock_ms, table)
    return Backend(store, SqliteCatalog(port), ledger, CAPABILITIES)


def told(verdict: Verdict) -> tuple[Any, ...]:
    return verdict.allowed, verdict.outdated, verdict.retry_after_ms, verdict.statuses


@pytest.mark.parametrize("seed", range(8))
def test_every_record_equals_the_reference(seed: int, tmp_path: Path) -> None:
    model, sqlite = open_memory(), open_on(tmp_path / "model.db", StillTable())
    program = Program(seed, POOL, told)
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
    program = Program(seed, POOL, told)
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
                assert full_ms <= program.now_ms
    assert expired > 0
    run(sqlite.store.close())


def spec_of(limit: Limit) -> Spec:
    return limit.spec


# The catalog on SQLite against the reference model, and a purge that was cut short.


def catalog_at(folder: Path, *, blocking: bool = True) -> Backend:
    path = str(folder / "catalog.db")
    return open_sqlite(path, clock=None, blocking=blocking, timeout_ms=5000, synchronous="off")


class TestModel(CatalogModel):
    @pytest.fixture
    def pair(self, tmp_path: Path) -> Iterator[Pair]:
        backend = catalog_at(tmp_path)
        yield Pair(open_memory(), backend)
        run(backend.store.close())

    @pytest.fixture
    def small_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A transaction takes all there is of a family, and much of a plan's."""
        monkeypatch.setattr(records, "ENTITIES_PER_STEP", 3)


def test_a_purge_that_was_cut_short_is_finished_by_the_next(tmp_path: Path) -> None:
    backend = catalog_at(tmp_path)
    namespace = run(backend.catalog.register_namespace("team", None, NOW_MS)).id
    terms = Terms((Limit.per_minute("rpm", 10).spec,))
    for n in range(20):
        key = BucketKey(namespace, f"e{n}", "x")
        run(backend.store.consume([Demand(key, terms, (1000,))], NOW_MS))
    run(backend.catalog.delete_namespace("team", None, NOW_MS))
    port = BlockingSqlitePort(str(tmp_path / "catalog.db"), 5000, "off")
    run(SqliteCatalog(port).begin_purge(namespace))
    gone, done = run(SqliteRecords(port).purge_some(namespace, 8))
    assert (gone, done) == (10, False)  # eight buckets and both audit events
    with pytest.raises(NamespaceStateError, match="purge it again"):
        run(backend.catalog.recover_namespace(namespace, None, NOW_MS))
    assert [n.id for n in run(backend.catalog.list_namespaces(state="deleted"))] == [namespace]
    assert run(backend.catalog.purge_namespace(namespace, None, NOW_MS)) == 13
    with pytest.raises(NamespaceNotFoundError):
        run(backend.catalog.purge_namespace(namespace, None, NOW_MS))
    run(port.close())
    run(backend.store.close())
