"""RateLimit for Flask: in front of a whole app, or of single views.

limit = RateLimit(limiter, "100/minute")
limit.init_app(app)                                    # every request, or
@app.get("/search")
@limit.guard                                           # this one
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, Unpack

from flask import Flask, Response, after_this_request, current_app, request

from headgate.integrations.gate import Gate, GateOptions, Rates, blocking_limiter
from headgate.integrations.keys import Caller
from headgate.integrations.responses import Answer
from headgate.sync import SyncRateLimiter

ANSWER = "headgate.answer"  # in the environ, because `g` may live longer than a request

View = TypeVar("View", bound=Callable[..., Any])


class RateLimit:
    """See Gate for the options. Views may be async; the limiter is a SyncRateLimiter."""

    def __init__(
        self, limiter: SyncRateLimiter, limits: Rates = None, **options: Unpack[GateOptions]
    ) -> None:
        self.gate = Gate(blocking_limiter(limiter), limits, **options)

    def init_app(self, app: Flask) -> None:
        """Limits every request of the app, also those that match no route."""
        app.before_request(self.ask)

    def guard(self, view: View) -> View:
        """The view behind the limit; its parameters and return value stay its own."""

        @functools.wraps(view)
        def limited(*args: Any, **kwargs: Any) -> Any:
            refusal = self.ask()
            return current_app.ensure_sync(view)(*args, **kwargs) if refusal is None else refusal

        return limited  # type: ignore[return-value]

    def ask(self) -> Response | None:
        """Takes the cost of the current request; returns the response if it may not go on."""
        answer = self.gate.ask_blocking(current_caller())
        if not answer.allowed:
            return _refusal(answer)
        request.environ[ANSWER] = answer
        after_this_request(_add_headers)
        return None


def current_caller() -> Caller:
    """The request being handled, as key functions see it."""
    return Caller(
        request.environ.get("REMOTE_ADDR"),
        request.headers.items,
        request.method,
        request.path,
        request,
    )


def _add_headers(response: Response) -> Response:
    """Adds the headers of the last limit that was asked, the innermost; twice does no harm."""
    for name, value in request.environ[ANSWER].headers:
        response.headers.setdefault(name, value)
    return response


def _refusal(answer: Answer) -> Response:
    return Response(answer.body, answer.status, answer.refusal_headers)
