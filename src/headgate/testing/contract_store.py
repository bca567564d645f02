"""Contract cases of buckets: exactness, atomicity, debt, expiry, isolation."""

from __future__ import annotations

import random
from collections.abc import Sequence

from headgate.core.decision import Demand, Verdict, adjust_record, decide, is_credit_only
from headgate.core.errors import RateLimitExceeded
from headgate.core.lease import refusal_error
from headgate.core.limits import Limit
from headgate.core.record import Record, new_record
from headgate.core.refill.bucket import MILLI
from headgate.core.store import consume_each
from headgate.testing.contract import Arena, every_page

DAY_MS = 86_400_000
PER_MINUTE = [Limit.per_minute("rpm", 10)]
FEW = [Limit.per_minute("x", 3)]
MIXED = [Limit.per_day("slow", 1), Limit.per_second("fast", 100_000), Limit.per_minute("rpm", 7)]


async def a_new_bucket_is_full_and_admits_exactly_its_capacity(arena: Arena) -> None:
    """A bucket nobody used gives its capacity at once and not one more."""
    one = arena.demand(PER_MINUTE, {"rpm": 1})
    assert await arena.admitted(one, 25) == 10
    assert await arena.level_milli("rpm") == 0


async def a_refusal_is_true_and_its_wait_the_least(arena: Arena) -> None:
    """S2: refused one millisecond before the wait is over, admitted when it is."""
    rng = random.Random(2)
    for limits in (PER_MINUTE, MIXED, [Limit.custom("odd", 13, 7, 11)]):
        for _ in range(12):
            amounts = {limit.name: rng.randint(1, limit.capacity) for limit in limits}
            demand = arena.demand(limits, amounts, resource=f"r{len(limits)}")
            verdict = await arena.take(demand)
            if verdict.allowed:
                continue
            wait_ms = verdict.retry_after_ms
            assert wait_ms is not None
            assert wait_ms > 0
            arena.now_ms += wait_ms - 1
            assert not (await arena.take(demand)).allowed, "admitted before the wait was over"
            arena.now_ms += 1
            assert (await arena.take(demand)).allowed, "refused after the wait was over"


async def no_interval_admits_more_than_capacity_plus_rate(arena: Arena) -> None:
    """S1 with S = 0: in every interval, admitted <= capacity + rate * length."""
    rng = random.Random(1)
    limit = Limit.custom("x", 20, 50, 3)
    admitted: list[tuple[int, int]] = []
    for _ in range(400):
        arena.now_ms += rng.choice((0, 0, 1, 3, 40, 700))
        amount = rng.randint(1, 6)
        if (await arena.take(arena.demand([limit], {"x": amount}))).allowed:
            admitted.append((arena.now_ms, amount))
    for first, (start_ms, _) in enumerate(admitted):
        total = 0
        for end_ms, amount in admitted[first:]:
            total += amount
            assert total * 3000 <= 20 * 3000 + 50 * (end_ms - start_ms)


async def idling_never_doubles_the_burst(arena: Arena) -> None:
    """After any idle time one capacity is there, not two."""
    limit = Limit.per_second("x", 40)
    one = arena.demand([limit], {"x": 1})
    assert await arena.admitted(one, 100) == 40
    arena.now_ms += 30 * DAY_MS
    assert await arena.admitted(one, 100) == 40
    arena.now_ms += 500
    assert await arena.admitted(one, 100) == 20


async def looking_changes_nothing(arena: Arena) -> None:
    """S5: a thousand looks and refusals a second neither mint nor lose a millitoken."""
    limit = Limit.per_minute("x", 100)
    assert (await arena.take(arena.demand([limit], {"x": 100}))).allowed
    start_ms = arena.now_ms
    for _ in range(500):
        arena.now_ms += 1
        await arena.take(arena.demand([limit], {"x": 90}))
        elapsed_ms = arena.now_ms - start_ms
        assert await arena.level_milli("x") == elapsed_ms * 100_000 // 60_000


async def a_slow_limit_is_not_starved_by_a_fast_one(arena: Arena) -> None:
    """S5: 500 a day beside a fast limit still gives 500 a day."""
    limits = [Limit.per_day("slow", 500), Limit.per_second("fast", 1000)]
    assert (await arena.take(arena.demand(limits, {"slow": 500}))).allowed
    for _ in range(200):
        arena.now_ms += 864
        assert (await arena.take(arena.demand(limits, {"fast": 3}))).allowed
    assert await arena.level_milli("slow") == 1000


