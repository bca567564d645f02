"""Limits on Flask apps and views."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import flask
import pytest

from headgate import OnUnavailable, ValidationError
from headgate.core.errors import Unreachable
from headgate.integrations.flask import RateLimit
from headgate.integrations.gate import limits_off
from headgate.integrations.keys import by_ip
from headgate.testing import FakeClock, FaultyStore
from tests.integrations.kit import blocking, limiter


def make_app(rate: str = "2/minute", clock: FakeClock | None = None) -> flask.Flask:
    app = flask.Flask(__name__)
    gate = blocking(clock)

    def limit(name: str) -> RateLimit:
        return RateLimit(gate, rate, resource=name)

    @app.get("/text")
    @limit("text").guard
    def text() -> str:
        return "text"

    @app.get("/dict/<int:number>")
    @limit("dict").guard
    def values(number: int) -> dict[str, int]:
        return {"number": number}

    @app.get("/tuple")
    @limit("tuple").guard
    def three() -> Any:
        return "made", 201, {"x-own": "1", "x-ratelimit-limit": "mine"}

    @app.get("/broken")
    @limit("broken").guard
    def broken() -> str:
        flask.abort(418)

    @app.get("/free")
    def free() -> str:
        return "free"

    return app


@pytest.mark.parametrize("path", ["/text", "/dict/7"])
def test_it_limits_says_so_and_lets_in_again(path: str) -> None:
    clock = FakeClock()
    client = make_app(clock=clock).test_client()
    first = client.get(path)
    assert first.status_code == 200
    assert first.headers["X-RateLimit-Remaining"] == "1"
    assert first.headers["RateLimit-Policy"] == '"per_minute";q=2;w=60'
    assert client.get(path).status_code == 200
    refused = client.get(path)
    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == "30"
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert refused.get_json(force=True)["violated-policies"] == ["per_minute"]
    assert "X-RateLimit-Limit" not in client.get("/free").headers
    clock.advance(30_000)
    assert client.get(path).status_code == 200


def test_the_views_own_response_stays() -> None:
    client = make_app().test_client()
    made = client.get("/tuple")
    assert (made.status_code, made.text, made.headers["x-own"]) == (201, "made", "1")
    assert made.headers.getlist("X-RateLimit-Limit") == ["mine"]
    assert made.headers["X-RateLimit-Remaining"] == "1"


def test_a_view_that_fails_has_counted() -> None:
    client = make_app("1/minute").test_client()
    assert client.get("/broken").status_code == 418
    assert client.get("/broken").status_code == 429


def test_of_many_threads_exactly_as_many_as_fit_get_in() -> None:
    app, together = make_app("5/minute"), threading.Barrier(12, timeout=20)

    def visit() -> int:
        client = app.test_client()
        together.wait()
        return client.get("/text").status_code

    with ThreadPoolExecutor(12) as pool:
        visits = [pool.submit(visit) for _ in range(12)]
    assert sorted(each.result() for each in visits) == [200] * 5 + [429] * 7


def test_a_whole_app() -> None:
    app = make_app("100/minute")
    RateLimit(blocking(), "2/minute", key=by_ip(trusted_hops=1), resource="app").init_app(app)
    client = app.test_client()

    def visit(path: str, forwarded: str) -> Any:
        return client.get(path, headers={"X-Forwarded-For": forwarded})

    assert visit("/free", "203.0.113.9").headers["X-RateLimit-Remaining"] == "1"
    assert visit("/nowhere", "6.6.6.6, 203.0.113.9").status_code == 404
    assert visit("/free", "7.7.7.7, 203.0.113.9").status_code == 429
    assert visit("/free", "203.0.113.8").status_code == 200
    # the view's own limit and the app's: one set of headers
    both = visit("/text", "203.0.113.7")
    assert both.headers.getlist("X-RateLimit-Limit") == ["100"]


def test_requests_inside_one_context_of_the_app() -> None:
    app = make_app("9/minute")
    RateLimit(blocking(), "100/minute", resource="app").init_app(app)
    client = app.test_client()
    with app.app_context():  # as fixtures of tests and scripts push it
        left = [client.get("/text").headers.get("X-RateLimit-Remaining") for _ in range(3)]
        assert left == ["8", "7", "6"]
        assert list(flask.g) == [], "nothing piles up"


def test_a_response_made_twice_has_the_headers() -> None:
    app = make_app()

    @app.after_request
    def broken(response: flask.Response) -> flask.Response:
        if response.status_code == 200:
            raise RuntimeError  # flask answers 500, and finishes that one too
        return response

    answer = app.test_client().get("/text")
    assert (answer.status_code, answer.headers["X-RateLimit-Remaining"]) == (500, "1")


def test_store_away_switch_and_bad_set_up() -> None:
    gate = blocking()
    gate.engine.use(FaultyStore(gate.engine.store, before=[Unreachable("host")] * 9))
    app = flask.Flask(__name__)
    RateLimit(gate, "1/minute", on_unavailable=OnUnavailable.BLOCK).init_app(app)
    client = app.test_client()
    assert client.get("/").status_code == 503
    with limits_off():
        assert client.get("/").status_code == 404
    with pytest.raises(ValidationError, match="SyncRateLimiter"):
        RateLimit(limiter(), "1/minute")  # type: ignore[arg-type]
