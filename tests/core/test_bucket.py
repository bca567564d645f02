"""The arithmetic of one limit against the oracle: levels, waits, debt, the brim, promise S1."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.refill.bucket import MILLI, Rate, div_ceil, forecast, refilled_milli
from tests.core.kit import (
    DAY_MS,
    DECADES_MS,
    HUGE,
    HUGE_MILLI,
    LAW,
    ONE_PER_DAY,
    Kept,
    Step,
    gaps_ms,
    oracle_for,
    percents,
    played,
    rates,
    share,
    states,
    steps,
    takes,
    tight_rates,
    tight_takes,
)
from tests.core.oracle import worst_excess


def test_the_oracle_knows_a_story_told_by_hand() -> None:
    oracle = oracle_for(Kept(Rate(10, 1, 3), 10, 0))
    oracle.debit(0, 8)
    assert oracle.level(4) == Fraction(10, 3)
    oracle.debit(4, 5)
    assert oracle.level(4) == Fraction(-5, 3)
    oracle.debit(5, -100)
    assert oracle.level(5) == 10
    assert oracle.first_ms_with(11, 5) is None
    oracle.debit(6, 10)
    assert oracle.first_ms_with(2, 6) == 12


@LAW
@given(states, steps, gaps_ms)
def test_level_is_the_floor_of_the_exact_level(
    kept: Kept, story: list[Step], later_ms: int
) -> None:
    """Never above it and less than a millitoken below, also after the brim: nothing is under way
    there, so no part of a millitoken may arrive later."""
    after, oracle, _, now_ms = played(kept, story)
    exact = oracle.level(now_ms + later_ms)
    assert exact - 1 < after.level(now_ms + later_ms) <= exact


@LAW
@given(st.tuples(rates, takes), st.tuples(tight_rates, tight_takes))
def test_S1_over_every_interval_for_limits_of_any_size_and_tiny_ones(
    large: tuple[Rate, list[Step]], tiny: tuple[Rate, list[Step]]
) -> None:
    for rate, story in (large, tiny):
        _, oracle, admitted, _ = played(Kept.full(rate), story)
        assert worst_excess(admitted, rate.capacity_milli, oracle.per_ms) <= 0


def test_S1_one_per_day_is_not_had_twice_in_less_than_a_day() -> None:
    """The smallest story of it: whole tokens, a plain limit, a bucket filled to the brim."""
    first_ms = 86_399
    allowed, kept, _ = Kept.full(ONE_PER_DAY).take(first_ms, 1_000)
    assert allowed
    assert kept.wait_ms(first_ms, 1_000) == DAY_MS


@LAW
@given(states, gaps_ms, st.integers(0, 2 * HUGE_MILLI) | st.integers(0, 100))
def test_wait_is_exact(kept: Kept, gap_ms: int, wanted: int) -> None:
    """Refused one millisecond earlier, admitted then; None exactly where no refill will do."""
    now_ms = kept.epoch_ms + gap_ms
    wait_ms = kept.wait_ms(now_ms, wanted)
    allowed, after, told_ms = kept.take(now_ms, wanted)
    assert told_ms == wait_ms
    assert allowed == (wait_ms == 0)
    reachable = wanted <= kept.rate.capacity_milli and kept.rate.amount_milli > 0
    assert (wait_ms is None) == (not allowed and not reachable)
    if wait_ms:
        assert after == kept, "a refusal keeps what is stored"
        assert not kept.take(now_ms + wait_ms - 1, wanted)[0]
        assert kept.take(now_ms + wait_ms, wanted)[0]
    if wait_ms is None:
        assert not kept.take(now_ms + DECADES_MS, wanted)[0]


@LAW
@given(states, gaps_ms, percents)
def test_wait_is_what_the_oracle_finds_by_bisection(kept: Kept, gap_ms: int, percent: int) -> None:
    now_ms, wanted = kept.epoch_ms + gap_ms, share(kept.rate.capacity_milli, percent)
    found_ms = oracle_for(kept).first_ms_with(wanted, now_ms)
    wait_ms = kept.wait_ms(now_ms, wanted)
    assert wait_ms == (None if found_ms is None else found_ms - now_ms)


@LAW
@given(states, st.integers(1, 5_000), percents, st.sampled_from(("take", "debit", "credit")))
def test_S12_a_clock_that_is_behind_moves_no_stored_time_back(
    kept: Kept, behind_ms: int, percent: int, verb: str
) -> None:
    amount, now_ms = share(kept.rate.capacity_milli, percent), kept.epoch_ms - behind_ms
    if verb == "take":
        assert kept.take(now_ms, amount)[1].epoch_ms >= kept.epoch_ms
    else:
        signed = amount if verb == "debit" else -amount
        assert kept.force(now_ms, signed).epoch_ms >= kept.epoch_ms


@LAW
@given(states, gaps_ms, st.integers(0, HUGE_MILLI) | st.integers(0, 50))
def test_credits_stop_at_the_brim_and_debits_do_not_stop_at_zero(
    kept: Kept, gap_ms: int, amount: int
) -> None:
    now_ms = kept.epoch_ms + gap_ms
    level = kept.level(now_ms)
    credited = min(kept.rate.capacity_milli, level + amount)
    assert kept.force(now_ms, -amount).level(now_ms) == credited
    assert kept.force(now_ms, amount).level(now_ms) == level - amount
    assert kept.force(now_ms, -HUGE_MILLI * 9).level(now_ms) == kept.rate.capacity_milli


@LAW
@given(states, st.integers(0, DECADES_MS))
def test_what_passes_the_brim_is_gone(kept: Kept, idle_ms: int) -> None:
    full_ms = kept.full_at_ms()
    if full_ms is None:
        return
    now_ms = full_ms + idle_ms
    capacity = kept.rate.capacity_milli
    assert kept.level(now_ms) == capacity
    allowed, after, _ = kept.take(now_ms, capacity)
    assert allowed
    assert after.level(now_ms) == 0
    assert not after.take(now_ms, 1)[0]


def test_the_largest_amounts_stay_exact() -> None:
    _, kept, _ = Kept.full(HUGE).take(0, HUGE_MILLI)
    assert kept.level(0) == 0
    assert kept.full_at_ms() == HUGE.period_ms
    assert kept.level(HUGE.period_ms - 1) == HUGE_MILLI * (HUGE.period_ms - 1) // HUGE.period_ms
    in_debt = kept.force(0, HUGE_MILLI)
    assert in_debt.wait_ms(0, HUGE_MILLI) == 2 * HUGE.period_ms


# When a limit's epoch or rate changes, and when it is full: nothing is won, nothing is lost.


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


# Known traps: the rule that was measured to be wrong, and ours, in the same story. Each test shows
# first that the naive rule breaks the promise, so the story is known to bite.

MINUTE_MS = 60_000


class Naive:
    """A level and the time of its last refill. `next_epoch` says how that time moves on; a lazy
    rule refills only once its tokens run out."""

    def __init__(
        self, rate: Rate, tokens: int, next_epoch: Callable[..., int], *, lazy: bool = False
    ) -> None:
        self.rate, self.tokens, self.lazy = rate, tokens, lazy
        self.next_epoch, self.epoch_ms = next_epoch, 0

    def take(self, now_ms: int, wanted: int) -> bool:
        if not self.lazy or self.tokens < wanted:
            arrived = (now_ms - self.epoch_ms) * self.rate.amount_milli // self.rate.period_ms
            self.tokens = min(self.rate.capacity_milli, self.tokens + arrived)
            self.epoch_ms = self.next_epoch(self, arrived, now_ms)
        if self.tokens < wanted:
            return False
        self.tokens -= wanted
        return True


def moved_to_now(rule: Naive, arrived: int, now_ms: int) -> int:
    """Drops what is under way."""
    return now_ms


def moved_by_what_arrived(rule: Naive, arrived: int, now_ms: int) -> int:
    """Rounds the time it has paid for down, and pays it again."""
    return rule.epoch_ms + arrived * rule.rate.period_ms // rule.rate.amount_milli


def one_by_one(rule: Naive, times_ms: Iterable[int]) -> int:
    return sum(rule.take(now_ms, 1_000) for now_ms in times_ms)


def ours(rate: Rate, tokens: int, times_ms: Iterable[int]) -> int:
    kept, admitted = Kept(rate, tokens, 0), 0
    for now_ms in times_ms:
        allowed, kept, _ = kept.take(now_ms, 1_000)
        admitted += allowed
    return admitted


def test_idling_does_not_double_the_burst() -> None:
    rate, burst = Rate(40_000, 40_000, MINUTE_MS), [MINUTE_MS] * 200
    assert one_by_one(Naive(rate, 40_000, moved_to_now, lazy=True), burst) >= 79
    assert ours(rate, 40_000, burst) == 40


def test_a_thousand_looks_a_second_mint_nothing() -> None:
    rate, every_ms = Rate(100_000, 100_000, MINUTE_MS), range(1, 12_001)
    assert one_by_one(Naive(rate, 0, moved_by_what_arrived), every_ms) > 34
    assert ours(rate, 0, every_ms) == 20


def test_a_slow_limit_beside_busy_neighbours_gets_its_share() -> None:
    rate, an_hour = Rate(500_000, 500_000, DAY_MS), range(0, DAY_MS // 24 + 1, 100)
    assert one_by_one(Naive(rate, 0, moved_to_now), an_hour) == 0
    assert ours(rate, 0, an_hour) == 500 // 24
