"""A cancellation that had to wait for an outcome is told where the call ends, and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headgate import Lease, Limit, RateLimiter, RateLimitExceeded
from headgate.core.decision import Demand, Verdict
from headgate.layers.layer import Layer
from headgate.transport.gates import SentWork, wait_finished
from tests.flows.conftest import spend

LIMITS = [Limit.per_day("rpd", 10)]


class Slow(Layer):
    """A store whose calls, once sent, run to their end: `sent` tells that one is under way."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.slow = False
        self.sent = asyncio.Event()

    async def _run_to_the_end(self) -> None:
        if self.slow:
            self.sent.set()
            work: SentWork[None] = SentWork()
            asyncio.get_running_loop().call_later(0.01, work.set_result, None)
            await wait_finished(work)

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        await self._run_to_the_end()
        return await super().consume(demands, now_ms)

    async def adjust(self, demands: Sequence[Demand], now_ms: int | None, **how: Any) -> bool:
        await self._run_to_the_end()
        return await super().adjust(demands, now_ms, **how)


async def slowly(limiter: RateLimiter) -> Slow:
    store = Slow(limiter.engine.store)
    limiter.engine.use(store)
    return store


async def left(limiter: RateLimiter) -> int:
    return (await limiter.available("user-1", "api"))["rpd"]


async def nothing_follows() -> None:
    """No cancellation is left over for who did not ask for one."""
    for _ in range(3):
        await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_timeout_around_an_acquire_is_a_timeout_and_gives_back(tmp_path: Path) -> None:
    async with RateLimiter(f"sqlite:///{tmp_path}/a.db", limits=LIMITS) as limiter:
        store = await slowly(limiter)
        for on_error in ("refund", "keep"):
            store.slow = True
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    async with limiter.acquire("user-1", "api", {"rpd": 1}, on_error=on_error):
                        pytest.fail("the block was entered")
            await nothing_follows()
            store.slow = False
            assert await left(limiter) == 10


async def test_a_timeout_around_a_refusal_is_a_timeout() -> None:
    async with RateLimiter(limits=[Limit.per_day("rpd", 1)], rejections=False) as limiter:
        await spend(limiter, "user-1", "api", rpd=1)
        store = await slowly(limiter)
        store.slow = True
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await spend(limiter, "user-1", "api", rpd=1)
        await nothing_follows()
        with pytest.raises(RateLimitExceeded):
            await spend(limiter, "user-1", "api", rpd=1)


@pytest.mark.parametrize("verb", ["adjust", "consume", "release", "settle"])
async def test_a_timeout_around_a_lease_s_verb_is_a_timeout_and_what_was_done_stays(
    verb: str,
) -> None:
    after = {"adjust": 7, "consume": 7, "release": 9, "settle": 9}
    async with RateLimiter(limits=LIMITS) as limiter:
        store = await slowly(limiter)
        async with limiter.acquire("user-1", "api", {"rpd": 2}) as lease:
            assert isinstance(lease, Lease)
            store.slow = True
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await getattr(lease, verb)(rpd=1)
            await nothing_follows()
            store.slow = False
            assert await left(limiter) == after[verb]


async def test_a_task_that_only_acquires_can_be_cancelled() -> None:
    async with RateLimiter(limits=[Limit.per_day("rpd", 10**6)]) as limiter:
        store = await slowly(limiter)
        store.slow = True
        entered = 0

        async def worker() -> None:
            nonlocal entered
            while True:
                async with limiter.acquire("user-1", "api", {"rpd": 1}):
                    entered += 1

        task = asyncio.create_task(worker())
        await store.sent.wait()
        task.cancel("enough")
        await asyncio.wait((task,), timeout=5)
        assert task.done()
        with pytest.raises(asyncio.CancelledError, match="enough"):
            await task
        store.slow = False
        assert entered == 0
        assert await left(limiter) == 10**6


async def test_who_cleans_up_after_a_cancellation_may_acquire() -> None:
    async with RateLimiter(limits=LIMITS) as limiter:
        store = await slowly(limiter)
        cleaned = []

        async def worker() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                store.slow = True
                async with limiter.acquire("user-1", "api", {"rpd": 1}):
                    cleaned.append(True)

        task = asyncio.create_task(worker())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cleaned == [True]


@pytest.mark.parametrize("times", [1, 2])
async def test_an_acquire_is_entered_once(times: int) -> None:
    async with RateLimiter(limits=LIMITS) as limiter:
        acquiring = limiter.acquire("user-1", "api", {"rpd": 1})
        async with acquiring:
            if times == 2:
                with pytest.raises(ValueError, match="anew for each block"):
                    await acquiring.__aenter__()
        with pytest.raises(ValueError, match="anew for each block"):
            await acquiring.__aenter__()
        assert await left(limiter) == 9


async def test_who_is_cancelled_in_the_block_gives_back() -> None:
    async with RateLimiter(limits=LIMITS) as limiter:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                async with limiter.acquire("user-1", "api", {"rpd": 3}):
                    await asyncio.sleep(60)
        assert await left(limiter) == 10
