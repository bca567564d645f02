"""Cancellation at every await of an acquire, its body and its exit: nothing leaks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headgate import Limit, RateLimiter, RateLimitExceeded
from headgate.core.decision import Demand, Verdict
from headgate.layers.layer import Layer
from headgate.testing import FakeClock
from headgate.transport.gates import SentWork, wait_finished
from tests.flows.conftest import SlowStore, spend

RPM = Limit.per_hour("rph", 100)


def slow_limiter(*, queues: bool = False) -> RateLimiter:
    limiter = RateLimiter("memory://", limits=[RPM], clock=FakeClock())
    limiter.engine.use(SlowStore(limiter.engine.store, queues=queues))
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


@pytest.mark.parametrize("cancels", [1, 2, 3])
@pytest.mark.parametrize("why", ["an error", "a cancellation"])
async def test_a_refund_that_waits_for_a_connection_survives_every_cancellation(
    why: str, cancels: int
) -> None:
    """It was not sent yet, so it could be called off; but then nobody would give the tokens back
    that were taken long ago."""

    async def failing(limiter: RateLimiter, inside: asyncio.Event) -> None:
        async with limiter.acquire("a", "api", {"rph": 10}):
            inside.set()
            if why == "an error":
                raise ZeroDivisionError
            await asyncio.sleep(1_000)

    for turns in range(12):
        limiter = slow_limiter(queues=True)
        inside = asyncio.Event()
        task = asyncio.ensure_future(failing(limiter, inside))
        await inside.wait()
        for _ in range(turns if why == "an error" else 0):
            await asyncio.sleep(0)
        for _ in range(cancels):
            task.cancel()
            for _ in range(turns if why == "a cancellation" else 1):
                await asyncio.sleep(0)
        with pytest.raises((ZeroDivisionError, asyncio.CancelledError)):
            await task
        assert await limiter.engine.available("a", "api", None) == {"rph": 100}, turns


@pytest.mark.parametrize("cancels", [1, 2, 3])
async def test_an_acquire_that_is_called_off_gives_back_however_often(cancels: int) -> None:
    """The first cancellation waits for what was sent, and what that took goes back all the same."""
    hits = 0
    for turns in range(12):
        limiter = slow_limiter(queues=True)
        task = asyncio.ensure_future(spend(limiter, "a", "api", rph=10))
        for place in range(cancels):
            for _ in range(1 if place else turns):
                await asyncio.sleep(0)
            task.cancel()
        done, _ = await asyncio.wait((task,))
        left = await limiter.engine.available("a", "api", None)
        if done.pop().cancelled():
            hits += 1
            assert left == {"rph": 100}, turns
    assert hits > 3


class Busy(Layer):
    """A store whose connections are all in use for a while."""

    async def adjust(self, *args: Any, **options: Any) -> bool:
        for _ in range(10):
            await asyncio.sleep(0)
        return await super().adjust(*args, **options)


def test_a_loop_that_ends_waits_for_refunds() -> None:
    """asyncio.run cancels every task at its end, also the one that sends the refund."""
    limiters: list[RateLimiter] = []

    async def main() -> None:
        async def failing(limiter: RateLimiter) -> None:
            async with limiter.acquire("a", "api", {"rph": 10}):
                raise ZeroDivisionError

        for turns in range(2, 8):
            limiter = RateLimiter("memory://", limits=[RPM], clock=FakeClock())
            limiter.engine.use(Busy(limiter.engine.store))
            limiters.append(limiter)
            background.append(asyncio.ensure_future(failing(limiter)))
            for _ in range(turns):
                await asyncio.sleep(0)

    async def left(limiter: RateLimiter) -> dict[str, int]:
        return await limiter.engine.available("a", "api", None)

    background: list[Any] = []
    asyncio.run(main())
    assert [asyncio.run(left(limiter)) for limiter in limiters] == [{"rph": 100}] * 6
    for task in background:
        assert task.cancelled() or isinstance(task.exception(), ZeroDivisionError)


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


# A cancellation that had to wait for an outcome is told where the call ends, and nowhere else.

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
