"""Answers that only HTTP has, and how any problem becomes a response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from headgate.core.decision import LimitStatus
from headgate.core.errors import HeadgateError
from headgate.core.http_fields import (
    Headers,
    limit_fields,
    retry_fields,
    status_fields,
)
from headgate.service.decide.answers import CheckResult, CombinedResult, tightest_of
from headgate.service.decide.problems import (
    Code,
    ServiceError,
    not_found,
    problem_body,
    storage_denied,
)
from headgate.service.keys.access import Refusal
from headgate.service.keys.key import KeyScope

# --------------------------------------------------------------------------------------------------
# From an answer to HTTP header fields, in lower case as HTTP/2, ASGI and gRPC want them.

__all__ = ["Headers", "check_headers", "combined_headers", "problem_headers"]


def check_headers(answer: CheckResult) -> Headers:
    return _headers(answer, answer.limits, answer.retry_after_ms, answer.code is not None)


def combined_headers(answer: CombinedResult) -> Headers:
    limits = [limit for result in answer.results for limit in result.limits]
    found = _headers(answer.foremost, limits, answer.retry_after_ms, answer.code is not None)
    if answer.blocking is not None:
        blocking = answer.results[answer.blocking]
        found.append(("x-ratelimit-blocking-scope", blocking.scope))
        found.append(("x-ratelimit-blocking-resource", blocking.resource))
    return found


def problem_headers(error: ServiceError) -> Headers:
    return retry_fields(error.retry_after_ms)


def _headers(
    answer: CheckResult, limits: Sequence[LimitStatus], retry_after_ms: int | None, refused: bool
) -> Headers:
    found: Headers = []
    if answer.tokens_capacity is not None:
        left = answer.tokens_remaining or 0
        found += status_fields(answer.tokens_capacity, left, answer.reset_at_ms)
    if limits:
        told = limits if len(limits) == 1 else _once_each(limits)
        found += limit_fields(told)
    if answer.degraded:
        found.append(("x-ratelimit-degraded", "true"))
        if answer.degraded_reason is not None:
            found.append(("x-ratelimit-degraded-reason", answer.degraded_reason))
    if refused:
        found += retry_fields(retry_after_ms)
    return found


def _once_each(limits: Sequence[LimitStatus]) -> list[LimitStatus]:
    """A name stands for one policy: of limits that share it, the tightest is told."""
    found: dict[str, LimitStatus] = {}
    for limit in limits:
        twin = found.setdefault(limit.limit_name, limit)
        found[limit.limit_name] = tightest_of((twin, limit)) or limit
    return list(found.values())


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


def problem_reply(error: ServiceError | HttpProblem) -> tuple[int, dict[str, Any], list[Any]]:
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


def refusal_error(refusal: Refusal, need: KeyScope | None = None) -> ServiceError:
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


def no_such_path() -> ServiceError:
    return ServiceError(Code.NOT_FOUND, "there is nothing at this path; see /openapi.json")
