"""History in the table: usage against the reference model, pages of audit, expiry, trimming."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest

from headgate.core.decision import Demand
from headgate.core.errors import ValidationError
from headgate.core.history import UsageQuery, UsageSnapshot, WindowUsage, audit_event
from headgate.core.limits import Limit
from headgate.core.record import HOUR_MS, BucketKey, Terms
from headgate.core.runtime import run
from headgate.stores.catalog import Backend
from headgate.stores.dynamodb import over_port
from headgate.stores.dynamodb.catalog.items import usage_key
from headgate.stores.dynamodb.client.calls import TableMissing
from headgate.stores.dynamodb.ledger import DynamoLedger
from headgate.stores.memory import open_memory
from proof.model.engine import Engine
from tests.stores.dynamodb.catalog.kit import (
    NOW_MS,
    Watched,
    YieldingPort,
    model_port,
    prepared,
    registered,
    table_at,
    table_of,
)

DAY_MS = 24 * HOUR_MS
TERMS = Terms((Limit.per_second("rps", 100).spec, Limit.per_second("t.p-s", 10_000).spec))


@pytest.fixture
def backend() -> Backend:
    return prepared()


@pytest.fixture
def both() -> list[tuple[Backend, str]]:
    """The reference model and a table, with a namespace in each."""
    return [(backend, registered(backend)) for backend in (open_memory(), prepared())]


def all_pages(backend: Backend, namespace: str, **wanted: Any) -> list[list[UsageSnapshot]]:
    found: list[list[UsageSnapshot]] = []
    cursor: str | None = None
    for _ in range(1000):
        query = UsageQuery(**wanted, cursor=cursor)
        page = run(backend.ledger.usage(namespace, query, NOW_MS + 90 * DAY_MS))
        found.append(list(page.items))
        if (cursor := page.cursor) is None:
            return found
    raise AssertionError("the pages do not end")


@pytest.mark.parametrize("seed", range(2))
def test_usage_equals_the_reference(seed: int, both: list[tuple[Backend, str]]) -> None:
    dice = random.Random(seed)
    now_ms = NOW_MS
    for _ in range(120):
        now_ms += dice.choice((0, 1, 60_000, HOUR_MS, 5 * HOUR_MS, DAY_MS))
        entity_id, resource = dice.choice(("a", "a:b", "b")), dice.choice(("r", "r/s", "s"))
        amounts = (dice.randint(0, 9) * 1000, dice.randint(0, 900) * 1000)
        back = dice.random() < 0.2
        for backend, ns in both:
            demand = Demand(BucketKey(ns, entity_id, resource), TERMS, amounts)
            assert run(backend.store.consume([demand], now_ms)).allowed
            if back:
                run(backend.store.adjust([demand.inverse()], now_ms))
    middle_ms = (NOW_MS + now_ms) // 2
    queries: list[dict[str, Any]] = [
        {},
        {"limit": 7},
        {"limit": 1, "window_type": "monthly"},
        {"window_type": "hourly", "limit": 10},
        {"window_type": "monthly"},
        {"entity_id": "a", "window_type": "daily", "limit": 3},
        {"entity_id": "a:b", "resource": "r"},
        {"entity_id": "nobody"},
        {"resource": "r/s", "limit": 4},
        {"resource": "r", "window_type": "hourly", "limit": 3},
        {"resource": "s", "start_ms": middle_ms, "limit": 5},
        {"end_ms": middle_ms, "limit": 9},
        {"start_ms": middle_ms, "end_ms": middle_ms + 3 * DAY_MS, "limit": 2},
        {"start_ms": middle_ms, "end_ms": middle_ms},
        {"start_ms": -(10**20), "end_ms": 10**20, "limit": 50},
        {"start_ms": 10**20},
        {"end_ms": -(10**20)},
    ]
    for query in queries:
        pages = [all_pages(b, ns, **query) for b, ns in both]
        assert pages[0] == pages[1], query
    border_ms = middle_ms // HOUR_MS * HOUR_MS
    gone = [run(b.ledger.trim(usage_before_ms=border_ms, audit_before_ms=0)) for b, _ in both]
    assert gone[0] == gone[1] > 10
    pages = [all_pages(b, ns) for b, ns in both]
    assert pages[0] == pages[1]


def test_a_cursor_goes_with_another_query(both: list[tuple[Backend, str]]) -> None:
    """A caller may narrow or widen a query between pages; the cursor is a place in time."""
    for hour, entity_id, resource in itertools.product(range(5), "ab", "rst"):
        for backend, ns in both:
            demand = Demand(BucketKey(ns, entity_id, resource), TERMS, (1000, 0))
            run(backend.store.consume([demand], NOW_MS + hour * HOUR_MS))
    reference, ns = both[0]
    cursor: str | None = None
    for _ in range(12):
        page = run(reference.ledger.usage(ns, UsageQuery(limit=3, cursor=cursor), NOW_MS))
        cursor = page.cursor
        assert cursor is not None
        for query in (
            UsageQuery(resource="s", cursor=cursor, limit=4),
            UsageQuery(window_type="daily", cursor=cursor, limit=4),
            UsageQuery(entity_id="b", cursor=cursor, limit=4),
            UsageQuery(cursor=cursor, limit=1, end_ms=NOW_MS + 2 * HOUR_MS),
        ):
            pages = [run(b.ledger.usage(space, query, NOW_MS)) for b, space in both]
            assert pages[0] == pages[1], query


@pytest.mark.parametrize("cursor", ["", "x", "1#2#3", "-1#hourly#a#r", "²#hourly#a#r", "1#" * 400])
def test_a_cursor_of_somebody_else_s_is_refused(cursor: str, backend: Backend) -> None:
    ns = registered(backend)
    with pytest.raises(ValidationError):
        run(backend.ledger.usage(ns, UsageQuery(cursor=cursor), NOW_MS))


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


def test_audit_comes_page_by_page_and_of_one_subject(backend: Backend) -> None:
    ns = registered(backend)
    for n in range(25):
        for subject in ("a", "a:b"):
            event = audit_event(NOW_MS + n, "did", subject, None, n=n)
            run(backend.ledger.append(ns, event))
    found: list[int] = []
    before: str | None = None
    while True:
        page = run(backend.ledger.audit(ns, "a", limit=4, before=before))
        if not page:
            break
        found += [event.details["n"] for event in page]
        before = page[-1].event_id
    assert found == list(range(24, -1, -1))


@pytest.mark.parametrize("subject", ["$\ud800", "$" + "x" * 5000, "$"])
def test_nobody_has_no_audit(subject: str, backend: Backend) -> None:
    ns = registered(backend)
    assert run(backend.ledger.audit(ns, subject, limit=9, before=None)) == []


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
