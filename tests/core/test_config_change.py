"""S9: a change of limits carries levels over; who knows the newest configuration decides."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.decision import Demand, adjust_record, decide
from headgate.core.errors import ValidationError
from headgate.core.history import mark_counted
from headgate.core.limits import LIMITS_MAX, Limit
from headgate.core.record import SPECS_MAX, TERMS, Record, Terms, apply_terms, cells_of, new_record
from tests.core.kit import DAY_MS, LAW, gaps_ms
from tests.core.oracle import worst_excess
from tests.core.test_record import KEY, NOW_MS, Moves, lived, moves, rows


def levels(record: Record, now_ms: int) -> dict[str, int]:
    return {cell.spec.name: cell.level_milli(now_ms) for cell in cells_of(record)}


def one(name: str, capacity: int, amount: int, seconds: int, version: int = 0) -> Terms:
    return Terms((Limit.custom(name, capacity, amount, seconds).spec,), version)


@LAW
@given(rows, moves, st.lists(st.tuples(gaps_ms, rows, st.booleans()), min_size=1, max_size=4))
def test_a_change_never_raises_a_level_and_only_new_names_are_full(
    terms: Terms, story: Moves, changes: list[tuple[int, Terms, bool]]
) -> None:
    record, now_ms = lived(terms, story)
    for version, (gap_ms, new, own) in enumerate(changes, 1):
        now_ms += gap_ms
        before = levels(record, now_ms)
        record = apply_terms(record, Terms(new.specs, 0 if own else version, own=own), now_ms)
        after = levels(record, now_ms)
        assert set(before) <= set(after), "whatever vanishes is remembered"
        for spec in new.specs:
            brim = spec.capacity_milli
            assert after[spec.name] == min(before.get(spec.name, brim), brim)
        for name in set(before) - set(new.index):
            assert after[name] == before[name]
        assert record[TERMS].specs[: len(new.specs)] == new.specs


@LAW
@given(rows, moves, rows, st.lists(st.sampled_from((3, 4)), min_size=2, max_size=8))
def test_two_callers_with_different_versions_converge_on_the_newest(
    terms: Terms, story: Moves, others: Terms, callers: list[int]
) -> None:
    record, now_ms = lived(terms, story)
    known = {3: Terms(terms.specs, 3), 4: Terms(others.specs, 4)}
    for turn, caller in enumerate(callers):
        record = apply_terms(record, known[caller], now_ms + turn)
        newest = max(callers[: turn + 1])
        assert record[TERMS].version == newest
        assert record[TERMS].core.specs == known[newest].specs


@LAW
@given(rows, moves, rows, st.integers(0, 9))
def test_an_override_always_wins(terms: Terms, story: Moves, others: Terms, version: int) -> None:
    record, now_ms = lived(Terms(terms.specs, version), story)
    own = Terms(others.specs, own=True)
    assert apply_terms(record, own, now_ms)[TERMS].core is own
    verdict, _ = decide([Demand(KEY, own, (None,) * len(own.specs))], [record], now_ms)
    assert not verdict.outdated


def test_the_newest_version_is_remembered_across_an_override() -> None:
    """Who holds an outdated configuration must not get to decide because of an override between."""
    newest, outdated = one("rpm", 1, 1, 60, version=5), one("rpm", 100, 6_000, 60, version=3)
    override = Terms(one("rpm", 50, 50, 60).specs, own=True)
    record = apply_terms(new_record(newest, 0), outdated, 0)
    assert record[TERMS].core is newest
    record = apply_terms(apply_terms(record, override, 0), outdated, 0)
    assert record[TERMS].core.specs != outdated.specs


@LAW
@given(rows, moves, rows, gaps_ms)
def test_a_limit_that_vanishes_and_returns_goes_on_as_if_it_had_stayed(
    terms: Terms, story: Moves, others: Terms, gap_ms: int
) -> None:
    record, now_ms = lived(terms, story)
    elsewhere = tuple(spec._replace(name=f"other-{spec.name}") for spec in others.specs)
    away = apply_terms(record, Terms(elsewhere, 1), now_ms)
    back = apply_terms(away, Terms(terms.specs, 2), now_ms + gap_ms)
    for was, now in zip(cells_of(record), cells_of(back), strict=False):
        for later_ms in (gap_ms, gap_ms + 7, gap_ms + DAY_MS):
            assert now.level_milli(now_ms + later_ms) == was.level_milli(now_ms + later_ms)
        assert now.consumed_milli == was.consumed_milli


@LAW
@given(rows, moves, rows)
def test_saying_the_same_again_changes_nothing(terms: Terms, story: Moves, others: Terms) -> None:
    record, now_ms = lived(terms, story)
    new = Terms(others.specs, 1)
    once = apply_terms(record, new, now_ms)
    assert apply_terms(once, new, now_ms + 5) is once
    assert apply_terms(once, Terms(others.specs, 1), now_ms + 5) == once
    newer = apply_terms(once, Terms(others.specs, 2), now_ms + 5)
    assert newer[1:] == once[1:], "a new version with the same limits moves no number"
    assert newer[TERMS].version == 2


turns = st.lists(
    st.tuples(st.integers(0, 900), st.booleans(), st.integers(1, 4)), min_size=2, max_size=25
)


@LAW
@given(turns, st.booleans())
def test_flapping_admits_no_more_than_the_larger_bound(
    story: list[tuple[int, bool, int]], own: bool
) -> None:
    """One process has 3 at 4 per 9 s, the other 5 at 1 per second."""
    sets = [
        Terms(one("rpm", 3, 4, 9).specs, own=own),
        Terms(one("rpm", 5, 1, 1).specs, own=own),
    ]
    record, now_ms = new_record(sets[0], NOW_MS), NOW_MS
    admitted = []
    for gap_ms, turn, tokens in story:
        now_ms += gap_ms
        demand = Demand(KEY, sets[turn], (tokens * 1_000,))
        verdict, (record,) = decide([demand], [record], now_ms)
        if verdict.allowed:
            admitted.append((now_ms, tokens * 1_000))
    assert worst_excess(admitted, 5_000, Fraction(1)) <= 0


def test_flapping_does_not_starve_a_slow_limit_whose_speed_is_what_changes() -> None:
    """Pods with 500 and 400 per day take turns, ten calls a second: it refills at 400 at least."""
    fast = Limit.per_second("rps", 100).spec
    sets = [Terms((fast, Limit.custom("rpd", 500, n, 86_400).spec)) for n in (500, 400)]
    record = adjust_record(new_record(sets[0], 0), Demand(KEY, sets[0], (None, 500_000)), 0)
    for turn in range(6_000):
        verdict, (record,) = decide(
            [Demand(KEY, sets[turn % 2], (1_000, None))], [record], turn * 100
        )
        assert verdict.allowed
    level = levels(record, 600_000)["rpd"]
    assert 400_000 // 144 - 500 <= level <= 500_000 // 144


def test_an_adjustment_by_an_outdated_caller_reaches_the_limit_it_took_from() -> None:
    old = Terms((Limit.per_minute("rpm", 10).spec, Limit.per_minute("tpm", 10).spec), 1)
    new = one("rpm", 10, 10, 60, version=2)
    record = apply_terms(new_record(old, 0), new, 0)
    after = adjust_record(record, Demand(KEY, old, (None, 25_000)), 0)
    assert after[TERMS].version == 2
    assert levels(after, 0) == {"rpm": 10_000, "tpm": -15_000}


def test_full_limits_out_of_use_are_forgotten_only_where_room_is_needed() -> None:
    record = apply_terms(new_record(many("a"), 0), many("b", 1), 0)
    assert len(record[TERMS].specs) == SPECS_MAX
    record = adjust_record(record, Demand(KEY, many("b", 1), (9_000,) * LIMITS_MAX), 0)
    record = apply_terms(record, many("c", 2), 0)
    assert {spec.name[0] for spec in record[TERMS].specs} == {"b", "c"}


def test_limits_in_use_are_never_forgotten_to_make_room() -> None:
    record = new_record(many("a"), 0)
    for version, letter in enumerate("ab", 1):
        record = adjust_record(record, Demand(KEY, many(letter, version), (9_000,) * LIMITS_MAX), 0)
    with pytest.raises(ValidationError, match="give each set of limits a resource of its own"):
        apply_terms(record, many("c", 3), 0)
    with pytest.raises(ValidationError):
        apply_terms(mark_counted(record, 59_999), many("c", 3), 59_999)
    full_and_counted = apply_terms(mark_counted(record, 60_000), many("c", 3), 60_000)
    assert {spec.name[0] for spec in full_and_counted[TERMS].specs} == {"c"}


def many(letter: str, version: int = 0) -> Terms:
    names = [f"{letter}{number}" for number in range(LIMITS_MAX)]
    return Terms(tuple(Limit.per_minute(name, 9).spec for name in names), version)
