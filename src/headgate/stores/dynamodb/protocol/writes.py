"""The writes to a bucket's item as values: create, take, adjust, all in one conditional update.

A write names the generation it was planned on. Under that generation everything but the counters is
as it was seen, and `ttl` only ever moves on, so a plan holds whatever others do meanwhile; or its
condition fails, and the answer tells the true state.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping, Sequence

from headgate.core.decision import Demand
from headgate.core.limits import Spec
from headgate.core.record import TERMS, BucketKey, LimitCell, Record, Terms, cells_of
from headgate.core.refill.bucket import MILLI, div_ceil
from headgate.core.refill.resets import DAY_MS, SessionResets, count_resets, schedule_of
from headgate.stores.dynamodb.catalog.items import TTL
from headgate.stores.dynamodb.protocol.item import (
    EPOCH,
    GENERATION,
    LAYOUT,
    VERSION,
    WRITTEN,
    ItemState,
    epoch_number,
    names_of,
    rate_attributes,
    static_attributes,
)
from headgate.stores.dynamodb.protocol.update_expression import UpdateExpression
from headgate.stores.dynamodb.schema import layout_of

MARGIN_S = 60
RESETS_KEPT_MAX = 16_384
Amounts = Sequence[int | None]
Cascaded = Mapping[str, int]  # by limit: the part of what is counted that came by cascade
NOTHING: Cascaded = {}


class Hold(enum.Enum):
    """What must be true of a limit's tokens for an adjustment to be written."""

    FREE = enum.auto()  # anything: the bucket is in one piece
    HAVING = enum.auto()  # the shard has what it gives, or owes nothing where it is given to
    STILL = enum.auto()  # they are as they were seen: all shards were weighed against each other


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


# --------------------------------------------------------------------------------------------------
# What one write does to each limit of a bucket's item: pure, from the state last seen.
#
# With R what has been refilled since the limit's epoch, full = capacity - R and need = wanted - R,
# all in terms of the stored tokens:
#
#     take      ADD tokens -wanted              if need <= tokens <= full
#     brim      SET tokens = full - wanted      if tokens > full          (it had run over)
#     band      SET tokens = full - d - wanted  if tokens > full - d      (see `band_milli`)
#     hold      nothing                         if tokens >= need         (nothing wanted: no debt)
#     passed    count only                      if tokens < need          (a soft limit)
#     session   SET epoch, tokens = cp - wanted if tokens >= full         (see `begin_session`)
#
# Why two ways to take: refill is not stored, so a bucket that nobody used for an hour still holds
# its old tokens and R says how much arrived since. Subtracting from those would hand out the idle
# hour on top of the capacity. So a limit that ran over is first cut off at its brim, in the same
# write: SET to what is left of a full bucket. Below the brim nothing is cut off, and ADD lets takes
# of several clients land in any order without disturbing each other. DynamoDB cannot choose between
# the two, so the client predicts which it is from the state it has seen and lets the condition
# check the guess; a wrong guess changes nothing and its answer tells the true state.
#
# A quota is written the same way: its R is a capacity for each reset since the epoch. So what was
# planned in one window is refused in the next: once anybody has taken there, the tokens are at most
# capacity - R with the new R, which is less than what any take of the window before needs. Whoever
# places a reset later, because its clock or its time zone database is behind, finds nothing left
# until then, and gives nothing twice.
#
# Each function returns the least the tokens can be afterwards, which bounds when the limit is full.

# Where nothing is wanted of a limit, one shard of several answers for all of them only if it has a
# whole token: a debt is divided into whole millitokens, so a shard may have paid its part some
# milliseconds before the others have. One that has less leaves it to all of them together.
SPARE_MILLI = MILLI

BAND_PART = 16
BAND_REFILL_MS = 1000


def band_milli(capacity_milli: int, amount_milli: int, period_ms: int) -> int:
    """How far below the brim a take may aim where other clients move a full limit; 0: not at all.

    Whether a limit has run over changes between our read and our write when others take from it,
    and the condition of the write then fails. Aiming a sixteenth of the capacity lower saves that
    second round trip, and gives the sixteenth away. A limit that refills it within a second does
    not miss it. A slower one would miss it for minutes, a monthly quota for days and an allowance
    that never refills for ever, so those always aim at the exact brim and pay the round trip.
    """
    band = capacity_milli // BAND_PART
    return band if band * period_ms <= amount_milli * BAND_REFILL_MS else 0


def arrived_milli(cell: LimitCell, now_ms: int) -> int:
    spec = cell.spec
    if spec.resets is not None:
        return count_resets(spec.resets, cell.epoch_ms, now_ms) * spec.capacity_milli
    return (now_ms - cell.epoch_ms) * spec.amount_milli // spec.period_ms


