"""Contract cases of several decisions in one call: each for itself, in order, exactly."""

from __future__ import annotations

import random
from collections.abc import Sequence

from headgate.core.decision import Demand, Verdict, decide
from headgate.core.limits import Limit
from headgate.core.record import Record
from headgate.core.store import consume_each
from headgate.testing.arena import Arena

FEW = [Limit.per_minute("x", 3)]


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
    return [_verdict(one) for one in found]


async def _allowed(arena: Arena, groups: Sequence[Sequence[Demand]]) -> list[bool]:
    return [verdict.allowed for verdict in await _verdicts(arena, groups)]


def _verdict(outcome: object) -> Verdict:
    assert isinstance(outcome, Verdict), outcome
    return outcome


def _summary(verdict: Verdict) -> tuple[object, ...]:
    rows = [(s.limit_name, s.available, s.exceeded, s.retry_after_ms) for s in verdict.statuses]
    return (verdict.allowed, verdict.retry_after_ms, rows)


CASES = (
    each_decision_of_a_batch_stands_for_itself,
    a_bucket_named_again_is_decided_as_it_was_left,
    a_batch_of_a_hundred_admits_the_capacity,
    a_decision_over_several_buckets_is_whole_within_a_batch,
    batches_agree_with_the_pure_model,
)
