"""The arithmetic of one limit: exact, integer, from one epoch.

Amounts are millitokens, times are integer milliseconds. A limit is kept as `tokens_milli` at the
epoch `epoch_ms`; what has been refilled since is never stored but recomputed from the epoch:

    refilled(t) = (t - epoch) * amount // period        whole millitokens that have fully arrived
    level(t)    = min(capacity, tokens + refilled(t))

Looking therefore changes nothing, nothing drifts, and limits of very different speed live in one
bucket without starving each other. Taking moves `tokens_milli` only, with one exception: a full
limit has nothing under way (it runs over the brim), so taking from it begins a new epoch. A
negative level is debt.

A quota is the same with another refill: nothing trickles in, and each reset of its schedule brings
a whole capacity. With k resets after the epoch and not after t, refilled(t) = k * capacity.
"""

from __future__ import annotations

from typing import NamedTuple

from headgate.core.refill.resets import Resets, SessionResets

MILLI = 1000


class Rate(NamedTuple):
    """How much a limit holds and how fast it refills; a quota has resets, and an amount of 0."""

    capacity_milli: int
    amount_milli: int
    period_ms: int
    resets: Resets | None = None


class TakeResult(NamedTuple):
    """What an attempt to take came to: what to store, and the wait where it was refused."""

    allowed: bool
    epoch_ms: int
    tokens_milli: int
    wait_ms: int | None


