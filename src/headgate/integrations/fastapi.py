"""RateLimit: a limit on a FastAPI or Starlette route, as a dependency or a decorator.

    limits_for(app)                                        # once per app
    limit = RateLimit(limiter, "5/minute")
    @app.get("/a", dependencies=[Depends(limit)])          # or
    @app.get("/b")
    @limit.guard

Headers are added when the response is sent, so a route may return any kind of response.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, Unpack

from fastapi import Depends, FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response

from headgate.core.errors import ValidationError
from headgate.integrations.asgi import (
    App,
    Receive,
    Scope,
    Send,
    caller_of,
    refuse_websocket,
    with_headers,
)
from headgate.integrations.gate import Gate, GateOptions, Rates, asyncio_limiter
from headgate.integrations.responses import Answer
from headgate.limiter import RateLimiter

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

ANSWERS = "headgate.answers"
_CONNECTION = "headgate_connection"


class RequestRefused(Exception):
    """The request may not go on; `answer` is what the client is told."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        super().__init__(answer.detail)


class HttpRequestRefused(RequestRefused, HTTPException):
    """A refusal that every app can answer, also an app mounted in one that limits_for prepared."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        headers = {**dict(answer.headers), "cache-control": "no-store"}
        HTTPException.__init__(self, answer.status, answer.detail, headers)


def limits_for(app: FastAPI) -> None:
    """Prepares an app: refusals become 429 problems, other responses get the limit's headers."""
    app.add_middleware(_HeadersMiddleware)
    app.add_exception_handler(RequestRefused, _refuse)


class RateLimit:
    """A dependency and a decorator; see Gate for the options."""

    def __init__(
        self, limiter: RateLimiter, limits: Rates = None, **options: Unpack[GateOptions]
    ) -> None:
        self.gate = Gate(asyncio_limiter(limiter), limits, **options)
        # FastAPI reads this signature: it hands a dependency the connection, and nothing else.
        self.__signature__ = inspect.Signature([_parameter(_CONNECTION, HTTPConnection)])

    async def __call__(self, headgate_connection: HTTPConnection) -> None:
        """The dependency: takes the cost of the request or raises RequestRefused."""
        await self.ask(headgate_connection)

    async def ask(self, connection: HTTPConnection) -> None:
        """The same for code that has the request."""
        answers = connection.scope.get(ANSWERS)
        if answers is None:
            raise ValidationError("app", "it", "is not prepared; call limits_for(app) once")
        answer = await self.gate.ask(caller_of(connection.scope))
        if not answer.allowed:
            raise (HttpRequestRefused if connection.scope["type"] == "http" else RequestRefused)(
                answer
            )
        answers.append(answer)

    def guard(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint behind the limit; it needs no `request` parameter of its own."""

        # Resolved here, because FastAPI would look up names of annotations in this module.
        signature = inspect.signature(endpoint, eval_str=True)
        name = _CONNECTION
        while name in signature.parameters:  # of another limit on the same route
            name += "_"

        @functools.wraps(endpoint)
        async def limited(*args: Any, **kwargs: Any) -> Any:
            await self.ask(kwargs.pop(name))
            if inspect.iscoroutinefunction(endpoint):
                return await endpoint(*args, **kwargs)
            found = await run_in_threadpool(endpoint, *args, **kwargs)
            # Callable objects and wrapped functions do not look async even if they are.
            return await found if inspect.isawaitable(found) else found

        # Through a dependency, because FastAPI passes the connection to one parameter only.
        handed = Annotated[HTTPConnection, Depends(_pass_connection)]
        parameters = [*signature.parameters.values(), _parameter(name, handed)]
        parameters.sort(key=lambda parameter: parameter.kind)
        limited.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return limited  # type: ignore[return-value]


class _HeadersMiddleware:
    """Adds the headers of the route's tightest limit to the response."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        answers: list[Answer] = []
        scope[ANSWERS] = answers
        sending = with_headers(send, lambda: answers[-1].headers if answers else [])
        await self.app(scope, receive, sending)


async def _refuse(connection: Any, error: Exception) -> Any:
    assert isinstance(error, RequestRefused)
    answer = error.answer
    if connection.scope["type"] == "websocket":
        await refuse_websocket(connection.scope, connection.receive, connection.send, answer)
        return None
    return Response(answer.body, answer.status, dict(answer.refusal_headers))


async def _pass_connection(headgate_connection: HTTPConnection) -> HTTPConnection:
    return headgate_connection


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
