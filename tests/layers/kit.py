"""For tests of layers: demands, callers, and stores that are away, slow or counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from headgate.core.decision import Demand, Verdict
from headgate.core.errors import StoreTrouble, Unreachable
from headgate.core.limits import Limit
from headgate.core.record import BucketKey, Terms, cell_of
from headgate.core.runtime import run
from headgate.core.store import PeekResult, Store
from headgate.layers.prefetch import Prefetch
from headgate.layers.stack import add_layers
from headgate.stores.memory.buckets import MemoryStore
from headgate.testing import FakeClock, RecordingStore

DOWN = Unreachable("connection refused; start the server")


class Buckets:
    """Demands under one set of terms, as a plan hands them out."""

    def __init__(self, *limits: Limit, version: int = 1, own: bool = False) -> None:
        self.terms = Terms(tuple(limit.spec for limit in limits), version, own=own)

    def key(self, entity_id: str = "key-1") -> BucketKey:
        return BucketKey("ns", entity_id, "gpt-4")

    def want(self, *tokens: int | None, entity_id: str = "key-1") -> Demand:
        line = tuple(None if amount is None else amount * 1000 for amount in tokens)
        return Demand(self.key(entity_id), self.terms, line)


class Client:
    """A blocking caller of a store, at times it names or (None) at the store's."""

    def __init__(self, store: Store, clock: FakeClock, *, drives_time: bool = True) -> None:
        self.store = store
        self.clock = clock
        self.drives_time = drives_time

    @property
    def now_ms(self) -> int | None:
        return self.clock() if self.drives_time else None

    def take(self, *demands: Demand) -> Verdict:
        return run(self.store.consume(demands, self.now_ms))

    def adjust(self, *demands: Demand, **how: Any) -> bool:
        return run(self.store.adjust(demands, self.now_ms, **how))

    def peek(self, key: BucketKey) -> PeekResult:
        return run(self.store.peek([key], self.now_ms))

    def admitted(self, demand: Demand, tries: int) -> int:
        return sum(self.take(demand).allowed for _ in range(tries))


def recorded(clock: FakeClock) -> RecordingStore:
    return RecordingStore(MemoryStore(clock))


class Held(RecordingStore):
    """A store whose consumes arrive at once and answer while they are let go: with the `trouble`
    there is, if any."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.let_go = asyncio.Event()
        self.let_go.set()
        self.trouble: BaseException | None = None

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        verdict = await super().consume(demands, now_ms)
        await self.let_go.wait()
        if self.trouble is not None:
            raise self.trouble
        return verdict


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# --------------------------------------------------------------------------------------------------
# One client behind a layer and the store seen without it, and a herd of callers of prefetch.

FAST = Buckets(Limit.per_second("rps", 10_000))
STILL = Buckets(Limit.custom("n", 1000, 0, 1))  # never refills: every token can be counted


class World:
    """A client behind one layer, and another process on the same store without it."""

    def __init__(self, kind: Callable[..., Any] = Prefetch, **how: int) -> None:
        self.clock = FakeClock()
        self.store = recorded(self.clock)
        self.layer = kind(self.store, self.clock, **how)
        self.client = Client(self.layer, self.clock)
        self.other = Client(self.store.store, self.clock)

    @property
    def calls(self) -> int:
        return len(self.store.calls)

    def level(self, buckets: Buckets, entity_id: str = "key-1") -> int | None:
        """Whole tokens of the first limit as the store has them."""
        record = self.other.peek(buckets.key(entity_id)).records[0]
        cell = None if record is None else cell_of(record, buckets.terms.specs[0].name)
        return None if cell is None else cell.level_milli(self.clock()) // 1000

    def held(self, buckets: Buckets, entity_id: str = "key-1") -> int:
        held = self.layer.held_milli(buckets.key(entity_id))
        return sum(held.values()) // 1000

    def warm(self, buckets: Buckets = FAST, calls: int = 50) -> int:
        """Some demand, one token a millisecond; how much was admitted."""
        admitted = 0
        for _ in range(calls):
            self.clock.advance(1)
            admitted += self.client.take(buckets.want(1)).allowed
        return admitted


HERD = 50


class Narrow(Held):
    """A store some turns of the loop away that counts calls under way at once. A call waits until
    it is let go and reaches the store then; `troubles` are met first, one by one."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(MemoryStore(clock))
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
        self.layer: Any = add_layers(
            self.store, clock=self.clock, pace=pace, prefetch=True, **chosen
        )
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
