"""Taking from one bucket: plan on the state seen, write once, learn from a failure.

A warm take is one conditional write, also when refill is due. A bucket that is not known yet is
created, and where it turns out to exist, the failed creation has told its state.
"""

from __future__ import annotations

from headgate.core.decision import Demand, fits
from headgate.core.errors import Contended, StoreTrouble, Throttled
from headgate.core.record import TERMS, Record, cells_of, new_record
from headgate.stores.dynamodb.client.calls import ConditionFailed
from headgate.stores.dynamodb.protocol import limit_moves as moves
from headgate.stores.dynamodb.protocol import writes as expressions
from headgate.stores.dynamodb.protocol.fast_take import fast_take_request
from headgate.stores.dynamodb.protocol.flow import Flow
from headgate.stores.dynamodb.protocol.item import (
    EPOCH,
    ItemState,
    bucket_key,
    new_generation,
    new_item_state,
)
from headgate.stores.dynamodb.protocol.outcome import (
    Landed,
    Refused,
    SingleWriteTake,
    aligned_amounts,
    contention_error,
    record_under,
)
from headgate.stores.dynamodb.protocol.state_cache import BucketView, StateCache
from headgate.stores.dynamodb.schema import layout_of
from headgate.stores.dynamodb.sharding.router import ShardRouter
from headgate.stores.dynamodb.table import requests as ask

# Two are enough where others only take: after a failure the true state is known, and takes only
# move it further to the same side of the brim. Refunds push it back, so a limit without a band
# (`moves.band_milli`) that many clients hold at its brim may flip between attempts. Simulated, 64
# clients that take and refund needed 1.9 attempts on average and at most 7 in 12 000 takes.
ATTEMPTS_MAX = 12


