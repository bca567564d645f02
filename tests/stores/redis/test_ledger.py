"""History in Redis: beside the reference model, months, bounds, trimming."""

from __future__ import annotations

import datetime
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from headgate.core.decision import Demand
from headgate.core.history import UsageQuery, UsageSnapshot, audit_event
from headgate.core.levels import Level
from headgate.core.limits import Limit
from headgate.core.record import HOUR_MS, BucketKey, Terms
from headgate.core.runtime import run
from headgate.core.store import consume_each
from headgate.stores.catalog import Backend
from headgate.stores.redis import documents, keys, ledger
from headgate.stores.redis.ledger import RedisLedger
from tests.stores.ledger_suite import DAY_MS, TERMS, LedgerModel, Pages
from tests.stores.redis import servers
from tests.stores.redis.catalog_kit import NOW_MS, Watched, opened, port_to, registered


@pytest.fixture
def backend(redis_url: str) -> Iterator[Backend]:
    backend = opened(redis_url)
    yield backend
    run(backend.store.close())


class TestModel(LedgerModel):
    STEPS = 400
    TRIMS = "monthly"

    def shown(self, pages: Pages) -> list[UsageSnapshot]:
        """Without what cancels out, which has no row here; so pages begin elsewhere, too."""
        found = [
            replace(shot, counters={name: n for name, n in shot.counters.items() if n})
            for page in pages
            for shot in page
        ]
        return [shot for shot in found if shot.counters or shot.total_events]

    def test_audit_comes_page_by_page_and_of_one_subject(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ledger, "EVENTS_PER_BATCH", 4)
        super().test_audit_comes_page_by_page_and_of_one_subject(backend)


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


def test_an_event_of_ones_own_may_look_like_any_other(backend: Backend) -> None:
    ns = registered(backend)
    event = audit_event(NOW_MS, "limits_set", "a", None, after={"version": 7}, before=None)
    run(backend.ledger.append(ns, event))
    assert run(backend.ledger.audit(ns, "a", limit=1, before=None)) == [event]


def test_the_log_has_what_was_there_before_it(backend: Backend, redis_url: str) -> None:
    """A namespace that an older headgate made has streams alone: the first look fills its log."""
    ns = registered(backend)
    for n in range(7):
        for subject in ("a", "a:b", "$RESOURCE:gpt-4/x"):
            run(backend.ledger.append(ns, audit_event(NOW_MS + n, "noted", subject, None, n=n)))
    run(backend.catalog.update_stored(ns, Level("a", "r"), {"limits": ()}, "ada", NOW_MS + 9))
    whole = run(backend.ledger.audit(ns, None, limit=99, before=None))
    assert len(whole) == 23
    port = port_to(redis_url)
    run(port.command("UNLINK", keys.log(ns)))
    run(port.command("HDEL", keys.head(ns), "log"))
    assert run(backend.ledger.audit(ns, None, limit=99, before=None)) == whole
    run(port.command("UNLINK", keys.log(ns)))
    assert run(backend.ledger.audit(ns, None, limit=99, before=None)) == [], "once is enough"
    run(port.close())


def test_the_log_is_bounded_and_goes_with_its_namespace(
    backend: Backend, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "LOG_EVENTS_MAX", 10)
    ns = registered(backend)
    for n in range(30):
        run(backend.ledger.append(ns, audit_event(NOW_MS + n, "noted", f"e{n}", None, n=n)))
    left = run(backend.ledger.audit(ns, None, limit=99, before=None))
    assert [event.details["n"] for event in left] == list(range(29, 19, -1))
    run(backend.catalog.delete_namespace("team", None, NOW_MS))
    run(backend.catalog.purge_namespace(ns, None, NOW_MS))
    port = port_to(redis_url)
    assert run(port.command("EXISTS", keys.log(ns))) == 0
    run(port.close())


def test_a_page_of_the_log_is_two_calls(backend: Backend, redis_url: str) -> None:
    ns = registered(backend)
    port = Watched(port_to(redis_url))
    run(RedisLedger(port).audit(ns, None, limit=9, before=None))
    assert port.calls == ["catalog_read", "ZREVRANGEBYLEX"]
    run(port.close())


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


def test_one_token_of_each_limit_is_counted_like_any_amount(
    backend: Backend, redis_url: str
) -> None:
    ns = registered(backend)
    key = BucketKey(ns, "e", "r")
    terms = Terms(tuple(Limit.per_hour(name, 10**6).spec for name in ("a", "b")), 1)
    amounts = [(1000, 1000), (1000, None), (0, 1000), (2000, 1000), (1000, 1000), (5000, None)] * 3
    now_ms = run(backend.store.peek([], None)).now_ms
    fresh = Demand(BucketKey(ns, "fresh", "r"), terms, (1000, 1000))
    run(backend.store.consume([fresh], now_ms - 2 * HOUR_MS))
    servers.command(redis_url, "DEL", keys.usage_index(ns, "fresh"))
    run(backend.store.consume([Demand(key, terms, (0, 0))], None))  # tells the client the hour
    for _ in range(2):
        run(backend.store.consume([fresh], None))  # the first of its hour, in the usual case
    shots = run(
        backend.ledger.usage(ns, UsageQuery("fresh", start_ms=now_ms - HOUR_MS), None)
    ).items
    [hourly] = [shot for shot in shots if shot.window_type == "hourly"]
    assert (hourly.total_events, dict(hourly.counters)) == (2, {"a": 2, "b": 2})
    for some in amounts:
        run(backend.store.consume([Demand(key, terms, some)], None))
    run(consume_each(backend.store, [[Demand(key, terms, some)] for some in amounts], None))
    run(backend.store.adjust([Demand(key, terms, (-1000, None))], None))
    shots = run(backend.ledger.usage(ns, UsageQuery("e", window_type="monthly"), None)).items
    counted = Counter[str]()
    for shot in shots:
        counted.update({"": shot.total_events, **shot.counters})
    assert counted == {
        "": 2 * len(amounts) + 1,
        "a": 2 * sum(a for a, _ in amounts) // 1000 - 1,
        "b": 2 * sum(b or 0 for _, b in amounts) // 1000,
    }
