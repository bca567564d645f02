"""The file's shape: migrated step by step, by many at once, and small where it is hot."""

from __future__ import annotations

import re
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headgate.core.decision import Demand
from headgate.core.history import UsageQuery, audit_event
from headgate.core.levels import Entity
from headgate.core.limits import Limit
from headgate.core.record import CELLS, HOUR_MS, BucketKey, Record, Terms
from headgate.core.runtime import run
from headgate.stores.catalog import Backend
from headgate.stores.sqlite import bucket_table, open_sqlite, schema
from headgate.stores.sqlite import records as sqlite_records
from headgate.stores.sqlite.rows import event_as_row
from headgate.stores.sqlite.schema import named_queries

NOW_MS = 1_750_000_000_000
KEY = BucketKey("ns", "one", "x")
TERMS = Terms((Limit.per_minute("rpm", 10).spec,), 1)
FILES = ("buckets.sql", "catalog.sql", "expiring.sql", "ledger.sql")


def opened(path: Path) -> Backend:
    return open_sqlite(
        str(path), clock=None, blocking=True, timeout_ms=20_000, synchronous="normal"
    )


def make_file(path: Path, version: int = schema.SCHEMA_VERSION) -> None:
    """A file as a headgate with this schema leaves it, with a bucket in it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for step in schema.MIGRATIONS[: version - schema.OLDEST_VERSION + 1]:
            for statement in step:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {version}")
        text = '[1,false,1,[["rpm",10000,10000,60000,false]],["override"]]'
        cells = f"[{NOW_MS}, 3000, 7000, 0]"
        row = ("ns", "one", "x", text, NOW_MS // HOUR_MS, 7, 1, NOW_MS + 42_000, cells)
        connection.execute(
            "INSERT INTO buckets (namespace, entity_id, resource, terms, hour, events, uncounted, "
            "full_at_ms, cells) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            row,
        )


def add_step(patch: pytest.MonkeyPatch, *statements: str) -> None:
    """A made-up step to a next schema."""
    patch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, list(statements)])
    following = schema.SCHEMA_VERSION + 1
    for module in (schema, sqlite_records):
        patch.setattr(module, "SCHEMA_VERSION", following)


def shape(path: Path) -> tuple[Any, ...]:
    with closing(sqlite3.connect(path)) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()
        application = connection.execute("PRAGMA application_id").fetchone()
        rows = connection.execute("SELECT sql FROM sqlite_schema ORDER BY name").fetchall()
    return version, application, rows


def record_of(backend: Backend, key: BucketKey = KEY) -> Record | None:
    return run(backend.store.peek([key], NOW_MS)).records[0]


def test_an_older_file_is_migrated_with_all_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_file(tmp_path / "old.db")
    add_step(
        monkeypatch,
        "CREATE TABLE made_up (a)",
        "INSERT INTO made_up SELECT entity_id FROM buckets",
    )
    fresh = opened(tmp_path / "fresh.db")
    backend = opened(tmp_path / "old.db")
    assert record_of(backend) == (TERMS, NOW_MS // HOUR_MS, 7, None, NOW_MS, 3000, 7000, 0)
    assert run(backend.catalog.get_version_record()) == {"schema_version": schema.SCHEMA_VERSION}
    assert run(backend.store.find("ns", resource="x", limit=5)).items == (KEY,)
    run(fresh.catalog.prepare())
    assert shape(tmp_path / "old.db") == shape(tmp_path / "fresh.db")
    assert not run(backend.store.consume([Demand(KEY, TERMS, (4000,))], NOW_MS)).allowed
    for one in (backend, fresh):
        run(one.store.close())
    with closing(sqlite3.connect(tmp_path / "old.db")) as connection:
        assert connection.execute("SELECT a FROM made_up").fetchall() == [("one",)]


def test_usage_of_a_file_without_what_cascaded_keeps_its_meaning(tmp_path: Path) -> None:
    """Rows of older versions have no part from children; what comes later has."""
    path = tmp_path / "old.db"
    make_file(path, schema.OLDEST_VERSION)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        day_ms = NOW_MS // 86_400_000 * 86_400_000
        row = ("ns", day_ms, "daily", "one", "x", '{"rpm":90000}', 90)
        connection.execute("INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    backend = opened(path)
    child = Demand(KEY, TERMS, (1000,), cascaded=(1000,))
    assert run(backend.store.consume([child], NOW_MS)).allowed
    [shot] = run(backend.ledger.usage("ns", UsageQuery(window_type="daily"), NOW_MS)).items
    assert (shot.counters, shot.total_events) == ({"rpm": 98}, 98)
    assert (shot.from_children, shot.events_from_children) == ({"rpm": 1}, 1)
    run(backend.store.close())


def test_entities_of_a_file_without_plans_are_on_none(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    make_file(path, schema.OLDEST_VERSION + 2)
    body = '{"name":null,"cascade":false,"metadata":{},"mode":"normal","created_ms":7}'
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("INSERT INTO namespaces VALUES ('ns', 'team', 'active', 3, 1, NULL)")
        connection.execute("INSERT INTO entities VALUES ('ns', 'ann', NULL, 1, ?)", (body,))
    backend = opened(path)
    catalog = backend.catalog
    assert run(catalog.get_entity("ns", "ann")) == Entity("ann", created_ms=7)
    run(catalog.set_plan("ns", "pro", None, (Limit.per_minute("rpm", 1),), None, 9))
    run(catalog.update_entity("ns", "ann", {"plan": "pro"}, None, 9))
    found = run(catalog.get_plan("ns", "pro"))
    assert found is not None
    assert found.entities == 1
    run(backend.store.close())


def test_many_may_migrate_one_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "race.db"
    backends = [opened(path) for _ in range(8)]
    start = threading.Barrier(8)

    def prepare(backend: Backend) -> None:
        start.wait()
        run(backend.catalog.prepare())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(prepare, backends))  # raises what one of them met
    for backend in backends:
        run(backend.store.close())


def test_a_migration_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "half.db"
    make_file(path)
    before = shape(path)
    add_step(monkeypatch, "CREATE TABLE half (a)", "CREATE TABLE half (a)")
    backend = opened(path)
    with pytest.raises(Exception, match="already exists"):
        run(backend.catalog.prepare())
    assert shape(path) == before
    monkeypatch.undo()
    assert record_of(backend) is not None
    run(backend.store.close())


def test_a_file_of_an_older_headgate_has_its_events_in_the_log(tmp_path: Path) -> None:
    """Its index comes with the migration, and what was written before is in it."""
    path = tmp_path / "older.db"
    events = [audit_event(NOW_MS + n, "noted", "ab"[n % 2], "me", n=n) for n in range(5)]
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in schema.MIGRATIONS[0]:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {schema.OLDEST_VERSION}")
        for event in events:
            row = event_as_row("ns", event)
            connection.execute("INSERT INTO audit VALUES (?, ?, ?, ?, ?)", row)
    backend = opened(path)
    run(backend.catalog.prepare())
    assert run(backend.ledger.audit("ns", None, limit=9, before=None)) == events[::-1]
    assert run(backend.ledger.audit("ns", "a", limit=9, before=None)) == events[::-2]
    run(backend.store.close())


def test_every_query_is_a_search(tmp_path: Path) -> None:
    """No listing walks through rows it does not return, however large the file has grown."""
    backend = opened(tmp_path / "plan.db")
    run(backend.catalog.prepare())
    few = {"namespaces"}  # it lists all there is
    with closing(sqlite3.connect(tmp_path / "plan.db")) as connection:
        for file in FILES:
            for name, sql in named_queries(file).items():
                named = set(re.findall(r":(\w+)", sql))
                values: Any = dict.fromkeys(named, 1) if named else [1] * sql.count("?")
                rows = connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)
                plan = [row[3] for row in rows]
                if name not in few:
                    assert not [step for step in plan if "SCAN" in step], name
                    assert not [step for step in plan if "TEMP B-TREE" in step], name
    run(backend.store.close())


def test_full_buckets_go_and_their_usage_stays(tmp_path: Path) -> None:
    backend = opened(tmp_path / "sweep.db")
    never = Terms((Limit.custom("gift", 5, 0, 1).spec,), 1)
    kept = BucketKey("ns", "e050x", "x")
    run(backend.store.consume([Demand(kept, never, (1000,))], NOW_MS))
    keys = [BucketKey("ns", f"e{n:03d}", "x") for n in range(300)]
    for key in keys:
        run(backend.store.consume([Demand(key, TERMS, (1000,))], NOW_MS))
    later_ms = NOW_MS + 10 * HOUR_MS
    for _ in range(40 * bucket_table.SWEEP_EVERY):
        run(backend.store.adjust([Demand(KEY, TERMS, (1,))], later_ms))
    left = run(backend.store.find("ns", limit=1000)).items
    assert left == (kept, KEY)
    total = 0
    for key in keys[::50]:
        asked = UsageQuery(key.entity_id, "x", "hourly")
        total += len(run(backend.ledger.usage("ns", asked, later_ms)).items)
    assert total == 6
    run(backend.store.close())


def test_the_table_does_not_grow_with_those_who_came_once(tmp_path: Path) -> None:
    backend = opened(tmp_path / "once.db")
    for n in range(3000):
        key = BucketKey("ns", f"visitor-{n * 7919 % 3001}", "x")
        now_ms = NOW_MS + n * 1000
        run(backend.store.consume([Demand(key, TERMS, (1000,))], now_ms))
    alive = 6 + bucket_table.EXPIRY_MARGIN_MS // 1000  # a visit fades after 6 s, and the margin
    assert len(run(backend.store.find("ns", limit=3000)).items) < 4 * alive
    run(backend.store.close())


def test_numbers_of_any_size_come_back(tmp_path: Path) -> None:
    backend = opened(tmp_path / "big.db")
    terms = Terms((Limit.custom("big", 2**53 - 1, 1, 10 * 366 * 24 * 3600).spec,), 1)
    for _ in range(3):
        run(backend.store.adjust([Demand(KEY, terms, (10**40,))], NOW_MS))
    record = record_of(backend)
    assert record[CELLS + 1 : CELLS + 3] == ((2**53 - 1) * 1000 - 3 * 10**40, 3 * 10**40)
    usage = run(backend.ledger.usage("ns", UsageQuery(), NOW_MS)).items
    assert usage[0].counters == {"big": 3 * 10**37}
    run(backend.store.close())
