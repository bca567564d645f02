"""What one write does to each limit of a bucket's item: pure, from the state last seen.

With R what has been refilled since the limit's epoch, full = capacity - R and need = wanted - R,
all in terms of the stored tokens:

    take      ADD tokens -wanted              if need <= tokens <= full
    brim      SET tokens = full - wanted      if tokens > full          (it had run over)
    band      SET tokens = full - d - wanted  if tokens > full - d      (see `band_milli`)
    hold      nothing                         if tokens >= need         (nothing wanted: no debt)
    passed    count only                      if tokens < need          (a soft limit)
    session   SET epoch, tokens = cp - wanted if tokens >= full         (see `begin_session`)

Why two ways to take: refill is not stored, so a bucket that nobody used for an hour still holds
its old tokens and R says how much arrived since. Subtracting from those would hand out the idle
hour on top of the capacity. So a limit that ran over is first cut off at its brim, in the same
write: SET to what is left of a full bucket. Below the brim nothing is cut off, and ADD lets takes
of several clients land in any order without disturbing each other. DynamoDB cannot choose between
the two, so the client predicts which it is from the state it has seen and lets the condition
check the guess; a wrong guess changes nothing and its answer tells the true state.

A quota is written the same way: its R is a capacity for each reset since the epoch. So what was
planned in one window is refused in the next: once anybody has taken there, the tokens are at most
capacity - R with the new R, which is less than what any take of the window before needs. Whoever
places a reset later, because its clock or its time zone database is behind, finds nothing left
until then, and gives nothing twice.

Each function returns the least the tokens can be afterwards, which bounds when the limit is full.
"""

from __future__ import annotations

import enum
import functools

from headgate.core.limits import Spec
from headgate.core.record import LimitCell
from headgate.core.refill.bucket import MILLI, div_ceil
from headgate.core.refill.resets import DAY_MS, SessionResets, count_resets, schedule_of
from headgate.stores.dynamodb.protocol.item import epoch_number, names_of
from headgate.stores.dynamodb.protocol.update_expression import UpdateExpression

RESETS_KEPT_MAX = 16_384


class Hold(enum.Enum):
    """What must be true of a limit's tokens for an adjustment to be written."""

    FREE = enum.auto()  # anything: the bucket is in one piece
    HAVING = enum.auto()  # the shard has what it gives, or owes nothing where it is given to
    STILL = enum.auto()  # they are as they were seen: all shards were weighed against each other


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
