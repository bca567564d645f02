"""Schedules of resets, beside an oracle that walks through time a quarter of an hour at a step."""

from __future__ import annotations

import bisect
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.decision import Demand, decide
from headgate.core.errors import ValidationError
from headgate.core.limits import Spec
from headgate.core.record import BucketKey, Record, Terms
from headgate.core.refill import resets
from headgate.core.refill.resets import LATEST_MS, Resets, make_resets, schedule_of
from tests.core.kit import DECADES_MS, LAW
from tests.python import run_python

QUARTER_MS = 900_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


def told(moments: tuple[int, ...]) -> list[str]:
    return [datetime.fromtimestamp(at / 1000, UTC).isoformat()[:16] for at in moments]


def walls(zone: tzinfo, start: str, end: str) -> Iterator[tuple[int, datetime, datetime]]:
    """Each quarter: when it is, the latest time that clocks have shown before, and the latest
    now. A wall time is reached when the latest passes it."""
    latest = datetime(1, 1, 1)
    for at_ms in range(ms(start), ms(end), QUARTER_MS):
        shown = datetime.fromtimestamp(at_ms / 1000, zone).replace(tzinfo=None)
        before, latest = latest, max(latest, shown)
        yield at_ms, before, latest


def oracle(zone: tzinfo, start: str, end: str, is_reset: Callable[[datetime], bool]) -> list[int]:
    """The moment of every wall time that is a reset, by reaching it."""
    found = []
    for at_ms, before, latest in walls(zone, start, end):
        if before.year > 1:
            wall = before + timedelta(minutes=15)
            while wall <= latest:
                found += [at_ms] * is_reset(wall)
                wall += timedelta(minutes=15)
    return found


def is_midnight(at: datetime) -> bool:
    return (at.hour, at.minute) == (0, 0)


KINDS: dict[str, Callable[[datetime], bool]] = {
    "calendar day": is_midnight,
    "calendar week": lambda at: is_midnight(at) and at.weekday() == 0,
    "calendar month": lambda at: is_midnight(at) and at.day == 1,
    "calendar year": lambda at: is_midnight(at) and at.day == at.month == 1,
    "cron 0 0 1,15 * *": lambda at: is_midnight(at) and at.day in (1, 15),
    "cron 30 2 * * *": lambda at: (at.hour, at.minute) == (2, 30),
    "cron 0 * * * *": lambda at: at.minute == 0,
    "cron 15 */8 31 * *": lambda at: at.minute == 15 and at.hour % 8 == 0 and at.day == 31,
    "cron 45 23 29 2 *": lambda at: (at.month, at.day, at.hour, at.minute) == (2, 29, 23, 45),
    "cron 0 6 * * 1-5": lambda at: (at.hour, at.minute) == (6, 0) and at.weekday() < 5,
}
PLACES = [
    ("UTC", "2023-12-20", "2025-01-10"),
    ("Europe/Berlin", "2025-12-20", "2027-01-10"),
    ("America/Sao_Paulo", "2018-01-01", "2019-03-01"),  # clocks are set ahead at midnight
    ("America/Havana", "2024-01-01", "2025-01-10"),  # midnight comes twice
    ("Australia/Lord_Howe", "2024-01-01", "2025-01-10"),  # by half an hour
    ("Asia/Kathmandu", "2024-01-01", "2024-06-01"),  # 5:45 ahead
    ("Pacific/Apia", "2011-06-01", "2012-06-01"),  # a day is left out
    ("Africa/Casablanca", "2024-01-01", "2024-12-31"),
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place[0])
@pytest.mark.parametrize("kind", KINDS)
def test_every_question_is_answered_as_by_walking_through_time(
    kind: str, place: tuple[str, str, str]
) -> None:
    tz, start, end = place
    schedule = schedule_of(f"{kind} {tz}")
    expected = oracle(UTC if tz == "UTC" else ZoneInfo(tz), start, end, KINDS[kind])
    start_ms, end_ms = ms(start) + DAY_MS, ms(end) - DAY_MS
    rng = random.Random(f"{kind}{tz}")
    near = [at + rng.choice((-1, 0, 1)) for at in rng.choices(expected or [start_ms], k=150)]
    moments = [start_ms, *near, *(rng.randrange(start_ms, end_ms) for _ in range(50))]
    for at_ms, other_ms in zip(moments, rng.sample(moments, len(moments)), strict=True):
        place_of = bisect.bisect_right
        between = place_of(expected, other_ms) - place_of(expected, at_ms)
        assert schedule.resets_between(at_ms, other_ms) == max(0, between)
        following = expected[place_of(expected, at_ms) :]
        assert schedule.instants(at_ms, min(3, len(following))) == tuple(following[:3])


