"""wait=…: queue instead of refusing; first come, first served; giving up consumes nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest

from headgate import (
    ClockStoppedError,
    Limit,
    RateLimiter,
    RateLimitExceeded,
    SyncRateLimiter,
    ValidationError,
)
from headgate.core.decision import Demand, Verdict
from headgate.core.wait_queue import Patience
from headgate.testing import FakeClock, RecordingStore
from headgate.transport.gates import AsyncGate
from tests.flows.conftest import Blocking, World, spend

PER_SECOND = Limit.per_second("rps", 1)


async def test_a_waiter_gets_in_at_the_exact_moment(world: World) -> None:
    limiter = world.limiter(limits=[PER_SECOND])
    await spend(limiter, "key", "api", rps=1)
    start_ms = world.clock()

    async def wait_in_line() -> int:
        async with limiter.acquire("key", "api", {"rps": 1}, wait=5):
            return world.clock() - start_ms

    if world.blocking:
        assert await wait_in_line() == 1000
    else:
        task = asyncio.create_task(wait_in_line())
        await world.clock.run_for(999)
        assert not task.done()
        await world.clock.run_for(1)
        assert await task == 1000


async def test_a_wait_that_cannot_succeed_is_refused_at_once(world: World) -> None:
    limiter = world.limiter(limits=[PER_SECOND])
    await spend(limiter, "key", "api", rps=1)
    start_ms = world.clock()
    with pytest.raises(RateLimitExceeded) as caught:
        async with limiter.acquire("key", "api", {"rps": 1}, wait=0.5):
            pass
    assert world.clock() == start_ms
    assert caught.value.retry_after_seconds == 1.0
    for bad in (-1, "1", True, float("nan"), float("inf"), 10**9):
        with pytest.raises(ValidationError, match="wait"):
            async with limiter.acquire("key", "api", {"rps": 1}, wait=bad):
                pass


def _async_world(*limits: Limit) -> tuple[RateLimiter, FakeClock]:
    clock = FakeClock()
    return RateLimiter("memory://", limits=list(limits), clock=clock), clock


async def test_waiters_are_served_in_order_and_nobody_overtakes_them() -> None:
    limiter, clock = _async_world(Limit.per_second("rps", 10))
    await spend(limiter, "key", "api", rps=10)
    order: list[str] = []

    async def worker(name: str, amount: int) -> None:
        async with limiter.acquire("key", "api", {"rps": amount}, wait=60):
            order.append(f"{name}@{clock() - start_ms}")

    start_ms = clock()
    # the first wants much; those behind want little and must not overtake it
    tasks = [asyncio.create_task(worker(n, a)) for n, a in (("a", 8), ("b", 1))]
    await clock.run_for(300)  # three are there: enough for who comes now
    tasks.append(asyncio.create_task(worker("c", 1)))
    await clock.run_for(1700)
    assert order == ["a@800", "b@900", "c@1000"]
    await asyncio.gather(*tasks)


async def test_a_cancelled_waiter_takes_nothing_and_blocks_nobody() -> None:
    limiter, clock = _async_world(Limit.per_second("rps", 10))
    await spend(limiter, "key", "api", rps=10)
    admitted: list[str] = []

    async def worker(name: str) -> None:
        async with limiter.acquire("key", "api", {"rps": 5}, wait=60):
            admitted.append(name)

    first, second = (asyncio.create_task(worker(name)) for name in ("first", "second"))
    await clock.run_for(100)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await clock.run_for(400)
    assert admitted == ["second"]
    await second
    assert await limiter.available("key", "api") == {"rps": 0}
    assert not limiter.engine.queues.has_waiters(["anything"])
    assert limiter.engine.queues._queues == {}


async def test_a_waiter_over_several_buckets_waits_for_all_of_them() -> None:
    limiter, clock = _async_world(Limit.per_second("rps", 1))
    for name in ("user", "ip"):
        await spend(limiter, name, "api", rps=1)
    clock.advance(500)
    done: list[int] = []

    async def both() -> None:
        asked = [("user", "api", {"rps": 1}), ("ip", "api", {"rps": 1})]
        async with limiter.acquire_many(asked, wait=10):
            done.append(clock())

    async def one() -> None:
        async with limiter.acquire("ip", "api", {"rps": 1}, wait=10):
            done.append(clock())

    start_ms = clock()
    tasks = [asyncio.create_task(both()), asyncio.create_task(one())]
    await clock.run_for(3000)
    await asyncio.gather(*tasks)
    assert [moment - start_ms for moment in done] == [500, 1500]


async def test_a_refund_wakes_the_first_waiter() -> None:
    limiter, clock = _async_world(Limit.per_hour("rph", 10))
    woken: list[int] = []

    async def failing(release: asyncio.Event) -> None:
        with pytest.raises(ZeroDivisionError):
            async with limiter.acquire("key", "api", {"rph": 10}):
                await release.wait()
                raise ZeroDivisionError

    async def waiter() -> None:
        async with limiter.acquire("key", "api", {"rph": 10}, wait=7200):
            woken.append(clock())

    release = asyncio.Event()
    start_ms = clock()
    holder = asyncio.create_task(failing(release))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(waiter())
    await clock.run_for(0)
    release.set()
    await clock.run_for(0)
    await asyncio.gather(holder, waiting)
    assert woken == [start_ms]


async def test_a_full_line_refuses_instead_of_growing() -> None:
    limiter, clock = _async_world(Limit.per_second("rps", 1))
    limiter.engine.queues._waiters_max = 3
    await spend(limiter, "key", "api", rps=1)

    async def worker() -> bool:
        try:
            async with limiter.acquire("key", "api", {"rps": 1}, wait=60):
                return True
        except RateLimitExceeded:
            return False

    tasks = [asyncio.create_task(worker()) for _ in range(5)]
    await clock.run_for(10_000)
    assert [await task for task in tasks] == [True, True, True, False, False]


async def test_tokens_that_come_back_while_the_store_answers_wake_the_waiter() -> None:
    """The refusal was on its way when a refund landed: it is tried again, not waited out."""
    limiter, clock = _async_world(Limit.per_hour("rph", 10))
    store = Late(limiter.engine.store)
    limiter.engine.use(store)
    start_ms = clock()
    woken: list[int] = []

    async def waiter() -> None:
        async with limiter.acquire("key", "api", {"rph": 10}, wait=7200):
            woken.append(clock())

    async with limiter.acquire("key", "api", {"rph": 10}) as lease:
        store.hold(refusals=2)  # the one before it stands in line, and the one in it
        waiting = asyncio.create_task(waiter())
        await store.held.wait()
        await lease.release(rph=10)
        store.let_go.set()
        await clock.run_for(0)
        assert woken == [start_ms]
        await waiting


class Late(RecordingStore):
    """A store whose last of so many refusals is held back."""

    def hold(self, refusals: int) -> None:
        self.left = refusals
        self.held = asyncio.Event()
        self.let_go = asyncio.Event()

    left = -1

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        verdict = await super().consume(demands, now_ms)
        self.left -= not verdict.allowed
        if self.left == 0 and not verdict.allowed:
            self.held.set()
            await self.let_go.wait()
        return verdict


# Eight threads on one bucket: exactly its capacity, nothing lost.

THREADS = 8
TRIES = 150


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_eight_threads_share_one_bucket_exactly(store: str, tmp_path: Path) -> None:
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/threads.db"
    limits = [Limit.per_hour("small", 500), Limit.per_hour("large", 10**6)]
    limiter = SyncRateLimiter(url, limits=limits, clock=FakeClock())
    admitted = [0] * THREADS
    start = threading.Barrier(THREADS)

    def worker(number: int) -> None:
        start.wait()
        for n in range(TRIES):
            try:
                with limiter.acquire("a", "api", {"small": 1, "large": 7}) as lease:
                    if n % 5 == 0:
                        lease.adjust(large=3)
                    admitted[number] += 1
            except RateLimitExceeded:
                pass

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(worker, range(THREADS)))
    assert sum(admitted) == 500
    states = {state.limit_name: state for state in limiter.get_buckets("a", "api")}
    assert states["small"].total_consumed_milli == 500_000
    assert states["small"].tokens_milli == 0
    spent = states["large"].capacity_milli - states["large"].tokens_milli
    assert spent == states["large"].total_consumed_milli
    limiter.close()


def test_threads_that_wait_get_their_turn() -> None:
    limiter = SyncRateLimiter("memory://", limits=[Limit.per_second("rps", 200)])
    done: list[int] = []

    def worker(number: int) -> None:
        for _ in range(10):
            with limiter.acquire("a", "api", {"rps": 10}, wait=30):
                done.append(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(worker, range(4)))
    assert len(done) == 40
    assert limiter.engine.queues._queues == {}


# What must happen once happens once, and what was learned is used at once.


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


@pytest.mark.parametrize("frozen", ["clock", "program"])
@pytest.mark.parametrize("blocking", [True, False])
async def test_a_frozen_clock_is_told_and_not_waited_for(
    blocking: bool, frozen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock of the caller's that nobody moves; or a whole program that freezegun stopped: then
    the timers of the event loop never ring either."""
    monkeypatch.setattr("headgate.core.wait_queue.STANDSTILL_MS", 30)
    clock: Any = (lambda: 1_700_000_000_000) if frozen == "clock" else None
    if frozen == "program":
        monkeypatch.setattr(time, "monotonic", lambda: 5.0)
        monkeypatch.setattr(time, "monotonic_ns", lambda: 5 * 10**9)
    kind: Any = SyncRateLimiter if blocking else RateLimiter
    limiter = kind("memory://", limits=[Limit.per_minute("rpm", 1)], clock=clock)
    face = Blocking(limiter) if blocking else limiter
    await spend(face, "key", "api", rpm=1)
    with pytest.raises(ClockStoppedError, match=r"stood at .*FakeClock"):
        async with face.acquire("key", "api", {"rpm": 1}, wait=120):
            pass
    assert (await face.available("key", "api")) == {"rpm": 0}
    assert not limiter.engine.queues.has_waiters(["key"])


