"""Records and decisions: all or nothing, debt that stays, expiry nobody can see, exact accounts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.decision import Demand, adjust_record, decide, is_credit_only, judge, take
from headgate.core.history import (
    WINDOW_TYPES,
    WindowUsage,
    has_uncounted_usage,
    mark_counted,
    usage_of,
)
from headgate.core.limits import Limit, Spec
from headgate.core.record import (
    CELLS,
    EVENTS,
    HOUR,
    HOUR_MS,
    TERMS,
    BucketKey,
    LimitCell,
    Record,
    Terms,
    apply_terms,
    cell_of,
    cells_of,
    full_at_ms,
    new_record,
)
from headgate.core.refill.bucket import MILLI, Rate
from tests.core.kit import DAY_MS, LAW, gaps_ms, share, tight_rates
from tests.core.oracle import Oracle

KEY = BucketKey("ns", "key-1", "gpt-4")
NOW_MS = 1_700_000_000_000

schedules = st.sampled_from(
    (
        "calendar day UTC",
        "calendar month Europe/Berlin",
        "session 9s",
        "session 86400s",
        "cron 0 */6 1,15 * * UTC",
    )
)
quotas = st.builds(
    lambda capacity, resets: Spec("x", capacity, 0, 1_000, False, resets),
    st.sampled_from((1_000, 7_000, 5_000_000)),
    schedules,
)
refilled_specs = st.builds(
    Spec,
    st.just("x"),
    st.sampled_from((1_000, 3_000, 7_000, 100_000, 5_000_000)),
    st.sampled_from((0, 1_000, 4_000, 500_000, 100_000_000)),
    st.sampled_from((1_000, 9_000, 60_000, DAY_MS)),
    st.just(False),
    st.none(),
)
specs = refilled_specs | quotas


def in_rows(kinds: st.SearchStrategy[Spec]) -> st.SearchStrategy[Terms]:
    return st.lists(kinds, min_size=1, max_size=4).map(
        lambda row: Terms(tuple(spec._replace(name=f"l{place}") for place, spec in enumerate(row)))
    )


rows = in_rows(specs)
parts_of_four = st.tuples(*[st.none() | st.integers(0, 125)] * 4)
moves = st.lists(
    st.tuples(gaps_ms, st.sampled_from(("take", "take", "debit", "credit")), parts_of_four),
    max_size=6,
)  # fmt: skip
several_buckets = st.lists(st.tuples(rows, moves, parts_of_four), min_size=1, max_size=3)
Parts = tuple[int | None, ...]
Moves = list[tuple[int, str, Parts]]


def demand_of(terms: Terms, parts: Parts, sign: int = 1) -> Demand:
    amounts = tuple(
        None if part is None else sign * share(spec.capacity_milli, part)
        for spec, part in zip(terms.specs, parts, strict=False)
    )
    return Demand(KEY, terms, amounts)


def moved(record: Record, move: str, parts: Parts, now_ms: int) -> Record:
    terms = record[TERMS]
    if move == "take":
        _, (after,) = decide([demand_of(terms, parts)], [record], now_ms)
        return after
    return adjust_record(record, demand_of(terms, parts, 1 if move == "debit" else -1), now_ms)


def lived(terms: Terms, story: Moves) -> tuple[Record, int]:
    record, now_ms = new_record(terms, NOW_MS), NOW_MS
    for gap_ms, move, parts in story:
        now_ms += gap_ms
        record = moved(record, move, parts, now_ms)
    return record, now_ms


def test_a_bucket_nobody_has_used_is_full() -> None:
    terms = Terms((Limit.per_minute("rpm", 10).spec, Limit.per_day("rpd", 500, 900).spec))
    record = new_record(terms, NOW_MS)
    assert list(cells_of(record)) == [
        LimitCell(terms.specs[0], NOW_MS, 10_000, 0, 0),
        LimitCell(terms.specs[1], NOW_MS, 900_000, 0, 0),
    ]
    assert cell_of(record, "rpd") == list(cells_of(record))[1]
    assert cell_of(record, "tpm") is None
    assert (record[HOUR], record[EVENTS]) == (NOW_MS // HOUR_MS, 0)
    assert full_at_ms(record) is not None
    assert not has_uncounted_usage(record)


@LAW
@given(several_buckets, gaps_ms)
def test_S6_all_or_nothing_over_limits_and_buckets(
    buckets: list[tuple[Terms, Moves, Parts]], gap_ms: int
) -> None:
    """A refusal leaves every record equal; an admission takes from each limit what was wanted."""
    now_ms = NOW_MS + gap_ms + 10**14
    found = [lived(terms, story)[0] for terms, story, _ in buckets]
    demands = [
        Demand(BucketKey("ns", f"key-{place}", "r"), terms, demand_of(terms, parts).amounts)
        for place, (terms, _, parts) in enumerate(buckets)
    ]
    fits = all(
        wanted is None or wanted <= cell.level_milli(now_ms)
        for demand, record in zip(demands, found, strict=True)
        for wanted, cell in zip(demand.amounts, cells_of(record), strict=True)
    )
    verdict, after = decide(demands, found, now_ms)
    assert verdict.allowed == bool(verdict) == fits
    assert verdict.records == after
    dry = judge(demands, found, now_ms)
    assert (dry.allowed, list(dry.records)) == (fits, found)
    if not fits:
        assert after == found
        return
    for demand, was, now in zip(demands, found, after, strict=True):
        assert now[EVENTS] == was[EVENTS] + 1
        for wanted, old, new in zip(demand.amounts, cells_of(was), cells_of(now), strict=True):
            assert new.level_milli(now_ms) == old.level_milli(now_ms) - (wanted or 0)
            assert new.consumed_milli == old.consumed_milli + (wanted or 0)


@LAW
@given(several_buckets, gaps_ms)
def test_S2_the_wait_of_a_refusal_over_several_buckets_is_exact(
    buckets: list[tuple[Terms, Moves, Parts]], gap_ms: int
) -> None:
    found, latest_ms = [], NOW_MS
    for terms, story, _ in buckets:
        record, then_ms = lived(terms, story)
        found.append(record)
        latest_ms = max(latest_ms, then_ms)
    demands = [demand_of(terms, parts) for terms, _, parts in buckets]
    now_ms = latest_ms + min(gap_ms, 100)
    verdict, _ = decide(demands, found, now_ms)
    wait_ms = verdict.retry_after_ms
    assert (wait_ms == 0) == verdict.allowed
    assert bool(verdict.violations) != verdict.allowed
    if wait_ms is None:
        assert not decide(demands, found, now_ms + 10**15)[0].allowed
        assert verdict.retry_after_seconds == float("inf")
    elif wait_ms:
        assert not decide(demands, found, now_ms + wait_ms - 1)[0].allowed
        assert decide(demands, found, now_ms + wait_ms)[0].allowed


@LAW
@given(in_rows(refilled_specs), moves, gaps_ms)
def test_each_limit_of_a_bucket_stands_as_if_it_were_alone(
    terms: Terms, story: Moves, later_ms: int
) -> None:
    oracles = [Oracle(*spec.rate[:3], spec.capacity_milli, NOW_MS) for spec in terms.specs]
    record, now_ms = new_record(terms, NOW_MS), NOW_MS
    for gap_ms, move, parts in story:
        now_ms += gap_ms
        before, record = record, moved(record, move, parts, now_ms)
        for oracle, was, now in zip(oracles, cells_of(before), cells_of(record), strict=True):
            if now.consumed_milli != was.consumed_milli:
                oracle.debit(now_ms, now.consumed_milli - was.consumed_milli)
    now_ms += later_ms
    for oracle, cell in zip(oracles, cells_of(record), strict=True):
        assert cell.level_milli(now_ms) == oracle.level(now_ms) // 1


@LAW
@given(rows, moves)
def test_S4_consumed_is_debits_less_credits(terms: Terms, story: Moves) -> None:
    record, now_ms = new_record(terms, NOW_MS), NOW_MS
    net = dict.fromkeys(terms.index, 0)
    events = 0
    for gap_ms, move, parts in story:
        now_ms += gap_ms
        demand = demand_of(terms, parts, -1 if move == "credit" else 1)
        if move == "take":
            verdict, (record,) = decide([demand], [record], now_ms)
            if not verdict.allowed:
                continue
            events += 1
        else:
            assert is_credit_only(demand) == all(
                not wanted or wanted < 0 for wanted in demand.amounts
            )
            record = adjust_record(record, demand, now_ms)
        for name, wanted in demand.named():
            net[name] += wanted
    assert {cell.spec.name: cell.consumed_milli for cell in cells_of(record)} == net
    assert record[EVENTS] == events


@LAW
@given(rows, moves, parts_of_four)
def test_a_grant_fills_but_leaves_the_consumption_alone(
    terms: Terms, story: Moves, parts: Parts
) -> None:
    record, now_ms = lived(terms, story)
    grant = demand_of(terms, parts, -1)
    after = adjust_record(record, grant, now_ms, metered=False)
    for given_, was, now in zip(grant.amounts, cells_of(record), cells_of(after), strict=True):
        assert now.consumed_milli == was.consumed_milli
        full = was.spec.capacity_milli
        assert now.level_milli(now_ms) == min(full, was.level_milli(now_ms) - (given_ or 0))


@LAW
@given(rows, moves)
def test_a_demand_and_its_negation_leave_the_account_even(terms: Terms, story: Moves) -> None:
    record, now_ms = lived(terms, story)
    demand = demand_of(terms, (33,) * 4)
    after = adjust_record(adjust_record(record, demand, now_ms), demand.inverse(), now_ms)
    for was, now in zip(cells_of(record), cells_of(after), strict=True):
        assert now.consumed_milli == was.consumed_milli
        assert now.level_milli(now_ms) == was.level_milli(now_ms)


def known_usage(record: Record) -> dict[str, WindowUsage]:
    found = list(usage_of(record))
    assert len(found) == len(WINDOW_TYPES)
    return {usage.window_type: usage for usage in found}


@LAW
@given(rows, st.lists(st.tuples(moves, st.booleans()), max_size=4))
def test_usage_history_and_record_hold_every_token_once(
    terms: Terms, chapters: list[tuple[Moves, bool]]
) -> None:
    """Whenever the record is counted, history plus what is uncounted is all that was consumed."""
    record, now_ms = new_record(terms, NOW_MS), NOW_MS
    history = {kind: dict.fromkeys(terms.index, 0) for kind in WINDOW_TYPES}
    events, admitted = 0, 0
    for story, count_now in chapters:
        for gap_ms, move, parts in story:
            now_ms += gap_ms % (10 * DAY_MS)
            was = record[EVENTS]
            record = moved(record, move, parts, now_ms)
            admitted += record[EVENTS] - was
        if count_now:
            for kind, usage in known_usage(record).items():
                for name, milli in usage.counters_milli.items():
                    history[kind][name] += milli
            events += record[EVENTS]
            before, record = record, mark_counted(record, now_ms)
            assert not has_uncounted_usage(record)
            assert record[HOUR] == now_ms // HOUR_MS
            assert [c[:4] for c in cells_of(record)] == [c[:4] for c in cells_of(before)]
    for kind, totals in history.items():
        rest = known_usage(record)[kind].counters_milli
        for cell in cells_of(record):
            total = totals[cell.spec.name] + rest.get(cell.spec.name, 0)
            assert total == cell.consumed_milli
    assert events + record[EVENTS] == admitted


@LAW
@given(rows, moves, parts_of_four)
def test_soft_limits_never_refuse_and_take_nothing_when_passed(
    terms: Terms, story: Moves, parts: Parts
) -> None:
    soft = Terms(tuple(spec._replace(soft=True) for spec in terms.specs))
    record, now_ms = lived(soft, story)
    demand = demand_of(soft, parts)
    after = take(record, demand, now_ms)
    verdict, _ = decide([demand], [record], now_ms)
    assert verdict.allowed
    assert verdict.violations == []
    assert verdict.retry_after_ms == 0
    for wanted, was, now in zip(demand.amounts, cells_of(record), cells_of(after), strict=True):
        level = was.level_milli(now_ms)
        taken = wanted if wanted is not None and wanted <= level else 0
        assert now.level_milli(now_ms) == level - taken
        assert now.consumed_milli == was.consumed_milli + (wanted or 0)


def test_a_hard_limit_refuses_beside_a_soft_one_and_says_so() -> None:
    terms = Terms((Limit.per_minute("a", 5, soft=True).spec, Limit.per_minute("b", 5).spec))
    verdict, _ = decide([Demand(KEY, terms, (9_000, 6_000))], [None], NOW_MS)
    assert [(one.limit_name, one.exceeded, one.never) for one in verdict.statuses] == [
        ("a", True, True),
        ("b", True, True),
    ]
    assert [one.limit_name for one in verdict.violations] == ["b"]
    assert verdict.violations[0].deficit * MILLI == 1_000


@LAW
@given(specs, st.booleans(), st.lists(st.tuples(gaps_ms, st.none() | st.integers(0, 125))))
def test_a_limit_gives_alone_what_it_gives_beside_another(
    spec: Spec, soft: bool, steps: list[tuple[int, int | None]]
) -> None:
    """A bucket with one limit is taken from by a way of its own, and so is one with two."""
    spec = spec._replace(soft=soft)
    slow = spec._replace(name="y", period_ms=7 * spec.period_ms)
    alone, last = Terms((spec,)), Terms((slow,))
    pair, three = Terms((spec, slow)), Terms((spec, slow, spec._replace(name="z")))
    records = [new_record(terms, NOW_MS) for terms in (alone, last, pair, three)]
    now_ms = NOW_MS
    for gap_ms, part in steps:
        now_ms += gap_ms
        wanted = None if part is None else share(spec.capacity_milli, part)
        one, other, two, all_three = (
            take(record, Demand(KEY, terms, amounts), now_ms)
            for record, terms, amounts in zip(
                records, (alone, last, pair, three),
                ((wanted,), (wanted,), (wanted, wanted), (wanted, wanted, None)), strict=True,
            )
        )  # fmt: skip
        allowed = one is not None and other is not None
        assert (two is not None) == (all_three is not None) == allowed
        if one is None or other is None or two is None or all_three is None:
            continue
        assert two[HOUR:] == one[HOUR:] + other[CELLS:] == all_three[HOUR : len(two)]
        records = [one, other, two, all_three]


# S7 and S8: debt outlives everything, and a record that may expire is one nobody would miss.

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
    whole = Rate(*(1_000 * number for number in rate[:3]))
    terms = Terms((Spec("x", *whole[:3], False),))
    kept = adjust_record(
        new_record(terms, NOW_MS), Demand(KEY, terms, (whole.capacity_milli,)), NOW_MS
    )
    full_ms = full_at_ms(kept)
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


def test_S7_debt_out_of_use_keeps_a_record_from_expiring() -> None:
    old = Terms((Limit.per_day("rpd", 1).spec,), 1)
    new = Terms((Limit.per_second("rps", 5).spec,), 2)
    record = adjust_record(new_record(old, 0), Demand(KEY, old, (3_000,)), 0)
    assert full_at_ms(apply_terms(record, new, 1)) == 3 * DAY_MS
