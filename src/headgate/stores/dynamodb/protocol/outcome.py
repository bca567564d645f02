"""What a take comes to, and how a shard stands towards a demand."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from headgate.core.decision import Demand
from headgate.core.errors import Throttled
from headgate.core.record import (
    CELLS,
    EVENTS,
    STRIDE,
    TERMS,
    TOKENS,
    Record,
    Terms,
    apply_terms,
    cells_of,
)
from headgate.stores.dynamodb.protocol import limit_moves as moves
from headgate.stores.dynamodb.protocol.flow import Flow
from headgate.stores.dynamodb.protocol.item import ItemState
from headgate.stores.dynamodb.protocol.state_cache import BucketView
from headgate.stores.dynamodb.sharding.pool import ShardPool
from headgate.stores.dynamodb.sharding.shares import share_of


@dataclass(slots=True)
class Landed:
    """Taken; the bucket before and after."""

    before: Record
    after: Record

    @property
    def terms(self) -> Terms:
        """What the bucket is kept under now."""
        terms: Terms = self.after[TERMS]
        return terms

    def overdrawn(self, demand: Demand, now_ms: int) -> Collection[str]:
        """The soft limits that had not got what was wanted: nothing was taken of them."""
        return _overdrawn(demand, self.before, now_ms) if self.before[TERMS].soft else ()


class SingleWriteTake(Landed):
    """A take by one write. Hardly anybody reads how the bucket was before, so that is made when
    somebody does."""

    __slots__ = ("_demand", "_now_ms", "_stood")

    def __init__(self, after: Record, demand: Demand, stood: Record, now_ms: int) -> None:
        self.after = after
        self._demand = demand
        self._stood = stood
        self._now_ms = now_ms

    @property
    def before(self) -> Record:  # type: ignore[override]
        overdrawn = self.overdrawn(self._demand, self._now_ms)
        return before(self.after, self._demand, overdrawn)

    def overdrawn(self, demand: Demand, now_ms: int) -> Collection[str]:
        """As the write had it, which was planned on what was seen."""
        return _overdrawn(demand, self._stood, now_ms) if self._stood[TERMS].soft else ()


class ShardTake(Landed):
    """A take from one shard, as seen from the whole bucket, when somebody looks at it."""

    __slots__ = ("_now_ms", "_shard", "_shards", "_taken", "_whole")

    def __init__(
        self, taken: Landed, shard: int, shards: dict[int, ItemState], whole: Terms, now_ms: int
    ) -> None:
        """`shards` are all of them, as far as they are known, and nobody else's to change."""
        self._taken = taken
        self._shard = shard
        self._shards = shards
        self._whole = whole
        self._now_ms = now_ms

    @property
    def before(self) -> Record:  # type: ignore[override]
        return self._pooled(self._taken.before)

    @property
    def after(self) -> Record:  # type: ignore[override]
        return self._pooled(self._taken.after)

    @property
    def terms(self) -> Terms:
        return self._whole

    def _pooled(self, record: Record) -> Record:
        others = [seen.record for number, seen in self._shards.items() if number != self._shard]
        return ShardPool(self._whole, [record, *others]).record(self._now_ms)

    def overdrawn(self, demand: Demand, now_ms: int) -> Collection[str]:
        """As the shard had it: the others may have had enough."""
        return self._taken.overdrawn(demand, now_ms)


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing taken; the bucket as it stands, under the terms that count."""

    record: Record
    waits_ms: dict[str, int | None] | None = None  # by limit, where the record cannot tell


# One write to one shard: None where it was not done, and the state is known better now.
Attempt = Callable[[BucketView, ItemState, Demand, int, set[int]], Flow[Landed | Refused | None]]


def record_under(seen: ItemState, demand: Demand, now_ms: int) -> Record:
    """The shard's record under the terms that count."""
    return apply_terms(seen.record, share_of(demand.terms, seen.shard, seen.depth), now_ms)


def aligned_amounts(demand: Demand, held: Terms) -> list[int | None]:
    """What is wanted of each limit the bucket holds, also of those it only remembers."""
    if held.specs == demand.terms.specs:
        return [*demand.amounts]
    amounts = demand.amounts_for(held)
    return [*amounts, *([None] * (len(held.specs) - len(amounts)))]


def before(after: Record, demand: Demand, overdrawn: Collection[str]) -> Record:
    """The record as the demand found it: what it took put back, but for soft limits it passed."""
    cells = [*after]
    cells[EVENTS] = 0
    terms = after[TERMS]
    at = CELLS + TOKENS
    for spec, wanted in zip(terms.specs, aligned_amounts(demand, terms), strict=True):
        if wanted is not None and spec.name not in overdrawn:
            cells[at] += wanted
        at += STRIDE
    return tuple(cells)


def _overdrawn(demand: Demand, stood: Record, now_ms: int) -> set[str]:
    """The soft limits that had not got what was wanted."""
    return {
        cell.spec.name
        for cell, wanted in zip(cells_of(stood), aligned_amounts(demand, stood[TERMS]), strict=True)
        if wanted is not None and moves.is_overdrawn(cell, wanted, now_ms)
    }


def contention_error(demand: Demand) -> Throttled:
    return Throttled(
        f"{demand.key.entity_id} on {demand.key.resource} is written by so many at once that "
        f"every attempt met another write; nothing was taken: try again in a moment"
    )
