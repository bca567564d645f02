"""Taking from one bucket: plan on the state seen, write once, learn from a failure.

A warm take is one conditional write, also when refill is due. A bucket that is not known yet is
created, and where it turns out to exist, the failed creation has told its state.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.decision import Demand, fits
from headgate.errors import Contended, StoreTrouble, Throttled
from headgate.record import (
    CELLS,
    EVENTS,
    STRIDE,
    TERMS,
    TOKENS,
    Record,
    Terms,
    cells_of,
    kept_under,
    opened,
)
from headgate.stores.dynamodb import expressions, moves
from headgate.stores.dynamodb import table_requests as ask
from headgate.stores.dynamodb.book import Book, Known
from headgate.stores.dynamodb.flow import Flow
from headgate.stores.dynamodb.port import ConditionFailed
from headgate.stores.dynamodb.seen import Seen, bucket_key, new_generation
from headgate.stores.dynamodb.shares import share_of

ATTEMPTS_MAX = 8


@dataclass(frozen=True, slots=True)
class Landed:
    """Taken; the bucket before and after."""

    before: Record
    after: Record


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing taken; the bucket as it stands, under the terms that count."""

    record: Record
    waits_ms: dict[str, int | None] | None = None  # by limit, where the record does not tell


class Taker:
    """Takes from buckets of one table."""

    def __init__(self, table: str, book: Book, *, strict: bool = False) -> None:
        self.table = table
        self.book = book
        self.strict = strict

    def take(self, demand: Demand, now_ms: int) -> Flow[Landed | Refused]:
        known = self.book.open(demand.key)
        for _ in range(ATTEMPTS_MAX):
            seen = known.shards.get(0)
            if seen is None:
                result = yield from self._create(known, demand, now_ms)
            else:
                result = yield from self._take(known, seen, demand, now_ms)
            if result is not None:
                return result
        raise busy(demand)

    def _create(self, known: Known, demand: Demand, now_ms: int) -> Flow[Landed | Refused | None]:
        """None where the bucket exists after all: its state is known now."""
        record = opened(demand.terms, now_ms)
        if not fits(record, demand, now_ms):
            if known.absent:
                return Refused(record)
            outcome = yield ask.get(self.table, bucket_key(demand.key))
            if isinstance(outcome, StoreTrouble):
                raise outcome
            if known.note(0, outcome.get("Item"), now_ms) is not None:
                return None
            return Refused(record)
        draft = expressions.creation(demand.key, record, demand.amounts, new_generation(), now_ms)
        outcome = yield draft.request(self.table, bucket_key(demand.key))
        seen = self.learned(known, 0, outcome, now_ms)
        return (
            None
            if seen is None
            else Landed(before(seen.record, demand, record, now_ms), seen.record)
        )

    def _take(
        self, known: Known, seen: Seen, demand: Demand, now_ms: int
    ) -> Flow[Landed | Refused | None]:
        standing = standing_under(seen, demand, now_ms)
        fitting = fits(standing, demand, now_ms)
        whole = expressions.whole_terms(seen, demand, standing)
        if not fitting and whole.specs == seen.whole.specs:
            return Refused(standing)
        # A refusal under new terms keeps them: the wait it tells counts on their pace.
        amounts = lined_up(demand, standing[TERMS]) if fitting else [None] * len(whole.specs)
        crowded = known.crowded(now_ms) and not self.strict
        draft = expressions.taking(seen, standing, whole, amounts, now_ms, crowded=crowded)
        outcome = yield draft.request(self.table, bucket_key(demand.key, seen.shard))
        after = self.learned(known, seen.shard, outcome, now_ms)
        if after is None:
            return None
        if not fitting:
            return Refused(after.record)
        return Landed(before(after.record, demand, standing, now_ms), after.record)

    def learned(self, known: Known, shard: int, outcome: object, now_ms: int) -> Seen | None:
        """The state after a write that was done; None where it was not, and may be tried again."""
        if isinstance(outcome, ConditionFailed):
            old = known.shards.get(shard)
            seen = known.note(shard, outcome.item, now_ms)
            if old is not None and seen is not None and old.generation == seen.generation:
                known.met_others(now_ms)
            return None
        if isinstance(outcome, Contended):
            return None
        if isinstance(outcome, StoreTrouble):
            raise outcome
        assert isinstance(outcome, dict)
        return known.note(shard, outcome["Attributes"], now_ms)


def standing_under(seen: Seen, demand: Demand, now_ms: int) -> Record:
    """The shard's record under the terms that count."""
    return kept_under(seen.record, share_of(demand.terms, seen.shard, seen.depth), now_ms)


def lined_up(demand: Demand, held: Terms) -> list[int | None]:
    """What is wanted of each limit the bucket holds, also of those it only remembers."""
    amounts = demand.lined_up(held)
    return [*amounts, *([None] * (len(held.specs) - len(amounts)))]


def before(after: Record, demand: Demand, stood: Record, now_ms: int) -> Record:
    """The record as the demand found it: what it took put back, but for soft limits it passed."""
    cells = [*after]
    cells[EVENTS] = 0
    passed = {
        cell.spec.name
        for cell, wanted in zip(cells_of(stood), lined_up(demand, stood[TERMS]), strict=True)
        if wanted is not None and moves.is_passed(cell, wanted, now_ms)
    }
    terms = after[TERMS]
    for place, wanted in enumerate(demand.lined_up(terms)):
        if wanted is not None and terms.specs[place].name not in passed:
            cells[CELLS + STRIDE * place + TOKENS] += wanted
    return tuple(cells)


def busy(demand: Demand) -> Throttled:
    return Throttled(
        f"{demand.key.entity_id} on {demand.key.resource} is written by so many at once that "
        f"{ATTEMPTS_MAX} attempts met another write each; nothing was taken: try again in a moment"
    )
