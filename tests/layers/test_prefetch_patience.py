"""Prefetch: whoever gives up, is called off or runs out of patience stops nobody else."""

from __future__ import annotations

import asyncio

import pytest

from headgate.layers.prefetch import TURNS_MAX, WAIT_MS
from tests.layers.herding import Herd, admitted
from tests.layers.kit import turns
from tests.layers.prefetching import FAST, STILL


def test_a_cancelled_filler_is_followed_by_one_who_waited() -> None:
    async def story() -> None:
        herd = Herd()
        herd.store.let_go.clear()
        tasks = [herd.ask(STILL.want(1)) for _ in range(20)]
        await turns()
        assert herd.store.under_way == 1
        tasks[0].cancel()
        await turns()
        assert herd.store.under_way == 1, "the next goes on"
        assert 19 <= herd.store.asked[1] <= 2 * 19, "for all who are left"
        herd.store.let_go.set()
        told = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(told[0], asyncio.CancelledError)
        assert admitted(told) == 19
        assert await herd.left(STILL) == 1000 - 19

    asyncio.run(story())


def test_a_cancelled_waiter_takes_nothing_and_leaves_nothing() -> None:
    async def story() -> None:
        herd = Herd()
        herd.store.let_go.clear()
        tasks = [herd.ask(STILL.want(1)) for _ in range(3)]
        gone = [herd.ask(STILL.want(1)) for _ in range(20)]
        await turns()
        for task in gone:
            task.cancel()
        await turns()
        herd.clock.advance(500)  # so long that nothing is fetched but what is waited for
        herd.store.let_go.set()
        assert admitted(await asyncio.gather(*tasks)) == 3
        assert herd.store.asked == [1, 2]
        assert all(task.cancelled() for task in gone)
        assert all(pot.turns.is_idle for pot in herd.layer._holdings.values())
        assert await herd.left(STILL) == 1000 - 3

    asyncio.run(story())


@pytest.mark.parametrize("victims", [(0,), (3,), (0, 1, 2), (5, 1)])
def test_a_cancel_at_any_turn_loses_no_token_and_stops_nobody_else(victims: tuple[int]) -> None:
    async def story() -> None:
        for moment in range(40):
            herd = Herd()
            counted: list[int] = []

            async def caller(herd: Herd = herd, counted: list[int] = counted) -> int:
                for _ in range(5):
                    verdict = await herd.layer.consume([STILL.want(3)], herd.clock())
                    counted.append(3 if verdict.allowed else 0)
                return 5

            tasks = [asyncio.ensure_future(caller()) for _ in range(8)]
            await turns(moment)
            for victim in victims:
                tasks[victim].cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert ends.count(5) >= 8 - len(victims)
            assert herd.store.most == 1
            assert await herd.left(STILL) == 1000 - sum(counted), moment

    asyncio.run(story())


def test_patience_ends_when_a_call_takes_too_long() -> None:
    async def story() -> None:
        herd = Herd()
        herd.store.let_go.clear()
        tasks = [herd.ask(FAST.want(1)) for _ in range(10)]
        await herd.clock.run_for(WAIT_MS - 1)
        assert herd.store.under_way == 1
        await herd.clock.run_for(1)
        assert herd.store.under_way == 10
        herd.store.let_go.set()
        assert admitted(await asyncio.gather(*tasks)) == 10

    asyncio.run(story())


def test_patience_ends_after_so_many_calls_of_others() -> None:
    """Chunks of two demands only: the rest of a herd goes to the store itself at last."""

    async def story() -> None:
        herd = Herd()
        assert admitted(await herd.come(STILL.want(25), 40)) == 40
        assert 1 < herd.store.most <= 40 - TURNS_MAX
        assert len(herd.store.calls) <= 40
        assert await herd.left(STILL) == 0

    asyncio.run(story())


def test_the_time_of_a_caller_goes_on_while_it_waits() -> None:
    async def story() -> None:
        herd = Herd()
        herd.store.let_go.clear()
        tasks = [herd.ask(FAST.want(1)) for _ in range(3)]
        await turns()
        herd.clock.advance(70)
        herd.store.let_go.set()
        await asyncio.gather(*tasks)
        times = [call[1][1] for call in herd.store.calls]
        assert times == [herd.clock() - 70, herd.clock()]

    asyncio.run(story())


def test_the_end_of_the_layer_leaves_nobody_waiting() -> None:
    async def story() -> None:
        herd = Herd()
        await herd.come(STILL.want(1), 12)
        herd.store.let_go.clear()
        herd.clock.advance(1)
        tasks = [herd.ask(STILL.want(25)) for _ in range(6)]
        await turns()
        await herd.layer.detach()
        herd.store.let_go.set()
        assert admitted(await asyncio.gather(*tasks)) == 6
        assert await herd.left(STILL) == 1000 - 12 - 6 * 25

    asyncio.run(story())
