"""Cancellation at every await of an acquire, its body and its exit: nothing leaks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from headgate import Limit, RateLimiter
from headgate.core.decision import Demand, Verdict
from headgate.core.store import PeekResult
from headgate.testing import FakeClock, RecordingStore
from headgate.transport.gates import wait_finished

RPM = Limit.per_hour("rph", 100)


class SlowStore(RecordingStore):
    """A store with a line that takes several turns of the loop, as a real port has it."""

    async def _sent(self, flow: Any) -> Any:
        async def work() -> Any:
            await asyncio.sleep(0)
            result = await flow
            await asyncio.sleep(0)
            return result

        return await wait_finished(asyncio.ensure_future(work()))

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        return await self._sent(super().consume(demands, now_ms))  # type: ignore[no-any-return]

    async def adjust(self, demands: Sequence[Demand], now_ms: int | None, **how: Any) -> bool:
        return await self._sent(super().adjust(demands, now_ms, **how))  # type: ignore[no-any-return]

    async def peek(self, keys: Any, now_ms: int | None) -> PeekResult:
        return await self._sent(super().peek(keys, now_ms))  # type: ignore[no-any-return]


def slow_limiter() -> RateLimiter:
    limiter = RateLimiter("memory://", limits=[RPM], clock=FakeClock())
    limiter.engine.use(SlowStore(limiter.engine.store))
    return limiter


async def _cancelled_after(turns: int, flow: Any) -> bool:
    """Whether a cancel after so many turns of the loop hit the flow before its end."""
    task = asyncio.ensure_future(flow)
    for _ in range(turns):
        if task.done():
            break
        await asyncio.sleep(0)
    if task.done():
        return False
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return True


async def _body(limiter: RateLimiter, reached: list[str]) -> None:
    async with limiter.acquire("a", "api", {"rph": 10}) as lease:
        reached.append("body")
        await asyncio.sleep(0)
        await lease.adjust(rph=5)
        await asyncio.sleep(0)
        await lease.release(rph=2)
        await asyncio.sleep(0)
        await lease.settle(rph=20)
        await asyncio.sleep(0)
    reached.append("end")
    await asyncio.sleep(0)


async def test_at_every_turn_a_cancel_leaves_nothing_behind() -> None:
    for turns in range(200):
        limiter = slow_limiter()
        reached: list[str] = []
        hit = await _cancelled_after(turns, _body(limiter, reached))
        left = (await limiter.engine.available("a", "api", None))["rph"]
        if not hit:
            assert reached == ["body", "end"]
            assert left == 80
            assert turns > 15, "the flow must have many places to be cancelled at"
            return
        settled = left == 80  # what was settled stays, however the block ends
        assert left == 100 or settled, f"cancelled after {turns} turns: {left} left"
        if settled:
            assert "body" in reached
    raise AssertionError("the flow never came to its end")


async def test_a_cancelled_exit_still_refunds() -> None:
    async def failing(limiter: RateLimiter) -> None:
        async with limiter.acquire("a", "api", {"rph": 10}):
            raise ZeroDivisionError

    hits = 0
    for turns in range(50):
        limiter = slow_limiter()
        task = asyncio.ensure_future(failing(limiter))
        for _ in range(turns):
            await asyncio.sleep(0)
        if not task.done():
            hits += 1
            task.cancel()
        with pytest.raises((ZeroDivisionError, asyncio.CancelledError)):
            await task
        assert await limiter.engine.available("a", "api", None) == {"rph": 100}
    assert hits > 4


async def test_cancelling_all_or_none_over_several_buckets() -> None:
    async def both(limiter: RateLimiter) -> None:
        asked = [("a", "api", {"rph": 10}), ("b", "api", {"rph": 10})]
        async with limiter.acquire_many(asked):
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    for turns in range(12):
        limiter = slow_limiter()
        hit = await _cancelled_after(turns, both(limiter))
        left = [(await limiter.engine.available(n, "api", None))["rph"] for n in ("a", "b")]
        assert left == ([100, 100] if hit else [90, 90])


async def test_a_timeout_around_an_acquire_is_still_a_timeout() -> None:
    """The cancel that waited for the store is delivered as what it was."""
    limiter = slow_limiter()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            async with limiter.acquire("a", "api", {"rph": 10}):
                await asyncio.sleep(3600)
    assert await limiter.available("a", "api") == {"rph": 100}


async def test_a_generator_closed_early_refunds_or_keeps_as_chosen() -> None:
    async def stream(limiter: RateLimiter, on_error: str) -> Any:
        async with limiter.acquire("a", "api", {"rph": 10}, on_error=on_error):
            yield 1
            yield 2

    for on_error, left in (("refund", 100), ("keep", 90)):
        limiter = slow_limiter()
        chunks = stream(limiter, on_error)
        assert await anext(chunks) == 1
        await chunks.aclose()
        assert await limiter.available("a", "api") == {"rph": left}