def test_a_midnight_that_comes_twice_by_a_minute_resets_once() -> None:
    """St John's set its clocks back at 00:01, so a window ended a minute before it did again."""
    daily = schedule_of("calendar day America/St_Johns")
    start_ms = ms("2010-11-06T12:00")
    assert told(daily.instants(start_ms, 3)) == [
        "2010-11-07T02:30", "2010-11-08T03:30", "2010-11-09T03:30",
    ]  # fmt: skip
    again_ms = ms("2010-11-07T02:45")  # clocks show the day before once more
    assert daily.resets_between(start_ms, again_ms) == 1
    assert daily.resets_between(again_ms, ms("2010-11-08T03:29")) == 0


def test_a_time_that_clocks_leave_out_is_the_first_after_it() -> None:
    early = schedule_of("cron 30 2 * * * Europe/Berlin")
    found = told(early.instants(ms("2026-03-28T12:00"), 2))
    assert found == ["2026-03-29T01:00", "2026-03-30T00:30"]
    lord_howe = schedule_of("cron 15 2 * * * Australia/Lord_Howe")  # 2:00 becomes 2:30
    assert told(lord_howe.instants(ms("2025-10-04T10:00"), 1)) == ["2025-10-04T15:30"]


def test_a_day_that_a_zone_leaves_out_is_reset_with_the_next() -> None:
    daily = schedule_of("calendar day Pacific/Apia")
    assert told(daily.instants(ms("2011-12-29T12:00"), 3)) == [
        "2011-12-30T10:00", "2011-12-30T10:00", "2011-12-31T10:00",
    ]  # fmt: skip


schedules = st.sampled_from(
    [f"{kind} {tz}" for kind in KINDS for tz in ("UTC", "Europe/Berlin", "Asia/Tokyo")]
    + ["session 1s", "session 3600s"]
)
moments_ms = st.one_of(st.integers(0, DECADES_MS), st.integers(0, 60 * DAY_MS))


@LAW
@given(schedules, moments_ms, st.integers(0, 400 * DAY_MS), st.integers(1, 5))
def test_the_questions_agree_with_one_another(
    text: str, epoch_ms: int, gap_ms: int, count: int
) -> None:
    schedule = schedule_of(text)
    at_ms = schedule.nth_after(epoch_ms, count)
    assert at_ms is not None
    assert schedule.resets_between(epoch_ms, at_ms) >= count
    assert schedule.resets_between(epoch_ms, at_ms - 1) < count
    assert schedule.instants(epoch_ms, count)[-1] == at_ms
    now_ms = epoch_ms + gap_ms
    passed = schedule.resets_between(epoch_ms, now_ms)
    following_ms = schedule.nth_after(epoch_ms, passed + 1)
    assert following_ms is not None
    assert following_ms > now_ms
    length_s = schedule.window_s(following_ms)
    assert length_s is not None
    assert length_s > 0
    if schedule.reset_after is None:
        begun_ms = following_ms - length_s * 1000
        assert begun_ms <= now_ms
        assert schedule.resets_between(begun_ms - 1, following_ms - 1) >= 1
    assert schedule.resets_between(now_ms, epoch_ms) == 0