def same_rate(spec: Spec, other: Spec) -> bool:
    """Whether the two are refilled alike, so that the tokens of one are those of the other."""
    return spec[1:4] == other[1:4] and spec.resets == other.resets


def is_session(spec: Spec) -> bool:
    return spec.resets is not None and isinstance(schedule_of(spec.resets), SessionResets)


def is_session_over(cell: LimitCell, now_ms: int) -> bool:
    """Whether it is a session quota that is full, so that the next use begins a window."""
    return is_session(cell.spec) and (
        cell.tokens_milli + arrived_milli(cell, now_ms) >= cell.spec.capacity_milli
    )


def window_start_ms(cell: LimitCell, now_ms: int) -> int:
    """When the window of a session quota began that runs now."""
    assert cell.spec.resets is not None
    count = count_resets(cell.spec.resets, cell.epoch_ms, now_ms)
    return cell.epoch_ms + (schedule_of(cell.spec.resets).nth_after(0, count) or 0)


def session_begun(cell: LimitCell, now_ms: int) -> LimitCell:
    """A session as its next use finds it. A clock that is behind the epoch moves none back."""
    return cell._replace(epoch_ms=max(now_ms, cell.epoch_ms), tokens_milli=cell.spec.capacity_milli)


def cell_after(cell: LimitCell, wanted: int, now_ms: int) -> LimitCell:
    """What a take leaves of a limit that has what is wanted."""
    if is_session_over(cell, now_ms):
        cell = session_begun(cell, now_ms)
    full = cell.spec.capacity_milli - arrived_milli(cell, now_ms)
    return cell._replace(tokens_milli=min(cell.tokens_milli, full) - wanted)


def begin_session(draft: UpdateExpression, cell: LimitCell, debit: int, now_ms: int) -> int | None:
    """A debit from a session quota that is full: its window begins with it. When it is full again.

    This moves the epoch, and so the generation: what others have planned on the window before fails
    once, and is planned anew. That is one more write for each client and window, and not for each
    take, as it would be if limits that refill began anew whenever they are full.
    """
    names = names_of(cell.spec.name)
    begun = session_begun(cell, now_ms)
    draft.set_number(names.tokens, begun.tokens_milli - debit)
    draft.set_number(names.epoch, epoch_number(cell.spec, begun.epoch_ms))
    draft.at_least(names.tokens, cell.spec.capacity_milli - arrived_milli(cell, now_ms))
    return full_at_ms(begun, begun.tokens_milli - debit)


def is_overdrawn(cell: LimitCell, wanted: int, now_ms: int) -> bool:
    """Whether a soft limit has not got what is wanted: then nothing is taken, and all counted."""
    if not cell.spec.soft:
        return False
    return wanted > cell.spec.capacity_milli or wanted > cell.level_milli(now_ms)


def take_limit(
    draft: UpdateExpression,
    cell: LimitCell,
    wanted: int,
    now_ms: int,
    *,
    crowded: bool,
    spare: int = 0,
) -> int:
    """A take from a limit that has what is wanted, and `spare` where nothing is."""
    names = names_of(cell.spec.name)
    arrived = arrived_milli(cell, now_ms)
    full = cell.spec.capacity_milli - arrived
    need = wanted - arrived
    band = band_milli(*cell.spec.rate[:3]) if crowded else 0
    if not wanted:
        draft.at_least(names.tokens, need + spare)
        return cell.tokens_milli
    # Why half a band: the tokens we saw are an upper bound, because others can only have taken
    # since. Above the middle of the band the true tokens are most likely still above its lower
    # edge, so the write below lands. Under the middle the limit cannot have run over, and a plain
    # ADD is the safe guess.
    if band and cell.tokens_milli > full - band // 2 and need <= full - band:
        draft.set_number(names.tokens, full - band - wanted)
        draft.above(names.tokens, full - band)
    elif cell.tokens_milli > full:
        draft.set_number(names.tokens, full - wanted)
        draft.above(names.tokens, full)
    else:
        draft.add(names.tokens, -wanted)
        draft.between(names.tokens, need, full - is_session(cell.spec))
    draft.add(names.consumed, wanted)
    return need - wanted


def count_limit(draft: UpdateExpression, cell: LimitCell, wanted: int, now_ms: int) -> int:
    """A soft limit that was passed: its consumption goes up, its tokens stay."""
    names = names_of(cell.spec.name)
    draft.add(names.consumed, wanted)
    if wanted <= cell.spec.capacity_milli:
        draft.below(names.tokens, wanted - arrived_milli(cell, now_ms))
    return cell.tokens_milli


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