def div_ceil(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def refilled_milli(elapsed_ms: int, rate: Rate) -> int:
    """All that has fully arrived since the epoch."""
    return elapsed_ms * rate.amount_milli // rate.period_ms


def arrived_milli(epoch_ms: int, now_ms: int, rate: Rate) -> int:
    """The same between two moments, also of a quota."""
    if rate.resets is None:
        return refilled_milli(now_ms - epoch_ms, rate)
    return rate.resets.resets_between(epoch_ms, now_ms) * rate.capacity_milli


def refill_bucket(tokens_milli: int, epoch_ms: int, now_ms: int, rate: Rate) -> int:
    """The level now: what is stored plus what has arrived, never above the brim."""
    arrived = arrived_milli(epoch_ms, now_ms, rate)
    return min(rate.capacity_milli, tokens_milli + arrived)


def try_consume(
    tokens_milli: int, epoch_ms: int, now_ms: int, rate: Rate, wanted_milli: int
) -> TakeResult:
    """Take all that is wanted or nothing; a refusal carries the least wait."""
    wait_ms = calculate_retry_after(tokens_milli, epoch_ms, now_ms, rate, wanted_milli)
    if wait_ms != 0:
        return TakeResult(False, epoch_ms, tokens_milli, wait_ms)
    epoch_ms, tokens_milli = restart_if_full(tokens_milli, epoch_ms, now_ms, rate)
    return TakeResult(True, epoch_ms, tokens_milli - wanted_milli, 0)


def force_consume(
    tokens_milli: int, epoch_ms: int, now_ms: int, rate: Rate, debit_milli: int
) -> tuple[int, int]:
    """The epoch and tokens after a debit that may go into debt, or a credit (negative) that may
    not pass the brim."""
    epoch_ms, tokens_milli = restart_if_full(tokens_milli, epoch_ms, now_ms, rate)
    return restart_if_full(tokens_milli - debit_milli, epoch_ms, now_ms, rate)


def restart_if_full(tokens_milli: int, epoch_ms: int, now_ms: int, rate: Rate) -> tuple[int, int]:
    """The same level, stored from now on if it is at the brim: nothing is under way then.

    A clock that is behind the epoch does not move it back.
    """
    if tokens_milli + arrived_milli(epoch_ms, now_ms, rate) < rate.capacity_milli:
        return epoch_ms, tokens_milli
    return max(now_ms, epoch_ms), rate.capacity_milli


def calculate_retry_after(
    tokens_milli: int, epoch_ms: int, now_ms: int, rate: Rate, wanted_milli: int
) -> int | None:
    """The least wait: refused one millisecond earlier, admitted then; None if never."""
    if would_refill_satisfy(tokens_milli, epoch_ms, now_ms, rate, wanted_milli):
        return 0
    if wanted_milli > rate.capacity_milli:
        return None
    missing = wanted_milli - tokens_milli
    if rate.resets is not None:
        at_ms = _reset_with(missing, epoch_ms, rate.resets, rate.capacity_milli)
        return None if at_ms is None else at_ms - now_ms
    if rate.amount_milli == 0:
        return None
    return epoch_ms + div_ceil(missing * rate.period_ms, rate.amount_milli) - now_ms


def _reset_with(missing_milli: int, epoch_ms: int, resets: Resets, capacity: int) -> int | None:
    """The reset that brings what is missing at the epoch."""
    return resets.nth_after(epoch_ms, div_ceil(missing_milli, capacity))


def would_refill_satisfy(
    tokens_milli: int, epoch_ms: int, now_ms: int, rate: Rate, wanted_milli: int
) -> bool:
    """Whether what is stored and has arrived covers what is wanted."""
    return wanted_milli <= refill_bucket(tokens_milli, epoch_ms, now_ms, rate)


def full_at_ms(tokens_milli: int, epoch_ms: int, rate: Rate) -> int | None:
    """When the limit is full if nobody takes from it; None if it never will be."""
    missing = rate.capacity_milli - tokens_milli
    if missing <= 0:
        return epoch_ms
    if rate.resets is not None:
        return _reset_with(missing, epoch_ms, rate.resets, rate.capacity_milli)
    if rate.amount_milli == 0:
        return None
    return epoch_ms + div_ceil(missing * rate.period_ms, rate.amount_milli)


def forecast(
    tokens_milli: int, epoch_ms: int, now_ms: int, rate: Rate
) -> tuple[int, int | None, int | None]:
    """What people want to know of a limit at once, for little: whole tokens now (negative in debt),
    the wait until there is one more, and when it is full.

    The wait is None where it is full; both are None where it never will be. Of a quota the last is
    its next reset, full or not; a session that nobody has begun has none, so it is now.
    """
    capacity_milli, amount_milli, period_ms, resets = rate
    if resets is not None:
        return _forecast_quota(tokens_milli, epoch_ms, now_ms, capacity_milli, resets)
    level = tokens_milli + (now_ms - epoch_ms) * amount_milli // period_ms
    if level >= capacity_milli:
        return capacity_milli // MILLI, None, now_ms
    whole = level // MILLI
    if amount_milli == 0:
        return whole, None, None
    missing = (whole + 1) * MILLI - tokens_milli
    next_ms = epoch_ms - (-missing * period_ms // amount_milli)
    full_ms = epoch_ms - ((tokens_milli - capacity_milli) * period_ms // amount_milli)
    return whole, next_ms - now_ms, full_ms


def _forecast_quota(
    tokens_milli: int, epoch_ms: int, now_ms: int, capacity_milli: int, resets: Resets
) -> tuple[int, int | None, int | None]:
    passed = resets.resets_between(epoch_ms, now_ms)
    level = tokens_milli + passed * capacity_milli
    reset_ms = resets.nth_after(epoch_ms, passed + 1)
    if level >= capacity_milli:
        if isinstance(resets, SessionResets):
            reset_ms = now_ms
        return capacity_milli // MILLI, None, reset_ms
    whole = level // MILLI
    missing = (whole + 1) * MILLI - tokens_milli
    more_ms = _reset_with(missing, epoch_ms, resets, capacity_milli)
    return whole, None if more_ms is None else more_ms - now_ms, reset_ms


def carry_over(
    tokens_milli: int, epoch_ms: int, now_ms: int, old: Rate, new: Rate
) -> tuple[int, int]:
    """The epoch and tokens to store when the rate changes: the level goes along, cut at the brim.

    What is under way (a part of a millitoken) goes along, too, as the time it takes at the new
    pace, rounded down: however often the rate changes, nothing arrives early and nothing starves.
    A clock that is behind the epoch counts as being at it.
    """
    moment_ms = max(now_ms, epoch_ms)
    level = refill_bucket(tokens_milli, epoch_ms, moment_ms, old)
    if level >= min(old.capacity_milli, new.capacity_milli):
        return moment_ms, min(level, new.capacity_milli)
    if old.resets is not None or new.resets is not None:
        return _carry_window(epoch_ms, moment_ms, old.resets, new.resets), level
    if (old.amount_milli, old.period_ms) == (new.amount_milli, new.period_ms):
        return epoch_ms, tokens_milli
    if new.amount_milli == 0:
        return moment_ms, level
    under_way = (moment_ms - epoch_ms) * old.amount_milli % old.period_ms
    started_ms = under_way * new.period_ms // (old.period_ms * new.amount_milli)
    return moment_ms - started_ms, level


def _carry_window(epoch_ms: int, moment_ms: int, old: Resets | None, new: Resets | None) -> int:
    """The epoch of a level that is carried to or from a quota: now, since calendars have nothing
    under way. From session to session the part of its window that has passed goes along, rounded
    down, so that no change brings a reset nearer than it was in proportion, and none starves it."""
    if not isinstance(old, SessionResets) or not isinstance(new, SessionResets):
        return moment_ms
    passed_ms = (moment_ms - epoch_ms) % old.after_ms
    return moment_ms - passed_ms * new.after_ms // old.after_ms
