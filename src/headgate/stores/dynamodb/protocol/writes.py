"""The writes to a bucket's item as values: create, take, adjust, all in one conditional update.

A write names the generation it was planned on. Under that generation everything but the counters is
as it was seen, and `ttl` only ever moves on, so a plan holds whatever others do meanwhile; or its
condition fails, and the answer tells the true state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.core.decision import Demand
from headgate.core.limits import Spec
from headgate.core.record import TERMS, BucketKey, LimitCell, Record, Terms, cells_of
from headgate.core.refill.bucket import div_ceil
from headgate.stores.dynamodb.catalog.items import TTL
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
from headgate.stores.dynamodb.protocol.limit_moves import (
    Hold,
    adjust_limit,
    begin_limit,
    begin_session,
    carry_limit,
    count_limit,
    drop_limit,
    full_at_ms,
    is_overdrawn,
    is_session_over,
    same_rate,
    take_limit,
)
from headgate.stores.dynamodb.protocol.update_expression import UpdateExpression
from headgate.stores.dynamodb.schema import layout_of

MARGIN_S = 60
Amounts = Sequence[int | None]
Cascaded = Mapping[str, int]  # by limit: the part of what is counted that came by cascade
NOTHING: Cascaded = {}


UNHELD: Mapping[str, Hold] = {}


def create_update(
    key: BucketKey,
    record: Record,
    amounts: Amounts,
    generation: int,
    now_ms: int,
    *,
    forced: bool = False,
    counted: Amounts | None = None,
    cascaded: Cascaded = NOTHING,
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
        overdrawn = not forced and amount is not None and is_overdrawn(cell, amount, now_ms)
        least = begin_limit(draft, cell, 0 if overdrawn else max(0, amount or 0), count, now_ms)
        ends.append(full_at_ms(cell, least))
    count_cascaded(draft, cascaded)
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
    cascaded: Cascaded = NOTHING,
) -> UpdateExpression:
    """A take of all amounts from limits that have them, as far as was seen; of those from which
    nothing is taken, `spare` must be there."""
    draft = _start_update(seen)
    ends: list[int | None] = []
    has_begun = False
    for was, cell, amount in _pair_limits(seen, standing, amounts):
        if was is None:
            overdrawn = amount is not None and is_overdrawn(cell, amount, now_ms)
            debit = 0 if overdrawn or amount is None else amount
            least = begin_limit(draft, cell, debit, amount or 0, seen.epoch_ms)
        elif not same_rate(was.spec, cell.spec):
            least = _carry(draft, was, cell, amount, now_ms)
        elif amount is None:
            continue
        elif is_overdrawn(cell, amount, now_ms):
            count_limit(draft, cell, amount, now_ms)
            continue
        elif amount and is_session_over(cell, now_ms):
            has_begun = True
            ends.append(begin_session(draft, cell, amount, now_ms))
            draft.add(names_of(cell.spec.name).consumed, amount)
            continue
        else:
            least = take_limit(draft, cell, amount, now_ms, crowded=crowded, spare=spare)
            if not amount:
                continue
        ends.append(full_at_ms(cell, least))
    count_cascaded(draft, cascaded)
    _set_terms(draft, seen, standing, whole, now_ms, has_begun=has_begun)
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
    cascaded: Cascaded = NOTHING,
) -> UpdateExpression:
    """Debits that may go into debt and credits (negative) that stop at the brim; `counted` is what
    they add to the consumption, where they are metered."""
    draft = _start_update(seen)
    ends: list[int | None] = []
    has_begun = False
    pairs = zip(_pair_limits(seen, standing, amounts), _counts(amounts, counted), strict=True)
    for (was, cell, amount), count in pairs:
        hold = holds.get(cell.spec.name, Hold.FREE)
        if was is None:
            least = begin_limit(draft, cell, max(0, amount or 0), count, seen.epoch_ms)
        elif not same_rate(was.spec, cell.spec):
            need = max(0, amount or 0) if hold is Hold.HAVING else None
            least = carry_limit(draft, was, cell, amount or 0, need, now_ms)
            if hold is Hold.STILL:
                draft.equal(names_of(cell.spec.name).tokens, was.tokens_milli)
            draft.add(names_of(cell.spec.name).consumed, count)
        elif amount is None:
            continue
        elif amount > 0 and is_session_over(cell, now_ms):
            has_begun = True
            ends.append(begin_session(draft, cell, amount, now_ms))
            draft.add(names_of(cell.spec.name).consumed, count)
            continue
        else:
            draft.add(names_of(cell.spec.name).consumed, count)
            least = adjust_limit(draft, cell, amount, now_ms, hold)
        if was is None or not same_rate(was.spec, cell.spec) or (amount or 0) > 0:
            ends.append(full_at_ms(cell, least))
    count_cascaded(draft, cascaded)
    _set_terms(draft, seen, standing, whole, now_ms, has_begun=has_begun)
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
        return carry_limit(draft, was, cell, 0, None, now_ms)
    overdrawn = is_overdrawn(cell, amount, now_ms)
    draft.add(names_of(cell.spec.name).consumed, amount)
    if overdrawn:
        return carry_limit(draft, was, cell, 0, None, now_ms)
    return carry_limit(draft, was, cell, amount, amount, now_ms)


def _set_terms(
    draft: UpdateExpression,
    seen: ItemState,
    standing: Record,
    whole: Terms,
    now_ms: int,
    *,
    has_begun: bool,
) -> None:
    """What the item says of its limits, where that changes, and a new generation where that or an
    epoch does: a session `has_begun`.

    New sources or a new version alone keep the generation: nothing that others planned on is
    touched. The version never goes back.
    """
    if has_begun and whole.specs == seen.whole.specs:
        draft.set_number(GENERATION, seen.generation + 1)
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
            names = names_of(spec.name)
            if was is not None and names.amount not in rates:
                draft.remove(names.amount)
            if was is not None and names.period not in rates:
                draft.remove(names.period)
    for cell in cells_of(seen.record):
        if cell.spec.name in before:
            drop_limit(draft, cell, now_ms)


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


def cascaded_part(
    demand: Demand,
    specs: Sequence[Spec],
    counts: Sequence[int | None],
    left: dict[str, int] | None = None,
) -> Cascaded:
    """The part by cascade of what one write counts of these limits.

    Where a demand goes to several shards, `left` is what of that part no write has had yet.
    """
    if demand.cascaded is None:
        return NOTHING
    left = dict(demand.cascades()) if left is None else left
    found: dict[str, int] = {}
    for spec, count in zip(specs, counts, strict=True):
        part = left.get(spec.name, 0)
        if part and count:
            part = min(part, count) if count > 0 else max(part, count)
            found[spec.name] = part
            left[spec.name] -= part
    return found


def count_cascaded(draft: UpdateExpression, cascaded: Cascaded) -> None:
    """The part of what the write counts that came by cascade, for the stream's reader.

    An ADD makes the attribute where there is none, so a write without such a part has none of this,
    and the items of buckets without children never grow.
    """
    for name, milli in cascaded.items():
        draft.add(names_of(name).cascaded, milli)
