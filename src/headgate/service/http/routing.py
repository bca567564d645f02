"""The routes of operators: finds the endpoint, lets the caller in, and runs its handler."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

from headgate.service.decide.problems import ServiceError, invalid
from headgate.service.http.calls import Document, Endpoint, RouteCall
from headgate.service.http.openapi import document
from headgate.service.http.read import (
    BODY_BYTES_MAX,
    Head,
    authenticate_request,
    body_of,
    head_of,
    must_be_json,
    query_of,
    values_of,
)
from headgate.service.http.routes import COLD, DOCUMENT, NS
from headgate.service.http.write import (
    NO_HEADERS,
    Reply,
    encode_content,
    method_not_allowed,
    no_such_path,
)
from headgate.service.keys.access import DEV_CALLER, ApiCaller, Refusal
from headgate.service.keys.key import KeyScope
from headgate.service.metrics.registry import CONTENT_TYPE
from headgate.service.program import Program

OnDenied = Callable[[Refusal, KeyScope | None], ServiceError]

_METRICS = (b"content-type", CONTENT_TYPE.encode())


class ColdRoutes:
    """Everything that is asked seldom."""

    def __init__(self, program: Program, on_denied: OnDenied) -> None:
        self._program = program
        self._deny = on_denied

    async def reply(self, scope: Any, receive: Any) -> Reply:
        """The answer; ServiceError where there is no such path, or the caller may not."""
        endpoint, path = find_endpoint(scope["path"], scope["method"])
        if endpoint is DOCUMENT:
            return 200, encode_content(_document()), NO_HEADERS
        head = head_of(scope["headers"])
        caller = await self._caller(endpoint, scope, head)
        query = query_of(scope["query_string"], endpoint.query)
        for name in endpoint.required:
            if name not in query:
                raise invalid(name, "is missing in the query")
        body = await body_of(receive, head, BODY_BYTES_MAX)
        values = None
        if endpoint.body is not None:
            must_be_json(head)
            values = values_of(body)
        elif body:
            raise invalid("request", "takes no body here")
        call = RouteCall(self._program, caller, path, query, values)
        if endpoint.needs is not None:
            refusal = caller.refusal_for(endpoint.needs, *endpoint.place(call))
            if refusal is not None:
                raise self._deny(refusal, endpoint.needs)
        if endpoint.path.startswith(f"{NS}/"):
            call = call._replace(inside=await call.service.namespace(path["namespace"]))
        assert endpoint.handler is not None
        return _reply(endpoint.status, await endpoint.handler(call))

    async def _caller(self, endpoint: Endpoint, scope: Any, head: Head) -> ApiCaller:
        is_open = endpoint.path == "/metrics" and self._program.options.open_metrics
        if endpoint.needs is None or is_open:
            return DEV_CALLER
        found = await authenticate_request(self._program.authenticator, scope, head)
        if isinstance(found, Refusal):
            raise self._deny(found, endpoint.needs)
        return found


def _by_pattern() -> list[tuple[re.Pattern[str], dict[str, Endpoint]]]:
    """The endpoints by method, with the pattern of their path. What is fixed goes before what is
    not: "/buckets/reset" is no entity's buckets. A resource may have slashes in its name."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for one in (*COLD, DOCUMENT):
        by_path.setdefault(one.path, {})[one.method] = one
    found = []
    for path in sorted(by_path, key=lambda path: path.count("{")):
        named = path.replace(".", r"\.").replace("{resource}", "(?P<resource>.*)")
        pattern = re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", named))
        found.append((pattern, by_path[path]))
    return found


PATTERNS = _by_pattern()


def find_endpoint(path: str, method: str) -> tuple[Endpoint, dict[str, str]]:
    """The endpoint, and what the path says in place of its names; ServiceError where there is none
    for them."""
    for pattern, by_method in PATTERNS:
        found = pattern.fullmatch(path)
        if found is not None:
            endpoint = by_method.get("GET" if method == "HEAD" else method)
            if endpoint is None:
                raise method_not_allowed(", ".join(sorted(by_method)))
            return endpoint, found.groupdict()
    raise no_such_path()


@cache
def _document() -> bytes:
    return msgspec.json.encode(document())


def _reply(status: int, found: Document) -> Reply:
    if isinstance(found, bytes):
        return status, encode_content(found, _METRICS), NO_HEADERS
    content = (b"", []) if found is None else encode_content(msgspec.json.encode(found))
    return status, content, NO_HEADERS
