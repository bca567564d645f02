"""`outlook` says at once what the slower functions say one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.bucket import (
    MILLI,
    Rate,
    calculate_retry_after,
    forecast,
    full_at_ms,
    refill_bucket,
)

RATES = st.builds(
    Rate,
    st.integers(1, 50).map(lambda tokens: tokens * MILLI),
    st.integers(0, 20_000),
    st.integers(1, 5_000),
)


@given(RATES, st.integers(-60_000, 50_000), st.integers(-2_000, 100_000))
def test_it_agrees(rate: Rate, tokens_milli: int, elapsed_ms: int) -> None:
    epoch_ms, now_ms = 1_000_000, 1_000_000 + elapsed_ms
    tokens_milli = min(tokens_milli, rate.capacity_milli)
    whole, wait_ms, full_ms = forecast(tokens_milli, epoch_ms, now_ms, rate)
    assert whole == refill_bucket(tokens_milli, epoch_ms, now_ms, rate) // MILLI
    if whole * MILLI == rate.capacity_milli:
        assert (wait_ms, full_ms) == (None, now_ms)
        return
    one_more = (whole + 1) * MILLI
    assert wait_ms == calculate_retry_after(tokens_milli, epoch_ms, now_ms, rate, one_more)
    assert full_ms == full_at_ms(tokens_milli, epoch_ms, rate)
