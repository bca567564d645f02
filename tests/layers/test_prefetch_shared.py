"""Prefetch among several clients and tasks: the slack it adds, measured against its bound."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headgate.core.decision import Demand, Verdict
from headgate.core.limits import Limit
from headgate.core.record import cell_of
from headgate.layers.prefetch import Prefetch
from headgate.layers.stack import add_layers
from headgate.stores.memory.buckets import MemoryStore
from headgate.testing import FakeClock, RecordingStore
from headgate.transport.gates import wait_finished
from tests.layers.kit import STILL, Buckets, Client

CLIENTS = 4


class Line(RecordingStore):
    """A store some turns of the loop away, as ports have it: a call waits for its turn and can be
    called off then; once it was sent, it runs to its end."""

    async def _sent(self, call: Callable[[], Awaitable[Any]]) -> Any:
        async def work() -> Any:
            await asyncio.sleep(0)
            result = await call()
            await asyncio.sleep(0)
            return result

        await asyncio.sleep(0)
        return await wait_finished(asyncio.ensure_future(work()))

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        self.calls.append(("consume", (tuple(demands), now_ms)))
        verdict: Verdict = await self._sent(lambda: self.store.consume(demands, now_ms))
        return verdict

    async def adjust(self, demands: Sequence[Demand], now_ms: int | None, **how: Any) -> bool:
        applied: bool = await self._sent(lambda: self.store.adjust(demands, now_ms, **how))
        return applied


def test_S1_with_the_published_slack_over_four_clients() -> None:
    """In every interval: admitted <= capacity + rate * length + what clients may hold."""
    for seed in range(2):
        rng = random.Random(seed)
        clock = FakeClock()
        store = MemoryStore(clock)
        capacity, rate = 400, 1000
        shared = Buckets(Limit.per_second("rps", rate, burst=capacity))
        clients = [
            Client(add_layers(store, clock=clock, prefetch=True), clock) for _ in range(CLIENTS)
        ]
        slack = CLIENTS * capacity // 20
        admitted: list[tuple[int, int]] = []
        excess = 0.0
        for _ in range(3000):
            clock.advance(rng.choice((0, 0, 0, 1, 1, 2)))
            if rng.random() < 0.001:
                clock.advance(1500)
            amount = rng.randint(1, 3)
            if rng.choice(clients).take(shared.want(amount)).allowed:
                admitted.append((clock(), amount))
        for first in range(0, len(admitted), 23):
            total = 0
            for end_ms, amount in admitted[first : first + 1500]:
                total += amount
                allowed = capacity + rate * (end_ms - admitted[first][0]) / 1000
                excess = max(excess, total - allowed)
        assert excess <= slack, "the published bound"


def test_four_clients_mint_nothing_and_everything_comes_back() -> None:
    rng = random.Random(3)
    clock = FakeClock()
    store = MemoryStore(clock)
    layers = [Prefetch(store, clock) for _ in range(CLIENTS)]
    clients = [Client(layer, clock) for layer in layers]
    admitted = 0
    for _ in range(900):
        clock.advance(rng.choice((0, 0, 1, 300)))
        admitted += rng.choice(clients).take(STILL.want(1)).allowed
        held = sum(layer.held_milli(STILL.key()).get("n", 0) for layer in layers)
        assert held <= CLIENTS * 50_000
        record = clients[0].peek(STILL.key()).records[0]
        assert record is not None
        cell = cell_of(record, "n")
        assert cell is not None
        assert cell.tokens_milli + held + admitted * 1000 == 1_000_000

    async def close() -> None:
        for layer in layers:
            await layer.close()

    asyncio.run(close())
    admitted += Client(store, clock).admitted(STILL.want(1), 2000)
    assert admitted == 1000


def test_a_killed_client_loses_what_it_held_and_no_more() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    layer = Prefetch(store, clock)
    admitted = Client(layer, clock).admitted(STILL.want(1), 12)
    held = layer.held_milli(STILL.key())["n"] // 1000
    assert 0 < held <= 50
    del layer
    assert Client(store, clock).admitted(STILL.want(1), 2000) == 1000 - admitted - held


async def test_a_cancel_at_any_turn_loses_no_token() -> None:
    hits = 0
    for turns in range(90):
        clock = FakeClock()
        store = Line(MemoryStore(clock))
        layer = Prefetch(store, clock)
        admitted: list[int] = []

        async def caller(
            layer: Prefetch = layer, clock: FakeClock = clock, admitted: list[int] = admitted
        ) -> None:
            for n in range(14):
                if n == 7:
                    clock.advance(1000)
                verdict = await layer.consume([STILL.want(1)], clock())
                if verdict.allowed:
                    admitted.append(1)
                await asyncio.sleep(0)

        task = asyncio.ensure_future(caller())
        for _ in range(turns):
            await asyncio.sleep(0)
        hits += not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await layer.close()
        left = Client(store.store, clock).admitted(STILL.want(1), 2000)
        assert left + len(admitted) == 1000, turns
    assert hits > 20


def test_threads_on_all_layers_admit_exactly_what_there_is() -> None:
    clock = FakeClock()
    store = add_layers(MemoryStore(clock), clock=clock, prefetch=True)
    with ThreadPoolExecutor(8) as pool:
        callers = [pool.submit(Client(store, clock).admitted, STILL.want(1), 400) for _ in range(8)]
    assert sum(caller.result() for caller in callers) == 1000