class Taker:
    """Takes from buckets of one table; `strict` gives away no burst to crowded buckets."""

    def __init__(self, table: str, cache: StateCache, *, strict: bool = False) -> None:
        self.table = table
        self.cache = cache
        self.strict = strict
        self.shards = ShardRouter(table, cache, self.attempt)

    def take(self, demand: Demand, now_ms: int) -> Flow[Landed | Refused]:
        known = self.cache.open(demand.key)
        known.note_demand(demand, now_ms)
        confirmed: set[int] = set()  # shards whose state is an answer to this very call
        for number in range(ATTEMPTS_MAX):
            seen = known.shards.get(0)
            if seen is None:
                result = yield from self._create(known, demand, now_ms, confirmed)
            elif seen.depth:
                result = yield from self.shards.take(known, demand, now_ms)
            elif not number and self.shards.is_hot(known, seen):
                yield from self.shards.split(known, seen, now_ms)
                continue
            else:
                try:
                    result = yield from self.attempt(known, seen, demand, now_ms, confirmed)
                except Throttled:
                    yield from self.shards.relieve(known, seen, now_ms, set())
                    continue
                if type(result) is Refused and 0 not in confirmed:
                    yield from self._look(known, now_ms, confirmed)
                    continue
            if result is not None:
                return result
        raise contention_error(demand)

    def attempt(
        self, known: BucketView, seen: ItemState, demand: Demand, now_ms: int, confirmed: set[int]
    ) -> Flow[Landed | Refused | None]:
        """One write to one shard; None where it was not done and the state is known better now.

        Refused is what a state refuses that was told in this call, or is left to the caller to
        make sure of: an old one may have had tokens given back since.
        """
        if seen.whole is not demand.terms:
            seen = known.adopt_terms(seen, demand.terms)
        crowded = now_ms < known.crowded_until_ms and not self.strict
        request = fast_take_request(self.table, seen, demand, now_ms, crowded)
        if request is not None:
            outcome = yield request
            after = learn(known, seen.shard, outcome, now_ms, confirmed, seen)
            return (
                None
                if after is None
                else SingleWriteTake(after.record, demand, seen.record, now_ms)
            )
        standing = record_under(seen, demand, now_ms)
        spare = moves.SPARE_MILLI if seen.depth else 0
        fitting = fits(standing, demand, now_ms) and _has_spare(standing, demand, spare, now_ms)
        whole = expressions.whole_terms(seen, demand, standing)
        if not fitting and whole.specs == seen.whole.specs:
            return Refused(standing)
        # A refusal under new terms keeps them: the wait it tells counts on their pace.
        amounts = aligned_amounts(demand, standing[TERMS]) if fitting else [None] * len(whole.specs)
        draft = expressions.take_update(
            seen, standing, whole, amounts, now_ms, crowded=crowded, spare=spare
        )
        outcome = yield draft.request(self.table, bucket_key(demand.key, seen.shard))
        after = learn(known, seen.shard, outcome, now_ms, confirmed)
        if after is None:
            return None
        if not fitting:  # as far as was known: what others gave back since came with the answer
            fitting = fits(after.record, demand, now_ms)
            fitting = fitting and _has_spare(after.record, demand, spare, now_ms)
            return None if fitting else Refused(after.record)
        return SingleWriteTake(after.record, demand, standing, now_ms)

    def _look(self, known: BucketView, now_ms: int, confirmed: set[int]) -> Flow[ItemState | None]:
        outcome = yield ask.get(self.table, bucket_key(known.key))
        if isinstance(outcome, StoreTrouble):
            raise outcome
        confirmed.add(0)
        return known.note(0, outcome.get("Item"), now_ms)

    def _create(
        self, known: BucketView, demand: Demand, now_ms: int, confirmed: set[int]
    ) -> Flow[Landed | Refused | None]:
        """None where the bucket exists after all: its state is known now."""
        record = new_record(demand.terms, now_ms)
        if not fits(record, demand, now_ms):
            found = yield from self._look(known, now_ms, confirmed)
            return Refused(record) if found is None else None
        generation = new_generation()
        draft = expressions.create_update(demand.key, record, demand.amounts, generation, now_ms)
        outcome = yield draft.request(self.table, bucket_key(demand.key))
        made = new_item_state(record, layout_of(demand.terms), generation, now_ms)
        seen = learn(known, 0, outcome, now_ms, confirmed, made)
        if seen is None:
            return None
        return SingleWriteTake(seen.record, demand, record, now_ms)


def _has_spare(record: Record, demand: Demand, spare: int, now_ms: int) -> bool:
    """Whether limits from which nothing is taken hold so much, where they can refuse."""
    return not spare or all(
        wanted != 0 or cell.spec.soft or cell.level_milli(now_ms) >= spare
        for cell, wanted in zip(
            cells_of(record), aligned_amounts(demand, record[TERMS]), strict=True
        )
    )


def learn(
    known: BucketView,
    shard: int,
    outcome: object,
    now_ms: int,
    confirmed: set[int] | None = None,
    made: ItemState | None = None,
) -> ItemState | None:
    """The state after a write that was done; None where it was not, and may be tried again.

    `made` is what the write made or left, but for its counters. `told` gets the shard where the
    answer told its state. One that met another transaction did not, and what an earlier answer
    told may have made way meanwhile for what another task was told.
    """
    if confirmed is not None:
        confirmed.discard(shard) if isinstance(outcome, Contended) else confirmed.add(shard)
    if type(outcome) is dict:
        attributes = outcome["Attributes"]
        if made is not None and EPOCH not in attributes:
            return known.note_counters(made, attributes, now_ms)
        return known.note(shard, attributes, now_ms, made)
    if isinstance(outcome, ConditionFailed):
        old = known.shards.get(shard)
        seen = known.note(shard, outcome.item, now_ms)
        if old is not None and seen is not None and old.generation == seen.generation:
            known.note_contention(now_ms)
        return None
    if isinstance(outcome, Contended):
        return None
    assert isinstance(outcome, StoreTrouble)
    raise outcome
