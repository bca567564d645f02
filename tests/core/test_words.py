"""The words at the door: names, amounts and limits; what passes is safe, what fails says why."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.core import limits as names
from headgate.core.errors import HeadgateError, ValidationError
from headgate.core.limits import (
    AMOUNT_MAX,
    LIMITS_MAX,
    PERIOD_SECONDS_MAX,
    Limit,
    parse_amount,
    parse_limits,
)
from tests.core.kit import LAW

ALNUM = "abzABZ019"
PARSERS: dict[Callable[[object], str], tuple[str, int]] = {
    names.parse_entity_id: ("_.-:@", names.ENTITY_LENGTH_MAX),
    names.parse_resource: ("_.-/:", names.RESOURCE_LENGTH_MAX),
    names.parse_limit_name: ("_.-", names.LIMIT_LENGTH_MAX),
    names.parse_namespace: ("_.-", names.NAMESPACE_LENGTH_MAX),
}
parsers = pytest.mark.parametrize("parse", PARSERS)
any_parser = st.sampled_from(list(PARSERS))


def name_texts(extra: str, length_max: int) -> st.SearchStrategy[str]:
    rest = st.text(ALNUM + extra, max_size=length_max - 1)
    return st.tuples(st.sampled_from("abzABZ"), rest).map("".join).filter(lambda t: t != "wcu")


limit_names = name_texts("_.-", names.LIMIT_LENGTH_MAX)


@LAW
@given(any_parser, st.data())
def test_a_good_name_passes_unchanged(parse: Callable[[object], str], data: st.DataObject) -> None:
    extra, length_max = PARSERS[parse]
    text = data.draw(name_texts(extra, length_max))
    assert parse(text) == text


@LAW
@given(any_parser, st.text(max_size=300))
def test_any_text_is_a_safe_name_or_a_validation_error(
    parse: Callable[[object], str], text: str
) -> None:
    extra, length_max = PARSERS[parse]
    try:
        assert parse(text) == text
    except ValidationError:
        return
    assert 1 <= len(text) <= length_max
    assert re.fullmatch(rf"[a-zA-Z0-9{re.escape(extra)}]+", text)


@parsers
@pytest.mark.parametrize(
    "text",
    ["", "a\n", "\na", "a\n#b", "a\r", "a\0", "\0", "a#b", "#", "a b", " a", "a\u200b", "é", "aé",
     "a\u0664", "\u0664", "a\uff11", "ａ", "_a", ".a", "-a", "a\ud800", "a/../b\n", "a\\b", "a*"],
)  # fmt: skip
def test_a_name_that_could_reach_elsewhere_is_refused(
    parse: Callable[[object], str], text: str
) -> None:
    with pytest.raises(ValidationError):
        parse(text)


@parsers
@pytest.mark.parametrize("value", [None, True, 1, 1.5, b"abc", ["abc"], object(), math.nan])
def test_only_text_is_a_name(parse: Callable[[object], str], value: object) -> None:
    with pytest.raises(ValidationError, match="must be a str"):
        parse(value)


@parsers
def test_both_sides_of_the_length_border(parse: Callable[[object], str]) -> None:
    assert names.ENTITY_LENGTH_MAX == 256
    length_max = PARSERS[parse][1]
    assert parse("a" * length_max) == "a" * length_max
    with pytest.raises(ValidationError, match=f"at most {length_max}"):
        parse("a" * (length_max + 1))


def test_wcu_is_reserved_and_default_is_no_resource_of_its_own() -> None:
    with pytest.raises(ValidationError, match="reserved"):
        names.parse_limit_name("wcu")
    with pytest.raises(ValidationError, match="reserved"):
        Limit.per_second("wcu", 1)
    assert names.parse_config_resource("_default_") == "_default_"
    with pytest.raises(ValidationError):
        names.parse_resource("_default_")


def test_namespace_ids_are_opaque_and_pass_their_own_check() -> None:
    """None looks like an option of a command; one in sixty-four would."""
    made = {names.new_namespace_id() for _ in range(1000)}
    assert len(made) == 1000
    assert all(names.parse_namespace_id(one) == one for one in made)
    assert not [one for one in made if one.startswith("-")]
    for bad in ("", "a" * 10, "a" * 12, "a" * 10 + "\n", "a" * 10 + "#", None):
        with pytest.raises(ValidationError):
            names.parse_namespace_id(bad)


amounts = st.one_of(st.integers(1, 1000), st.integers(1, AMOUNT_MAX))
periods_s = st.integers(1, PERIOD_SECONDS_MAX)
refilled_limits = st.builds(
    Limit, limit_names, amounts, st.just(0) | amounts, periods_s, st.booleans()
)
schedules = st.one_of(
    st.builds(
        lambda every, tz: {"every": every, "tz": tz},
        st.sampled_from(("day", "week", "month", "year")),
        st.sampled_from((None, "UTC", "Europe/Berlin", "America/Port-au-Prince", "Etc/GMT+5")),
    ),
    st.builds(
        lambda cron, tz: {"cron": cron, "tz": tz},
        st.sampled_from(("0 0 1,15 * *", "*/15 3 * * mon-fri", "0 0 l * 5#2", "0 12 LW * *")),
        st.sampled_from((None, "Asia/Kolkata")),
    ),
    st.builds(lambda seconds: {"reset_after": seconds}, periods_s),
)
quotas = st.builds(
    lambda name, capacity, schedule, soft: Limit.quota(name, capacity, soft=soft, **schedule),
    limit_names, amounts, schedules, st.booleans(),
)  # fmt: skip
limits = refilled_limits | quotas


@LAW
@given(limits)
def test_a_limit_survives_every_way_of_writing_it(limit: Limit) -> None:
    assert Limit.from_dict(limit.to_dict()) == limit
    assert Limit.from_spec(limit.spec) == limit
    assert Limit.parse(str(limit)) == limit


@LAW
@given(st.text(max_size=60))
@example("1" + ",000" * 1_500 + "/s")
@example("１００/minute")
@example("100/minute\0")
@example("5 per 0s")
@example("wcu:5/s")
@example("a" * 65 + ":5/s")
@example("5/fortnight")
@example("99999999999999999/s")
@example("5/s burst 0")
@example("5/s burst soft")
@example("5/s soft soft")
@example("5/ssoft")
@example("5/calendar")
@example("5/calendar month soft soft")
@example("5/calendar month Europe/Berlin burst 9")
@example("5/calendar month:soft")
@example("5/cron 0 0 * *")
@example("5/cron 0 0 * * * Mars/Olympus")
@example("5/session 9 weeks")
@example("5/session 0s")
def test_parse_gives_a_limit_or_a_validation_error(text: str) -> None:
    with contextlib.suppress(ValidationError):
        assert isinstance(Limit.parse(text), Limit)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("100/minute", Limit.per_minute("per_minute", 100)),
        ("100/minute burst 150", Limit.per_minute("per_minute", 100, 150)),
        ("5 per 30s", Limit.custom("per_30_seconds", 5, 5, 30)),
        ("rpm:1000/min:1500", Limit.per_minute("rpm", 1000, 1500)),
        ("100/minute burst 150 soft", Limit.per_minute("per_minute", 100, 150, soft=True)),
        ("rpm:1000/min:1500:soft", Limit.per_minute("rpm", 1000, 1500, soft=True)),
        ("rpm:1000/min SOFT", Limit.per_minute("rpm", 1000, soft=True)),
        ("soft: 5/s", Limit.per_second("soft", 5)),
        ("1,000,000 / day", Limit.per_day("per_day", 1_000_000)),
        ("10_000 Per Hour", Limit.per_hour("per_hour", 10_000)),
        (" tpd : 7/2d ", Limit.custom("tpd", 7, 7, 172_800)),
        ("5/calendar month", Limit.quota("per_calendar_month", 5, every="month")),
        ("5 per Calendar Day soft", Limit.quota("per_calendar_day", 5, every="day", soft=True)),
        (
            "tpm_month: 1_000_000/calendar month Europe/Berlin",
            Limit.quota("tpm_month", 1_000_000, every="month", tz="Europe/Berlin"),
        ),
        ("x:5/cron 0 0  1,15 * *", Limit.quota("x", 5, cron="0 0 1,15 * *")),
        (
            "5/cron 0 0 * * 1 Asia/Tokyo soft",
            Limit.quota("per_cron", 5, cron="0 0 * * 1", tz="Asia/Tokyo", soft=True),
        ),
        ("100/session 5h", Limit.quota("per_session", 100, reset_after=18_000)),
        ("chat: 100 per session day", Limit.quota("chat", 100, reset_after=86_400)),
    ],
)
def test_parse_reads_what_the_documents_write(text: str, limit: Limit) -> None:
    assert Limit.parse(text) == limit
    assert Limit.parse(text, name="mine") == Limit.from_dict(limit.to_dict() | {"name": "mine"})


def test_the_constructors_mean_what_they_say() -> None:
    for make, seconds in (
        (Limit.per_second, 1),
        (Limit.per_minute, 60),
        (Limit.per_hour, 3600),
        (Limit.per_day, 86_400),
    ):
        assert make("x", 7) == Limit("x", 7, 7, seconds)
        assert make("x", 7, 9) == make("x", 7, burst=9) == Limit("x", 9, 7, seconds)
        assert make("x", 7, soft=True).spec == ("x", 7_000, 7_000, seconds * 1_000, True, None)
    assert Limit.custom("x", 5, 0, 1).refill_rate == 0
    with pytest.raises(ValidationError):
        Limit.per_second("x", 0)


BAD = {
    "negative": -1, "fraction": 1.5, "float": 1.0, "true": True, "false": False, "nan": math.nan,
    "inf": math.inf, "2**60": 2**60, "2**53": 2**53, "text": "5", "none": None, "list": [5],
    "5001 digits": 10**5_000,
}  # fmt: skip


@pytest.mark.parametrize("value", BAD.values(), ids=BAD)
def test_an_amount_is_a_whole_number_json_can_carry(value: Any) -> None:
    """And saying so must not fail either: every refusal is headgate's own error."""
    makers: list[Callable[[], object]] = [
        lambda: parse_amount("tokens", value),
        lambda: Limit("x", value, 1, 1),
        lambda: Limit("x", 1, value, 1),
        lambda: Limit("x", 1, 1, value),
        lambda: Limit.per_minute("x", value),
        lambda: Limit.from_dict(FIVE | {"capacity": value}),
    ]
    for make in makers:
        with pytest.raises(HeadgateError):
            make()


