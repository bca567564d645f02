"""Contract cases of quotas: exact windows by calendar, by cron and by first use.

Cases of cron expressions need the extra `cron`; zones come with the machine or with `tzdata`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime

from headgate.core.decision import adjust_record, decide, is_credit_only
from headgate.core.limits import Limit
from headgate.core.record import Record, new_record
from headgate.testing.contract import Arena

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
BERLIN = "Europe/Berlin"
MONTHLY = Limit.quota("x", 100, every="month", tz=BERLIN)
SESSION = Limit.quota("x", 100, reset_after=3600)


def _at(text: str) -> int:
    """A moment of UTC, as the time of a case."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


async def a_quota_gives_its_capacity_once_per_window(arena: Arena) -> None:
    """S1: from one reset to the next at most the capacity, whatever time passes between."""
    arena.now_ms = _at("2026-01-10")
    one = arena.demand([MONTHLY], {"x": 1})
    assert await arena.admitted(one, 60) == 60
    arena.now_ms += 15 * DAY_MS
    assert await arena.admitted(one, 60) == 40
    arena.now_ms = _at("2026-01-31T23:00:00") - 1  # midnight in Berlin is an hour earlier
    assert not (await arena.take(one)).allowed
    arena.now_ms += 1
    assert await arena.admitted(one, 150) == 100
    arena.now_ms = _at("2026-02-28T22:59:59")
    assert await arena.admitted(one, 10) == 0


async def a_quota_waits_for_the_reset_and_no_longer(arena: Arena) -> None:
    """S2: the wait of a refusal ends at the reset that suffices, to the millisecond."""
    for name, limit in _kinds():
        arena.now_ms = _at("2026-03-05T10:20:30")
        whole = arena.demand([limit], {"x": 100}, entity_id=name)
        assert (await arena.take(whole)).allowed
        for _ in range(4):
            verdict = await arena.take(whole)
            wait_ms = verdict.retry_after_ms
            assert not verdict.allowed
            assert wait_ms
            arena.now_ms += wait_ms - 1
            assert not (await arena.take(whole)).allowed, "admitted before the reset"
            arena.now_ms += 1
            assert (await arena.take(whole)).allowed, "refused at the reset"


async def windows_that_nobody_used_are_not_saved_up(arena: Arena) -> None:
    """S1: after ten idle windows there is one capacity, not ten."""
    for name, limit in _kinds():
        one = arena.demand([limit], {"x": 25}, entity_id=name)
        assert await arena.admitted(one, 3) == 3
        arena.now_ms += 4000 * DAY_MS
        assert await arena.admitted(one, 9) == 4


async def debt_of_a_quota_is_carried_into_the_next_window(arena: Arena) -> None:
    """S7: a reset pays one capacity of a debt, and the wait counts the resets that it takes."""
    arena.now_ms = _at("2026-01-10")
    await arena.adjust(arena.demand([MONTHLY], {"x": 350}))
    assert await arena.level_milli("x") == -250_000
    verdict = await arena.take(arena.demand([MONTHLY], {"x": 30}))
    assert verdict.retry_after_ms == _at("2026-03-31T22:00:00") - arena.now_ms
    arena.now_ms = _at("2026-01-31T23:00:00")
    assert await arena.level_milli("x") == -150_000
    assert not (await arena.take(arena.demand([MONTHLY], {"x": 1}))).allowed
    arena.now_ms = _at("2026-03-31T22:00:00")
    assert await arena.level_milli("x") == 50_000
    assert not (await arena.take(arena.demand([MONTHLY], {"x": 51}))).allowed
    assert (await arena.take(arena.demand([MONTHLY], {"x": 30}))).allowed
    arena.now_ms = _at("2026-04-30T22:00:00")
    assert await arena.level_milli("x") == 100_000


async def debt_of_a_session_is_paid_by_windows_that_follow_each_other(arena: Arena) -> None:
    """S7: nobody can use a session in debt, so its windows go on without a use."""
    await arena.adjust(arena.demand([SESSION], {"x": 350}))
    assert await arena.level_milli("x") == -250_000
    verdict = await arena.take(arena.demand([SESSION], {"x": 1}))
    assert verdict.retry_after_ms == 3 * HOUR_MS
    arena.now_ms += 3 * HOUR_MS
    assert await arena.level_milli("x") == 50_000


