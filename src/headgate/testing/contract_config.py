"""Contract cases of changing limits: the level goes along, whoever changes them."""

from __future__ import annotations

import random

from headgate.core.limits import Limit
from headgate.testing.contract import Arena

SMALL = [Limit.per_minute("x", 10)]
LARGE = [Limit.per_minute("x", 100)]


async def a_larger_limit_hands_out_no_full_bucket(arena: Arena) -> None:
    """S9: the level is carried over; only time fills the larger bucket."""
    assert await arena.admitted(arena.demand(SMALL, {"x": 1}, version=1), 20) == 10
    assert await arena.admitted(arena.demand(LARGE, {"x": 1}, version=2), 20) == 0
    arena.now_ms += 600
    assert await arena.admitted(arena.demand(LARGE, {"x": 1}, version=2), 20) == 1


async def a_smaller_limit_cuts_the_level_at_its_brim(arena: Arena) -> None:
    """S9: what is above the new capacity is gone, what is below it stays."""
    assert (await arena.take(arena.demand(LARGE, {"x": 5}, version=1))).allowed
    assert await arena.admitted(arena.demand(SMALL, {"x": 1}, version=2), 40) == 10


async def debt_survives_a_change_of_limits(arena: Arena) -> None:
    """S7: no configuration forgives debt, not even taking the limit away and back."""
    await arena.adjust(arena.demand(SMALL, {"x": 40}, version=1))
    other = [Limit.per_minute("y", 5)]
    assert (await arena.take(arena.demand(other, {"y": 1}, version=2))).allowed
    assert not (await arena.take(arena.demand(LARGE, {"x": 1}, version=3))).allowed
    level = await arena.level_milli("x")
    assert level == -30_000


async def the_newest_version_wins(arena: Arena) -> None:
    """S9: a caller with an older configuration is decided by the newer one, and told so."""
    assert (await arena.take(arena.demand(LARGE, {"x": 1}, version=1))).allowed
    assert await arena.admitted(arena.demand(SMALL, {"x": 1}, version=5), 3) == 3
    verdict = await arena.take(arena.demand(LARGE, {"x": 8}, version=4))
    assert not verdict.allowed
    assert verdict.outdated
    assert verdict.statuses[0].limit.capacity == 10
    assert await arena.admitted(arena.demand(LARGE, {"x": 1}, version=4), 30) == 7


async def two_callers_with_different_limits_cannot_mint(arena: Arena) -> None:
    """S9: pods that disagree forever admit at most what the larger limit allows."""
    first = [Limit.per_hour("x", 1000)]
    second = [Limit.custom("x", 1000, 1000, 3601)]
    admitted = 0
    for n in range(400):
        limits = first if n % 2 else second
        admitted += await arena.admitted(arena.demand(limits, {"x": 3}, own=True), 2) * 3
    assert admitted <= 1000


async def limits_given_with_a_call_win(arena: Arena) -> None:
    """An override counts for its call whatever version the bucket has."""
    assert await arena.admitted(arena.demand(LARGE, {"x": 1}, version=9), 60) == 60
    override = arena.demand(SMALL, {"x": 1}, own=True)
    assert await arena.admitted(override, 30) == 10


async def flapping_limits_starve_nobody(arena: Arena) -> None:
    """A limit that stays the same refills undisturbed while one beside it changes all the time."""
    slow = Limit.per_day("slow", 500)
    sets = [[slow, Limit.per_minute("x", 60)], [slow, Limit.per_minute("x", 90)]]
    assert (await arena.take(arena.demand(sets[0], {"slow": 500}, own=True))).allowed
    for n in range(200):
        arena.now_ms += 864
        assert (await arena.take(arena.demand(sets[n % 2], {"x": 1}, own=True))).allowed
    assert await arena.level_milli("slow") == 1000


async def any_change_only_lowers_the_level(arena: Arena) -> None:
    """S9 at random: right after a change no limit has more than right before."""
    rng = random.Random(9)
    version = 1
    limits = [Limit.per_minute("x", 50), Limit.per_hour("y", 70)]
    for _ in range(60):
        arena.now_ms += rng.choice((0, 1, 900, 40_000))
        await arena.take(arena.demand(limits, {"x": rng.randint(0, 20)}, version=version))
        before = {name: await arena.level_milli(name) for name in ("x", "y")}
        version += 1
        limits = [
            Limit.custom("x", rng.randint(20, 90), rng.randint(0, 90), rng.randint(1, 90)),
            Limit.custom("y", rng.randint(1, 90), rng.randint(0, 90), rng.randint(1, 90)),
        ]
        await arena.adjust(arena.demand(limits, {"x": 0}, version=version))
        for name, level in before.items():
            after = await arena.level_milli(name)
            if level is not None and after is not None:
                assert after <= level


async def a_limit_that_turns_soft_or_hard_keeps_what_it_holds(arena: Arena) -> None:
    """S9: at the same rate it is the same bucket, and a full one gives what is taken from it."""
    for version in range(1, 9):
        arena.now_ms += 3_600_000
        limits = [Limit.per_minute("x", 10, soft=version % 2 == 0), Limit.per_minute("y", version)]
        amounts = {"x": 3} if version % 3 else {"x": 3, "y": 1}
        demand = arena.demand(limits, amounts, version=version)
        if version % 4 < 2:
            assert (await arena.take(demand)).allowed
        else:
            await arena.adjust(demand)
        assert await arena.level_milli("x") == 7000
        assert await arena.consumed_milli("x") == 3000 * version