async def a_lone_caller_who_waits_gets_in(arena: Arena) -> None:
    """S3: waiting exactly retry_after is enough, every time."""
    limit = Limit.custom("x", 5, 3, 7)
    demand = arena.demand([limit], {"x": 4})
    for _ in range(20):
        verdict = await arena.take(demand)
        if not verdict.allowed:
            arena.now_ms += verdict.retry_after_ms or 0
            assert (await arena.take(demand)).allowed


async def consumption_is_debits_less_credits(arena: Arena) -> None:
    """S4: no update is lost; grants (unmetered credits) are not consumption."""
    rng = random.Random(4)
    limits = [Limit.per_second("a", 50), Limit.per_hour("b", 10_000)]
    expected = {"a": 1, "b": 1}
    assert (await arena.take(arena.demand(limits, expected))).allowed
    for _ in range(150):
        arena.now_ms += rng.choice((0, 5, 300))
        amounts = {"a": rng.randint(0, 9), "b": rng.randint(0, 900)}
        if rng.random() < 0.6:
            if (await arena.take(arena.demand(limits, amounts))).allowed:
                expected = {name: expected[name] + amounts[name] for name in expected}
        else:
            sign = rng.choice((1, -1))
            signed = {name: sign * amount for name, amount in amounts.items()}
            await arena.adjust(arena.demand(limits, signed))
            expected = {name: expected[name] + signed[name] for name in expected}
    before = {name: await arena.consumed_milli(name) for name in expected}
    assert before == {name: amount * MILLI for name, amount in expected.items()}
    await arena.adjust(arena.demand(limits, {"a": -5}), metered=False)
    assert await arena.consumed_milli("a") == before["a"]


async def all_limits_or_none(arena: Arena) -> None:
    """S6: one limit that refuses keeps the others untouched."""
    limits = [Limit.per_minute("big", 1000), Limit.per_minute("small", 2)]
    demand = arena.demand(limits, {"big": 10, "small": 1})
    assert await arena.admitted(demand, 5) == 2
    assert await arena.level_milli("big") == 980_000
    assert await arena.consumed_milli("big") == 20_000


async def all_buckets_or_none(arena: Arena) -> None:
    """S6: one bucket that refuses keeps the others as they were."""
    wide, narrow = Limit.per_minute("x", 1000), Limit.per_minute("x", 2)
    demands = [
        arena.demand([wide], {"x": 1}, entity_id="child"),
        arena.demand([narrow], {"x": 1}, entity_id="parent"),
        arena.demand([wide], {"x": 1}, entity_id="global"),
    ]
    allowed = [(await arena.take(*demands)).allowed for _ in range(4)]
    assert allowed == [True, True, False, False]
    assert await arena.level_milli("x", "child") == 998_000
    assert await arena.level_milli("x", "global") == 998_000
    fresh = arena.demand([wide], {"x": 1}, entity_id="fresh")
    assert not (await arena.take(fresh, demands[1])).allowed
    if arena.backend.capabilities.atomic == "one step":
        assert await arena.record("fresh") is None
    else:  # taken and put back: the same to everybody who asks
        assert await arena.level_milli("x", "fresh") in (None, 1_000_000)
        assert await arena.consumed_milli("x", "fresh") == 0


async def a_refused_demand_on_a_new_bucket_leaves_no_trace(arena: Arena) -> None:
    """A refusal writes nothing at all."""
    limits = [Limit.per_minute("x", 5)]
    assert not (await arena.take(arena.demand(limits, {"x": 6}))).allowed
    assert await arena.record() is None


async def debt_is_repaid_by_refill_only(arena: Arena) -> None:
    """S7: a debit may go below zero; idle time repays it at the rate and no faster."""
    limit = Limit.per_second("x", 10)
    await arena.adjust(arena.demand([limit], {"x": 60}))
    assert await arena.level_milli("x") == -50_000
    verdict = await arena.take(arena.demand([limit], {"x": 1}))
    assert verdict.retry_after_ms == 5100
    assert not (await arena.take(arena.demand([limit], {"x": 0}))).allowed
    arena.now_ms += 5000
    assert (await arena.take(arena.demand([limit], {"x": 0}))).allowed
    arena.now_ms += 100
    assert (await arena.take(arena.demand([limit], {"x": 1}))).allowed


async def a_credit_stops_at_capacity(arena: Arena) -> None:
    """Giving back never fills a bucket past its brim."""
    limit = Limit.per_second("x", 10)
    assert (await arena.take(arena.demand([limit], {"x": 4}))).allowed
    await arena.adjust(arena.demand([limit], {"x": -9}))
    assert await arena.level_milli("x") == 10_000
    arena.now_ms += 10_000
    assert await arena.admitted(arena.demand([limit], {"x": 1}), 20) == 10


