"""The cold routes: a small framework finds the route, and one function does the rest for all."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.core.errors import HeadgateError
from headgate.service.decide.problems import Code, ServiceError, invalid, to_service_error
from headgate.service.http.callers import Document, Endpoint, RouteCall, authenticate_request
from headgate.service.http.deadlines import Cancelled
from headgate.service.http.openapi import document
from headgate.service.http.read import (
    BODY_BYTES_MAX,
    Gone,
    body_of,
    head_of,
    must_be_json,
    query_of,
    values_of,
)
from headgate.service.http.routes import COLD
from headgate.service.http.write import (
    PROBLEM_JSON,
    HttpProblem,
    method_not_allowed,
    no_such_path,
    problem_reply,
)
from headgate.service.keys.access import DEV_CALLER, ApiCaller, Refusal
from headgate.service.keys.key import KeyScope
from headgate.service.metrics.registry import CONTENT_TYPE
from headgate.service.program import Program

log = logging.getLogger("headgate.service")

OnDenied = Callable[[Refusal, KeyScope | None], ServiceError]

_encode = msgspec.json.Encoder().encode


class ColdRoutes:
    """An ASGI application for everything that is asked seldom."""

    def __init__(self, program: Program, turned_away: OnDenied) -> None:
        self._program = program
        self._deny = turned_away
        self._document = _encode(document())
        by_path: dict[str, dict[str, Endpoint]] = {}
        for one in COLD:
            by_path.setdefault(one.path, {})[one.method] = one
        # What is fixed goes before what is not: "/buckets/reset" is no entity's buckets.
        paths = sorted(by_path, key=lambda path: path.count("{"))
        routes = [Route(_pattern(path), _Path(self, by_path[path])) for path in paths]
        routes.append(Route("/openapi.json", self._openapi, methods=["GET"]))
        self._app = Starlette(routes=routes, exception_handlers={HTTPException: self._not_routed})
        self._app.router.redirect_slashes = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)

    async def answer(self, endpoint: Endpoint, request: Request) -> Response:
        try:
            return _response(endpoint, await self._run(endpoint, request))
        except (ServiceError, HttpProblem) as error:
            return self.problem(error)
        except HeadgateError as error:
            return self.problem(to_service_error(error))
        except (Cancelled, Gone):
            raise
        except Exception:  # the last line: whatever it is, the client gets no traceback
            log.exception("a request failed in an unforeseen way")
            return self.problem(
                ServiceError(Code.INTERNAL, "the service failed in an unforeseen way")
            )

    async def _run(self, endpoint: Endpoint, request: Request) -> Document:
        scope = request.scope
        head = head_of(scope["headers"])
        caller = await self._caller(endpoint, scope, head)
        query = query_of(scope["query_string"], endpoint.query)
        for name in endpoint.required:
            if name not in query:
                raise invalid(name, "is missing in the query")
        body = await body_of(request.receive, head, BODY_BYTES_MAX)
        values = None
        if endpoint.body is not None:
            must_be_json(head)
            values = values_of(body)
        elif body:
            raise invalid("request", "takes no body here")
        call = RouteCall(self._program, caller, request.path_params, query, values)
        if endpoint.needs is not None:
            self._permit(endpoint, call)
        assert endpoint.handler is not None
        return await endpoint.handler(call)

    async def _caller(self, endpoint: Endpoint, scope: Any, head: dict[bytes, bytes]) -> ApiCaller:
        if endpoint.needs is None or self._is_open(endpoint):
            return DEV_CALLER
        found = await authenticate_request(self._program.authenticator, scope, head)
        if isinstance(found, Refusal):
            raise self._deny(found, endpoint.needs)
        return found

    def _permit(self, endpoint: Endpoint, call: RouteCall) -> None:
        assert endpoint.needs is not None
        refusal = call.caller.refusal_for(endpoint.needs, *endpoint.place(call))
        if refusal is not None:
            raise self._deny(refusal, endpoint.needs)

    def _is_open(self, endpoint: Endpoint) -> bool:
        return endpoint.path == "/metrics" and self._program.options.open_metrics

    def problem(self, error: ServiceError | HttpProblem) -> Response:
        self._program.metrics.count_error(error.code)
        status, body, headers = problem_reply(error)
        if status == 405:
            headers.append(("allow", body["detail"].removeprefix("use ")))
        return Response(_encode(body), status, dict(headers), media_type=PROBLEM_JSON.decode())

    async def _openapi(self, request: Request) -> Response:
        return Response(self._document, media_type="application/json")

    async def _not_routed(self, request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "GET")
            return self.problem(method_not_allowed(allowed))
        return self.problem(no_such_path())


class _Path:
    """The methods of one path, as an ASGI application: so that 405 is said here, with all of
    them."""

    def __init__(self, cold: ColdRoutes, by_method: dict[str, Endpoint]) -> None:
        self._cold = cold
        self._by_method = by_method

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        method = scope["method"]
        endpoint = self._by_method.get("GET" if method == "HEAD" else method)
        if endpoint is None:
            response = self._cold.problem(method_not_allowed(", ".join(sorted(self._by_method))))
        else:
            try:
                response = await self._cold.answer(endpoint, Request(scope, receive))
            except Gone:  # there is nobody to answer; the framework would log a failure
                return
        await response(scope, receive, send)


def _pattern(path: str) -> str:
    """A resource may have slashes in its name, nothing else may."""
    return path.replace("{resource}", "{resource:path}")


def _response(endpoint: Endpoint, found: Document) -> Response:
    if isinstance(found, bytes):
        return Response(found, media_type=CONTENT_TYPE)
    if endpoint.status == 204:
        return Response(status_code=204)
    return Response(_encode(found), endpoint.status, media_type="application/json")
