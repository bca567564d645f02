"""The breaker among many callers, and under a limiter."""

from __future__ import annotations

import asyncio

import pytest

from headgate import (
    Event,
    Limit,
    OnUnavailable,
    RateLimiter,
    RateLimiterUnavailable,
    RateLimitExceeded,
    SyncRateLimiter,
)
from headgate.layers.breaker import Breaker, BreakerConfig, BreakerOpen, BreakerState, Circuit
from headgate.layers.stack import add_layers
from headgate.stores.memory.buckets import MemoryStore
from headgate.testing import FakeClock, FaultyStore
from tests.layers.kit import DOWN, Buckets, Held, turns

BUCKETS = Buckets(Limit.per_second("rps", 100_000))
ONE = BUCKETS.want(1)


async def half_open() -> tuple[Breaker, Held]:
    """A breaker whose pause is over, around a store that answers when it is let go."""
    clock = FakeClock()
    store = Held(MemoryStore(clock))
    layer = Breaker(store, Circuit(clock))
    store.let_go.set()
    store.trouble = DOWN
    for _ in range(5):
        with pytest.raises(type(DOWN)):
            await layer.consume([ONE], None)
    clock.advance(BreakerConfig().open_ms)
    store.let_go.clear()
    store.calls.clear()
    return layer, store


async def test_one_probe_among_a_hundred_callers() -> None:
    layer, store = await half_open()
    tasks = [asyncio.ensure_future(layer.consume([ONE], None)) for _ in range(100)]
    await turns()
    assert len(store.calls) == 1
    store.let_go.set()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(end, BreakerOpen) for end in ends) == 99
    assert (layer.circuit.state, layer.circuit.failures) == (BreakerState.OPEN, 6)


async def test_a_hundred_callers_close_it_with_two_probes() -> None:
    layer, store = await half_open()
    store.trouble = None
    for probe in (1, 2):
        store.let_go.clear()
        tasks = [asyncio.ensure_future(layer.consume([ONE], None)) for _ in range(100)]
        await turns()
        assert len(store.calls) == probe
        store.let_go.set()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert layer.circuit.state is BreakerState.CLOSED
    verdicts = await asyncio.gather(*(layer.consume([ONE], None) for _ in range(100)))
    assert all(verdict.allowed for verdict in verdicts)


async def test_a_cancelled_probe_makes_room_for_the_next() -> None:
    layer, store = await half_open()
    store.trouble = None
    for probe in range(1, 6):
        task = asyncio.ensure_future(layer.consume([ONE], None))
        await turns()
        assert len(store.calls) == probe
        with pytest.raises(BreakerOpen):
            await layer.consume([ONE], None)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert layer.circuit.state is BreakerState.HALF_OPEN
    store.let_go.set()
    await layer.consume([ONE], None)
    await layer.consume([ONE], None)
    assert layer.circuit.state is BreakerState.CLOSED


async def test_an_abandoned_probe_makes_room_too() -> None:
    layer, store = await half_open()
    probe = layer.consume([ONE], None)
    probe.send(None)
    probe.close()
    again = asyncio.ensure_future(layer.consume([ONE], None))
    await turns()
    assert len(store.calls) == 2
    again.cancel()


def test_while_open_admissions_are_labelled_bounded_and_cost_the_store_nothing() -> None:
    clock = FakeClock()
    events: list[Event] = []
    limiter = SyncRateLimiter(
        "memory://",
        limits=[Limit.per_hour("rph", 20)],
        clock=clock,
        observer=events.append,
        on_unavailable=OnUnavailable.ALLOW,
    )
    store = FaultyStore(limiter.engine.store, before=[DOWN] * 5)
    limiter.engine.use(add_layers(store, clock=clock))
    admitted = 0
    for _ in range(200):
        try:
            with limiter.acquire("a", "api", {"rph": 1}) as lease:
                assert lease.degraded
                admitted += 1
        except RateLimitExceeded:
            pass
    assert admitted == 20, "a local bucket of the same limits bounds what passes"
    assert store.calls == []
    assert len(store.before) == 0, "five callers met the outage, the others were told at once"
    assert {event.kind for event in events} == {"degraded"}
    clock.advance(BreakerConfig().open_ms)
    for _ in range(3):
        with limiter.acquire("b", "api", {"rph": 1}) as lease:
            assert not lease.degraded
    assert store.verbs == ["consume"] * 3


async def test_while_open_blocking_callers_are_told_why() -> None:
    clock = FakeClock()
    async with RateLimiter("memory://", limits=[Limit.per_hour("rph", 20)], clock=clock) as limiter:
        faulty = FaultyStore(limiter.engine.store, before=[DOWN] * 5)
        limiter.engine.use(add_layers(faulty, clock=clock))
        for _ in range(6):
            with pytest.raises(RateLimiterUnavailable) as caught:
                async with limiter.acquire("a", "api", {"rph": 1}):
                    pass
        assert isinstance(caught.value.cause, BreakerOpen)
