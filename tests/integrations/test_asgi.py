"""The ASGI middleware in front of a plain ASGI app."""

from __future__ import annotations

from typing import Any

import pytest

from headgate import Limit, ValidationError
from headgate.integrations.asgi import LimitMiddleware, caller_of
from headgate.integrations.gate import limits_off
from headgate.testing import FakeClock
from tests.integrations.kit import ALL, check_websocket, get, hang_up, hello, limiter, run


def test_it_limits_says_so_and_lets_in_again() -> None:
    clock = FakeClock()
    app = LimitMiddleware(hello, limiter(clock), "2/minute;100/hour")
    first = get(app)
    assert (first.status_code, first.text, first.headers["x-own"]) == (200, "hello", "1")
    assert first.headers["x-ratelimit-limit"] == "2"
    assert first.headers["x-ratelimit-remaining"] == "1"
    assert first.headers["x-ratelimit-reset"] == str(clock() // 1000 + 30)
    assert first.headers["ratelimit-policy"] == '"per_minute";q=2;w=60, "per_hour";q=100;w=3600'
    assert first.headers["ratelimit"] == '"per_minute";r=1;t=30, "per_hour";r=99;t=36'
    assert "retry-after" not in first.headers
    assert get(app).status_code == 200
    clock.advance(500)
    refused = get(app)
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "30"
    assert refused.headers["retry-after-ms"] == "29500"
    assert refused.headers["x-ratelimit-remaining"] == "0"
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["content-length"] == str(len(refused.content))
    problem = refused.json()
    assert problem["status"] == 429
    assert problem["violated-policies"] == ["per_minute"]
    assert problem["retry_after_seconds"] == 29.5
    clock.advance(29_499)
    assert get(app).status_code == 429
    clock.advance(1)
    assert get(app).status_code == 200


def test_a_daily_quota_in_words_tells_its_window_and_the_date() -> None:
    clock = FakeClock(1_773_140_400_000)  # 2026-03-10, noon in Berlin
    app = LimitMiddleware(hello, limiter(clock), "5/minute;1/calendar day Europe/Berlin")
    first = get(app)
    assert first.headers["ratelimit-policy"].endswith('"per_calendar_day";q=1;w=86400')
    assert first.headers["ratelimit"].endswith('"per_calendar_day";r=0;t=43200')
    refused = get(app)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "43200")
    assert refused.json()["detail"] == (
        "Try again in 43200 s, when per_calendar_day is reset on 2026-03-11 00:00 Europe/Berlin."
    )
    clock.advance(43_200_000)
    assert get(app).status_code == 200


def test_addresses_have_their_own_buckets_and_spoofing_changes_nothing() -> None:
    app = LimitMiddleware(hello, limiter(), "1/minute")
    assert get(app, address="198.51.100.1").status_code == 200
    assert get(app, address="198.51.100.2").status_code == 200
    assert get(app, address="198.51.100.1", x_forwarded_for="203.0.113.9").status_code == 429


def test_headers_that_came_repeatedly() -> None:
    """Old servers leave names as they came."""
    sent = [(b"X-Tag", b"a"), (b"cookie", b"m=1"), (b"x-tag", b"b"), (b"cookie", b"n=\xe9")]
    found = caller_of({"type": "http", "headers": sent})
    assert found.headers() == {"x-tag": "a, b", "cookie": "m=1; n=\xe9"}
    assert found.headers("x-Tag") == ["a", "b"]


def test_hanging_up_gives_nothing_back() -> None:
    app = LimitMiddleware(hello, limiter(), "2/minute")

    for _ in range(2):
        run(hang_up(app, "/s"))
    assert get(app).status_code == 429


def test_a_handler_that_fails_gives_nothing_back() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("boom")

    app = LimitMiddleware(broken, limiter(), "1/minute")
    with pytest.raises(RuntimeError, match="boom"):
        get(app)
    assert get(app).status_code == 429


def test_websockets() -> None:
    check_websocket(LimitMiddleware(hello, limiter(), "1/minute"))


def test_lifespan_is_not_limited() -> None:
    app = LimitMiddleware(hello, limiter(), "1/minute")
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    for _ in range(3):
        run(app({"type": "lifespan"}, None, send))  # type: ignore[arg-type]
    assert len(sent) == 3


def test_an_inner_limit_keeps_its_headers() -> None:
    inner = LimitMiddleware(hello, limiter(), "3/minute")
    outer = LimitMiddleware(inner, limiter(), "100/minute")
    assert get(outer).headers.get_list("x-ratelimit-limit") == ["3"]


def test_stored_limits_cost_and_exemption() -> None:
    gate = limiter(limits=[Limit.per_minute("rpm", 10)])
    run(gate.set_resource_defaults("http", [Limit.per_minute("rpm", 4)]))
    app = LimitMiddleware(
        hello,
        gate,
        key=lambda caller: None if caller.path == "/health" else "all:x",
        cost=lambda caller: 3 if caller.path == "/heavy" else 1,
    )
    assert get(app, "/heavy").headers["x-ratelimit-remaining"] == "1"
    assert get(app, "/heavy").status_code == 429
    assert get(app).status_code == 200
    for _ in range(5):
        free = get(app, "/health")
        assert free.status_code == 200
        assert "x-ratelimit-limit" not in free.headers


def test_too_much_at_once_and_a_switched_off_resource() -> None:
    gate = limiter()
    app = LimitMiddleware(hello, gate, "5/minute", key=ALL, cost=6)
    assert get(app).status_code == 422
    run(gate.disable(resource="http"))
    assert get(LimitMiddleware(hello, gate, "5/minute", key=ALL)).status_code == 403


def test_the_switch() -> None:
    app = LimitMiddleware(hello, limiter(), "1/minute")
    with limits_off(), limits_off():
        assert {get(app).status_code for _ in range(3)} == {200}
    assert get(app).status_code == 200
    assert get(app).status_code == 429
    off = LimitMiddleware(hello, limiter(), "1/minute", enabled=False)
    assert {get(off).status_code for _ in range(3)} == {200}


def test_bad_set_up_is_told_at_once() -> None:
    for limits, options in (
        ("nonsense", {}),
        ("1/minute", {"cost": True}),
        ("1/minute", {"resource": "9 lives"}),
    ):
        with pytest.raises(ValidationError):
            LimitMiddleware(hello, limiter(), limits, **options)
    with pytest.raises(ValidationError):
        LimitMiddleware(hello, "memory://", "1/minute")  # type: ignore[arg-type]
