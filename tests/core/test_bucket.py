"""The arithmetic of one limit against the oracle: levels, waits, debt, the brim, promise S1."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core import bucket
from headgate.core.bucket import Rate
from tests.core.kit import (
    DAY_MS,
    DECADES_MS,
    FAST,
    HUGE,
    HUGE_MILLI,
    LAW,
    NAMED,
    NEVER,
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
@given(states, steps, st.lists(st.tuples(gaps_ms, percents), max_size=4), gaps_ms)
def test_looking_and_failing_in_between_change_nothing(
    kept: Kept, story: list[Step], looks: list[tuple[int, int]], later_ms: int
) -> None:
    """Path independence: the same story with any looks and refusals added ends the same."""
    plain, _, admitted, now_ms = played(kept, story)
    looked, then_ms, again = kept, kept.epoch_ms, []
    for step in story:
        for gap_ms, more in looks:
            between_ms = then_ms + min(gap_ms, step.gap_ms)
            looked.level(between_ms)
            too_much = max(looked.level(between_ms), 0) + 1 + more
            allowed, looked, _ = looked.take(between_ms, too_much)
            assert not allowed
        was_ms, then_ms = then_ms, then_ms + step.gap_ms
        looked, _, got, _ = played_from(looked, was_ms, step)
        again += got
    assert again == admitted
    assert looked.level(now_ms + later_ms) == plain.level(now_ms + later_ms)
    assert looked == plain


def played_from(
    kept: Kept, was_ms: int, step: Step
) -> tuple[Kept, object, list[tuple[int, int]], int]:
    """One step of a story, counted from a moment that need not be the limit's epoch."""
    return played(kept, [step._replace(gap_ms=was_ms + step.gap_ms - kept.epoch_ms)])


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
@given(rates, takes)
def test_S1_over_every_interval_for_limits_of_any_size(rate: Rate, story: list[Step]) -> None:
    _, oracle, admitted, _ = played(Kept.full(rate), story)
    assert worst_excess(admitted, rate.capacity_milli, oracle.per_ms) <= 0


@LAW
@given(tight_rates, tight_takes)
def test_S1_over_every_interval_of_tiny_limits(rate: Rate, story: list[Step]) -> None:
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
@given(states, gaps_ms, st.integers(1, 100))
def test_would_refill_satisfy_agrees_with_the_level(kept: Kept, gap_ms: int, wanted: int) -> None:
    now_ms = kept.epoch_ms + gap_ms
    there = (kept.tokens_milli, kept.epoch_ms, now_ms, kept.rate)
    level = kept.level(now_ms)
    assert bucket.would_refill_satisfy(*there, wanted) == (wanted <= level)


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
@given(rates, st.lists(gaps_ms, max_size=8), st.integers(100, 400))
def test_debt_is_repaid_by_refill_and_credit_only(
    rate: Rate, waits: list[int], percent: int
) -> None:
    debt = share(rate.capacity_milli, percent)
    kept, now_ms = Kept.full(rate).force(0, rate.capacity_milli + debt), 0
    assert kept.level(0) == -debt
    for wait_ms in waits:
        before, now_ms = kept.level(now_ms), now_ms + wait_ms
        arrived = Fraction(rate.amount_milli, rate.period_ms) * wait_ms
        assert before <= kept.level(now_ms) < before + arrived + 1
        if kept.level(now_ms) < 0:
            assert not kept.take(now_ms, 1)[0]
            assert not kept.take(now_ms, 0)[0], "in debt even nothing is refused"
    paid = kept.force(now_ms, -debt)
    assert paid.level(now_ms) == min(rate.capacity_milli, kept.level(now_ms) + debt)


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


@LAW
@given(st.lists(st.tuples(st.integers(0, DAY_MS), st.booleans()), min_size=1, max_size=12))
def test_a_slow_limit_is_not_disturbed_by_a_fast_one_on_the_same_timeline(
    story: list[tuple[int, bool]],
) -> None:
    """One per day beside 100 000 per second: each stands as if it were alone."""
    slow, fast, now_ms = Kept.full(ONE_PER_DAY), Kept.full(FAST), 0
    slow_oracle, fast_oracle = oracle_for(slow), oracle_for(fast)
    for gap_ms, both in story:
        now_ms += gap_ms
        got_fast, fast, _ = fast.take(now_ms, 1_000_000)
        if got_fast:
            fast_oracle.debit(now_ms, 1_000_000)
        if both:
            got_slow, slow, _ = slow.take(now_ms, 1_000)
            if got_slow:
                slow_oracle.debit(now_ms, 1_000)
        assert slow.level(now_ms) == slow_oracle.level(now_ms) // 1
        assert fast.level(now_ms) == fast_oracle.level(now_ms) // 1


@pytest.mark.parametrize("rate", NAMED)
def test_decades_of_idling_fill_to_the_brim_and_no_further(rate: Rate) -> None:
    empty = Kept(rate, 0, 0)
    assert empty.level(DECADES_MS) == (rate.capacity_milli if rate.amount_milli else 0)


def test_rate_zero_never_refills_and_never_promises() -> None:
    allowed, kept, _ = Kept.full(NEVER).take(0, 5_000)
    assert allowed
    assert kept.level(DECADES_MS) == 0
    assert kept.wait_ms(DECADES_MS, 1) is None
    assert kept.full_at_ms() is None
    assert kept.force(7, -2_000).take(7, 2_000)[0], "a credit is the one thing that helps"


def test_the_largest_amounts_stay_exact() -> None:
    _, kept, _ = Kept.full(HUGE).take(0, HUGE_MILLI)
    assert kept.level(0) == 0
    assert kept.full_at_ms() == HUGE.period_ms
    assert kept.level(HUGE.period_ms - 1) == HUGE_MILLI * (HUGE.period_ms - 1) // HUGE.period_ms
    in_debt = kept.force(0, HUGE_MILLI)
    assert in_debt.wait_ms(0, HUGE_MILLI) == 2 * HUGE.period_ms
