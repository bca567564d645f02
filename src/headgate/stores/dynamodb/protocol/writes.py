"""The writes to a bucket's item as values: create, take, adjust, all in one conditional update.

A write names the generation it was planned on. Under that generation everything but the counters is
as it was seen, and `ttl` only ever moves on, so a plan holds whatever others do meanwhile; or its
condition fails, and the answer tells the true state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.core.bucket import div_ceil
from headgate.core.decision import Demand
from headgate.core.record import TERMS, BucketKey, LimitCell, Record, Terms, cells_of
from headgate.stores.dynamodb.catalog.items import TTL
from headgate.stores.dynamodb.protocol import limit_moves as moves
from headgate.stores.dynamodb.protocol.item import (
    EPOCH,
    GENERATION,
    LAYOUT,
    VERSION,
    WRITTEN,
    ItemState,
    names_of,
    rate_attributes,
    static_attributes,
)
from headgate.stores.dynamodb.protocol.limit_moves import Hold
from headgate.stores.dynamodb.protocol.update_expression import UpdateExpression
from headgate.stores.dynamodb.schema import layout_of

MARGIN_S = 60
UNHELD: Mapping[str, Hold] = {}

Amounts = Sequence[int | None]


def create_update(
    key: BucketKey,
    record: Record,
    amounts: Amounts,
    generation: int,
    now_ms: int,
    *,
    forced: bool = False,
    counted: Amounts | None = None,
) -> UpdateExpression:
    """A bucket nobody has used, and the first debit from it; heals what is half there.

    `record` is the bucket as it is opened: every limit full at `now_ms`. Forced debits may go into
    debt, and a credit has nothing to fill; `counted` is then what they add to the consumption,
    where they are metered.
    """
    draft = UpdateExpression()
    whole: Terms = record[TERMS]
    draft.absent(EPOCH)
    draft.set_number(EPOCH, now_ms)
    draft.set_number(GENERATION, generation)
    draft.set_number(WRITTEN, 1)
    for name, value in static_attributes(key, 0, whole, 0).items():
        draft.set(name, value)
    ends: list[int | None] = []
    counts = _counts(amounts, counted if forced else amounts)
    for cell, amount, count in zip(cells_of(record), amounts, counts, strict=True):
        overdrawn = not forced and amount is not None and moves.is_overdrawn(cell, amount, now_ms)
        least = moves.begin(draft, cell, 0 if overdrawn else max(0, amount or 0), count, now_ms)
        ends.append(moves.full_at_ms(cell, least))
    if None not in ends:
        draft.set_number(TTL, ttl_s(max((end for end in ends if end is not None), default=0)))
    else:
        draft.remove(TTL)
    return draft


def take_update(
    seen: ItemState,
    standing: Record,
    whole: Terms,
    amounts: Amounts,
    now_ms: int,
    *,
    crowded: bool,
    spare: int = 0,
) -> UpdateExpression:
    """A take of all amounts from limits that have them, as far as was seen; of those from which
    nothing is taken, `spare` must be there."""
    draft = _start_update(seen)
    ends: list[int | None] = []
    for was, cell, amount in _pair_limits(seen, standing, amounts):
        if was is None:
            overdrawn = amount is not None and moves.is_overdrawn(cell, amount, now_ms)
            debit = 0 if overdrawn or amount is None else amount
            least = moves.begin(draft, cell, debit, amount or 0, seen.epoch_ms)
        elif was.spec.rate != cell.spec.rate:
            least = _carry(draft, was, cell, amount, now_ms)
        elif amount is None:
            continue
        elif moves.is_overdrawn(cell, amount, now_ms):
            moves.count(draft, cell, amount, now_ms)
            continue
        else:
            least = moves.take(draft, cell, amount, now_ms, crowded=crowded, spare=spare)
            if not amount:
                continue
        ends.append(moves.full_at_ms(cell, least))
    _set_terms(draft, seen, standing, whole, now_ms)
    _expire(draft, seen, ends)
    return draft


def adjust_update(
    seen: ItemState,
    standing: Record,
    whole: Terms,
    amounts: Amounts,
    now_ms: int,
    *,
    counted: Amounts | None,
    holds: Mapping[str, Hold] = UNHELD,
) -> UpdateExpression:
    """Debits that may go into debt and credits (negative) that stop at the brim; `counted` is what
    they add to the consumption, where they are metered."""
    draft = _start_update(seen)
    ends: list[int | None] = []
    pairs = zip(_pair_limits(seen, standing, amounts), _counts(amounts, counted), strict=True)
    for (was, cell, amount), count in pairs:
        hold = holds.get(cell.spec.name, Hold.FREE)
        if was is None:
            least = moves.begin(draft, cell, max(0, amount or 0), count, seen.epoch_ms)
        elif was.spec.rate != cell.spec.rate:
            need = max(0, amount or 0) if hold is Hold.HAVING else None
            least = moves.carry(draft, was, cell, amount or 0, need, now_ms)
            if hold is Hold.STILL:
                draft.equal(names_of(cell.spec.name).tokens, was.tokens_milli)
            draft.add(names_of(cell.spec.name).consumed, count)
        elif amount is None:
            continue
        else:
            draft.add(names_of(cell.spec.name).consumed, count)
            least = moves.force(draft, cell, amount, now_ms, hold)
        if was is None or was.spec.rate != cell.spec.rate or (amount or 0) > 0:
            ends.append(moves.full_at_ms(cell, least))
    _set_terms(draft, seen, standing, whole, now_ms)
    _expire(draft, seen, ends)
    return draft


def whole_terms(seen: ItemState, demand: Demand, standing: Record) -> Terms:
    """The terms of the whole bucket once this shard stands under the demand's."""
    terms: Terms = standing[TERMS]
    if terms is seen.record[TERMS]:
        return seen.whole
    if not seen.depth:
        return terms
    core = len(terms.core.specs)
    dormant = terms.specs[core:]
    held = seen.whole
    return demand.terms.extend(
        tuple(held.specs[held.index[spec.name]] for spec in dormant), held.version
    )


