"""Debits that may go into debt and credits that stop at the brim, on one bucket.

A credit is applied at most once: one whose answer was lost counts as lost, unless it was a
transaction, whose token makes it safe to send it again. On a bucket in several
shards a small amount goes to one of them that has it, any other to all, so that they are left
evenly full or evenly in debt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from headgate.core.decision import Demand, is_credit_only
from headgate.core.errors import Unreachable
from headgate.core.record import HOUR_MS, TERMS, BucketKey, cell_of, new_record
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.items import (
    TTL,
    Key,
    key_attributes,
    number,
    purge_attributes,
)
from headgate.stores.dynamodb.client.calls import Flow, NotApplied, run_flow
from headgate.stores.dynamodb.protocol import writes as expressions
from headgate.stores.dynamodb.protocol.flow import (
    ATTEMPTS_MAX,
    reasons_of,
    send,
    too_contended,
)
from headgate.stores.dynamodb.protocol.item import (
    BucketView,
    ItemState,
    StateCache,
    bucket_key,
    new_generation,
)
from headgate.stores.dynamodb.protocol.limit_moves import Hold
from headgate.stores.dynamodb.protocol.take import learn, record_under
from headgate.stores.dynamodb.protocol.update_expression import UpdateExpression
from headgate.stores.dynamodb.sharding.gather import Part, ShardAmount, divide_adjustment
from headgate.stores.dynamodb.sharding.pool import read_shard, read_shards
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.table import Table

SMALL_PART = 4  # an amount up to a fourth of a shard's capacity goes to one shard
ALONE_TRIES = 2  # of finding one shard that has it, before all are asked
STILL_TRIES = 5  # of weighing all shards while others write to them; then it is written as it is


@dataclass(frozen=True, slots=True)
class PlannedWrite:
    """One write of an adjustment."""

    key: Key
    shard: int
    draft: UpdateExpression


class Adjuster:
    def __init__(self, table: str, cache: StateCache) -> None:
        self._table = table
        self.cache = cache

    def adjust(self, demand: Demand, now_ms: int, *, metered: bool) -> Flow[bool]:
        """Whether there was a bucket to adjust; a credit makes none."""
        known = self.cache.open(demand.key)
        credit = any(amount < 0 for _, amount in demand.counts())
        for attempt in range(ATTEMPTS_MAX):
            try:
                writes = yield from self.plan_writes(
                    known, demand, now_ms, attempt, metered=metered
                )
            except Unreachable as lost:  # planning only reads, so whoever undoes may try again
                raise NotApplied(f"{lost}; it was a read, so nothing was changed") from lost
            if not writes:
                return bool(known.shards)
            if len(writes) > 1:
                done = yield from self._write_all(known, writes)
            else:
                [one] = writes
                outcome = yield one.draft.request(self._table, one.key, credit=credit)
                done = learn(known, one.shard, outcome, now_ms) is not None
            if done:
                return True
        raise too_contended(demand.key)

    def plan_writes(
        self, known: BucketView, demand: Demand, now_ms: int, attempt: int, *, metered: bool
    ) -> Flow[list[PlannedWrite]]:
        """The writes to make, on the state known; none where there is nothing to write."""
        if 0 not in known.shards and is_credit_only(demand):
            yield from read_shard(self._table, known, 0, now_ms)  # others may have made it since
        first = known.shards.get(0)
        if first is None:
            return self._creation(demand, now_ms, metered)
        if not first.depth:
            return _shard_writes(first, demand, _part(demand, Hold.FREE), now_ms, metered)
        if attempt < ALONE_TRIES:
            seen = yield from self._find_shard(known, demand, now_ms)
            if seen is not None:
                return _shard_writes(seen, demand, _part(demand, Hold.HAVING), now_ms, metered)
        shards = yield from read_shards(self._table, known, now_ms)
        if not shards:
            return self._creation(demand, now_ms, metered)
        records = [record_under(seen, demand, now_ms) for seen in shards]
        parts = divide_adjustment(demand, records, now_ms)
        if attempt >= STILL_TRIES:
            parts = [_without_hold(part) for part in parts]
        return [
            write
            for seen, part in zip(shards, parts, strict=True)
            for write in _shard_writes(seen, demand, part, now_ms, metered)
        ]

    def _find_shard(self, known: BucketView, demand: Demand, now_ms: int) -> Flow[ItemState | None]:
        """A shard that can give or take all of it and owes nothing, as far as is known."""
        shard = self.cache.route(known)
        if shard not in known.shards:
            yield from read_shard(self._table, known, shard, now_ms)
        eases = {
            number: ease
            for number, seen in list(known.shards.items())
            if (ease := _headroom(seen, demand, now_ms)) is not None
        }
        if eases.get(shard, -1) < 0 <= max(eases.values(), default=-1):
            shard = max(eases, key=eases.__getitem__)
        if shard not in eases or (eases[shard] < 0 and not is_credit_only(demand)):
            return None
        return known.shards.get(shard)

    def _creation(self, demand: Demand, now_ms: int, metered: bool) -> list[PlannedWrite]:
        """A bucket that is not there is full: a credit has nothing to add to it."""
        if is_credit_only(demand):
            return []
        record = new_record(demand.terms, now_ms)
        counted, cascaded = None, expressions.NOTHING
        if metered:
            counted = demand.counted or demand.amounts
            cascaded = dict(demand.cascades())
        draft = expressions.create_update(
            demand.key, record, demand.amounts, new_generation(), now_ms,
            forced=True, counted=counted, cascaded=cascaded,
        )  # fmt: skip
        return [PlannedWrite(bucket_key(demand.key), 0, draft)]

    def _write_all(self, known: BucketView, writes: list[PlannedWrite]) -> Flow[bool]:
        """All shards in one transaction; False where another write was in its way."""
        parts: list[ask.Write] = [{"Update": one.draft.write(one.key)} for one in writes]
        outcome = yield from send(ask.transaction(self._table, parts))
        if reasons_of(outcome) is not None:
            return False
        known.forget()  # the states after it were not told
        return True


def _shard_writes(
    seen: ItemState,
    demand: Demand,
    part: Part,
    now_ms: int,
    metered: bool,
) -> list[PlannedWrite]:
    standing = record_under(seen, demand, now_ms)
    whole = expressions.whole_terms(seen, demand, standing)
    amounts = [
        part[spec.name].amount_milli if spec.name in part else None
        for spec in standing[TERMS].specs
    ]
    counted = [
        part[spec.name].counted_milli if spec.name in part else None
        for spec in standing[TERMS].specs
    ]
    cascaded = {
        spec.name: part[spec.name].cascaded_milli
        for spec in standing[TERMS].specs
        if metered and spec.name in part
    }
    moved = (*amounts, *counted, *cascaded.values())
    if whole.specs == seen.whole.specs and not any(moved):
        return []
    draft = expressions.adjust_update(
        seen, standing, whole, amounts, now_ms, counted=counted if metered else None,
        holds={name: placed.hold for name, placed in part.items()}, cascaded=cascaded,
    )  # fmt: skip
    return [PlannedWrite(bucket_key(demand.key, seen.shard), seen.shard, draft)]


def _headroom(seen: ItemState, demand: Demand, now_ms: int) -> int | None:
    """How much the shard has beyond what it gives, or lacks beyond what it gets, where that is
    least; None where the amounts are too large for one shard, or it owes."""
    standing = record_under(seen, demand, now_ms)
    eases = []
    for name, amount in demand.named():
        cell = cell_of(standing, name)
        if cell is None or not amount:
            continue
        level, room = cell.level_milli(now_ms), cell.spec.capacity_milli
        if level < 0 or abs(amount) * SMALL_PART > room:
            return None
        eases.append(level - amount if amount > 0 else room - level + amount)
    return min(eases, default=0)


def _part(demand: Demand, hold: Hold) -> Part:
    """All of it, from one shard."""
    counts, cascades = dict(demand.counts()), dict(demand.cascades())
    return {
        name: ShardAmount(
            amount, hold if amount else Hold.FREE, counts[name], cascades.get(name, 0)
        )
        for name, amount in demand.named()
        if amount or counts[name] or cascades.get(name)
    }


def _without_hold(part: Part) -> Part:
    return {name: placed._replace(hold=Hold.FREE) for name, placed in part.items()}


# --------------------------------------------------------------------------------------------------
# Adjustments that happen once for a caller's key: the key and the buckets in one transaction.

ONCE_MS = 24 * HOUR_MS


async def adjust_once(
    table: Table,
    adjuster: Adjuster,
    demands: Sequence[Demand],
    now_ms: int,
    *,
    metered: bool,
    once: str,
) -> list[Demand] | None:
    """Those that found a bucket. None where the key was used within a day: nothing is done then."""
    for attempt in range(ATTEMPTS_MAX):
        writes: list[ask.Write] = [once_write(demands[0].key, once, now_ms)]
        places: list[tuple[BucketView, int]] = []
        for demand in demands:
            known = adjuster.cache.open(demand.key)
            flow = adjuster.plan_writes(known, demand, now_ms, attempt, metered=metered)
            for one in await run_flow(table.port, flow):
                writes.append({"Update": one.draft.write(one.key)})
                places.append((known, one.shard))
        request = ask.transaction(table.name, writes)
        reasons = reasons_of(await run_flow(table.port, send(request, is_guarded=True)))
        if reasons is None:
            found = {known.key.text: known.key for known, _ in places}
            for key in found.values():
                adjuster.cache.drop(key)  # its state after it was not told
            return [demand for demand in demands if demand.key.text in found]
        if reasons and reasons[0][0] == "ConditionalCheckFailed":
            return None
        for (known, shard), (_, item) in zip(places, reasons[1:], strict=bool(reasons)):
            known.forget() if item is None else known.note(shard, item, now_ms)
        await table.pause(attempt)
    raise too_contended(demands[0].key)


def once_write(key: BucketKey, once: str, now_ms: int) -> ask.Write:
    """The caller's key for this entity, hashed: it may be of any length. It counts for a day."""
    named = f"{key.entity_id}\n{once}"  # no entity's id has a line's end in it
    digest = hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()
    pk = schema.pk_once(key.namespace, digest)
    free = ask.WriteCondition(
        "attribute_not_exists(#until) OR #until <= :now",
        {"#until": "until_ms"},
        {":now": number(now_ms)},
    )
    return ask.put(
        {
            **key_attributes((pk, schema.ONCE)),
            **purge_attributes(key.namespace, pk),
            "until_ms": number(now_ms + ONCE_MS),
            TTL: number((now_ms + ONCE_MS) // 1000 + 60),
        },
        free,
    )
