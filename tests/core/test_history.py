"""Windows of usage, moments as text, and audit ids that sort."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.core.errors import ValidationError
from headgate.core.history import (
    WINDOW_TYPES,
    WindowUsage,
    audit_event,
    event_time_ms,
    iso_time,
    parse_time_ms,
    parse_window_type,
    snapshot,
    summarize,
    window_around,
)
from tests.core.kit import LAW

# 1970 to 9999-11, so that the month after is still a date
moments_ms = st.integers(0, 253_000_000_000_000)


def at(*parts: int) -> int:
    moment = datetime.datetime(*parts, tzinfo=datetime.UTC)  # type: ignore[arg-type,misc]
    return int(moment.timestamp()) * 1000


@LAW
@given(moments_ms, st.sampled_from(WINDOW_TYPES))
def test_windows_hold_their_moment_and_tile_the_time(now_ms: int, kind: str) -> None:
    start_ms, end_ms = window_around(kind, now_ms)
    assert start_ms <= now_ms < end_ms
    assert window_around(kind, start_ms) == window_around(kind, end_ms - 1) == (start_ms, end_ms)
    assert window_around(kind, end_ms)[0] == end_ms
    if start_ms:
        assert window_around(kind, start_ms - 1)[1] == start_ms


@LAW
@given(moments_ms)
def test_an_hour_lies_in_one_day_and_a_day_in_one_month(now_ms: int) -> None:
    hour, day, month = (window_around(kind, now_ms) for kind in WINDOW_TYPES)
    assert month[0] <= day[0] <= hour[0] < hour[1] <= day[1] <= month[1]


@pytest.mark.parametrize(
    ("moment", "start", "end"),
    [
        ((2024, 2, 29, 23, 59, 59), (2024, 2, 1), (2024, 3, 1)),
        ((2023, 2, 28, 23, 59, 59), (2023, 2, 1), (2023, 3, 1)),
        ((2000, 2, 29), (2000, 2, 1), (2000, 3, 1)),
        ((2100, 2, 28, 12), (2100, 2, 1), (2100, 3, 1)),
        ((2026, 1, 31, 23, 59, 59), (2026, 1, 1), (2026, 2, 1)),
        ((2026, 4, 30, 23, 59, 59), (2026, 4, 1), (2026, 5, 1)),
        ((2025, 12, 31, 23, 59, 59), (2025, 12, 1), (2026, 1, 1)),
        ((2026, 1, 1), (2026, 1, 1), (2026, 2, 1)),
    ],
)
def test_months_end_where_the_calendar_says(
    moment: tuple[int, ...], start: tuple[int, ...], end: tuple[int, ...]
) -> None:
    for moment_ms in (at(*moment), at(*moment) + 999):
        assert window_around("monthly", moment_ms) == (at(*start), at(*end))


def test_window_types_are_parsed_at_the_door() -> None:
    assert parse_window_type(None) is None
    assert [parse_window_type(kind) for kind in WINDOW_TYPES] == list(WINDOW_TYPES)
    with pytest.raises(ValidationError):
        parse_window_type("weekly")


@LAW
@given(moments_ms)
@example(2_186_832_796_436)  # whose last millisecond is easily lost
def test_a_moment_survives_being_written_and_read(now_ms: int) -> None:
    text = iso_time(now_ms)
    assert text.endswith("Z")
    assert parse_time_ms("start", text) == now_ms
    assert parse_time_ms("start", now_ms) == now_ms


def test_a_moment_is_utc_unless_it_says_otherwise() -> None:
    assert parse_time_ms("start", None) is None
    assert parse_time_ms("start", "2026-01-31") == at(2026, 1, 31)
    assert parse_time_ms("start", "2026-01-31T02:00:00+02:00") == at(2026, 1, 31)
    assert parse_time_ms("start", datetime.datetime(2026, 1, 31)) == at(2026, 1, 31)
    for bad in ("", "soon", "2026-13-01", 1.5, True, [1], b"2026-01-31"):
        with pytest.raises(ValidationError):
            parse_time_ms("start", bad)


@LAW
@given(st.lists(st.integers(0, 9_999_999_999_999), min_size=1, max_size=20))
def test_audit_ids_sort_by_time_then_by_order_and_are_unique(times_ms: list[int]) -> None:
    times_ms = sorted(times_ms)
    events = [audit_event(now_ms, "set_limits", "key-1", "me", cause="test") for now_ms in times_ms]
    ids = [event.event_id for event in events]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    assert [event_time_ms(event) for event in events] == times_ms
    assert events[0].details == {"cause": "test"}


def test_a_summary_adds_up_what_the_snapshots_hold() -> None:
    shots = [
        snapshot(
            "key-1", "gpt-4", WindowUsage("hourly", hour * 3_600_000, {"rpm": 5_000 * hour}, hour)
        )
        for hour in (1, 2, 3)
    ]
    assert shots[0].window_end == shots[1].window_start == "1970-01-01T02:00:00Z"
    found = summarize(shots)
    assert (found.total, found.average, found.total_events) == ({"rpm": 30}, {"rpm": 10}, 6)
    assert (found.min_window_start, found.snapshot_count) == (shots[0].window_start, 3)
    assert summarize([]).average == {}