def test_time_has_an_end() -> None:
    for text in ("calendar month UTC", "cron 0 0 1 * * UTC"):
        schedule = schedule_of(text)
        assert schedule.instants(LATEST_MS - 40 * DAY_MS, 5)
        assert schedule.nth_after(LATEST_MS, 1) is None
        assert schedule.nth_after(0, 10**9) is None
        assert schedule.resets_between(LATEST_MS, LATEST_MS * 10) == 0
        assert schedule.resets_between(-(10**15), -(10**14)) == 0
    assert schedule_of("session 9s").nth_after(LATEST_MS, 1) == LATEST_MS + 9000


@pytest.mark.parametrize("text", ["calendar week Asia/Tokyo", "cron 0 0 * * 1 UTC", "session 60s"])
def test_a_schedule_is_its_text(text: str) -> None:
    schedule = schedule_of(text)
    assert (schedule.text, repr(schedule)) == (text, f"Resets({text!r})")
    assert make_resets(**schedule.to_dict()) == schedule
    assert pickle.loads(pickle.dumps(schedule)) is schedule
    assert len({schedule, schedule_of(text), schedule_of("calendar day UTC")}) == 2
    assert schedule != text


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "needs exactly one of"),
    ({"every": "day", "cron": "0 0 * * *"}, "needs exactly one of"),
    ({"every": "fortnight"}, "must be one of day, week, month, year"),
    ({"every": ["day"]}, "must be one of"),
    ({"every": "month", "tz": "Europe/Berln"}, "is no time zone this machine knows.*tzdata"),
    ({"every": "month", "tz": "Europe"}, "is no time zone"),
    ({"every": "month", "tz": "../etc/passwd"}, "is no time zone"),
    ({"every": "month", "tz": "/etc/localtime"}, "is no time zone"),
    ({"every": "month", "tz": "localtime"}, "is no time zone"),
    ({"every": "month", "tz": "right/Europe/Berlin"}, "is no time zone"),
    ({"every": "month", "tz": "Europe/Berlin\n"}, "is no time zone"),
    ({"every": "month", "tz": "E" * 70}, "is no time zone"),
    ({"every": "month", "tz": ""}, "is no time zone"),
    ({"every": "month", "tz": 3}, "must be a str, not int"),
    ({"reset_after": 60, "tz": "UTC"}, "has no meaning for reset_after"),
    ({"reset_after": 0}, "must be 1 to"),
    ({"reset_after": 10**9}, "must be 1 to"),
    ({"reset_after": 1.5}, "must be a whole number of seconds"),
    ({"reset_after": True}, "must be a whole number of seconds"),
    ({"cron": 5}, "must be a str, not int"),
    ({"cron": "0 0 * *"}, "is no cron expression; write five fields"),
    ({"cron": "0 0 0 * * *"}, "is no cron expression; write five fields"),
    ({"cron": "0 0 * * mo"}, "Bad day-of-week"),
    ({"cron": "60 0 * * *"}, "Bad minute"),
    ({"cron": "@daily"}, "is no cron expression"),
    ({"cron": "0 0 30 2 *"}, "is no cron expression"),
    ({"cron": "* * * * *"}, "comes more than 24 times a day"),
    ({"cron": "*/5 0-9 1 1 *"}, "comes more than 24 times a day"),
    ({"cron": "0 0 * 2 MON#5"}, "must come at least every 10 years"),
    ({"cron": "0 0 * * " + "1," * 60 + "1"}, "is no cron expression"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "reason"), BAD, ids=str)
def test_what_is_no_schedule_is_told_so(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        make_resets(**given)


@pytest.mark.parametrize(
    "text",
    ["", "calendar", "calendar month", "calendar month UTC UTC", "session 0s", "session 60", "x",
     "cron 0 0 * * UTC", "session  60s", "calendar month Europe/Berln", None, "session 1٣s"],
)  # fmt: skip
def test_a_text_that_stores_never_wrote_is_refused(text: Any) -> None:
    with pytest.raises(ValidationError):
        schedule_of(text)


def test_cron_is_written_as_one_likes() -> None:
    assert make_resets(cron=" 0  0 * * mon-fri ", tz="UTC").text == "cron 0 0 * * MON-FRI UTC"


def test_without_the_extra_a_cron_expression_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ValidationError, match=r"pip install 'headgate\[cron\]'"):
        make_resets(cron="0 5 * * *")
    assert make_resets(every="day").every == "day"


