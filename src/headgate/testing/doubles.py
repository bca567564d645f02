"""Stores and ports that record, follow a script, or fail on purpose."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Unpack

from headgate.core.decision import Demand, Verdict
from headgate.core.errors import HeadgateError
from headgate.core.levels import Page
from headgate.core.record import BucketKey
from headgate.core.store import Outcome, PeekResult, Store, consume_each
from headgate.layers.layer import AdjustOptions, FindOptions


class RecordingStore:
    """A layer that lists the calls that pass through it, as (verb, arguments)."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    @property
    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.calls]

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        self.calls.append(("consume", (tuple(demands), now_ms)))
        return await self.store.consume(demands, now_ms)

    async def consume_each(
        self, groups: Sequence[Sequence[Demand]], now_ms: int | None
    ) -> list[Outcome]:
        self.calls.append(("consume_each", (tuple(map(tuple, groups)), now_ms)))
        return await consume_each(self.store, groups, now_ms)

    async def adjust(
        self, demands: Sequence[Demand], now_ms: int | None, **options: Unpack[AdjustOptions]
    ) -> bool:
        metered, once = options.get("metered", True), options.get("once")
        self.calls.append(("adjust", (tuple(demands), now_ms, metered, once)))
        return await self.store.adjust(demands, now_ms, **options)

    async def peek(self, keys: Sequence[BucketKey], now_ms: int | None) -> PeekResult:
        self.calls.append(("peek", (tuple(keys), now_ms)))
        return await self.store.peek(keys, now_ms)

    async def forget(self, keys: Sequence[BucketKey]) -> None:
        self.calls.append(("forget", (tuple(keys),)))
        await self.store.forget(keys)

    async def find(self, namespace: str, **filters: Unpack[FindOptions]) -> Page:
        self.calls.append(("find", (namespace, filters)))
        return await self.store.find(namespace, **filters)

    async def close(self) -> None:
        self.calls.append(("close", ()))
        await self.store.close()


class FaultyStore(RecordingStore):
    """A layer whose next consumes and adjusts fail as these lists say.

    Errors in `before` are raised instead of calling, those in `after` once the call was made (a
    lost answer). None lets a call pass.
    """

    def __init__(
        self,
        store: Store,
        *,
        before: Iterable[Exception | None] = (),
        after: Iterable[Exception | None] = (),
    ) -> None:
        super().__init__(store)
        self.before = deque(before)
        self.after = deque(after)

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        _fail(self.before)
        verdict = await super().consume(demands, now_ms)
        _fail(self.after)
        return verdict

    async def consume_each(
        self, groups: Sequence[Sequence[Demand]], now_ms: int | None
    ) -> list[Outcome]:
        """One call has one fault, which all groups get."""
        try:
            _fail(self.before)
            found = await super().consume_each(groups, now_ms)
            _fail(self.after)
        except HeadgateError as error:
            return [error] * len(groups)
        return found

    async def adjust(
        self, demands: Sequence[Demand], now_ms: int | None, **options: Unpack[AdjustOptions]
    ) -> bool:
        _fail(self.before)
        applied = await super().adjust(demands, now_ms, **options)
        _fail(self.after)
        return applied


class ScriptedPort:
    """A port that answers from a list and keeps the requests; an exception in it is raised."""

    def __init__(self, replies: Iterable[Any]) -> None:
        self.replies = deque(replies)
        self.requests: list[Any] = []

    async def call(self, request: Any) -> Any:
        self.requests.append(request)
        assert self.replies, f"no reply is left for {request!r}"
        reply = self.replies.popleft()
        if isinstance(reply, BaseException):
            raise reply
        return reply


def _fail(faults: deque[Exception | None]) -> None:
    fault = faults.popleft() if faults else None
    if fault is not None:
        raise fault
