"""Taking from several shards at once what no single one has: one transaction over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headgate.core.decision import Demand
from headgate.core.record import CELLS, STRIDE, TERMS, LimitCell, Record, Terms, cell_of, cells_of
from headgate.stores.dynamodb.client.calls import Flow
from headgate.stores.dynamodb.protocol import limit_moves
from headgate.stores.dynamodb.protocol import writes as expressions
from headgate.stores.dynamodb.protocol.flow import ATTEMPTS_MAX, commit, too_contended
from headgate.stores.dynamodb.protocol.item import BucketView, ItemState, bucket_key
from headgate.stores.dynamodb.protocol.limit_moves import Hold
from headgate.stores.dynamodb.protocol.take import Landed, Refused, record_under
from headgate.stores.dynamodb.sharding.pool import ShardPool, read_shards
from headgate.stores.dynamodb.table import requests as ask

# --------------------------------------------------------------------------------------------------
# Where a debit or a credit goes among several shards: so that none owes while another has.
#
# A shard gives what it has whatever another owes. So a debit takes from shards that have it, and
# only where all together have too little do they go into debt, all of them, each as far as it is
# refilled fast; then they are out of it at the same time.


class ShardAmount(NamedTuple):
    """`counted_milli` is added to the consumption: mostly the amount itself. `cascaded_milli` is
    the part of it that came by cascade, which may be more than all of it, and of the other sign,
    where the bucket was asked for itself besides."""

    amount_milli: int
    hold: Hold
    counted_milli: int
    cascaded_milli: int = 0


Part = dict[str, ShardAmount]  # what one shard gives, or gets (negative), by limit


def divide_adjustment(demand: Demand, records: Sequence[Record], now_ms: int) -> list[Part]:
    """What each shard gives or gets; over all shards the amounts sum up. What is counted apart from
    them is counted at one, and so is what came by cascade beyond what the others count."""
    parts: list[Part] = [{} for _ in records]
    counts, cascades = dict(demand.counts()), dict(demand.cascades())
    for name, amount in demand.named():
        cells = [cell_of(record, name) for record in records]
        levels = [0 if cell is None else cell.level_milli(now_ms) for cell in cells]
        rooms = [0 if cell is None else cell.spec.capacity_milli for cell in cells]
        owing = sum(levels) < amount or min(levels) < 0
        hold = Hold.STILL if owing else Hold.HAVING
        shares = (_refill_weights(cells) if owing else None) or rooms
        for part, given in zip(parts, even_out(levels, shares, amount), strict=True):
            if given:
                part[name] = ShardAmount(given, hold, given)
        apart, left = counts[name] - amount, cascades.get(name, 0)
        for part in parts[1:]:
            if left and name in part:
                least, most = sorted((0, part[name].counted_milli))
                own = max(least, min(left, most))
                part[name] = part[name]._replace(cascaded_milli=own)
                left -= own
        if apart or left:
            first = parts[0].get(name, ShardAmount(0, Hold.FREE, 0))
            counted = first.counted_milli + apart
            parts[0][name] = first._replace(counted_milli=counted, cascaded_milli=left)
    return parts


def _refill_weights(cells: Sequence[LimitCell | None]) -> list[int] | None:
    """How fast each shard is refilled, in proportion; None where nothing is refilled.

    A debt is divided by these and not by capacities: 65 tokens in 64 shards are 1 015 or 1 016
    millitokens each, so that of a large debt some shards would be rid much sooner than others.
    """
    longest_ms = max((cell.spec.period_ms for cell in cells if cell is not None), default=0)
    paces = [
        0 if cell is None else cell.spec.amount_milli * longest_ms // cell.spec.period_ms
        for cell in cells
    ]
    return paces if any(paces) else None


def even_out(levels: Sequence[int], rooms: Sequence[int], amount: int) -> list[int]:
    """How much of an amount each gives, or gets where it is negative, so that they are left as
    evenly full as can be: those that are fuller give, those that are emptier get."""
    if amount < 0:
        return [-got for got in even_out([-level for level in levels], rooms, -amount)]
    given = [0] * len(levels)
    giving = [place for place, room in enumerate(rooms) if room]
    if not giving or not amount:
        given[0] = amount
        return given
    while True:
        total = sum(rooms[place] for place in giving)
        left = sum(levels[place] for place in giving) - amount
        rests = {place: left * rooms[place] // total for place in giving}
        above = [place for place in giving if levels[place] > rests[place]]
        if len(above) == len(giving):
            break
        giving = above
    for place in giving:
        given[place] = levels[place] - rests[place]
    for place in giving[: sum(given) - amount]:
        given[place] -= 1  # every rest was rounded down
    return given


Share = dict[str, int]  # what one shard gives, by limit
ShardStanding = tuple[ItemState, Record]  # a shard and its record under the demand's terms


def gather(
    table: str, known: BucketView, demand: Demand, now_ms: int
) -> Flow[Landed | Refused | None]:
    """Decided over the whole bucket as it is now; None where it is no longer divided."""
    for _ in range(ATTEMPTS_MAX):
        shards = yield from read_shards(table, known, now_ms)
        if len(shards) < 2:
            return None
        stands = [(seen, record_under(seen, demand, now_ms)) for seen in shards]
        whole = [expressions.whole_terms(seen, demand, record) for seen, record in stands]
        pool = ShardPool(
            max(whole, key=lambda terms: terms.version), [record for _, record in stands]
        )
        waits = pool.waits_ms(demand, now_ms)
        if not _suffices(pool.whole, waits):
            # New limits are kept also where they refuse: the wait told counts on their pace.
            renewed = [
                _write(demand, stand, terms, {}, now_ms, {})
                for stand, terms in zip(stands, whole, strict=True)
                if terms.specs != stand[0].whole.specs
            ]
            if renewed:
                yield from _write_all(table, known, renewed, now_ms)
                continue
            return Refused(pool.record(now_ms), waits)
        parts = divide_take(demand, [record for _, record in stands], now_ms)
        cascaded = dict(demand.cascades())
        writes = [
            _write(demand, stand, terms, part, now_ms, cascaded)
            for stand, terms, part in zip(stands, whole, parts, strict=True)
            if part
        ]
        done = yield from _write_all(table, known, writes, now_ms)
        if done:
            after = [
                _less(record, part, now_ms) for (_, record), part in zip(stands, parts, strict=True)
            ]
            _remember(known, stands, after, parts)
            left = ShardPool(pool.whole, after)
            return Landed(pool.record(now_ms), left.record(now_ms))
    raise too_contended(demand.key)


def _remember(
    known: BucketView, stands: list[ShardStanding], after: list[Record], parts: list[Share]
) -> None:
    """The states after a gathering. A shard that gave nothing was not written, and keeps its limits
    where they are others; what one is that was given new ones, only the next answer tells."""
    if any(record[TERMS].specs != seen.record[TERMS].specs for seen, record in stands) or any(
        record[CELLS::STRIDE] != left[CELLS::STRIDE]  # a session has begun
        for (_, record), left in zip(stands, after, strict=True)
    ):
        known.forget()
        return
    for (seen, _), record, part in zip(stands, after, parts, strict=True):
        if part:
            known.shards[seen.shard] = seen._replace(record=record)


def divide_take(demand: Demand, records: list[Record], now_ms: int) -> list[Share]:
    """What each shard gives: so much that they are left equally full, since a shard that stays
    full gains nothing while the others do. What they lack together is counted at one of them, where
    the limit is soft already: a shard may not have heard of that yet."""
    parts: list[Share] = [{} for _ in records]
    for name, wanted in demand.named():
        cells = [cell_of(record, name) for record in records]
        levels = [0 if cell is None else cell.level_milli(now_ms) for cell in cells]
        rooms = [0 if cell is None else cell.spec.capacity_milli for cell in cells]
        if sum(levels) < wanted:  # a soft limit that is passed: the emptiest has not got it either
            parts[min(_soft_at(cells), key=levels.__getitem__)][name] = wanted
            continue
        for part, given in zip(parts, even_out(levels, rooms, wanted), strict=True):
            if given:
                part[name] = given
        if not wanted:
            parts[levels.index(max(levels))][name] = 0
    return parts


def _soft_at(cells: list[LimitCell | None]) -> list[int]:
    """The places where the limit is soft; all of them, if it is nowhere."""
    soft = [at for at, cell in enumerate(cells) if cell is not None and cell.spec.soft]
    return soft or list(range(len(cells)))


Writes = list[tuple[int, ask.Write]]


def _write(
    demand: Demand,
    stand: ShardStanding,
    terms: Terms,
    part: Share,
    now_ms: int,
    left: dict[str, int],
) -> tuple[int, ask.Write]:
    """One shard under these terms, less its part; `left` as in `cascaded_part`."""
    seen, record = stand
    amounts = [part.get(spec.name) for spec in record[TERMS].specs]
    cascaded = expressions.cascaded_part(demand, record[TERMS].specs, amounts, left)
    draft = expressions.take_update(
        seen, record, terms, amounts, now_ms, crowded=False, cascaded=cascaded
    )
    return seen.shard, {"Update": draft.write(bucket_key(demand.key, seen.shard))}


def _write_all(table: str, known: BucketView, writes: Writes, now_ms: int) -> Flow[bool]:
    """Whether all of it was written; if not, what stood in the way is known now."""
    reasons = yield from commit(table, [write for _, write in writes])
    for (shard, _), (_, item) in zip(writes, reasons or (), strict=bool(reasons)):
        if item is not None:
            known.note(shard, item, now_ms)
    return reasons is None


def _suffices(whole: Terms, waits: dict[str, int | None]) -> bool:
    return all(
        wait_ms == 0 or whole.specs[whole.index[name]].soft for name, wait_ms in waits.items()
    )


def _less(record: Record, part: Share, now_ms: int) -> Record:
    """The record with its part taken, as far as one can tell from here."""
    cells = [*record[:CELLS]]
    for cell in cells_of(record):
        given = part.get(cell.spec.name, 0)
        consumed = cell.consumed_milli + given
        left = cell
        if given and not limit_moves.is_overdrawn(cell, given, now_ms):
            left = limit_moves.cell_after(cell, given, now_ms)
        cells += (left.epoch_ms, left.tokens_milli, consumed, consumed)
    return tuple(cells)