def test_both_sides_of_the_amount_borders() -> None:
    assert parse_amount("tokens", 0) == 0
    assert parse_amount("tokens", AMOUNT_MAX) == 2**53 - 1
    assert Limit("x", 1, 0, PERIOD_SECONDS_MAX)
    for bad in ((0, 0, 1), (1, 0, 0), (1, 0, PERIOD_SECONDS_MAX + 1), (1, -1, 1)):
        with pytest.raises(ValidationError):
            Limit("x", *bad)
    with pytest.raises(ValidationError):
        Limit("x", 1, 1, 1, soft=1)  # type: ignore[arg-type]


FIVE = Limit.per_minute("x", 5).to_dict()


MONTH = {"name": "x", "capacity": 5, "every": "month"}


def test_a_quota_tells_its_schedule_in_place_of_a_refill() -> None:
    limit = Limit.from_dict(MONTH)
    assert limit.to_dict() == MONTH | {"soft": False, "tz": "UTC"}
    assert (limit.refill_amount, limit.refill_rate) == (0, 0)
    assert limit.spec == ("x", 5_000, 0, 1_000, False, "calendar month UTC")
    assert limit.spec.as_row() == limit.spec
    assert Limit.per_second("x", 5).spec.as_row() == ("x", 5_000, 5_000, 1_000, False)
    with pytest.raises(ValidationError, match=r"use Limit\.quota"):
        Limit("x", 5, 5, 60, resets=limit.resets)
    with pytest.raises(ValidationError, match=r"is no schedule; use Limit\.quota"):
        Limit("x", 5, 0, 1, resets="calendar month UTC")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    [None, [], "x", 5, {}, {"name": "x"}, FIVE | {"more": 1}, FIVE | {"every": "day"},
     MONTH | {"more": 1}, {"name": "x", "every": "day"}, {"capacity": 5, "every": "day"},
     MONTH | {"every": "eon"}, MONTH | {"refill_amount": 0},
     {"name": "x", "capacity": 5, "tz": "UTC"}],
)  # fmt: skip
def test_from_dict_wants_exactly_its_keys(value: Any) -> None:
    with pytest.raises(ValidationError):
        Limit.from_dict(value)


def test_a_list_of_limits_has_one_to_sixteen_distinct_names() -> None:
    many = [Limit.per_minute(f"l{number}", 5) for number in range(LIMITS_MAX + 1)]
    assert parse_limits(many[:LIMITS_MAX]) == tuple(many[:LIMITS_MAX])
    assert parse_limits((many[0],)) == (many[0],)
    bad: list[object] = [
        [], (), many, [many[0], many[0]], [many[0], Limit.per_day("l0", 9)], None, "rpm", b"rpm",
        many[0], {"l0": many[0]}, iter(many[:1]), [many[0], "l1"], [many[0].to_dict()], {many[0]},
    ]  # fmt: skip
    for value in bad:
        with pytest.raises(ValidationError):
            parse_limits(value)