def adjust_limit(
    draft: UpdateExpression, cell: LimitCell, debit: int, now_ms: int, hold: Hold = Hold.FREE
) -> int:
    """A debit that may go into debt, or a credit (negative).

    A credit may pass the brim in the item: what is above it is not there for anybody.
    """
    names = names_of(cell.spec.name)
    arrived = arrived_milli(cell, now_ms)
    full = cell.spec.capacity_milli - arrived
    if debit <= 0:
        draft.add(names.tokens, -debit)
        if hold is Hold.HAVING:
            draft.at_least(names.tokens, -arrived)
        elif hold is Hold.STILL:
            draft.equal(names.tokens, cell.tokens_milli)
        return cell.tokens_milli
    if cell.tokens_milli > full:
        draft.set_number(names.tokens, full - debit)
        draft.above(names.tokens, full)
        return full - debit
    low = cell.tokens_milli
    if hold is Hold.HAVING:
        low = debit - arrived
    elif hold is Hold.FREE:
        low -= cell.spec.capacity_milli
    draft.add(names.tokens, -debit)
    high = cell.tokens_milli if hold is Hold.STILL else full - is_session(cell.spec)
    draft.between(names.tokens, low, high)
    return low - debit


def carry_limit(
    draft: UpdateExpression,
    was: LimitCell,
    now: LimitCell,
    debit: int,
    need: int | None,
    now_ms: int,
) -> int:
    """A limit under a new rate, and a debit from it in the same write.

    `now` is what the state seen becomes. The tokens may be others by now: while they are on the
    same side of the brim, the same happens to them. `need` is the level the debit asks for.
    """
    names = names_of(was.spec.name)
    settled = max(0, arrived_milli(was, now_ms))
    brim = min(was.spec.capacity_milli, now.spec.capacity_milli)
    if now.epoch_ms != was.epoch_ms or now.spec.resets != was.spec.resets:
        draft.set_number(names.epoch, epoch_number(now.spec, now.epoch_ms))
    if was.tokens_milli + settled >= brim:
        draft.set_number(names.tokens, now.tokens_milli - debit)
        draft.at_least(names.tokens, brim - settled)
        return now.tokens_milli - debit
    gained = now.tokens_milli - was.tokens_milli
    low = was.tokens_milli - was.spec.capacity_milli
    if need is not None:
        low = max(low, need - gained - arrived_milli(now, now_ms))
    draft.add(names.tokens, gained - debit)
    draft.between(names.tokens, low, brim - settled - 1)
    return low + gained - debit


def begin_limit(
    draft: UpdateExpression, cell: LimitCell, debit: int, counted: int, item_epoch_ms: int
) -> int:
    """A limit that the item does not hold yet: full, but for the debit."""
    names = names_of(cell.spec.name)
    draft.set_number(names.tokens, cell.tokens_milli - debit)
    draft.set_number(names.consumed, counted)
    if cell.epoch_ms != item_epoch_ms or cell.spec.resets is not None:
        draft.set_number(names.epoch, epoch_number(cell.spec, cell.epoch_ms))
    return cell.tokens_milli - debit


def drop_limit(draft: UpdateExpression, cell: LimitCell, now_ms: int) -> None:
    """A remembered limit that is full and makes room for another."""
    draft.at_least(
        names_of(cell.spec.name).tokens, cell.spec.capacity_milli - arrived_milli(cell, now_ms)
    )
    for name in names_of(cell.spec.name):
        draft.remove(name)


def full_at_ms(cell: LimitCell, tokens_milli: int) -> int | None:
    """When a limit with these tokens is full; None for never. Of a quota by the calendar it is a
    day later, so that its item is still there for whoever places the reset later."""
    missing = cell.spec.capacity_milli - tokens_milli
    if missing <= 0:
        return cell.epoch_ms
    if cell.spec.resets is not None:
        count = div_ceil(missing, cell.spec.capacity_milli)
        return reset_end_ms(cell.spec.resets, cell.epoch_ms, count)
    if not cell.spec.amount_milli:
        return None
    return cell.epoch_ms + div_ceil(missing * cell.spec.period_ms, cell.spec.amount_milli)


@functools.lru_cache(maxsize=RESETS_KEPT_MAX)
def reset_end_ms(text: str, epoch_ms: int, count: int) -> int | None:
    """From when on the reset of a schedule that is so many after the epoch is behind all machines.
    Kept, since it is the same all through a window: 0.2 us instead of 15."""
    resets = schedule_of(text)
    at_ms = resets.nth_after(epoch_ms, count)
    if at_ms is None or isinstance(resets, SessionResets):
        return at_ms
    return at_ms + DAY_MS
