"""When a call is sent again: the whole table, without a clock, a socket or chance."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.client.retry import (
    ATTEMPTS_MAX,
    SEND_MS_LEAST,
    NoReply,
    Outcome,
    Reply,
    Retry,
    Schedule,
    is_unapplied,
    next_pause_ms,
    seconds_ms,
)
from headgate.core.errors import ValidationError

ONCE, REPEATABLE = False, True
RETRY = Retry(attempts=4, base_ms=100, cap_ms=1_000)
NOW_MS = 10_000
WITHIN = Schedule(deadline_ms=NOW_MS + 5_000, wait_until_ms=NOW_MS)
WAITING = Schedule(deadline_ms=NOW_MS + 35_000, wait_until_ms=NOW_MS + 30_000)


def reply(status: int, code: str | None = None, wait_ms: int | None = None) -> Reply:
    headers = () if wait_ms is None else (("retry-after-ms", str(wait_ms)),)
    return Reply(status, headers, {} if code is None else {"code": code}, NOW_MS)


def pause(
    outcome: Outcome,
    is_repeatable: bool = ONCE,
    attempt: int = 1,
    schedule: Schedule = WITHIN,
    fraction: float = 0.0,
) -> int | None:
    return next_pause_ms(RETRY, is_repeatable, outcome, attempt, NOW_MS, schedule, fraction)


@pytest.mark.parametrize(
    ("outcome", "once", "repeatable"),
    [
        (NoReply("refused", sent=False), 50, 50),
        (NoReply("lost", sent=True), None, 50),
        (reply(503, "STORAGE_UNAVAILABLE"), 50, 50),
        (reply(503, "TOO_MANY_LEASES", 1_000), 1_000, 1_000),
        (reply(503), None, 50),  # a proxy's: the service may have acted
        (reply(502), None, 50),
        (reply(504, "DEADLINE_EXCEEDED", 1_000), None, 1_000),
        (reply(408, "REQUEST_TIMEOUT"), 50, 50),
        (reply(500, "INTERNAL"), None, None),
        (reply(400, "INVALID_REQUEST"), None, None),
        (reply(401, "UNAUTHENTICATED"), None, None),
        (reply(404, "LEASE_NOT_FOUND"), None, None),
        (reply(422, "DEMAND_TOO_LARGE"), None, None),
        (reply(409, "CONFLICT", 100), None, 100),  # somebody else is changing the lease
        (reply(409, "CONFLICT"), None, None),  # it is over
        (reply(429, "RATE_LIMIT_EXCEEDED", 10), None, None),  # nobody asked to wait
        (reply(307), None, None),
    ],
    ids=str,
)
def test_what_is_sent_again(outcome: Outcome, once: int | None, repeatable: int | None) -> None:
    assert pause(outcome, ONCE) == once
    assert pause(outcome, REPEATABLE) == repeatable


def test_a_debit_is_repeated_only_where_it_took_nothing() -> None:
    outcomes: list[Outcome] = [
        reply(status, code) for status in range(200, 600) for code in (None, "CODE")
    ]
    for outcome in [*outcomes, NoReply("x", sent=True), NoReply("x", sent=False)]:
        if pause(outcome, ONCE, schedule=WAITING) is not None:
            assert is_unapplied(outcome), outcome


def test_limited_waits_as_long_as_it_may() -> None:
    assert pause(reply(429, "X", 30_000), schedule=WAITING) == 30_000
    assert pause(reply(429, "X", 30_001), schedule=WAITING) is None
    assert pause(reply(429), schedule=WAITING) == 50
    never = Reply(429, (), {"retry_after_seconds": None}, NOW_MS)
    assert pause(never, schedule=WAITING) is None
    document = Reply(429, (), {"retry_after_seconds": 0.0015}, NOW_MS)
    assert pause(document, schedule=WAITING) == 2


def test_limited_is_not_counted_as_trouble() -> None:
    assert pause(reply(429, "X", 10), attempt=50, schedule=WAITING) == 10
    assert pause(reply(429, "X", 10), attempt=ATTEMPTS_MAX, schedule=WAITING) is None


def test_trouble_ends_with_the_attempts() -> None:
    lost = NoReply("x", sent=False)
    pauses = [pause(lost, attempt=attempt, fraction=0.999) for attempt in range(1, 5)]
    assert pauses == [99, 199, 399, None]
    assert pause(lost, attempt=3, fraction=0.0) == 200


def test_back_off_is_capped() -> None:
    many = Retry(attempts=100, base_ms=100, cap_ms=1_000)
    for attempt in range(5, 100):
        found = next_pause_ms(many, ONCE, NoReply("x", False), attempt, NOW_MS, WITHIN, 0.5)
        assert found == 750


def test_dice_come_on_top_of_what_was_asked_and_never_past_the_end() -> None:
    asked = reply(503, "X", 1_000)
    assert pause(asked, fraction=0.5) == 1_050
    late = Schedule(deadline_ms=NOW_MS + 1_010 + SEND_MS_LEAST, wait_until_ms=NOW_MS)
    assert pause(asked, schedule=late, fraction=0.5) == 1_010
    too_late = Schedule(deadline_ms=NOW_MS + 999 + SEND_MS_LEAST, wait_until_ms=NOW_MS)
    assert pause(asked, schedule=too_late) is None


@given(
    st.integers(1, 2_000),
    st.one_of(st.none(), st.integers(0, 10**15)),
    st.sampled_from([200, 400, 408, 429, 500, 502, 503, 504]),
    st.sampled_from([None, "CODE"]),
    st.integers(0, 10**6),
    st.floats(0, 1, exclude_max=True),
)
def test_never_less_than_asked_never_past_the_end(
    attempt: int, asked_ms: int | None, status: int, code: str | None, wait_ms: int, fraction: float
) -> None:
    schedule = Schedule(NOW_MS + wait_ms + 5_000, NOW_MS + wait_ms)
    outcome = reply(status, code, asked_ms)
    found = pause(outcome, REPEATABLE, attempt, schedule, fraction)
    if found is not None:
        assert found >= max(1, outcome.retry_after_ms or 0)
        assert NOW_MS + found <= (
            schedule.wait_until_ms if status == 429 else schedule.deadline_ms - SEND_MS_LEAST
        )


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "3", 10**9])
def test_retry_is_checked(bad: object) -> None:
    for name in ("attempts", "base_ms", "cap_ms"):
        with pytest.raises(ValidationError, match=name):
            Retry(**{name: bad})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "ms"),
    [(0, 0), (1, 1000), (0.25, 250), (0.0001, 1), (-1, None), (True, None), ("1", None),
     (None, None), (float("nan"), None), (float("inf"), None), (10**400, None)],
)  # fmt: skip
def test_seconds_of_a_document(value: object, ms: int | None) -> None:
    assert seconds_ms(value) == ms