async def a_credit_on_a_missing_bucket_makes_no_ghost(arena: Arena) -> None:
    """A bucket that is gone is full: a late credit neither makes it nor blocks making it."""
    limit = Limit.per_second("x", 10)
    await arena.adjust(arena.demand([limit], {"x": -5}))
    assert await arena.record() is None
    assert await arena.admitted(arena.demand([limit], {"x": 1}), 20) == 10


async def an_adjustment_with_a_key_is_applied_once(arena: Arena) -> None:
    """The same idempotency key within a day does nothing the second time; another entity's is its
    own."""
    limit = Limit.per_hour("x", 100)
    assert (await arena.take(arena.demand([limit], {"x": 100}))).allowed
    credit = arena.demand([limit], {"x": -10})
    assert await arena.adjust(credit, metered=False, once="k1")
    assert not await arena.adjust(credit, metered=False, once="k1")
    assert await arena.level_milli("x") == 10_000
    other = arena.demand([limit], {"x": 100}, entity_id="other")
    assert (await arena.take(other)).allowed
    assert await arena.adjust(other.inverse(), metered=False, once="k1")
    assert await arena.adjust(credit, metered=False, once="k2")
    arena.now_ms += DAY_MS
    assert await arena.adjust(credit, metered=False, once="k1")


async def an_allowance_that_never_refills_stays_spent(arena: Arena) -> None:
    """S8: rate 0 never expires; a century of idling gives nothing back."""
    limit = Limit.custom("x", 3, 0, 1)
    one = arena.demand([limit], {"x": 1})
    assert await arena.admitted(one, 5) == 3
    arena.now_ms += 100 * 365 * DAY_MS
    await _churn(arena)
    verdict = await arena.take(one)
    assert not verdict.allowed
    assert verdict.retry_after_ms is None


async def expiry_is_invisible(arena: Arena) -> None:
    """S8: a bucket that is not full outlives any number of others; debt is never forgotten."""
    slow = Limit.per_day("x", 10)
    await arena.adjust(arena.demand([slow], {"x": 30}))
    arena.now_ms += DAY_MS
    await _churn(arena)
    assert await arena.level_milli("x") == -10_000
    arena.now_ms += DAY_MS
    await _churn(arena)
    assert await arena.admitted(arena.demand([slow], {"x": 1}), 3) == 0


async def names_never_touch_each_other(arena: Arena) -> None:
    """S10: keys that look alike are different buckets."""
    limit = Limit.per_minute("x", 1)
    names = [
        ("a", "b/c"), ("a:b", "c"), ("a", "b:c"), ("a.b", "c"), ("a", "b.c"), ("A", "b"),
        ("a", "B"), ("a", "b"), ("a-b", "c"), ("a_b", "c"), ("a@b", "c"), ("ab", "c"),
        ("a:config", "c"), ("e0", "STATE"), ("a", "c:usage"),
    ]  # fmt: skip
    for entity_id, resource in names:
        demand = arena.demand([limit], {"x": 1}, entity_id=entity_id, resource=resource)
        assert (await arena.take(demand)).allowed, (entity_id, resource)
        assert not (await arena.take(demand)).allowed


async def a_clock_that_steps_back_gives_nothing(arena: Arena) -> None:
    """S12: a caller whose clock is behind takes from what was there then, and moves no time."""
    limit = Limit.per_second("x", 10)
    assert await arena.admitted(arena.demand([limit], {"x": 1}), 12) == 10
    arena.now_ms += 1000
    assert await arena.admitted(arena.demand([limit], {"x": 1}), 4) == 4
    arena.now_ms -= 5000
    assert await arena.admitted(arena.demand([limit], {"x": 1}), 12) == 0
    arena.now_ms += 5000
    assert await arena.level_milli("x") == 6000


async def peek_find_and_forget_agree(arena: Arena) -> None:
    """What exists is found page by page, seen as it is, and gone when forgotten."""
    limit = Limit.per_minute("x", 5)
    names = [(f"e{n}", resource) for n in range(4) for resource in ("r", "s")]
    for entity_id, resource in names:
        await arena.take(arena.demand([limit], {"x": 2}, entity_id=entity_id, resource=resource))
    store = arena.backend.store

    async def find_all(limit: int, **scope: str) -> list[tuple[str, str]]:
        found = await every_page(
            lambda at: store.find(arena.namespace, limit=limit, cursor=at, **scope)
        )
        return sorted((key.entity_id, key.resource) for key in found)

    assert await find_all(3) == names
    assert await find_all(1, entity_id="e1") == [("e1", "r"), ("e1", "s")]
    assert await find_all(3, resource="s") == names[1::2]
    assert await find_all(3, entity_id="e1", resource="s") == [("e1", "s")]
    assert (await store.find("another____", limit=10)).items == ()
    await store.forget([arena.key("e1", "r")])
    assert await arena.record("e1", "r") is None
    assert await arena.level_milli("x", "e1", "s") == 3000


