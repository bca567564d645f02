"""From a decision to what an HTTP client is told: status, header fields, a problem document.

`RateLimit` and `RateLimit-Policy` follow draft-ietf-httpapi-ratelimit-headers-11, the problem
RFC 9457. Nothing here tells a caller an entity id, an address or an exception's text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from headgate.bucket import div_ceil
from headgate.engine import Ruling
from headgate.errors import (
    DemandTooLarge,
    DisabledError,
    HeadgateError,
    RateLimiterUnavailable,
    RateLimitExceeded,
)
from headgate.integrations.standing import Standing, standings, standings_of_refusal, tightest

Headers = list[tuple[str, str]]

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
PROBLEM_TYPE = "application/problem+json"
STORE_RETRY_MS = 1000
SF_INTEGER_MAX = 999_999_999_999_999


class Answer(NamedTuple):
    """What to tell the caller; `status` is 200 where the request may go on."""

    status: int
    headers: Headers
    problem: dict[str, Any] | None = None
    retry_after_ms: int | None = None

    @property
    def allowed(self) -> bool:
        return self.problem is None

    @property
    def body(self) -> bytes:
        return json.dumps(self.problem).encode()

    @property
    def detail(self) -> str:
        return "" if self.problem is None else str(self.problem["detail"])

    @property
    def refusal_headers(self) -> Headers:
        """The headers of a response that consists of the problem alone."""
        return [*self.headers, ("content-type", PROBLEM_TYPE), ("cache-control", "no-store")]


OFF = Answer(200, [])


def ruled(ruling: Ruling) -> Answer:
    """The answer to a decision that was made."""
    verdict = ruling.verdict
    found = standings(verdict)
    headers = _fields(found)
    if ruling.trouble is not None:
        headers.append(("x-ratelimit-degraded", "true"))
    if verdict.allowed:
        return Answer(200, headers)
    return _refused(found, headers, verdict.retry_after_ms)


def failed(error: HeadgateError) -> Answer:
    """The answer to a decision that could not be made as usual; what is a bug is raised."""
    if isinstance(error, RateLimitExceeded):
        found = standings_of_refusal(error.statuses)
        return _refused(found, _fields(found), error.retry_after_ms)
    if isinstance(error, RateLimiterUnavailable):
        headers = [("x-ratelimit-degraded", "true"), *_retry(STORE_RETRY_MS)]
        problem = _problem(
            503, "storage-unavailable", "The limit cannot be checked now", "Try again in a second."
        )
        return Answer(503, headers, problem, STORE_RETRY_MS)
    if isinstance(error, DisabledError):
        detail = "Waiting does not help; ask the operator."
        return Answer(403, [], _problem(403, "disabled", "An operator switched this off", detail))
    if isinstance(error, DemandTooLarge):
        title = "No wait will ever admit this much at once"
        detail = f"{error.requested} asked, at most {error.capacity} are allowed at a time."
        return Answer(422, [], _problem(422, "demand-too-large", title, detail))
    raise error


def _refused(found: Sequence[Standing], headers: Headers, wait_ms: int | None) -> Answer:
    detail = (
        "The limit is used up and never refills; have it raised or topped up."
        if wait_ms is None
        else f"Try again in {wait_ms / 1000:g} s."
    )
    problem = {
        "type": QUOTA_EXCEEDED,
        "title": "A rate limit is exceeded",
        "status": 429,
        "detail": detail,
        "violated-policies": [one.name for one in found if one.exceeded],
        "retry_after_seconds": None if wait_ms is None else wait_ms / 1000,
    }
    return Answer(429, [*headers, *_retry(wait_ms)], problem, wait_ms)


def _problem(status: int, name: str, title: str, detail: str) -> dict[str, Any]:
    kind = f"urn:headgate:problem:{name}"
    return {"type": kind, "title": title, "status": status, "detail": detail}


def _fields(found: Sequence[Standing]) -> Headers:
    most_pressing = tightest(found)
    if most_pressing is None:
        return []
    headers = [
        ("x-ratelimit-limit", str(most_pressing.capacity)),
        ("x-ratelimit-remaining", str(max(0, most_pressing.remaining))),
    ]
    if most_pressing.reset_at_ms is not None:
        headers.append(("x-ratelimit-reset", str(div_ceil(most_pressing.reset_at_ms, 1000))))
    headers.append(("ratelimit-policy", ", ".join(_policy(one) for one in found)))
    headers.append(("ratelimit", ", ".join(_left(one) for one in found)))
    return headers


def _retry(wait_ms: int | None) -> Headers:
    """Whole seconds, never early: rounded up, at least 1; and the exact wait for who can use it."""
    if wait_ms is None:
        return []
    return [("retry-after", str(max(1, div_ceil(wait_ms, 1000)))), ("retry-after-ms", str(wait_ms))]


def _policy(one: Standing) -> str:
    item = f'"{one.name}";q={min(one.capacity, SF_INTEGER_MAX)}'
    return item if one.window_s is None else f"{item};w={min(one.window_s, SF_INTEGER_MAX)}"


def _left(one: Standing) -> str:
    item = f'"{one.name}";r={min(max(0, one.remaining), SF_INTEGER_MAX)}'
    return item if one.wait_ms is None else f"{item};t={div_ceil(one.wait_ms, 1000)}"