async def a_session_begins_with_its_first_use(arena: Arena) -> None:
    """S1: the window runs from the first take of a full bucket; the next use after its end, and
    no fixed hour, begins another."""
    one = arena.demand([SESSION], {"x": 1})
    arena.now_ms += 17 * 60_000
    assert await arena.admitted(one, 70) == 70
    arena.now_ms += HOUR_MS - 1
    assert await arena.admitted(one, 70) == 30
    arena.now_ms += 1
    assert await arena.level_milli("x") == 100_000
    arena.now_ms += 20 * 60_000  # nobody uses it, so nothing runs
    assert await arena.admitted(one, 100) == 100
    arena.now_ms += HOUR_MS - 1
    assert await arena.admitted(one, 1) == 0
    arena.now_ms += 1
    assert await arena.admitted(one, 1) == 1


async def a_credit_of_a_quota_stops_at_its_capacity(arena: Arena) -> None:
    """What is given back counts in the window it comes in, and never above the brim."""
    arena.now_ms = _at("2026-01-10")
    assert (await arena.take(arena.demand([MONTHLY], {"x": 40}))).allowed
    await arena.adjust(arena.demand([MONTHLY], {"x": -15}))
    assert await arena.level_milli("x") == 75_000
    await arena.adjust(arena.demand([MONTHLY], {"x": -90}))
    assert await arena.level_milli("x") == 100_000
    assert await arena.admitted(arena.demand([MONTHLY], {"x": 1}), 120) == 100
    arena.now_ms = _at("2026-02-10")
    await arena.adjust(arena.demand([MONTHLY], {"x": -90}))
    assert await arena.admitted(arena.demand([MONTHLY], {"x": 1}), 120) == 100


async def a_quota_beside_other_limits_is_all_or_nothing(arena: Arena) -> None:
    """S6: a quota that is used up takes nothing of the limits and buckets beside it."""
    rpm = Limit.per_minute("rpm", 10)
    few = Limit.quota("x", 3, every="day")
    demand = arena.demand([rpm, few], {"rpm": 1, "x": 1})
    assert await arena.admitted(demand, 8) == 3
    assert await arena.level_milli("rpm") == 7000
    wide = arena.demand([rpm], {"rpm": 1}, entity_id="child")
    assert not (await arena.take(wide, demand)).allowed
    assert await arena.level_milli("rpm", "child") in (None, 10_000)
    arena.now_ms += DAY_MS
    assert (await arena.take(wide, demand)).allowed
    assert await arena.level_milli("x") == 2000


async def a_limit_beside_a_quota_refills_as_alone(arena: Arena) -> None:
    """S5: taking from a quota moves no other limit's epoch, and no reset is lost to looking."""
    slow = Limit.per_day("slow", 500)
    hourly = Limit.quota("x", 1000, cron="0 * * * *")
    limits = [slow, hourly]
    assert (await arena.take(arena.demand(limits, {"slow": 500}))).allowed
    for _ in range(200):
        arena.now_ms += 864
        assert (await arena.take(arena.demand(limits, {"x": 3}))).allowed
    assert await arena.level_milli("slow") == 1000
    assert await arena.level_milli("x") == 400_000


async def clocks_that_change_reset_a_quota_once(arena: Arena) -> None:
    """A day of 23 or 25 hours is one window; a reset at a time that clocks leave out comes when
    they have been set, and one at a time that comes twice comes once, at the first."""
    daily = Limit.quota("x", 4, every="day", tz=BERLIN)
    early = Limit.quota("x", 4, cron="30 2 * * *", tz=BERLIN)
    windows = {
        daily: ("2026-03-28T23:00", "2026-03-29T22:00", "2026-10-24T22:00", "2026-10-25T23:00"),
        early: ("2026-03-28T01:30", "2026-03-29T01:00", "2026-10-25T00:30", "2026-10-26T01:30"),
    }
    for limit, (*moments,) in windows.items():
        assert limit.resets is not None
        one = arena.demand([limit], {"x": 1}, entity_id=limit.resets.text[:4])
        for start, end in (moments[:2], moments[2:]):
            arena.now_ms = _at(start)
            assert await arena.admitted(one, 9) == 4
            arena.now_ms = _at(end) - 1
            assert await arena.admitted(one, 1) == 0
            arena.now_ms += 1
            assert await arena.admitted(one, 9) == 4


