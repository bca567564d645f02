"""History in Redis: usage against the reference model, pages of audit, trimming."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from headgate.core.decision import Demand
from headgate.core.errors import ValidationError
from headgate.core.history import UsageQuery, UsageSnapshot, audit_event
from headgate.core.limits import Limit
from headgate.core.record import HOUR_MS, BucketKey, Terms
from headgate.core.runtime import run
from headgate.stores.catalog import Backend
from headgate.stores.memory import open_memory
from headgate.stores.redis import documents, keys, ledger
from headgate.stores.redis.ledger import RedisLedger
from tests.stores.redis.catalog_kit import NOW_MS, Watched, opened, port_to, registered

DAY_MS = 24 * HOUR_MS
TERMS = Terms((Limit.per_second("rps", 100).spec, Limit.per_second("t.p-s", 10_000).spec))


@pytest.fixture
def backend(redis_url: str) -> Iterator[Backend]:
    backend = opened(redis_url)
    yield backend
    run(backend.store.close())


def without_zeros(shots: tuple[UsageSnapshot, ...]) -> list[UsageSnapshot]:
    found = [
        replace(shot, counters={name: n for name, n in shot.counters.items() if n})
        for shot in shots
    ]
    return [shot for shot in found if shot.counters or shot.total_events]


def all_pages(backend: Backend, namespace: str, **wanted: Any) -> list[UsageSnapshot]:
    found: list[UsageSnapshot] = []
    cursor: str | None = None
    for _ in range(1000):
        query = UsageQuery(**wanted, cursor=cursor)
        page = run(backend.ledger.usage(namespace, query, NOW_MS + 90 * DAY_MS))
        found += without_zeros(page.items)
        if (cursor := page.cursor) is None:
            return found
    raise AssertionError("the pages do not end")


@pytest.mark.parametrize("seed", range(3))
def test_usage_equals_the_reference(seed: int, redis_url: str) -> None:
    dice = random.Random(seed)
    backends = [open_memory(), opened(redis_url)]
    ids = [registered(backend) for backend in backends]
    now_ms = NOW_MS
    for _ in range(300):
        now_ms += dice.choice((0, 1, 60_000, HOUR_MS, 5 * HOUR_MS, DAY_MS))
        entity_id, resource = dice.choice(("a", "a:b", "b")), dice.choice(("r", "r/s", "s"))
        amounts = (dice.randint(0, 9) * 1000, dice.randint(0, 900) * 1000)
        back = dice.random() < 0.2
        for backend, ns in zip(backends, ids, strict=True):
            demand = Demand(BucketKey(ns, entity_id, resource), TERMS, amounts)
            if back:
                run(backend.store.adjust([demand.inverse()], now_ms))
            else:
                assert run(backend.store.consume([demand], now_ms)).allowed
    middle_ms = (NOW_MS + now_ms) // 2
    queries: list[dict[str, Any]] = [
        {},
        {"limit": 7},
        {"window_type": "hourly", "limit": 10},
        {"window_type": "monthly"},
        {"entity_id": "a", "window_type": "daily", "limit": 3},
        {"entity_id": "a:b", "resource": "r"},
        {"resource": "s", "start_ms": middle_ms},
        {"end_ms": middle_ms, "window_type": "monthly"},
        {"start_ms": NOW_MS - DAY_MS, "end_ms": middle_ms, "limit": 11},
        {"entity_id": "nobody"},
    ]
    for wanted in queries:
        pages = [all_pages(b, ns, **wanted) for b, ns in zip(backends, ids, strict=True)]
        assert pages[0] == pages[1], wanted
    run(backends[1].store.close())


def test_rows_lie_in_the_month_their_name_says(backend: Backend, redis_url: str) -> None:
    ns = registered(backend)
    key = BucketKey(ns, "e", "r")
    moments = [
        datetime.datetime(year, month, day, hour, tzinfo=datetime.UTC)
        for year in (1972, 1999, 2000, 2001, 2024, 2026, 2100)
        for month, day, hour in ((1, 1, 0), (2, 28, 23), (3, 1, 0), (12, 31, 23))
    ]
    for moment in moments:
        now_ms = int(moment.timestamp()) * 1000
        run(backend.store.forget([key]))
        run(backend.store.consume([Demand(key, TERMS, (1000, None))], now_ms))
        month = moment.year * 12 + moment.month - 1
        start = datetime.datetime(moment.year, moment.month, 1, tzinfo=datetime.UTC)
        assert ledger.month_start_ms(month) == int(start.timestamp()) * 1000
        port = port_to(redis_url)
        row = run(port.command("HGETALL", keys.usage(key) + str(month)))
        run(port.close())
        assert f"{now_ms // HOUR_MS}:rps" in row[0::2]


def test_what_cancels_out_is_not_shown(backend: Backend) -> None:
    ns = registered(backend)
    demand = Demand(BucketKey(ns, "e", "r"), TERMS, (2000, 3000))
    run(backend.store.consume([demand], NOW_MS))
    run(backend.store.adjust([Demand(demand.key, TERMS, (-2000, None))], NOW_MS))
    shots = run(backend.ledger.usage(ns, UsageQuery(), NOW_MS)).items
    assert [dict(shot.counters) for shot in shots] == [{"t.p-s": 3}] * 3
    fields = [f"{NOW_MS // HOUR_MS}:", "0", f"{NOW_MS // HOUR_MS}:rps", "0"]
    assert list(ledger.windows(fields, ("hourly",))) == []


@pytest.mark.parametrize("cursor", ["", "x", "12#hourly#a", "1x#hourly#a#r", "\u0661#a#b#c"])
def test_a_cursor_from_elsewhere_is_refused(cursor: str, backend: Backend) -> None:
    with pytest.raises(ValidationError, match="cursor"):
        run(backend.ledger.usage("n", UsageQuery(cursor=cursor), None))


def test_usage_is_read_in_few_calls(backend: Backend, redis_url: str) -> None:
    ns = registered(backend)
    for n in range(20):
        key = BucketKey(ns, f"e{n}", "r")
        run(backend.store.consume([Demand(key, TERMS, (1000, None))], NOW_MS))
    port = Watched(port_to(redis_url))
    page = run(RedisLedger(port).usage(ns, UsageQuery(limit=100), None))
    assert len(page.items) == 60
    assert port.calls == ["SCAN", *["catalog_rows"] * 3]
    run(port.close())


def test_audit_pages_follow_each_other(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "EVENTS_PER_BATCH", 4)
    ns = registered(backend)
    for n in range(25):
        event = audit_event(NOW_MS + n // 3, "noted", "a", "me\ud800", "r", n=n)
        run(backend.ledger.append(ns, event))
    whole = run(backend.ledger.audit(ns, "a", limit=99, before=None))
    assert [event.details["n"] for event in whole] == list(range(24, -1, -1))
    assert whole[0].principal == "me\ud800"
    found: list[Any] = []
    before: str | None = None
    for _ in range(9):
        found += (page := run(backend.ledger.audit(ns, "a", limit=3, before=before)))
        before = page[-1].event_id
    assert found == whole
    assert run(backend.ledger.audit(ns, "a", limit=3, before=before)) == []
    assert run(backend.ledger.audit(ns, "b", limit=3, before=None)) == []


def test_an_event_of_ones_own_may_look_like_any_other(backend: Backend) -> None:
    ns = registered(backend)
    event = audit_event(NOW_MS, "limits_set", "a", None, after={"version": 7}, before=None)
    run(backend.ledger.append(ns, event))
    assert run(backend.ledger.audit(ns, "a", limit=1, before=None)) == [event]


def test_the_audit_is_bounded(
    backend: Backend, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "AUDIT_EVENTS_MAX", 10)
    ns = registered(backend)
    for n in range(500):
        run(backend.ledger.append(ns, audit_event(NOW_MS, "noted", "a", None, n=n)))
    left = run(backend.ledger.audit(ns, "a", limit=999, before=None))
    assert left[0].details["n"] == 499
    assert 10 <= len(left) <= 110  # the server drops a block of a hundred at a time


def test_trimming_is_exact_whatever_the_order(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "EVENTS_PER_BATCH", 3)
    ns = registered(backend)
    hours = list(range(-10, 10))
    random.Random(1).shuffle(hours)
    for hour in hours:
        now_ms = NOW_MS // HOUR_MS * HOUR_MS + hour * HOUR_MS
        run(backend.ledger.append(ns, audit_event(now_ms, "noted", "a", None, hour=hour)))
    for hour in sorted(hours):
        now_ms = NOW_MS // HOUR_MS * HOUR_MS + hour * HOUR_MS
        key = BucketKey(ns, "a", "r")
        run(backend.store.consume([Demand(key, TERMS, (1000, 1000))], now_ms))
    border_ms = NOW_MS // HOUR_MS * HOUR_MS
    assert run(backend.ledger.trim(usage_before_ms=border_ms, audit_before_ms=border_ms)) == 20
    left = run(backend.ledger.audit(ns, "a", limit=99, before=None))
    assert sorted(event.details["hour"] for event in left) == list(range(10))
    query = UsageQuery(window_type="hourly")
    assert len(run(backend.ledger.usage(ns, query, NOW_MS)).items) == 10
    late_ms = NOW_MS + 99 * DAY_MS
    gone = run(backend.ledger.trim(usage_before_ms=late_ms, audit_before_ms=late_ms))
    assert gone == 21  # the namespace's own event, too
    assert run(backend.ledger.usage(ns, query, NOW_MS)).items == ()
    assert run(backend.ledger.trim(usage_before_ms=late_ms, audit_before_ms=late_ms)) == 0