def test_a_machine_without_zones_says_where_they_come_from() -> None:
    code = (
        "import sys, zoneinfo; sys.modules['tzdata'] = None; zoneinfo.reset_tzpath(to=[]); "
        "from headgate import Limit; print(Limit.quota('x', 5, every='month', tz='UTC')); "
        "Limit.quota('x', 5, every='month', tz='Europe/Berlin')"
    )
    found = run_python("-c", code)
    assert found.stdout == "x: 5/calendar month UTC\n"
    assert "pip install tzdata" in found.stderr


# --------------------------------------------------------------------------------------------------
# Two processes whose time zone databases are of different age.

ZONED = "calendar day Test/Zone"
CAPACITY = 10_000


def schedules_of(hours: int, monkeypatch: pytest.MonkeyPatch) -> Resets:
    """What a process knows whose database says that Test/Zone is so many hours ahead."""
    with monkeypatch.context() as patch:
        patch.setattr(resets, "_zone", lambda name: timezone(timedelta(hours=hours)))
        return schedule_of.__wrapped__(ZONED)


def test_a_reset_that_two_place_at_two_moments_gives_one_capacity_more_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S1 for processes that disagree: in no interval more than what is there at its beginning, one
    capacity for every reset in it that either knows, and one for a reset before it that only one
    of them knows and nobody has met yet."""
    known = [schedules_of(hours, monkeypatch) for hours in (2, 3)]
    terms = Terms((Spec("x", CAPACITY, 0, 1000, False, ZONED),), 1)
    rng = random.Random(5)
    start_ms = ms("2026-05-05")
    borders = sorted(at for schedule in known for at in schedule.instants(start_ms, 9))
    for _ in range(25):
        now_ms, found = start_ms, None
        admitted: list[tuple[int, int]] = []
        for _ in range(80):
            now_ms += rng.randint(0, 3 * HOUR_MS)
            patch_schedule(monkeypatch, rng.choice(known))
            amount = rng.randint(1, 8) * 1000
            verdict, (after,) = decide([demand(terms, amount)], [found], now_ms)
            if verdict.allowed:
                admitted.append((now_ms, amount))
                found = after
        for first, (from_ms, _) in enumerate(admitted):
            before = bisect.bisect_right(borders, from_ms)
            total = 0
            for until_ms, amount in admitted[first:]:
                total += amount
                passed = bisect.bisect_right(borders, until_ms) - before
                assert total <= CAPACITY * (1 + passed + 1)
        passed = bisect.bisect_right(borders, now_ms)
        assert sum(amount for _, amount in admitted) <= CAPACITY * (1 + passed)


def test_processes_that_disagree_pay_a_debt_once_each_reset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What one counts as paid it does not pay again, and the other pays it no second time."""
    early, late = schedules_of(3, monkeypatch), schedules_of(2, monkeypatch)
    terms = Terms((Spec("x", CAPACITY, 0, 1000, False, ZONED),), 1)
    start_ms = ms("2026-05-05")
    owing: Record = (terms, 0, 0, None, start_ms, -5 * CAPACITY, 0, 0)
    for day in range(1, 5):
        for schedule in (early, late, early, late):
            patch_schedule(monkeypatch, schedule)
            now_ms = start_ms + day * DAY_MS
            verdict, _ = decide([demand(terms, 1000)], [owing], now_ms)
            assert not verdict.allowed
            assert verdict.statuses[0].available == (day - 5) * CAPACITY // 1000


def patch_schedule(monkeypatch: pytest.MonkeyPatch, schedule: Resets) -> None:
    """This process goes by that schedule from now on."""
    for module in ("limits", "refill.resets"):
        monkeypatch.setattr(f"headgate.core.{module}.schedule_of", lambda text: schedule)


def demand(terms: Terms, amount: int) -> Demand:
    return Demand(BucketKey("n", "e", "r"), terms, (amount,))
