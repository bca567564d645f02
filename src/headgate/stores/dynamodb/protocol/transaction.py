"""Several buckets in one transaction: all or none, with no moment in between that others could see.

It costs twice the write units of the same writes apart, and they are paid by everybody who asks
for `strict`. A bucket in several shards is left to the other way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headgate.core.decision import Demand, fits
from headgate.core.record import CELLS, TERMS, Record, cells_of, new_record
from headgate.stores.dynamodb.client.calls import Flow
from headgate.stores.dynamodb.protocol import limit_moves
from headgate.stores.dynamodb.protocol import writes as expressions
from headgate.stores.dynamodb.protocol.flow import ATTEMPTS_MAX, commit, too_contended
from headgate.stores.dynamodb.protocol.item import (
    BucketView,
    ItemState,
    StateCache,
    bucket_key,
    new_generation,
)
from headgate.stores.dynamodb.protocol.take import (
    Landed,
    Refused,
    aligned_amounts,
    learn,
    record_under,
)
from headgate.stores.dynamodb.sharding.pool import read_items
from headgate.stores.dynamodb.table import requests as ask

Results = list[Landed | Refused]


class PlannedTake(NamedTuple):
    """A bucket towards a demand, planned on one state: while an answer is awaited, others of this
    process may come to know it better."""

    known: BucketView
    seen: ItemState | None
    demand: Demand
    record: Record

    @staticmethod
    def of(known: BucketView, demand: Demand, now_ms: int) -> PlannedTake:
        seen = known.shards.get(0)
        if seen is None:
            return PlannedTake(known, None, demand, new_record(demand.terms, now_ms))
        return PlannedTake(known, seen, demand, record_under(seen, demand, now_ms))


def take_all(
    table: str, cache: StateCache, demands: Sequence[Demand], now_ms: int
) -> Flow[Results | None]:
    """What all came to together; None where one of them is in several shards."""
    known = [cache.open(demand.key) for demand in demands]
    for number in range(ATTEMPTS_MAX):
        yield from _read_unknown(table, known, now_ms)
        if any(seen.depth for one in known for seen in list(one.shards.values())):
            return None
        stands = [PlannedTake.of(*pair, now_ms) for pair in zip(known, demands, strict=True)]
        fitting = all(fits(one.record, one.demand, now_ms) for one in stands)
        if not fitting and number:
            if (yield from _keep_terms(table, stands, now_ms)):
                return [Refused(one.record) for one in stands]
            continue
        if not fitting:  # as far as was known: now it is asked
            for one in known:
                one.forget()
            continue
        writes = [_write(one, now_ms) for one in stands]
        if (yield from commit(table, writes)) is None:
            return [_landed_take(one, now_ms) for one in stands]
        for one in known:
            one.forget()
    raise too_contended(demands[0].key)


def _read_unknown(table: str, known: Sequence[BucketView], now_ms: int) -> Flow[None]:
    """Buckets that are not known are read: a transaction that fails tells little."""
    unknown = [one for one in known if not one.shards and not one.absent]
    if unknown:
        items = yield from read_items(table, [bucket_key(one.key) for one in unknown])
        for one in unknown:
            one.note(0, items.get(bucket_key(one.key)), now_ms)


def _write(stand: PlannedTake, now_ms: int) -> ask.Write:
    _, seen, demand, standing = stand
    key = bucket_key(demand.key)
    if seen is None:
        draft = expressions.create_update(
            demand.key, standing, demand.amounts, new_generation(), now_ms,
            cascaded=expressions.cascaded_part(demand, demand.terms.specs, demand.amounts),
        )  # fmt: skip
        return {"Update": draft.write(key)}
    whole = expressions.whole_terms(seen, demand, standing)
    amounts = aligned_amounts(demand, standing[TERMS])
    draft = expressions.take_update(
        seen, standing, whole, amounts, now_ms, crowded=False,
        cascaded=expressions.cascaded_part(demand, standing[TERMS].specs, amounts),
    )  # fmt: skip
    return {"Update": draft.write(key)}


def _keep_terms(table: str, stands: Sequence[PlannedTake], now_ms: int) -> Flow[bool]:
    """A refusal under new terms keeps them: the wait it tells counts on their pace. False where
    somebody else was faster, and the state is known better now."""
    for known, seen, demand, standing in stands:
        whole = None if seen is None else expressions.whole_terms(seen, demand, standing)
        if seen is None or whole is None or whole.specs == seen.whole.specs:
            continue
        nothing = [None] * len(whole.specs)
        draft = expressions.take_update(seen, standing, whole, nothing, now_ms, crowded=False)
        outcome = yield draft.request(table, bucket_key(demand.key))
        if learn(known, 0, outcome, now_ms) is None:
            return False
    return True


def _landed_take(stand: PlannedTake, now_ms: int) -> Landed:
    """The take as it must have been; the item itself was not told."""
    known, seen, demand, standing = stand
    has_begun = False
    cells = [*standing[:CELLS]]
    for cell, wanted in zip(
        cells_of(standing), aligned_amounts(demand, standing[TERMS]), strict=True
    ):
        consumed = cell.consumed_milli + (wanted or 0)
        left = cell
        if wanted and not limit_moves.is_overdrawn(cell, wanted, now_ms):
            left = limit_moves.cell_after(cell, wanted, now_ms)
            has_begun = has_begun or left.epoch_ms != cell.epoch_ms
        cells += (left.epoch_ms, left.tokens_milli, consumed, consumed)
    after = tuple(cells)
    if seen is None or has_begun or standing[TERMS] is not seen.record[TERMS]:
        known.forget()  # its generation is new
    elif known.shards.get(0) is seen:
        known.shards[0] = seen._replace(record=after)
    return Landed(standing, after)