async def days_that_not_every_month_has_reset_a_quota(arena: Arena) -> None:
    """The 31st comes in months that have one, the 29th of February in leap years."""
    end = Limit.quota("x", 4, cron="0 0 31 * *")
    leap = Limit.quota("x", 4, cron="0 0 29 2 *")
    after = {end: ("2026-01-31", "2026-03-31"), leap: ("2024-02-29", "2028-02-29")}
    for limit, (start, following) in after.items():
        arena.now_ms = _at(start)
        whole = arena.demand([limit], {"x": 4}, entity_id=start)
        assert (await arena.take(whole)).allowed
        verdict = await arena.take(whole)
        assert verdict.retry_after_ms == _at(following) - arena.now_ms


async def another_zone_or_schedule_keeps_the_level(arena: Arena) -> None:
    """S9: no change of a quota's zone, schedule or capacity hands anything out."""
    ladder = [
        Limit.quota("x", 100, every="month", tz="America/New_York"),
        Limit.quota("x", 100, every="day"),
        SESSION,
        Limit.quota("x", 100, reset_after=60),
        Limit.custom("x", 100, 1, 864_000),
        Limit.quota("x", 300, cron="0 0 * * 1"),
        Limit.quota("x", 90, every="year", tz="Asia/Tokyo"),
        MONTHLY,
    ]
    arena.now_ms = _at("2026-01-10T01:00:00")
    assert (await arena.take(arena.demand([MONTHLY], {"x": 30}))).allowed
    level = 70_000
    for version, limit in enumerate(ladder, start=2):
        arena.now_ms += 1000
        assert (await arena.take(arena.demand([limit], {"x": 5}, version=version))).allowed
        level -= 5000
        assert await arena.level_milli("x") == level, limit
    await arena.adjust(arena.demand([MONTHLY], {"x": 100}, version=20))
    for version, limit in enumerate(ladder, start=21):
        arena.now_ms += 1000
        assert not (await arena.take(arena.demand([limit], {"x": 1}, version=version))).allowed
        assert await arena.level_milli("x") == -70_000, limit
    arena.now_ms = _at("2026-02-03")  # what is left of the debt is paid by the reset in between
    for version, limit in enumerate(ladder, start=31):
        arena.now_ms += 1000
        assert (await arena.take(arena.demand([limit], {"x": 1}, version=version))).allowed
        assert await arena.level_milli("x") == (60 - version) * 1000, limit


async def a_session_of_another_length_ends_as_far_along_as_it_was(arena: Arena) -> None:
    """S9: half of the window has passed, so half of the new one is left: no reset comes at once,
    and however often it changes, the reset comes."""
    minute = Limit.quota("x", 100, reset_after=60)
    assert (await arena.take(arena.demand([SESSION], {"x": 80}, version=1))).allowed
    arena.now_ms += 30 * 60_000
    verdict = await arena.take(arena.demand([minute], {"x": 30}, version=2))
    assert verdict.retry_after_ms == 30_000
    for version in range(3, 100):
        arena.now_ms += 100
        limit = SESSION if version % 2 else minute
        verdict = await arena.take(arena.demand([limit], {"x": 30}, version=version))
        assert not verdict.allowed
    assert verdict.retry_after_ms is not None
    assert verdict.retry_after_ms < 26 * 60_000


async def a_look_at_a_quota_sees_the_reset(arena: Arena) -> None:
    """A dry run is told what a take would be told, on both sides of the reset."""
    arena.now_ms = _at("2026-01-10")
    assert (await arena.take(arena.demand([MONTHLY], {"x": 90}))).allowed
    demand = arena.demand([MONTHLY], {"x": 20})
    for moment, fits in (("2026-01-31T22:59:59", False), ("2026-01-31T23:00:00", True)):
        arena.now_ms = _at(moment)
        seen = await arena.backend.store.peek([demand.key], arena.now_ms)
        assert seen.verdict([demand]).allowed is fits


