"""Layers under a limiter: chosen by options and URL, seen by every verb, ended with it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headgate import (
    Event,
    Limit,
    OnUnavailable,
    RateLimiter,
    RateLimitExceeded,
    Repository,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
)
from headgate.layers.breaker import Breaker
from headgate.layers.layer import Layer, Shadow
from headgate.layers.prefetch import Prefetch
from headgate.layers.rejections import Rejections
from headgate.service.decide.service import Service
from headgate.testing import FakeClock, FaultyStore, RecordingStore
from headgate.transport.gates import AsyncGateFactory, BlockingGateFactory
from tests.flows.conftest import take
from tests.layers.kit import DOWN

RPM = Limit.per_minute("rpm", 5)
MANY = Limit.per_hour("rph", 1000)


def layers_of(limiter: SyncRateLimiter) -> list[type]:
    found: list[type] = []
    store: Any = limiter.engine.store
    while isinstance(store, Layer):
        found.append(type(store))
        store = store.inner
    return found


def counted(limiter: RateLimiter) -> RecordingStore:
    """The calls that reach the store below all layers, from now on."""
    store: Any = limiter.engine.store
    while isinstance(store.inner, Layer):
        store = store.inner
    store.inner = RecordingStore(store.inner)
    return store.inner  # type: ignore[no-any-return]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/layers.db"


def test_options_and_url_choose_the_layers(url: str) -> None:
    for options, query, expected in (
        ({}, "", [Rejections, Breaker]),
        ({"breaker": False}, "", [Rejections]),
        ({"prefetch": True, "shadow": True}, "", [Shadow, Prefetch, Rejections, Breaker]),
        ({}, "?prefetch=on&rejections=off", [Prefetch, Breaker]),
        ({"shadow": True}, "?shadow=off&breaker=off&rejections=off&timeout_ms=50", []),
    ):
        with SyncRateLimiter(url + query, limits=[RPM], **options) as limiter:
            assert layers_of(limiter) == expected
    with SyncRateLimiter("memory://", shadow=True) as limiter:
        assert layers_of(limiter) == [Shadow], "the others are no use on a store of this process"
    with SyncRateLimiter("memory://?breaker=on") as limiter:
        assert layers_of(limiter) == [Breaker]
    with pytest.raises(ValidationError):
        SyncRateLimiter(url + "?breaker=perhaps")
    with pytest.raises(ValidationError):
        SyncRateLimiter(url, breaker="no")  # type: ignore[arg-type]


def test_a_thousand_refused_acquires_are_one_store_call(url: str) -> None:
    with SyncRateLimiter(url, limits=[RPM], clock=FakeClock()) as limiter:
        store = counted(limiter)
        refused = 0
        for _ in range(1005):
            try:
                take(limiter, "a", "api", {"rpm": 1})
            except RateLimitExceeded as error:
                refused += 1
                assert error.retry_after_ms == 12_000
        assert (refused, store.verbs) == (1000, ["consume"] * 6)
        limiter.top_up("a", "api", {"rpm": 1})
        take(limiter, "a", "api", {"rpm": 1})
        with pytest.raises(RateLimitExceeded), limiter.acquire("a", "api", {"rpm": 1}):
            pass
        limiter.reset_bucket("a", "api")
        take(limiter, "a", "api", {"rpm": 5})


def test_in_shadow_nothing_is_refused_and_a_lease_gives_back_only_what_it_took() -> None:
    events: list[Event] = []
    with SyncRateLimiter(
        "memory://", limits=[RPM], clock=FakeClock(), observer=events.append, shadow=True
    ) as limiter:
        for _ in range(3):
            take(limiter, "a", "api", {"rpm": 2})
        assert limiter.available("a", "api") == {"rpm": 1}
        with pytest.raises(ZeroDivisionError), limiter.acquire("a", "api", {"rpm": 2}) as lease:
            assert lease.consumed == {}
            lease.adjust(rpm=-2)
            lease.release(rpm=2)
            lease.consume(rpm=4)
            raise ZeroDivisionError
        with limiter.acquire("a", "api", {"rpm": 1}) as lease:
            lease.consume(rpm=3)
            assert lease.consumed == {"rpm": 1}
        assert limiter.available("a", "api") == {"rpm": 0}
        kinds = [event.kind for event in events if event.kind in ("refused", "shadowed")]
        assert kinds == ["shadowed"] * 3
        assert limiter.check("a", "api", {"rpm": 1}).allowed is False, "a check tells the truth"


def test_in_shadow_an_outage_refuses_nobody_who_may_pass_degraded() -> None:
    with SyncRateLimiter(
        "memory://", limits=[RPM], clock=FakeClock(), on_unavailable=OnUnavailable.ALLOW,
        shadow=True,
    ) as limiter:  # fmt: skip
        limiter.engine.use(FaultyStore(limiter.engine.store, before=[DOWN] * 20))
        for _ in range(20):
            with limiter.acquire("a", "api", {"rpm": 1}) as lease:
                assert lease.degraded


def test_the_breaker_is_told_to_the_observer(url: str, clock: FakeClock) -> None:
    events: list[Event] = []
    with SyncRateLimiter(url, limits=[MANY], clock=clock, observer=events.append) as limiter:
        store = limiter.engine.store
        store.inner.inner = FaultyStore(store.inner.inner, before=[DOWN] * 5)
        for _ in range(8):
            with pytest.raises(Exception, match="gave no answer"):
                take(limiter, "a", "api", {"rph": 1})
        clock.advance(10_000)
        for _ in range(2):
            take(limiter, "a", "api", {"rph": 1})
        states = [event.detail for event in events if event.kind == "breaker"]
        assert states == ["open", "half-open", "closed"]


@pytest.mark.parametrize("owns", [True, False])
def test_what_was_prefetched_comes_back_when_the_limiter_ends(
    url: str, owns: bool, clock: FakeClock
) -> None:
    with SyncRepository(url, clock=clock) as repository:
        home: Any = url if owns else repository
        limiter = SyncRateLimiter(
            home, limits=[MANY], clock=clock if owns else None, prefetch=True, shadow=True
        )
        store = counted(limiter)
        for _ in range(40):
            clock.advance(1)
            take(limiter, "a", "api", {"rph": 1})
        assert len(store.calls) < 10
        assert limiter.available("a", "api")["rph"] < 960
        limiter.close()
        with SyncRateLimiter(repository, limits=[MANY]) as other:
            assert other.available("a", "api") == {"rph": 960}


def test_callers_of_a_limiter_wait_for_one_anothers_call(url: str) -> None:
    async def story() -> list[str]:
        limits = [Limit.per_hour("rph", 100_000)]
        async with RateLimiter(url, limits=limits, prefetch=True) as limiter:
            await limiter.available("a", "api")
            store = counted(limiter)

            async def one() -> None:
                async with limiter.acquire("a", "api", {"rph": 1}):
                    pass

            await asyncio.gather(*(one() for _ in range(50)))
            return store.verbs

    assert 2 <= asyncio.run(story()).count("consume") <= 5


async def test_whoever_puts_prefetch_up_gives_it_the_pace_of_its_colour(url: str) -> None:
    with SyncRateLimiter(url, prefetch=True) as limiter:
        assert isinstance(limiter.engine.store, Prefetch)
        assert isinstance(limiter.engine.store._pace, BlockingGateFactory)

    service = Service(await Repository.open(url + "?prefetch=on"))
    assert isinstance(service._store, Prefetch)
    assert isinstance(service._store._pace, AsyncGateFactory)
    await service.close()
