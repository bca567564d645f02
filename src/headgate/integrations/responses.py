"""The HTTP answer to a decision: status, header fields, and a problem document for refusals.

The header fields are those of `headgate.core.http_fields`, the problem follows RFC 9457. No answer
contains an entity id, an address or the text of an exception.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from headgate.core.decision import LimitStatus
from headgate.core.engine import Decision
from headgate.core.errors import (
    DemandTooLarge,
    DisabledError,
    HeadgateError,
    NoLimitsError,
    RateLimiterUnavailable,
    RateLimitExceeded,
    wait_text,
)
from headgate.core.http_fields import Headers, limit_fields, retry_fields, status_fields


def _once_each(statuses: Sequence[LimitStatus]) -> list[LimitStatus]:
    """One for each limit name, the most pressing where several buckets share it."""
    found: dict[str, LimitStatus] = {}
    for one in statuses:
        twin = found.setdefault(one.limit_name, one)
        found[one.limit_name] = min(twin, one, key=_pressure)
    return list(found.values())


def _pressure(one: LimitStatus) -> tuple[bool, float]:
    """What refuses comes first, then the least left of its capacity."""
    return not one.refuses, one.fraction_left


QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
PROBLEM_TYPE = "application/problem+json"
STORE_RETRY_MS = 1000

_log = logging.getLogger("headgate")


class Answer(NamedTuple):
    """The answer to a request; `status` is 200 if it may go on."""

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


def decision_answer(decision: Decision) -> Answer:
    """The answer to a decision that was made."""
    verdict = decision.verdict
    found = _once_each(verdict.statuses)
    headers = _fields(found)
    if decision.trouble is not None:
        headers.append(("x-ratelimit-degraded", "true"))
    if verdict.allowed:
        return Answer(200, headers)
    return _refusal_answer(found, headers, verdict.retry_after_ms)


def error_answer(error: HeadgateError) -> Answer:
    """The answer when the decision ended in an error. Bugs are raised, and so is a missing
    permission (StoreDenied), because the app's operator has to see it. Missing limits are theirs to
    see too: the log names the entity, the client learns no more than that the server is at fault.
    """
    if isinstance(error, RateLimitExceeded):
        found = _once_each(error.statuses)
        return _refusal_answer(found, _fields(found), error.retry_after_ms)
    if isinstance(error, RateLimiterUnavailable):
        headers = [("x-ratelimit-degraded", "true"), *retry_fields(STORE_RETRY_MS)]
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
    if isinstance(error, NoLimitsError):
        _log.error("a request was refused, because %s", error)
        detail = "The operator of this server has to set some; its log says for whom."
        problem = _problem(500, "no-limits", "No limits are configured for this request", detail)
        return Answer(500, [], problem)
    raise error


def _refusal_answer(found: Sequence[LimitStatus], headers: Headers, wait_ms: int | None) -> Answer:
    detail = (
        "The limit is used up and never refills; have it raised or topped up."
        if wait_ms is None
        else f"Try again in {wait_text(wait_ms, found)}."
    )
    problem = {
        "type": QUOTA_EXCEEDED,
        "title": "A rate limit is exceeded",
        "status": 429,
        "detail": detail,
        "violated-policies": [one.limit_name for one in found if one.refuses],
        "retry_after_seconds": None if wait_ms is None else wait_ms / 1000,
    }
    return Answer(429, [*headers, *retry_fields(wait_ms)], problem, wait_ms)


def _problem(status: int, name: str, title: str, detail: str) -> dict[str, Any]:
    kind = f"urn:headgate:problem:{name}"
    return {"type": kind, "title": title, "status": status, "detail": detail}


def _fields(found: Sequence[LimitStatus]) -> Headers:
    if not found:
        return []
    first = min(found, key=_pressure)
    return [
        *status_fields(first.limit.capacity, first.available, first.reset_at_ms),
        *limit_fields(found),
    ]
