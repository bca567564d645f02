"""The contracts of a backend: Store (buckets), Catalog (who and what), Ledger (what was), and
ExpiringRecords.

They are asynchronous in form only: they await their port and nothing else, so a backend
opened with a blocking port serves blocking callers through `runtime.run`.

What every method promises: names and amounts arrive parsed; trouble of the engine below is raised
as `StoreTrouble`; a call that was interrupted before it was sent has changed nothing, and a call
that was sent runs to its end and is reported, so that its caller can undo it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Protocol

from headgate.core.decision import Demand, LimitStatus, Verdict, judge
from headgate.core.errors import (
    HeadgateError,
    PartlyApplied,
    StoreDenied,
    StoreTrouble,
    Throttled,
    UndoLost,
)
from headgate.core.history import AuditEvent, UsageQuery
from headgate.core.levels import CommonLevels, Lookup, Namespace, Page
from headgate.core.limits import Limit
from headgate.core.record import BucketKey, Record
from headgate.core.refill.bucket import MILLI


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend offers beyond the contract."""

    name: str
    shared: str  # who sees the same buckets: "process", "host" or "network"
    atomic: str  # how several buckets are decided: "one step" or "undo"
    obeys_clock: bool  # whether now_ms is used, or the store's own clock always
    durable: bool


# Sends a call to the store's engine, or says at once that it is away.
Guard = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]


class PeekResult(NamedTuple):
    """Buckets as they were at one moment of the store's time; None where there is none.

    `judge_with` decides a dry run where the records alone do not tell the waits.
    """

    now_ms: int
    records: Sequence[Record | None]
    judge_with: Callable[[Sequence[Demand]], Verdict] | None = None

    def verdict(self, demands: Sequence[Demand]) -> Verdict:
        """What a consume of these demands, on the buckets in this order, would be told."""
        if self.judge_with is not None:
            return self.judge_with(demands)
        return judge(demands, self.records, self.now_ms)


class Store(Protocol):
    """Buckets. Atomic over every bucket a call names; `now_ms=None` is the store's own clock."""

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        """All demands or none; a refusal has consumed nothing."""
        ...

    async def adjust(
        self,
        demands: Sequence[Demand],
        now_ms: int | None,
        *,
        metered: bool = True,
        once: str | None = None,
    ) -> bool:
        """Debits may go into debt, credits clamp at capacity.

        With `once`, a second call with the same text for the same (first) entity within a day does
        nothing and returns False. A credit for a bucket that does not exist does nothing: such a
        bucket is full.
        """
        ...

    async def peek(self, keys: Sequence[BucketKey], now_ms: int | None) -> PeekResult: ...

    async def forget(self, keys: Sequence[BucketKey]) -> None:
        """The buckets are gone, as if never used; their usage stays in history."""
        ...

    async def find(
        self,
        namespace: str,
        *,
        entity_id: str | None = None,
        resource: str | None = None,
        limit: int,
        cursor: str | None = None,
    ) -> Page:
        """Keys of buckets that exist, in a stable order."""
        ...

    async def close(self) -> None: ...


class BucketShard(NamedTuple):
    """One part of a bucket: 2^-depth of its rate and capacity, kept as a record of its own.

    `written_per_s` is how often all processes together wrote it, as far as this one has measured.
    """

    number: int
    depth: int
    written_per_s: int
    record: Record


class Sharded(Protocol):
    """What a Store offers besides, where it keeps busy buckets in several parts."""

    async def shards(self, key: BucketKey, now_ms: int | None) -> tuple[int, Sequence[BucketShard]]:
        """The store's time, and all parts of a bucket then: one where it is not divided, none
        where it does not exist."""
        ...


# What one of several decisions came to: its verdict, or what `consume` would have raised.
Outcome = Verdict | HeadgateError


class Batching(Protocol):
    """What a store may offer besides: several decisions in one call."""

    async def consume_each(
        self, groups: Sequence[Sequence[Demand]], now_ms: int | None
    ) -> list[Outcome]:
        """Each group for itself, all of it or nothing, in the order of the list: a bucket that is
        named again is decided as the groups before have left it. What goes wrong with a group is
        its outcome and touches no other."""
        ...


async def consume_each(
    store: Store, groups: Sequence[Sequence[Demand]], now_ms: int | None
) -> list[Outcome]:
    """The same of any store: in one call where it offers that, else one after another."""
    if not groups:
        return []
    verb = getattr(store, "consume_each", None)
    if verb is None:
        return await consume_one_by_one(store, groups, now_ms)
    try:
        found: list[Outcome] = await verb(groups, now_ms)
    except StoreTrouble as trouble:  # of the call as a whole, so of each
        return [trouble] * len(groups)
    return found


async def consume_one_by_one(
    store: Store, groups: Sequence[Sequence[Demand]], now_ms: int | None
) -> list[Outcome]:
    found: list[Outcome] = []
    for demands in groups:
        try:
            found.append(await store.consume(demands, now_ms))
        except HeadgateError as error:
            found.append(error)
    return found