async def a_caller_whose_clock_is_behind_moves_no_window_back(arena: Arena) -> None:
    """S12: it takes from the window that has begun, and no second reset comes of it."""
    arena.now_ms = _at("2026-01-31T23:00:00")
    one = arena.demand([MONTHLY], {"x": 1})
    assert await arena.admitted(one, 60) == 60
    arena.now_ms -= 5000  # in the month before
    assert await arena.admitted(one, 60) <= 40
    arena.now_ms += 10_000
    left = await arena.admitted(one, 60)
    assert await arena.level_milli("x") == 0
    assert left <= 40


async def a_soft_quota_never_refuses(arena: Arena) -> None:
    """What passes above it is counted, and takes nothing from the next window."""
    soft = Limit.quota("x", 3, every="day", soft=True)
    assert await arena.admitted(arena.demand([soft], {"x": 1}), 8) == 8
    assert await arena.consumed_milli("x") == 8000
    assert await arena.level_milli("x") == 0
    arena.now_ms += DAY_MS
    assert await arena.level_milli("x") == 3000


async def a_quota_tells_its_window_and_its_reset(arena: Arena) -> None:
    """The status says what is left, when the next window begins, and how long this one is."""
    arena.now_ms = _at("2026-02-10")
    found = (await arena.take(arena.demand([MONTHLY], {"x": 30}))).statuses[0]
    assert (found.available, found.limit) == (70, MONTHLY)
    assert found.reset_at_ms == _at("2026-02-28T23:00:00")
    assert found.next_ms == found.reset_at_ms - arena.now_ms
    assert found.window_s == 28 * 86_400
    session = arena.demand([SESSION], {"x": 1}, entity_id="session")
    found = (await arena.take(session)).statuses[0]
    assert (found.reset_at_ms, found.window_s) == (arena.now_ms + HOUR_MS, 3600)


async def quotas_agree_with_the_pure_model(arena: Arena) -> None:
    """Random takes, debts, credits and looks, decision by decision as `decide` says."""
    rng = random.Random(18)
    limits = [
        Limit.quota("a", 70, every="week", tz=BERLIN),
        Limit.quota("b", 500, reset_after=5000),
        Limit.per_second("c", 30),
        Limit.quota("d", 40, cron="0 6,18 * * *", tz="America/New_York"),
    ]
    model: dict[str, Record] = {}
    arena.now_ms = _at("2026-03-06")
    for _ in range(200):
        arena.now_ms += rng.choice((0, 1, 400, 5000, HOUR_MS, 9 * HOUR_MS, 3 * DAY_MS))
        name = rng.choice(("p", "q"))
        amounts = {limit.name: rng.randint(0, limit.capacity // 2) for limit in limits}
        if rng.random() < 0.3:
            sign = rng.choice((3, 1, -1))
            signed = {name: sign * amount for name, amount in amounts.items()}
            demand = arena.demand(limits, signed, entity_id=name)
            await arena.adjust(demand)
            if name in model or not is_credit_only(demand):
                before = model.get(name) or new_record(demand.terms, arena.now_ms)
                model[name] = adjust_record(before, demand, arena.now_ms)
            continue
        demand = arena.demand(limits, amounts, entity_id=name)
        verdict = await arena.take(demand)
        expected, after = decide([demand], [model.get(name)], arena.now_ms)
        assert verdict.allowed == expected.allowed
        assert verdict.statuses == expected.statuses
        if expected.allowed:
            model[name] = after[0]


def _kinds() -> Sequence[tuple[str, Limit]]:
    """One quota of each kind; each holds a hundred."""
    limits = [
        Limit.quota("x", 100, every=every, tz=tz)
        for every, tz in (("day", "UTC"), ("week", BERLIN), ("month", "Asia/Kolkata"),
                          ("year", "America/St_Johns"))
    ]  # fmt: skip
    limits += [Limit.quota("x", 100, cron="15 4 1,15 * 5", tz=BERLIN), SESSION]
    return [(f"e{n}", limit) for n, limit in enumerate(limits)]