def _start_update(seen: ItemState) -> UpdateExpression:
    """On the generation seen; the write is counted, so that all can tell how hot the item is."""
    draft = UpdateExpression()
    draft.equal(GENERATION, seen.generation)
    draft.add(WRITTEN, 1)
    return draft


def _pair_limits(
    seen: ItemState, standing: Record, amounts: Amounts
) -> list[tuple[LimitCell | None, LimitCell, int | None]]:
    """Each limit as it was, as it stands now, and what is wanted of it."""
    cells = list(cells_of(standing))
    if standing[TERMS].specs is seen.record[TERMS].specs:
        return list(zip(cells, cells, amounts, strict=True))
    before = {cell.spec.name: cell for cell in cells_of(seen.record)}
    return [
        (before.get(cell.spec.name), cell, amount)
        for cell, amount in zip(cells, amounts, strict=True)
    ]


def _counts(amounts: Amounts, counted: Amounts | None) -> list[int]:
    return [0] * len(amounts) if counted is None else [count or 0 for count in counted]


def _carry(
    draft: UpdateExpression, was: LimitCell, cell: LimitCell, amount: int | None, now_ms: int
) -> int:
    if amount is None:
        return moves.carry(draft, was, cell, 0, None, now_ms)
    overdrawn = moves.is_overdrawn(cell, amount, now_ms)
    draft.add(names_of(cell.spec.name).consumed, amount)
    if overdrawn:
        return moves.carry(draft, was, cell, 0, None, now_ms)
    return moves.carry(draft, was, cell, amount, amount, now_ms)


def _set_terms(
    draft: UpdateExpression, seen: ItemState, standing: Record, whole: Terms, now_ms: int
) -> None:
    """What the item says of its limits, where that changes.

    New sources or a new version alone keep the generation: nothing that others planned on is
    touched. The version never goes back.
    """
    if whole is seen.whole:
        return
    draft.set(LAYOUT, {"S": layout_of(whole)})
    if whole.version != seen.whole.version:
        draft.set_number(VERSION, whole.version)
        draft.at_most(VERSION, whole.version)
    if whole.specs == seen.whole.specs:
        return
    draft.set_number(GENERATION, seen.generation + 1)
    before = {spec.name: spec for spec in seen.whole.specs}
    for spec in whole.specs:
        was = before.pop(spec.name, None)
        if was != spec:
            rates = rate_attributes(spec)
            for name, value in rates.items():
                draft.set(name, value)
            amount = names_of(spec.name).amount
            if was is not None and amount not in rates:
                draft.remove(amount)
    for cell in cells_of(seen.record):
        if cell.spec.name in before:
            moves.drop(draft, cell, now_ms)


def _expire(draft: UpdateExpression, seen: ItemState, ends: list[int | None]) -> None:
    """The item outlives what was taken: its `ttl` is late enough, or moves on, or goes.

    Shards other than a whole bucket have none: they go when they are merged.
    """
    if seen.ttl_s is None or not ends:
        return
    known = [end for end in ends if end is not None]
    if len(known) < len(ends):
        draft.remove(TTL)
        return
    needed_s = ttl_s(max(known))
    if seen.ttl_s < needed_s:
        later_s = needed_s + MARGIN_S
        draft.set_number(TTL, later_s)
        draft.at_most(TTL, later_s)


def ttl_s(full_ms: int) -> int:
    """When an item may expire that is full then."""
    return div_ceil(full_ms, 1000) + MARGIN_S
