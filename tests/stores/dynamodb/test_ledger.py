"""History in the table: beside the reference model, expiry, trimming."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate import SyncRateLimiter, SyncRepository
from headgate.core.decision import Demand
from headgate.core.errors import ValidationError
from headgate.core.history import AuditEvent, UsageQuery, WindowUsage, audit_event
from headgate.core.limits import Limit
from headgate.core.record import HOUR_MS, BucketKey, Terms
from headgate.core.runtime import run
from headgate.repository import Repository, open_backend
from headgate.stores.catalog import Backend
from headgate.stores.dynamodb import over_port
from headgate.stores.dynamodb.catalog.items import (
    NOTES,
    as_json,
    event_as_item,
    purge_attributes,
    usage_key,
)
from headgate.stores.dynamodb.catalog.retention import (
    AUDIT_KEPT_MS,
    DAYS_MAX,
    REFRESH_MS,
    USAGE_KEPT_MS,
    Retention,
    RetentionPeriods,
)
from headgate.stores.dynamodb.client.calls import TableMissing
from headgate.stores.dynamodb.ledger import DynamoLedger
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.create import check, prepare
from proof.model.engine import Engine, ModelPort
from tests.stores.dynamodb.kit import (
    NOW_MS,
    TABLE,
    Watched,
    YieldingPort,
    model_port,
    prepared,
    registered,
    table_at,
    table_of,
)
from tests.stores.ledger_suite import DAY_MS, LedgerModel


@pytest.fixture
def backend() -> Backend:
    return prepared()


class TestModel(LedgerModel):
    """Page by page."""


def test_rows_are_kept_as_long_as_their_windows_are_long(backend: Backend) -> None:
    ns = registered(backend)
    table = table_of(backend)
    now_s = table.port.now_ms() // 1000
    start_ms = table.port.now_ms() // HOUR_MS * HOUR_MS
    kept = {}
    for window_type in ("hourly", "daily", "monthly"):
        row = WindowUsage(window_type, start_ms, {"rps": 1}, 1)
        run(DynamoLedger(table).add_usage(ns, "a", "r", [row]))
        item = run(table.get(usage_key(ns, "a", "r", row)))
        kept[window_type] = (int(item["ttl"]["N"]) - now_s) // 86_400
    assert kept["hourly"] >= 99
    assert kept["daily"] >= 799
    assert kept["monthly"] >= 3699


def test_what_is_added_twice_at_once_is_all_there() -> None:
    backend = over_port(YieldingPort(Engine(), lambda: NOW_MS), "limits", blocking=False)

    async def flow() -> None:
        await backend.catalog.prepare()
        made = await backend.catalog.register_namespace("team", None, NOW_MS)
        ledger: Any = backend.ledger
        row = WindowUsage("hourly", NOW_MS // HOUR_MS * HOUR_MS, {"rps": 1000}, 1)
        await asyncio.gather(*(ledger.add_usage(made.id, "a", "r", [row]) for _ in range(20)))
        [shot] = (await ledger.usage(made.id, UsageQuery(), NOW_MS)).items
        assert (shot.counters, shot.total_events) == ({"rps": 20}, 20)

    asyncio.run(flow())


def test_adding_nothing_asks_nothing_and_trouble_is_raised() -> None:
    port = Watched(model_port())
    table = table_at("", port=port)
    table.retention.learn({}, NOW_MS)
    ledger = DynamoLedger(table)
    run(ledger.add_usage("n" * 11, "a", "r", []))
    assert port.calls == []
    with pytest.raises(TableMissing):
        run(ledger.add_usage("n" * 11, "a", "r", [WindowUsage("hourly", 0, {}, 1)]))


@pytest.mark.parametrize("subject", ["$\ud800", "$" + "x" * 5000, "$"])
def test_nobody_has_no_audit(subject: str, backend: Backend) -> None:
    ns = registered(backend)
    assert run(backend.ledger.audit(ns, subject, limit=9, before=None)) == []


def as_older_headgates_wrote(backend: Backend, ns: str, event: AuditEvent) -> None:
    """In the namespace's index under the item's own key, as everything else is."""
    item = event_as_item(ns, event, NOW_MS, DAY_MS)
    item |= purge_attributes(ns, item["PK"]["S"])
    run(table_of(backend).write(ask.put(item)))


def test_the_log_has_what_older_headgates_wrote(backend: Backend) -> None:
    """In its place by time, page by page; it is trimmed and purged as before."""
    ns = registered(backend)
    events = [
        audit_event(NOW_MS + n, "noted", ("a", "b", "$SYSTEM")[n % 3], None, n=n) for n in range(12)
    ]
    for n, event in enumerate(events):
        if n % 2:
            run(backend.ledger.append(ns, event))
        else:
            as_older_headgates_wrote(backend, ns, event)
    found: list[AuditEvent] = []
    before: str | None = None
    while page := run(backend.ledger.audit(ns, None, limit=3, before=before)):
        found += page
        before = page[-1].event_id
    assert found[:12] == events[::-1]
    assert run(backend.ledger.trim(usage_before_ms=0, audit_before_ms=NOW_MS + 6)) == 7
    assert run(backend.ledger.audit(ns, None, limit=99, before=None)) == events[:5:-1]
    run(backend.catalog.delete_namespace("team", None, NOW_MS))
    run(backend.catalog.purge_namespace(ns, None, NOW_MS))
    assert run(backend.ledger.audit(ns, None, limit=99, before=None)) == []


def test_an_event_that_expired_ends_no_page(backend: Backend) -> None:
    """The index still leads to it for a moment; the page goes on to those that are there."""
    ns = registered(backend)
    for n in range(6):
        run(backend.ledger.append(ns, audit_event(NOW_MS + n, "noted", "a", None, n=n)))
    table = table_of(backend)
    gone: list[Any] = []
    get_all = table.get_all

    async def all_but_two(keys: Any) -> Any:
        found = await get_all(keys)
        if not gone:
            gone.extend(found.pop(key) for key in sorted(found)[-2:])
        return found

    ledger = DynamoLedger(table)
    table.get_all = all_but_two  # type: ignore[method-assign]
    found = run(ledger.audit(ns, None, limit=3, before=None))
    assert [event.details["n"] for event in found] == [3, 2, 1]


def test_an_event_has_one_entry_in_one_index() -> None:
    """As it had before there was a log, so the log costs no write."""
    item = event_as_item("n" * 11, audit_event(NOW_MS, "did", "a", "me"), NOW_MS, DAY_MS)
    assert sorted(name for name in item if name.startswith("GSI")) == ["GSI4PK", "GSI4SK"]
    assert item["GSI4SK"]["S"].startswith("n" * 11 + "/EVENT#1")


def test_trimming_reaches_deleted_namespaces_and_leaves_the_rest(backend: Backend) -> None:
    kept, lost = registered(backend), registered(backend, "other")
    ledger: Any = backend.ledger
    for ns in (kept, lost):
        for day in range(3):
            start_ms = NOW_MS // DAY_MS * DAY_MS + day * DAY_MS
            run(ledger.add_usage(ns, "a", "r", [WindowUsage("daily", start_ms, {"rps": 1000}, 1)]))
            run(ledger.append(ns, audit_event(start_ms, "did", "a", None)))
    run(backend.catalog.delete_namespace("other", None, NOW_MS))
    border_ms = NOW_MS // DAY_MS * DAY_MS + DAY_MS
    before_ms = border_ms - DAY_MS + 1
    assert run(ledger.trim(usage_before_ms=border_ms, audit_before_ms=before_ms)) == 4
    assert len(run(ledger.usage(kept, UsageQuery(), NOW_MS)).items) == 2
    assert len(run(ledger.audit(kept, "a", limit=9, before=None))) == 2
    assert len(run(ledger.audit(kept, "$SYSTEM", limit=9, before=None))) == 1


# How long history is kept: the URL's word, the table's, or for long; and when it is looked up.

NOTED = {"audit_retention_days": 7, "usage_retention_days": 30, "snapshot_windows": "hourly"}
DAY_S = 86_400


def noted(**notes: Any) -> Any:
    return {NOTES: as_json(notes)}


def test_the_url_stands_above_the_table_and_the_table_above_the_default() -> None:
    assert Retention().learn({}, 0) == RetentionPeriods(AUDIT_KEPT_MS, USAGE_KEPT_MS)
    assert Retention().learn(noted(**NOTED), 0) == RetentionPeriods(
        7 * DAY_MS, {"hourly": 30 * DAY_MS}
    )
    periods = Retention(audit_days=1, usage_days=2).learn(noted(**NOTED), 0)
    assert periods == RetentionPeriods(DAY_MS, {"hourly": 2 * DAY_MS})


@pytest.mark.parametrize("strange", [0, -1, True, 1.5, "7", None, DAYS_MAX + 1, [7]])
def test_a_strange_note_is_as_none(strange: object) -> None:
    periods = Retention().learn(noted(audit_retention_days=strange, snapshot_windows=strange), 0)
    assert periods == RetentionPeriods(AUDIT_KEPT_MS, USAGE_KEPT_MS)


def test_the_record_is_read_once_and_again_after_a_while() -> None:
    reads: list[object] = []

    async def get(key: object) -> Any:
        reads.append(key)
        return noted(audit_retention_days=len(reads))

    retention = Retention()
    for now_ms in (5, 6, REFRESH_MS + 4):
        assert run(retention.periods(get, now_ms)).audit_ms == DAY_MS
    assert run(retention.periods(get, REFRESH_MS + 5)).audit_ms == 2 * DAY_MS
    assert len(reads) == 2


def opened(port: ModelPort, **options: int) -> SyncRepository:
    backend = over_port(port, TABLE, blocking=True, retention=Retention(**options))
    return SyncRepository(_core=Repository(clock=lambda: NOW_MS, _blocking=True, _backend=backend))


def ends_in_days(port: ModelPort, pk: str, sk: str) -> dict[str, float]:
    items = run(table_at("", name=TABLE, port=port).every(ask.query(TABLE, pk, ask.begins(sk))))
    return {item["SK"]["S"]: (int(item["ttl"]["N"]) - NOW_MS / 1000) / DAY_S for item in items}


@pytest.mark.parametrize(("options", "days"), [({}, 7), ({"audit_days": 2}, 2)])
def test_every_audit_event_gets_that_end(options: dict[str, int], days: int) -> None:
    """Those of entities, limits and namespaces, and those that are appended."""
    port = model_port()
    with opened(port) as repository:
        repository.create_table()
        repository.set_version_record(NOTED)
    with opened(port, **options) as repository:
        repository.create_entity("a")
        repository.set_limits("a", [Limit.per_minute("rpm", 5)], resource="r")
        repository.reset_bucket("a", "r")
        repository.register_namespace("eu")
        home, other = (repository.get_namespace(name).id for name in ("default", "eu"))
    ends = ends_in_days(port, f"{home}/AUDIT#a", "#AUDIT#")
    ends |= ends_in_days(port, f"{other}/AUDIT#$SYSTEM", "#AUDIT#")
    assert len(ends) == 4
    assert all(days - 0.1 < end <= days + 0.1 for end in ends.values()), ends


def test_usage_that_processes_count_gets_its_end_and_its_windows() -> None:
    port = model_port()
    with opened(port) as repository:
        repository.create_table()
        repository.set_version_record({**NOTED, "snapshot_windows": "hourly,daily"})
    with opened(port) as repository:
        limiter = SyncRateLimiter(repository, limits=[Limit.per_minute("rpm", 5)])
        with limiter.acquire("a", "r", {"rpm": 1}):
            pass
        home = repository.get_namespace("default").id
    ends = ends_in_days(port, f"{home}/ENTITY#a", "#USAGE#")
    assert sorted(sk.split("#")[3] for sk in ends) == ["daily", "hourly"]
    assert all(30 - 0.1 < end <= 31.1 for end in ends.values()), ends


def test_opening_tells_it_and_a_change_reads_nothing_more() -> None:
    port = Watched(model_port())
    run(prepare(table_at("", name=TABLE, port=port.inner)))
    table = table_at("", name=TABLE, port=port)
    assert run(check(table))
    ledger = DynamoLedger(table)
    for _ in range(3):
        run(ledger.append("n" * 11, audit_event(0, "did", "a", None)))
    assert port.calls == ["GetItem", "PutItem", "PutItem", "PutItem"]


@pytest.mark.parametrize("option", ["audit_days=0", "usage_days=-1", "audit_days=x"])
def test_days_that_are_none_are_refused(option: str) -> None:
    with pytest.raises(ValidationError, match=option.partition("=")[0]):
        open_backend(f"dynamodb://limits?region=us-east-1&{option}", blocking=True)


@pytest.mark.parametrize("is_once", [False, True])
def test_credits_of_buckets_that_are_gone_are_no_usage(backend: Backend, is_once: bool) -> None:
    """Of several, those that are there count, also where the credit happens once for a key."""
    ns, store, ledger = registered(backend), backend.store, backend.ledger
    terms = Terms((Limit.per_second("x", 100).spec,), 1)
    keys = [BucketKey(ns, entity_id, "r") for entity_id in ("there", "gone")]
    for key in keys:
        assert run(store.consume([Demand(key, terms, (5000,))], NOW_MS)).allowed
    run(store.forget(keys[1:]))
    credits = [Demand(key, terms, (-3000,)) for key in keys]
    assert run(store.adjust(credits, NOW_MS, once="a key" if is_once else None))
    page = run(ledger.usage(ns, UsageQuery(window_type="daily", limit=10), NOW_MS))
    used = {shot.entity_id: dict(shot.counters) for shot in page.items}
    assert used == {"there": {"x": 2}, "gone": {"x": 5}}
