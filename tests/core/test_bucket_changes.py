"""When a limit's epoch or rate changes, and when it is full: nothing is won, nothing is lost."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.bucket import MILLI, Rate, div_ceil, forecast, refilled_milli
from tests.core.kit import (
    DAY_MS,
    LAW,
    ONE_PER_DAY,
    Kept,
    Step,
    gaps_ms,
    played,
    rates,
    states,
    steps,
)


def unrounded(kept: Kept, now_ms: int) -> Fraction:
    """The level below the brim with the millitoken that is under way."""
    rate = kept.rate
    arrived = Fraction((now_ms - kept.epoch_ms) * rate.amount_milli, rate.period_ms)
    return min(Fraction(rate.capacity_milli), kept.tokens_milli + arrived)


@LAW
@given(states, steps, gaps_ms, st.lists(gaps_ms, max_size=4))
def test_rebase_is_neutral(kept: Kept, story: list[Step], gap_ms: int, later: list[int]) -> None:
    """The same level at the new epoch; from then on never higher, less than a millitoken lower."""
    kept, _, _, now_ms = played(kept, story)
    now_ms += gap_ms
    moved = kept.rebased(now_ms)
    assert moved.epoch_ms == now_ms
    assert moved.level(now_ms) == kept.level(now_ms)
    for later_ms in later:
        now_ms += later_ms
        assert 0 <= kept.level(now_ms) - moved.level(now_ms) <= 1
        assert 0 <= unrounded(kept, now_ms) - unrounded(moved, now_ms) < 1


@LAW
@given(states, gaps_ms, rates, st.lists(gaps_ms, max_size=4))
def test_carry_over_takes_the_level_along_and_cuts_it_at_the_new_brim(
    kept: Kept, gap_ms: int, new: Rate, later: list[int]
) -> None:
    now_ms = kept.epoch_ms + gap_ms
    moved = kept.carried(now_ms, new)
    assert moved.level(now_ms) == min(kept.level(now_ms), new.capacity_milli)
    assert moved.epoch_ms <= now_ms
    per_ms = Fraction(new.amount_milli, new.period_ms)
    exact = Fraction(moved.level(now_ms))
    for later_ms in later:
        now_ms += later_ms
        exact = min(Fraction(new.capacity_milli), exact + per_ms * later_ms)
        assert moved.level(now_ms) < exact + 1, "what was under way is less than a millitoken"


@LAW
@given(states, gaps_ms, st.integers(1, 100) | st.integers(1, 10**16), st.lists(gaps_ms, max_size=4))
def test_a_change_of_capacity_alone_loses_nothing_later(
    kept: Kept, gap_ms: int, capacity: int, later: list[int]
) -> None:
    now_ms = kept.epoch_ms + gap_ms
    moved = kept.carried(now_ms, kept.rate._replace(capacity_milli=capacity))
    if kept.level(now_ms) < min(capacity, kept.rate.capacity_milli):
        assert (moved.tokens_milli, moved.epoch_ms) == (kept.tokens_milli, kept.epoch_ms)
        for later_ms in later:
            now_ms += later_ms
            free = kept.tokens_milli + refilled_milli(now_ms - kept.epoch_ms, kept.rate)
            assert moved.level(now_ms) == min(capacity, free)


@LAW
@given(states, st.integers(1, 5_000), rates)
def test_carry_over_by_a_clock_that_is_behind_raises_no_level(
    kept: Kept, behind_ms: int, new: Rate
) -> None:
    moved = kept.carried(kept.epoch_ms - behind_ms, new)
    assert moved.level(kept.epoch_ms) <= kept.level(kept.epoch_ms)


@LAW
@given(states, gaps_ms, rates)
def test_carry_over_keeps_debt(kept: Kept, gap_ms: int, new: Rate) -> None:
    now_ms = kept.epoch_ms + gap_ms
    in_debt = kept.force(now_ms, max(0, kept.level(now_ms)) + 7)
    assert in_debt.carried(now_ms, new).level(now_ms) == in_debt.level(now_ms) <= -7


@LAW
@given(states, st.lists(st.tuples(gaps_ms, rates), min_size=1, max_size=6))
def test_no_row_of_changes_raises_a_level_beyond_what_was_refilled(
    kept: Kept, changes: list[tuple[int, Rate]]
) -> None:
    now_ms = kept.epoch_ms
    exact = Fraction(kept.level(now_ms))
    for gap_ms, new in changes:
        now_ms += gap_ms
        exact += gap_ms * Fraction(kept.rate.amount_milli, kept.rate.period_ms)
        kept = kept.carried(now_ms, new)
        assert kept.level(now_ms) <= exact


def test_a_row_of_changes_of_capacity_does_not_starve_a_slow_limit() -> None:
    """Changed back and forth every 10 ms for a day, one per day is still one per day."""
    kept = Kept(ONE_PER_DAY, 0, 0)
    for now_ms in range(0, DAY_MS, 10_007):
        kept = kept.carried(now_ms, ONE_PER_DAY._replace(capacity_milli=1_000 + now_ms % 2))
    assert kept.level(DAY_MS - 1) == 999
    assert kept.level(DAY_MS) == 1_000


@LAW
@given(states, steps)
def test_full_at_is_exact(kept: Kept, story: list[Step]) -> None:
    kept, _, _, _ = played(kept, story)
    capacity, full_ms = kept.rate.capacity_milli, kept.full_at_ms()
    if full_ms is None:
        assert kept.rate.amount_milli == 0
        assert kept.tokens_milli < capacity
        return
    assert kept.level(full_ms) == capacity
    assert kept.level(full_ms + 10**12) == capacity
    if full_ms > kept.epoch_ms:
        assert kept.level(full_ms - 1) < capacity


@LAW
@given(st.integers(-(10**30), 10**30), st.integers(1, 10**20))
def test_div_ceil_is_the_ceiling(dividend: int, divisor: int) -> None:
    found = div_ceil(dividend, divisor)
    assert (found - 1) * divisor < dividend <= found * divisor


@LAW
@given(states, gaps_ms)
def test_a_forecast_says_at_once_what_the_slower_functions_say(kept: Kept, gap_ms: int) -> None:
    whole_tokens = kept.rate.capacity_milli // MILLI * MILLI or MILLI
    kept = kept._replace(rate=kept.rate._replace(capacity_milli=whole_tokens))
    kept = kept._replace(tokens_milli=min(kept.tokens_milli, whole_tokens))
    now_ms = kept.epoch_ms + gap_ms
    whole, wait_ms, full_ms = forecast(kept.tokens_milli, kept.epoch_ms, now_ms, kept.rate)
    assert whole == kept.level(now_ms) // MILLI
    if whole * MILLI == whole_tokens:
        assert (wait_ms, full_ms) == (None, now_ms)
    else:
        assert wait_ms == kept.wait_ms(now_ms, (whole + 1) * MILLI)
        assert full_ms == kept.full_at_ms()
