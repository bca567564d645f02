"""Tests of a ledger that every store's own test files run beside the reference model."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from headgate.core.decision import Demand
from headgate.core.errors import ValidationError
from headgate.core.history import UsageQuery, UsageSnapshot, audit_event, window_around
from headgate.core.limits import Limit
from headgate.core.record import HOUR_MS, BucketKey, Terms
from headgate.core.runtime import run
from headgate.stores.catalog import Backend
from headgate.stores.memory import open_memory

NOW_MS = 1_750_000_000_000
DAY_MS = 24 * HOUR_MS
TERMS = Terms((Limit.per_second("rps", 100).spec, Limit.per_second("t.p-s", 10_000).spec))
Pages = list[list[UsageSnapshot]]


def registered(backend: Backend, name: str = "team") -> str:
    return run(backend.catalog.register_namespace(name, "me", NOW_MS)).id


def pages_of(backend: Backend, namespace: str, **wanted: Any) -> Pages:
    found: Pages = []
    cursor: str | None = None
    for _ in range(1000):
        query = UsageQuery(**wanted, cursor=cursor)
        page = run(backend.ledger.usage(namespace, query, NOW_MS + 90 * DAY_MS))
        found.append(list(page.items))
        if (cursor := page.cursor) is None:
            return found
    raise AssertionError("the pages do not end")


class LedgerModel:
    """Needs the fixture `backend`: an empty store."""

    STEPS = 120
    TRIMS = "hourly"  # the windows that a store can keep or drop each for itself

    @pytest.fixture
    def both(self, backend: Backend) -> list[tuple[Backend, str]]:
        """The reference model and the store, with a namespace in each."""
        return [(one, registered(one)) for one in (open_memory(), backend)]

    def shown(self, pages: Pages) -> Any:
        """What is compared: page by page, unless a store leaves out what cancels out."""
        return pages

    def test_usage_equals_the_reference(self, both: list[tuple[Backend, str]]) -> None:
        dice, now_ms = random.Random(1), NOW_MS
        for _ in range(self.STEPS):
            now_ms += dice.choice((0, 1, 60_000, HOUR_MS, 5 * HOUR_MS, DAY_MS))
            entity_id, resource = dice.choice(("a", "a:b", "b")), dice.choice(("r", "r/s", "s"))
            amounts = (dice.randint(0, 9) * 1000, dice.randint(0, 900) * 1000)
            gives = dice.random() < 0.2
            for backend, ns in both:
                demand = Demand(BucketKey(ns, entity_id, resource), TERMS, amounts)
                assert run(backend.store.consume([demand], now_ms)).allowed
                if gives:
                    run(backend.store.adjust([demand.inverse()], now_ms))
        middle_ms = (NOW_MS + now_ms) // 2
        queries: list[dict[str, Any]] = [
            {},
            {"limit": 7},
            {"limit": 1, "window_type": "monthly"},
            {"window_type": "hourly", "limit": 10},
            {"entity_id": "a", "window_type": "daily", "limit": 3},
            {"entity_id": "a:b", "resource": "r"},
            {"entity_id": "nobody"},
            {"resource": "r/s", "limit": 4},
            {"resource": "r", "window_type": "hourly", "limit": 3},
            {"resource": "s", "start_ms": middle_ms, "limit": 5},
            {"end_ms": middle_ms, "limit": 9},
            {"end_ms": middle_ms, "window_type": "monthly"},
            {"start_ms": middle_ms, "end_ms": middle_ms + 3 * DAY_MS, "limit": 2},
            {"start_ms": middle_ms, "end_ms": middle_ms},
            {"start_ms": -(10**20), "end_ms": 10**20, "limit": 50},
            {"start_ms": 10**20},
            {"end_ms": -(10**20)},
        ]
        for query in queries:
            pages = [self.shown(pages_of(b, ns, **query)) for b, ns in both]
            assert pages[0] == pages[1], query
        border_ms = window_around(self.TRIMS, middle_ms)[0]
        for backend, _ in both:
            assert run(backend.ledger.trim(usage_before_ms=border_ms, audit_before_ms=0)) > 10
        pages = [self.shown(pages_of(b, ns)) for b, ns in both]
        assert pages[0] == pages[1]

    def test_a_cursor_goes_with_another_query(self, both: list[tuple[Backend, str]]) -> None:
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
                found = [list(run(b.ledger.usage(s, query, NOW_MS)).items) for b, s in both]
                assert self.shown([found[0]]) == self.shown([found[1]]), query

    @pytest.mark.parametrize(
        "cursor", ["", "x", "12#hourly#a", "1x#hourly#a#r", "-1#hourly#a#r", "²#a#b#c", "1#" * 400]
    )
    def test_a_cursor_from_elsewhere_is_refused(self, cursor: str, backend: Backend) -> None:
        with pytest.raises(ValidationError, match="cursor"):
            run(backend.ledger.usage(registered(backend), UsageQuery(cursor=cursor), NOW_MS))

    def test_audit_comes_page_by_page_and_of_one_subject(self, backend: Backend) -> None:
        ns = registered(backend)
        for n in range(25):
            for subject in ("a", "a:b"):
                event = audit_event(NOW_MS + n // 3, "noted", subject, "me\ud800", "r", n=n)
                run(backend.ledger.append(ns, event))
        found: list[Any] = []
        before: str | None = None
        while page := run(backend.ledger.audit(ns, "a", limit=4, before=before)):
            found += page
            before = page[-1].event_id
        assert [event.details["n"] for event in found] == list(range(24, -1, -1))
        assert {event.principal for event in found} == {"me\ud800"}
        assert run(backend.ledger.audit(ns, "a", limit=99, before=None)) == found
        assert run(backend.ledger.audit(ns, "b", limit=3, before=None)) == []
