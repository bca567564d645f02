"""What all layers have in common: a store inside, and verbs that go straight to it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from headgate.core.decision import Demand, Verdict
from headgate.core.levels import Page
from headgate.core.record import BucketKey
from headgate.core.store import Guard, Outcome, PeekResult, Store, consume_one_by_one
from headgate.transport.ownership import reset_after_fork


class Layer:
    """A Store that wraps a Store; as it stands it changes nothing.

    A layer awaits the store inside and gates of the pace it was given, and nothing else, so it
    serves async and blocking callers.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self._lock = threading.RLock()  # garbage collecting may end a lease while it is held
        reset_after_fork(self)

    def after_fork(self) -> None:
        self._lock = threading.RLock()

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        return await self.inner.consume(demands, now_ms)

    async def consume_each(
        self, groups: Sequence[Sequence[Demand]], now_ms: int | None
    ) -> list[Outcome]:
        """One after another through this layer's own `consume`, whatever that does; a layer that
        can do the same with one call says so itself."""
        return await consume_one_by_one(self, groups, now_ms)

    async def adjust(
        self,
        demands: Sequence[Demand],
        now_ms: int | None,
        *,
        metered: bool = True,
        once: str | None = None,
    ) -> bool:
        return await self.inner.adjust(demands, now_ms, metered=metered, once=once)

    async def peek(self, keys: Sequence[BucketKey], now_ms: int | None) -> PeekResult:
        return await self.inner.peek(keys, now_ms)

    async def forget(self, keys: Sequence[BucketKey]) -> None:
        await self.inner.forget(keys)

    async def find(
        self,
        namespace: str,
        *,
        entity_id: str | None = None,
        resource: str | None = None,
        limit: int,
        cursor: str | None = None,
    ) -> Page:
        return await self.inner.find(
            namespace, entity_id=entity_id, resource=resource, limit=limit, cursor=cursor
        )

    async def close(self) -> None:
        await self.inner.close()

    @property
    def guard(self) -> Guard | None:
        """How calls that are no verbs of a store (the catalog's reads) are to be sent."""
        return self.inner.guard if isinstance(self.inner, Layer) else None

    async def detach(self) -> None:
        """The layers end their own business; the store inside stays open for its other users."""
        if isinstance(self.inner, Layer):
            await self.inner.detach()
