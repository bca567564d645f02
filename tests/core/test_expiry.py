"""S7 and S8: debt outlives everything, and a record that may expire is one nobody would miss."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.bucket import Rate
from headgate.core.decision import Demand, adjust_record, decide
from headgate.core.limits import Limit, Spec
from headgate.core.record import Record, Terms, apply_terms, cells_of, full_at_ms, new_record
from tests.core.kit import DAY_MS, LAW, gaps_ms, tight_rates
from tests.core.test_record import (
    KEY,
    NOW_MS,
    Moves,
    Parts,
    demand_of,
    lived,
    moves,
    parts_of_four,
    rows,
)

small_takes = st.tuples(st.integers(0, 15), st.integers(0, 8))


@LAW
@given(rows, moves)
def test_full_at_is_when_every_limit_is_full_and_no_earlier(terms: Terms, story: Moves) -> None:
    record, now_ms = lived(terms, story)
    full_ms = full_at_ms(record)
    if full_ms is None:
        assert any(
            cell.spec.amount_milli == 0 and cell.tokens_milli < cell.spec.capacity_milli
            for cell in cells_of(record)
        )
        return
    assert all_full(record, max(full_ms, now_ms))
    if full_ms > now_ms:
        assert not all_full(record, full_ms - 1)


def all_full(record: Record, now_ms: int) -> bool:
    return all(cell.level_milli(now_ms) == cell.spec.capacity_milli for cell in cells_of(record))


@LAW
@given(rows, moves, gaps_ms, parts_of_four)
def test_S8_a_demand_gets_the_same_verdict_from_an_expired_record(
    terms: Terms, story: Moves, gap_ms: int, parts: Parts
) -> None:
    record, now_ms = lived(terms, story)
    full_ms = full_at_ms(record)
    if full_ms is None:
        return
    later_ms = max(full_ms, now_ms) + gap_ms
    demand = demand_of(terms, parts)
    kept, _ = decide([demand], [record], later_ms)
    fresh, _ = decide([demand], [None], later_ms)
    assert kept.allowed == fresh.allowed
    assert kept.statuses == fresh.statuses


@LAW
@given(tight_rates, st.lists(small_takes, max_size=4), st.integers(0, 30))
def test_S8_every_later_demand_gets_the_same_verdict_from_an_expired_record(
    rate: Rate, story: list[tuple[int, int]], idle_ms: int
) -> None:
    """Not only the first one: the record made anew goes on like the one that was kept."""
    whole = Rate(*(1_000 * number for number in rate))
    terms = Terms((Spec("x", *whole, False),))
    kept = adjust_record(
        new_record(terms, NOW_MS), Demand(KEY, terms, (whole.capacity_milli,)), NOW_MS
    )
    full_ms = full_at_ms(kept)
    assert full_ms is not None
    fresh, now_ms = None, full_ms + idle_ms
    for gap_ms, wanted in [(0, whole.capacity_milli), *story]:
        now_ms += gap_ms
        demand = Demand(KEY, terms, (wanted,))
        first, (kept,) = decide([demand], [kept], now_ms)
        second, (fresh,) = decide([demand], [fresh], now_ms)
        assert first.allowed == second.allowed
        assert first.statuses == second.statuses


def test_S8_a_rate_of_zero_never_expires_in_use() -> None:
    terms = Terms((Limit.custom("total", 10, 0, 60).spec, Limit.per_second("rps", 10).spec))
    untouched = new_record(terms, NOW_MS)
    assert full_at_ms(untouched) is not None
    _, (used,) = decide([Demand(KEY, terms, (1_000, 1_000))], [untouched], NOW_MS)
    assert full_at_ms(used) is None
    paid = adjust_record(used, Demand(KEY, terms, (-1_000, None)), NOW_MS)
    assert full_at_ms(paid) == NOW_MS + 100


@LAW
@given(rows, moves, rows, gaps_ms)
def test_S7_debt_survives_a_change_of_limits(
    terms: Terms, story: Moves, others: Terms, gap_ms: int
) -> None:
    """Also of limits that vanish from the configuration: they are remembered, debt and all."""
    record, now_ms = lived(terms, story)
    record = adjust_record(record, demand_of(terms, (700,) * 4), now_ms)
    now_ms += gap_ms
    renamed = Terms(tuple(spec._replace(name=f"new{spec.name}") for spec in others.specs), 1)
    away = apply_terms(record, renamed, now_ms)
    back = apply_terms(away, Terms(terms.specs, 2), now_ms)
    for was, now in zip(cells_of(record), cells_of(back), strict=False):
        assert now.spec == was.spec
        assert now.level_milli(now_ms) == was.level_milli(now_ms)
        assert now.consumed_milli == was.consumed_milli


def test_S7_debt_out_of_use_keeps_a_record_from_expiring() -> None:
    old = Terms((Limit.per_day("rpd", 1).spec,), 1)
    new = Terms((Limit.per_second("rps", 5).spec,), 2)
    record = adjust_record(new_record(old, 0), Demand(KEY, old, (3_000,)), 0)
    assert full_at_ms(apply_terms(record, new, 1)) == 3 * DAY_MS
