"""Budgets: how many store calls a request costs. Counts are stable, so they are tests."""

from __future__ import annotations

from typing import Any

import pytest

from headgate import Limit, RateLimitExceeded, SyncRateLimiter
from headgate.core.runtime import run
from headgate.testing import FakeClock, RecordingStore
from tests.flows.conftest import take

LIMITS = [Limit.per_minute(name, 100) for name in ("a", "b", "c", "d", "e")]


class CountingCatalog:
    def __init__(self, catalog: Any) -> None:
        self._catalog = catalog
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._catalog, name)


@pytest.fixture
def counted() -> tuple[SyncRateLimiter, RecordingStore, CountingCatalog]:
    limiter = SyncRateLimiter("memory://", limits=LIMITS, clock=FakeClock())
    run(limiter.core.configs.namespace_id())
    store = RecordingStore(limiter.engine.store)
    catalog = CountingCatalog(limiter.core.configs.catalog)
    limiter.engine.use(store)
    limiter.core.configs.catalog = catalog  # type: ignore[assignment]
    return limiter, store, catalog


Counted = tuple[SyncRateLimiter, RecordingStore, CountingCatalog]


def test_a_cold_acquire_is_one_lookup_and_one_store_call(counted: Counted) -> None:
    limiter, store, catalog = counted
    take(limiter, "k", "api", {"a": 1})
    assert (store.verbs, catalog.calls) == (["consume"], ["lookup"])


def test_a_warm_acquire_is_one_store_call_and_leaving_it_none(counted: Counted) -> None:
    limiter, store, catalog = counted
    for _ in range(10):
        take(limiter, "k", "api", {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1})
    assert store.verbs == ["consume"] * 10
    assert catalog.calls == ["lookup"]


def test_a_cascade_is_still_one_store_call(counted: Counted) -> None:
    limiter, store, catalog = counted
    limiter.create_entity("org")
    limiter.create_entity("key", parent_id="org", cascade=True)
    take(limiter, "key", "api", {"a": 1})
    assert store.verbs == ["consume"]
    assert catalog.calls == ["lookup"]


def test_several_buckets_are_one_store_call(counted: Counted) -> None:
    limiter, store, _ = counted
    with limiter.acquire_many([(f"e{n}", "api", {"a": 1}) for n in range(10)]):
        pass
    assert store.verbs == ["consume"]


def test_a_refusal_a_check_and_a_refund_are_one_call_each(counted: Counted) -> None:
    limiter, store, _ = counted
    take(limiter, "k", "api", {"a": 100})
    store.calls.clear()
    with pytest.raises(RateLimitExceeded):
        take(limiter, "k", "api", {"a": 1})
    assert store.verbs == ["consume"]
    limiter.check("k", "api", {"a": 1})
    limiter.available("k", "api")
    assert store.verbs == ["consume", "peek", "peek"]
    store.calls.clear()
    with pytest.raises(ZeroDivisionError), limiter.acquire("k", "api", {"b": 1}) as lease:
        lease.adjust(b=3, c=2)
        lease.settle(b=4)
        raise ZeroDivisionError
    assert store.verbs == ["consume", "adjust", "adjust"]


def test_what_does_not_exist_is_cached_too(counted: Counted) -> None:
    limiter, _, catalog = counted
    for _ in range(5):
        limiter.available("nobody", "api")
    assert catalog.calls == ["lookup"]