async def test_tokens_that_come_back_still_end_a_wait_in_frozen_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    limiter = RateLimiter(
        "memory://", limits=[Limit.per_minute("rpm", 1)], clock=lambda: 1_700_000_000_000
    )
    waiting: Any = None

    async def wait_in_line() -> bool:
        async with limiter.acquire("key", "api", {"rpm": 1}, wait=120):
            return True

    async with limiter.acquire("key", "api", {"rpm": 1}) as lease:
        waiting = asyncio.ensure_future(wait_in_line())
        for _ in range(10):
            await asyncio.sleep(0)
        await lease.release(rpm=1)
        assert await waiting


async def test_a_gate_that_was_waited_at_in_vain_can_be_waited_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    gate = AsyncGate()
    assert await gate.wait(1) is False
    assert await gate.wait(1) is False
    gate.open()
    assert await gate.wait(60_000) is True


async def test_a_moving_clock_is_waited_for_and_a_standing_one_is_not() -> None:
    """Parts of a wait add up while the clock stands, and count from anew once it has moved."""

    class Gate:
        waited: ClassVar[list[int]] = []

        def open(self) -> None: ...

        async def wait(self, timeout_ms: int) -> bool:
            self.waited.append(timeout_ms)
            return False

    times = iter([0, 0, 600, 600, 600, 600])
    patience = Patience(lambda: next(times))
    await patience.wait(Gate(), 600)
    await patience.wait(Gate(), 600)
    await patience.wait(Gate(), 600)
    with pytest.raises(ClockStoppedError, match=r"stood at 600 ms .* for 1600 ms"):
        await patience.wait(Gate(), 5000)
    assert Gate.waited == [600, 600, 600, 1000]
