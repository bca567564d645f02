"""Short words for tests of layers: demands, and stores that are away, slow or scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from headgate.core.decision import Demand, Verdict
from headgate.core.errors import Unreachable
from headgate.core.limits import Limit
from headgate.core.record import BucketKey, Terms
from headgate.core.runtime import run
from headgate.core.store import PeekResult, Store
from headgate.stores.memory.buckets import MemoryStore
from headgate.testing import FakeClock, RecordingStore

KEY = BucketKey("ns", "key-1", "gpt-4")
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


class Switch(RecordingStore):
    """A store that raises `trouble` while there is one; what reached it is recorded anyway."""

    def __init__(self, store: Store, trouble: BaseException | None = None) -> None:
        super().__init__(store)
        self.trouble = trouble

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        verdict = await super().consume(demands, now_ms)
        if self.trouble is not None:
            raise self.trouble
        return verdict


class Held(RecordingStore):
    """A store whose consumes arrive at once and answer only when they are let go."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.let_go = asyncio.Event()
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
