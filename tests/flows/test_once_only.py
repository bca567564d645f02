"""What must happen once happens once, and what was learned is used at once."""

from __future__ import annotations

import asyncio

import pytest

from headgate import Limit, RateLimiter
from headgate.testing import FakeClock
from tests.flows.conftest import World, spend


async def test_a_lease_that_was_refunded_is_not_refunded_again() -> None:
    limits = [Limit.per_hour("x", 10)]
    async with RateLimiter("memory://", limits=limits, clock=FakeClock()) as limiter:
        await spend(limiter, "other", "api", x=1)
        await spend(limiter, "key", "api", x=6)
        with pytest.raises(RuntimeError):
            async with limiter.acquire("key", "api", {"x": 3}) as lease:
                raise RuntimeError
        await lease.settlements.leave(lease, True)
        assert await limiter.available("key", "api") == {"x": 4}


async def test_an_outdated_plan_is_read_anew_at_the_next_call(world: World) -> None:
    """The bucket told that its limits are newer; nobody waits for the cache to expire."""
    one = world.limiter()
    two = world.limiter(namespace="default")  # the same store, a cache of its own
    rpm, tpm = Limit.per_minute("rpm", 100), Limit.per_minute("tpm", 1000)
    await one.set_resource_defaults("api", [rpm])
    for limiter in (one, two):
        await spend(limiter, "a", "api", rpm=1)
    await one.set_resource_defaults("api", [rpm, tpm])
    await spend(one, "a", "api", rpm=1)
    await spend(two, "a", "api", rpm=1)
    async with two.acquire("a", "api", {"tpm": 7}):
        assert await two.available("a", "api") == {"rpm": 96, "tpm": 993}


async def test_who_comes_while_others_wait_does_not_overtake_them() -> None:
    clock = FakeClock()
    limiter = RateLimiter("memory://", limits=[Limit.per_second("rps", 10)], clock=clock)
    await spend(limiter, "key", "api", rps=10)
    start_ms = clock()
    order: list[str] = []

    async def worker(name: str, amount: int) -> None:
        async with limiter.acquire("key", "api", {"rps": amount}, wait=60):
            order.append(f"{name}@{clock() - start_ms}")

    first = asyncio.create_task(worker("first", 8))
    await clock.run_for(300)  # three are there: enough for who comes now
    later = asyncio.create_task(worker("later", 1))
    await clock.run_for(1000)
    assert order == ["first@800", "later@900"]
    await asyncio.gather(first, later)
    await limiter.close()
