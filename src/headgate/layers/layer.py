"""The base of all layers, and the simplest of them: shadow mode.

A layer is a store that wraps a store. Some methods of a store take keyword options that most
layers only pass on; they are named once here, as AdjustOptions and FindOptions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Required, TypedDict, Unpack

from headgate.core.decision import Demand, LimitStatus, Verdict
from headgate.core.levels import Page
from headgate.core.record import BucketKey
from headgate.core.store import (
    Guard,
    Outcome,
    PeekResult,
    Store,
    consume_each,
    consume_one_by_one,
)
from headgate.transport.gates import reset_after_fork


class AdjustOptions(TypedDict, total=False):
    """The keyword options of Store.adjust."""

    metered: bool
    once: str | None


class FindOptions(TypedDict, total=False):
    """The keyword options of Store.find."""

    entity_id: str | None
    resource: str | None
    limit: Required[int]
    cursor: str | None


class Layer:
    """A store that wraps a store; this one passes every call on unchanged.

    A layer awaits only the store inside it and the gates it was given. That is why the same layer
    serves async and blocking callers.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self._lock = threading.RLock()  # the garbage collector may end a lease while we hold it
        reset_after_fork(self)

    def after_fork(self) -> None:
        self._lock = threading.RLock()

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        return await self.inner.consume(demands, now_ms)

    async def consume_each(
        self, groups: Sequence[Sequence[Demand]], now_ms: int | None
    ) -> list[Outcome]:
        """Decides one group after another through this layer's own `consume`. A layer that can do
        the same with one call to the store overrides this."""
        return await consume_one_by_one(self, groups, now_ms)

    async def adjust(
        self, demands: Sequence[Demand], now_ms: int | None, **options: Unpack[AdjustOptions]
    ) -> bool:
        return await self.inner.adjust(demands, now_ms, **options)

    async def peek(self, keys: Sequence[BucketKey], now_ms: int | None) -> PeekResult:
        return await self.inner.peek(keys, now_ms)

    async def forget(self, keys: Sequence[BucketKey]) -> None:
        await self.inner.forget(keys)

    async def find(self, namespace: str, **filters: Unpack[FindOptions]) -> Page:
        return await self.inner.find(namespace, **filters)

    async def close(self) -> None:
        await self.inner.close()

    @property
    def guard(self) -> Guard | None:
        """Wraps calls that are not methods of a store, such as the catalog's reads."""
        return self.inner.guard if isinstance(self.inner, Layer) else None

    async def detach(self) -> None:
        """Ends what the layers have pending; the store inside stays open for its other users."""
        if isinstance(self.inner, Layer):
            await self.inner.detach()


OnRefusal = Callable[[Verdict], None]


class ShadowVerdict(Verdict):
    """Allowed although the store refused. It took nothing, so it has no demands to give back.

    `refusal` is what the store said, and `statuses` are those of that refusal.
    """

    __slots__ = ("refusal",)

    is_plain = False

    def __init__(self, refusal: Verdict) -> None:
        super().__init__(True, (), (), refusal.now_ms)
        self.refusal = refusal
        self.outdated = refusal.outdated

    @property
    def statuses(self) -> list[LimitStatus]:
        return self.refusal.statuses

    @property
    def violations(self) -> list[LimitStatus]:
        return []


class Shadow(Layer):
    """Decides and counts but never refuses, for trying limits out on live traffic.

    An error of the store is not a decision, so it is raised as it is.
    """

    def __init__(self, inner: Store, *, on_refusal: OnRefusal | None = None) -> None:
        super().__init__(inner)
        self.would_refuse = 0
        self._on_refusal = on_refusal

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        return self._admit(await self.inner.consume(demands, now_ms))

    async def consume_each(
        self, groups: Sequence[Sequence[Demand]], now_ms: int | None
    ) -> list[Outcome]:
        found = await consume_each(self.inner, groups, now_ms)
        return [self._admit(one) if isinstance(one, Verdict) else one for one in found]

    def _admit(self, verdict: Verdict) -> Verdict:
        if verdict.allowed:
            return verdict
        with self._lock:
            self.would_refuse += 1
        if self._on_refusal is not None:
            self._on_refusal(verdict)
        return ShadowVerdict(verdict)