async def a_soft_limit_never_refuses(arena: Arena) -> None:
    """It says that it was passed, takes nothing then, and counts all the same."""
    limits = [Limit.per_minute("x", 3, soft=True), Limit.per_minute("y", 100)]
    demand = arena.demand(limits, {"x": 2, "y": 1})
    verdicts = [await arena.take(demand) for _ in range(3)]
    assert [verdict.allowed for verdict in verdicts] == [True] * 3
    exceeded = [verdict.statuses[0].exceeded for verdict in verdicts]
    assert exceeded == [False, True, True]
    assert await arena.level_milli("x") == 1000
    assert await arena.consumed_milli("x") == 6000


async def a_refusal_counts_no_soft_limit_among_its_reasons(arena: Arena) -> None:
    """S2: the wait is that of the limits that refuse, however long a passed soft one would take."""
    hard = Limit.per_second("hard", 10)
    for soft in (
        Limit.per_day("soft", 5, soft=True),
        Limit.custom("soft", 5, 0, 1, soft=True),  # never refills
        Limit.per_minute("soft", 2, soft=True),  # can never hold what is asked
    ):
        resource = f"r{soft.capacity}-{soft.refill_amount}"
        demand = arena.demand([hard, soft], {"hard": 10, "soft": 3}, resource=resource)
        assert (await arena.take(demand)).allowed
        arena.now_ms += 400
        verdict = await arena.take(demand)
        error = refusal_error(verdict)
        assert isinstance(error, RateLimitExceeded)
        assert [status.limit_name for status in error.violations] == ["hard"]
        assert [status.limit_name for status in error.passed] == ["soft"]
        assert error.primary_violation.limit_name == "hard"
        assert error.retry_after_ms == verdict.retry_after_ms == 600
        arena.now_ms += 599
        assert not (await arena.take(demand)).allowed
        arena.now_ms += 1
        assert (await arena.take(demand)).allowed


async def a_verdict_names_the_nearest_limit(arena: Arena) -> None:
    """Of an admission the limit that the next such demands meet first; of a refusal, that one."""
    wide = arena.demand([Limit.per_second("rpm", 100)], {"rpm": 1}, entity_id="child")
    tight = arena.demand([Limit.per_second("rpm", 2)], {"rpm": 1}, entity_id="parent")
    for left in (1, 0, 0):
        nearest = (await arena.take(wide, tight)).nearest
        assert nearest is not None
        assert (nearest.entity_id, nearest.available) == ("parent", left)
    assert nearest is not None
    assert nearest.exceeded


