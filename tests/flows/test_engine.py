"""Deciding without a lease: rulings, an amount of every limit, defaults that serve as a whole."""

from __future__ import annotations

from typing import Any

import pytest

from headgate import (
    DemandTooLarge,
    Limit,
    OnUnavailable,
    RateLimiterUnavailable,
    RateLimitExceeded,
    SyncRateLimiter,
    ValidationError,
)
from headgate.core.errors import Unreachable
from headgate.core.levels import Defaults
from headgate.core.plan import Each
from headgate.core.runtime import run
from headgate.testing import FakeClock, FaultyStore, RecordingStore
from tests.flows.conftest import World, take

A, B = Limit.per_minute("a", 10), Limit.per_minute("b", 20)
DOWN = Unreachable("gone")


def engine_of(limiter: Any) -> Any:
    """The engine; flows of a blocking limiter finish at their first step."""
    return getattr(limiter, "inner", limiter).engine


async def test_a_ruling_takes_or_refuses_without_an_error(world: World) -> None:
    engine = engine_of(world.limiter(limits=[A, B]))
    first = await engine.consume([("k", "api", {"a": 8}, None)])
    assert first.verdict.allowed
    assert first.trouble is None
    assert [list(demand.named()) for demand in first.parts[0]] == [[("a", 8000)]]
    second = await engine.consume([("k", "api", {"a": 8}, None)])
    assert not second.verdict.allowed
    assert second.verdict.retry_after_ms == 36_000
    with pytest.raises(DemandTooLarge):
        await engine.consume([("k", "api", {"a": 11}, None)])


async def test_each_is_that_much_of_every_limit(world: World) -> None:
    limiter = world.limiter(limits=[A, B])
    engine = engine_of(limiter)
    await engine.consume([("k", "api", Each(4), None)])
    assert await limiter.available("k", "api") == {"a": 6, "b": 16}
    with pytest.raises(DemandTooLarge):
        await engine.consume([("k", "api", Each(11), None)])
    await limiter.create_entity("org")
    await limiter.set_limits("org", [Limit.per_minute("b", 5)])
    await limiter.create_entity("kid", parent_id="org", cascade=True)
    ruling = await engine.consume([("kid", "api", Each(3), None)])
    assert [list(demand.named()) for demand in ruling.parts[0]] == [
        [("a", 3000), ("b", 3000)],
        [("b", 3000), ("a", 3000)],
    ]
    with pytest.raises(DemandTooLarge):
        await engine.consume([("kid", "api", Each(6), None)])


@pytest.mark.parametrize("tokens", [-1, True, 1.5, "1", 2**53])
def test_each_is_a_whole_number(tokens: Any) -> None:
    with pytest.raises(ValidationError, match="tokens"):
        Each(tokens)


async def test_parts_keep_apart_what_one_bucket_is_asked_twice(world: World) -> None:
    engine = engine_of(world.limiter(limits=[A]))
    ruling = await engine.consume([("k", "api", Each(2), None), ("k", "api", Each(3), None)])
    assert [len(part) for part in ruling.parts] == [1, 1]
    assert [list(demand.named()) for demand in ruling.verdict.demands] == [[("a", 5000)]]


async def test_whole_defaults_serve_only_where_nothing_is_stored(world: World) -> None:
    limiter = world.limiter()
    engine = engine_of(limiter)
    whole, single = Defaults([A], whole=True), Defaults([A])

    async def asked(entity_id: str, defaults: Defaults) -> list[str]:
        ruling = await engine.consume([(entity_id, "api", Each(1), defaults)])
        return [name for name, _ in ruling.parts[0][0].named()]

    assert await asked("k", whole) == ["a"]
    await limiter.set_limits("k", [B])
    assert await asked("k", whole) == ["b"]
    assert await asked("k", single) == ["b", "a"]
    assert await asked("other", whole) == ["a"]
    explained = await engine.explain("k", "api", whole)
    assert [given.limit for given in explained.limits] == [B]


@pytest.mark.parametrize("dry_run", [False, True])
async def test_an_outage_is_ruled_locally_or_refused(world: World, dry_run: bool) -> None:
    engine = engine_of(world.limiter(limits=[A]))
    want = [("k", "api", Each(10), None)]
    await engine.consume(want, dry_run=True)

    class Away(FaultyStore):
        async def peek(self, *args: Any) -> Any:
            raise DOWN

    engine.use(Away(engine.store, before=[DOWN] * 4))
    with pytest.raises(RateLimiterUnavailable):
        await engine.consume(want, dry_run=dry_run)
    ruling = await engine.consume(want, OnUnavailable.ALLOW, dry_run=dry_run)
    assert ruling.verdict.allowed
    assert ruling.trouble is DOWN
    again = await engine.consume(want, OnUnavailable.ALLOW, dry_run=dry_run)
    assert again.verdict.allowed is dry_run


# Budgets: how many store calls a request costs. Counts are stable, so they are tests.

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
