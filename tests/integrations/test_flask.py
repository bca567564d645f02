"""Limits on Flask apps and views."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import flask

from headgate.integrations.flask import RateLimit, current_caller
from tests.integrations.kit import blocking


def make_app(rate: str = "2/minute") -> flask.Flask:
    app = flask.Flask(__name__)
    gate = blocking()

    def limit(name: str) -> RateLimit:
        return RateLimit(gate, rate, resource=name)

    @app.get("/text")
    @limit("text").guard
    def text() -> str:
        return "text"

    @app.get("/tuple/<int:number>")
    @limit("tuple").guard
    def three(number: int) -> Any:
        return f"made {number}", 201, {"x-own": "1", "x-ratelimit-limit": "mine"}

    @app.get("/broken")
    @limit("broken").guard
    def broken() -> str:
        flask.abort(418)

    @app.get("/free")
    def free() -> str:
        return "free"

    return app


def test_the_views_own_response_stays() -> None:
    client = make_app().test_client()
    made = client.get("/tuple/7")
    assert (made.status_code, made.text, made.headers["x-own"]) == (201, "made 7", "1")
    assert made.headers.getlist("X-RateLimit-Limit") == ["mine"]
    assert made.headers["X-RateLimit-Remaining"] == "1"
    assert "X-RateLimit-Limit" not in client.get("/free").headers


def test_headers_that_came_repeatedly() -> None:
    """The server joins them."""
    with make_app().test_request_context(headers=[("X-Tag", "a"), ("x-tag", "b")]):
        assert current_caller().headers()["x-tag"].replace(", ", ",") == "a,b"


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


def test_the_limits_of_an_app_and_of_its_view() -> None:
    app = make_app("100/minute")
    RateLimit(blocking(), "2/minute", resource="app").init_app(app)
    client = app.test_client()
    assert client.get("/nowhere").status_code == 404
    # the view's own limit and the app's: one set of headers
    both = client.get("/text")
    assert both.headers.getlist("X-RateLimit-Limit") == ["100"]
    assert client.get("/nowhere").status_code == 429


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
