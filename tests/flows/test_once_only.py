"""What must happen once happens once, and what was learned is used at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headgate import Limit, RateLimiter
from headgate.testing import FakeClock

Play = Callable[[Any], None]


def test_a_lease_that_was_refunded_is_not_refunded_again() -> None:
    async def flow() -> None:
        limits = [Limit.per_hour("x", 10)]
        async with RateLimiter("memory://", limits=limits, clock=FakeClock()) as limiter:
            async with limiter.acquire("other", "api", {"x": 1}):
                pass
            async with limiter.acquire("key", "api", {"x": 6}):
                pass
            with pytest.raises(RuntimeError):
                async with limiter.acquire("key", "api", {"x": 3}) as lease:
                    raise RuntimeError
            await lease.settlements.leave(lease, True)
            assert await limiter.available("key", "api") == {"x": 4}

    asyncio.run(flow())


def test_an_outdated_plan_is_read_anew_at_the_next_call(play: Play) -> None:
    """The bucket told that its limits are newer; nobody waits for the cache to expire."""

    async def flow(world: Any) -> None:
        one = world.limiter()
        two = world.limiter(namespace="default")  # the same store, a cache of its own
        rpm, tpm = Limit.per_minute("rpm", 100), Limit.per_minute("tpm", 1000)
        await one.set_resource_defaults("api", [rpm])
        for limiter in (one, two):
            async with limiter.acquire("a", "api", {"rpm": 1}):
                pass
        await one.set_resource_defaults("api", [rpm, tpm])
        async with one.acquire("a", "api", {"rpm": 1}):
            pass
        async with two.acquire("a", "api", {"rpm": 1}):
            pass
        async with two.acquire("a", "api", {"tpm": 7}):
            assert await two.available("a", "api") == {"rpm": 96, "tpm": 993}

    play(flow)


def test_who_comes_while_others_wait_does_not_overtake_them() -> None:
    async def flow() -> None:
        clock = FakeClock()
        limiter = RateLimiter("memory://", limits=[Limit.per_second("rps", 10)], clock=clock)
        async with limiter.acquire("key", "api", {"rps": 10}):
            pass
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

    asyncio.run(flow())
