"""Answers that only HTTP has, and how any problem becomes a response."""

from __future__ import annotations

from typing import Any, Self

from headgate.core.errors import HeadgateError
from headgate.service.decide.problems import (
    Code,
    ServiceError,
    not_found,
    problem_body,
    storage_denied,
)
from headgate.service.http.write__headers import problem_headers
from headgate.service.keys.access import Refusal
from headgate.service.keys.key import Scope

PROBLEM_JSON = b"application/problem+json"
RETRY_MS = 1000

_OWN = {
    "too many headers": (431, "TOO_MANY_HEADERS", "There are too many header fields"),
    "head too large": (431, "HEAD_TOO_LARGE", "The header fields are too large"),
    "malformed": (400, "MALFORMED_REQUEST", "This is no request of HTTP/1.1"),
    "no host": (400, "HOST_MISSING", "A request of HTTP/1.1 needs the header field Host"),
    "request timeout": (408, "REQUEST_TIMEOUT", "The request did not arrive in time"),
}


class HttpProblem(HeadgateError):
    """A problem of HTTP itself, which no other wire can have."""

    def __init__(self, status: int, code: str, title: str) -> None:
        self.status = status
        self.code = code
        self.title = title
        super().__init__(title)

    @classmethod
    def of(cls, name: str) -> Self:
        return cls(*_OWN[name])


def said_of(error: ServiceError | HttpProblem) -> tuple[int, dict[str, Any], list[Any]]:
    """Status, document and header fields of a problem."""
    if isinstance(error, HttpProblem):
        name = error.code.lower().replace("_", "-")
        body = {
            "type": f"urn:headgate:problem:{name}",
            "title": error.title,
            "status": error.status,
            "detail": error.title,
            "code": error.code,
        }
        return error.status, body, []
    headers: list[Any] = list(problem_headers(error))
    if error.code is Code.UNAUTHENTICATED:
        headers.append(("www-authenticate", 'Bearer realm="headgate"'))
    return error.problem.http_status, problem_body(error), headers


def of_refusal(refusal: Refusal, need: Scope | None = None) -> ServiceError:
    """What a caller who was turned away is told."""
    code = Code(refusal.code)
    if code is Code.NOT_FOUND:
        return not_found()
    if code is Code.FORBIDDEN:
        return ServiceError(code, f"the key needs the scope '{need}' for this")
    if code is Code.STORAGE_UNAVAILABLE:
        return ServiceError(
            code, "keys cannot be looked up now; try again", retry_after_ms=RETRY_MS
        )
    if code is Code.STORAGE_DENIED:
        return storage_denied()
    return ServiceError(code, "send a key as 'authorization: Bearer hg_…' or 'x-api-key: hg_…'")


def method_not_allowed(allowed: str) -> ServiceError:
    return ServiceError(Code.METHOD_NOT_ALLOWED, f"use {allowed}")


def nothing_here() -> ServiceError:
    return ServiceError(Code.NOT_FOUND, "there is nothing at this path; see /openapi.json")
