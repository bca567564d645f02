"""A herd for tests of prefetch: many callers of one client, on a store that counts them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from headgate.core.decision import Demand, Verdict
from headgate.core.errors import StoreTrouble
from headgate.layers.prefetch import Prefetch
from headgate.layers.stack import add_layers
from headgate.stores.memory.buckets import MemoryStore
from headgate.testing import FakeClock, RecordingStore
from tests.layers.kit import Buckets, Client, turns

HERD = 50


class Narrow(RecordingStore):
    """A store some turns of the loop away that counts calls under way at once. A call waits until
    it is let go and reaches the store then; `troubles` are met first, one by one."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(MemoryStore(clock))
        self.let_go = asyncio.Event()
        self.let_go.set()
        self.troubles: list[StoreTrouble] = []
        self.under_way = 0
        self.most = 0

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        self.calls.append(("consume", (tuple(demands), now_ms)))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await turns(2)
            await self.let_go.wait()
            if self.troubles:
                raise self.troubles.pop(0)
            return await self.store.consume(demands, now_ms)
        finally:
            self.under_way -= 1

    @property
    def asked(self) -> list[int]:
        """Whole tokens of the first limit, call by call."""
        return [call[1][0][0].amounts[0] // 1000 for call in self.calls if call[0] == "consume"]


class Herd:
    """Callers of one client, as tasks."""

    def __init__(self, **layers: bool) -> None:
        self.clock = FakeClock()
        self.store = Narrow(self.clock)
        pace = self.clock.pace(blocking=False)
        chosen = {"breaker": False, "rejections": False} | layers
        top = add_layers(self.store, clock=self.clock, pace=pace, prefetch=True, **chosen)
        assert isinstance(top, Prefetch)
        self.layer = top
        self.other = Client(self.store.store, self.clock)

    def ask(self, demand: Demand) -> asyncio.Task[Verdict]:
        return asyncio.ensure_future(self.layer.consume([demand], self.clock()))  # type: ignore[arg-type]

    async def come(self, demand: Demand, callers: int = HERD) -> list[Any]:
        return await asyncio.gather(
            *(self.ask(demand) for _ in range(callers)), return_exceptions=True
        )

    async def left(self, buckets: Buckets) -> int:
        """What the store has once everything held is back."""
        await self.layer.detach()
        self.store.let_go.set()
        return self.other.admitted(buckets.want(1), 2000)


def admitted(told: list[Any]) -> int:
    return sum(isinstance(verdict, Verdict) and verdict.allowed for verdict in told)