async def any_program_agrees_with_the_pure_model(arena: Arena) -> None:
    """Random demands, debits and credits over several buckets, step by step as `decide` says."""
    rng = random.Random(7)
    limits = [Limit.per_second("a", 30), Limit.custom("b", 500, 1000, 60), Limit.per_day("c", 90)]
    model: dict[str, Record] = {}
    for _ in range(300):
        arena.now_ms += rng.choice((0, 1, 17, 400, 30_000))
        names = rng.sample(("p", "q", "s"), rng.randint(1, 3))
        wanted = {limit.name: rng.randint(0, limit.capacity // 3) for limit in limits}
        kept = dict(rng.sample(sorted(wanted.items()), rng.randint(1, 3)))
        sign = rng.choice((1, -1))
        if rng.random() < 0.7:
            demands = [arena.demand(limits, kept, entity_id=name) for name in names]
            verdict = await arena.take(*demands)
            expected, after = decide(demands, [model.get(name) for name in names], arena.now_ms)
            assert _summary(verdict) == _summary(expected)
            if expected.allowed:
                model.update(zip(names, after, strict=True))
        else:
            signed = {name: sign * amount for name, amount in kept.items()}
            demands = [arena.demand(limits, signed, entity_id=name) for name in names]
            await arena.adjust(*demands)
            for name, demand in zip(names, demands, strict=True):
                if name in model or not is_credit_only(demand):
                    before = model.get(name) or new_record(demand.terms, arena.now_ms)
                    model[name] = adjust_record(before, demand, arena.now_ms)


# --------------------------------------------------------------------------------------------------
# Several decisions in one call: each for itself, in order, exactly.


async def each_decision_of_a_batch_stands_for_itself(arena: Arena) -> None:
    """One that is refused takes nothing and stops no other."""
    groups = [
        [arena.demand(FEW, {"x": 2}, entity_id="a")],
        [arena.demand(FEW, {"x": 4}, entity_id="b")],
        [arena.demand(FEW, {"x": 3}, entity_id="c")],
    ]
    assert await _allowed(arena, groups) == [True, False, True]
    assert await arena.level_milli("x", "a") == 1000
    assert await arena.record("b") is None
    assert await arena.level_milli("x", "c") == 0
    assert await consume_each(arena.backend.store, [], arena.now_ms) == []


async def a_bucket_named_again_is_decided_as_it_was_left(arena: Arena) -> None:
    """The order of a batch is the order of its decisions, and none is made twice."""
    one, two = arena.demand(FEW, {"x": 1}), arena.demand(FEW, {"x": 2})
    other = arena.demand(FEW, {"x": 3}, entity_id="other")
    allowed = await _allowed(arena, [[two], [other], [two], [one], [one], [other]])
    assert allowed == [True, True, False, True, False, False]
    assert await arena.consumed_milli("x") == 3000
    assert await arena.consumed_milli("x", "other") == 3000
    arena.now_ms += 20_000
    assert await _allowed(arena, [[one]] * 3) == [True, False, False]


async def a_batch_of_a_hundred_admits_the_capacity(arena: Arena) -> None:
    """A hundred askers in one call get what a hundred calls would have given them."""
    limit = [Limit.per_hour("x", 40)]
    allowed = await _allowed(arena, [[arena.demand(limit, {"x": 1})]] * 100)
    assert allowed == [True] * 40 + [False] * 60


async def a_decision_over_several_buckets_is_whole_within_a_batch(arena: Arena) -> None:
    """S6: all buckets of a group or none of them, whatever stands beside it."""
    wide = [Limit.per_minute("x", 100)]
    child, parent = (
        arena.demand(wide, {"x": 1}, entity_id="child"),
        arena.demand(FEW, {"x": 2}, entity_id="parent"),
    )
    alone = arena.demand(FEW, {"x": 1}, entity_id="parent")
    allowed = await _allowed(arena, [[child, parent], [child, parent], [alone], [child, parent]])
    assert allowed == [True, False, True, False]
    assert await arena.level_milli("x", "child") == 99_000
    assert await arena.consumed_milli("x", "child") == 1000
    assert await arena.level_milli("x", "parent") == 0


async def batches_agree_with_the_pure_model(arena: Arena) -> None:
    """Random batches, decision by decision as `decide` says."""
    rng = random.Random(11)
    limits = [Limit.per_second("a", 30), Limit.custom("b", 500, 1000, 60)]
    model: dict[str, Record] = {}
    for _ in range(40):
        arena.now_ms += rng.choice((0, 1, 17, 400, 30_000))
        groups, names = [], []
        for _ in range(rng.randint(1, 8)):
            name = rng.choice(("p", "q", "s"))
            amounts = {limit.name: rng.randint(0, limit.capacity // 2) for limit in limits}
            groups.append([arena.demand(limits, amounts, entity_id=name)])
            names.append(name)
        verdicts = await _verdicts(arena, groups)
        for name, demands, verdict in zip(names, groups, verdicts, strict=True):
            expected, after = decide(demands, [model.get(name)], arena.now_ms)
            assert _summary(verdict) == _summary(expected)
            if expected.allowed:
                model[name] = after[0]


async def _verdicts(arena: Arena, groups: Sequence[Sequence[Demand]]) -> list[Verdict]:
    found = await consume_each(arena.backend.store, groups, arena.now_ms)
    assert len(found) == len(groups)
    assert all(isinstance(one, Verdict) for one in found), found
    return found  # type: ignore[return-value]


async def _allowed(arena: Arena, groups: Sequence[Sequence[Demand]]) -> list[bool]:
    return [verdict.allowed for verdict in await _verdicts(arena, groups)]


def _summary(verdict: Verdict) -> tuple[object, ...]:
    rows = [(s.limit_name, s.available, s.exceeded, s.retry_after_ms) for s in verdict.statuses]
    return (verdict.allowed, verdict.retry_after_ms, rows)


async def _churn(arena: Arena) -> None:
    """Other traffic, enough for a store to sweep what has expired."""
    limit = Limit.per_second("y", 1000)
    for n in range(600):
        demand = arena.demand([limit], {"y": 1}, entity_id=f"other{n % 50}", resource="churn")
        await arena.take(demand)
        arena.now_ms += n % 2
    arena.now_ms -= 300