def raise_adjust_trouble(trouble: StoreTrouble, *, moved: bool) -> NoReturn:
    """Raises why a bucket was not adjusted; `moved` says whether another of the same call was."""
    if not moved or trouble.maybe_applied or isinstance(trouble, StoreDenied):
        raise trouble
    raise PartlyApplied(trouble) from trouble


def raise_trouble(outcomes: Iterable[object], kept: StoreTrouble | None, *, refused: bool) -> None:
    """Raises why a demand on several buckets was not decided, or not undone; nothing to raise
    means that it was refused and took nothing.

    `kept` is the trouble of the undo, `refused` says whether a bucket has not got what is wanted.
    """
    troubles = [one for one in outcomes if isinstance(one, HeadgateError)]
    unknown = next(
        (one for one in troubles if isinstance(one, StoreTrouble) and one.maybe_applied), None
    )
    lost = unknown or kept
    decided = refused or any(isinstance(one, Throttled) for one in troubles)
    # Where nothing was decided, a take that got no answer is an outage like any other. Else the
    # demand is known not to be admitted, and a rule for outages must not admit it.
    if lost is not None and (decided or unknown is None):
        raise UndoLost(lost) from lost
    for trouble in [unknown, *troubles]:
        if trouble is not None:
            raise trouble


class ThrottledVerdict(Verdict):
    """A store's own speed limit on a key is a refusal of that key, never an open gate.

    All its limits are told as hard: it is the store that refuses, so a soft one does, too.
    """

    __slots__ = ("_wait_ms",)

    def __init__(self, demands: Sequence[Demand], wait_ms: int, now_ms: int) -> None:
        super().__init__(False, demands, (), now_ms)
        self._wait_ms = wait_ms

    @property
    def statuses(self) -> list[LimitStatus]:
        return [
            LimitStatus(
                demand.key.entity_id, demand.key.resource, spec.name,
                Limit.from_spec(spec._replace(soft=False)),
                0, wanted // MILLI, True, self._wait_ms, "store",
            )
            for demand in self.demands
            for spec, wanted in zip(demand.terms.specs, demand.amounts, strict=True)
            if wanted is not None
        ]  # fmt: skip


class Catalog(Protocol):
    """What decisions read of the catalog; `headgate.stores.catalog` is all of it."""

    async def lookup(
        self, namespace: str, entity_id: str, resource: str, known: CommonLevels | None = None
    ) -> Lookup:
        """What a plan needs, in one batched read; NamespaceStateError if it was deleted.

        A store that pays for each item it reads takes the resource's and the system's level from
        what is `known`: the lookup is of that version then, and no part of it is older. Where
        something newer turns up, and in stores that read all at once anyway, all of it is read.
        """
        ...

    async def version(self, namespace: str) -> int:
        """The version that a lookup would be of now, for less; it raises what a lookup raises."""
        ...

    async def get_namespace(self, name: str) -> Namespace | None:
        """The active namespace of that name."""
        ...

    async def register_namespace(self, name: str, principal: str | None, now_ms: int) -> Namespace:
        """The active namespace of that name, made where there is none."""
        ...


class Ledger(Protocol):
    """Usage and audit history."""

    async def append(self, namespace: str, event: AuditEvent) -> None: ...

    async def audit(
        self, namespace: str, entity_id: str | None, *, limit: int, before: str | None
    ) -> list[AuditEvent]:
        """Events of one subject, or (None) of the whole namespace, in the order of their ids, the
        newest first. With `before` only those whose ids sort before it: an event that is added
        meanwhile moves no page. Fewer than `limit` is the end."""
        ...

    async def usage(self, namespace: str, query: UsageQuery, now_ms: int | None) -> Page:
        """Snapshots that include every decision made before the call."""
        ...

    async def trim(self, *, usage_before_ms: int, audit_before_ms: int) -> int:
        """Rows of history older than that are gone; how many."""
        ...


class ExpiringRecord(NamedTuple):
    """A text, until when it is of use, and which writing of it this is."""

    text: str
    until_ms: int
    version: int


class ExpiringRecords(Protocol):
    """Small texts by name, each with an end. Only who has seen the newest can change one."""

    async def put(
        self, namespace: str, name: str, text: str, until_ms: int, *, seen: int | None
    ) -> int | None:
        """Keeps the text in place of the version seen, or (None) where there is none: its version.

        None where it is not as it was seen: then nothing is changed.
        """
        ...

    async def get(self, namespace: str, name: str) -> ExpiringRecord | None:
        """The text, also when its end is over: that is for whoever asks for what is due."""
        ...

    async def drop(self, namespace: str, name: str, *, seen: int) -> bool:
        """It is gone, and this call alone has done that; False where it is not as it was seen."""
        ...

    async def due(
        self, namespace: str, before_ms: int, limit: int
    ) -> list[tuple[str, ExpiringRecord]]:
        """Those whose end came before the moment, the earliest first."""
        ...
