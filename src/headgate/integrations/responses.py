"""The HTTP answer to a decision: status, header fields, and a problem document for refusals.

The header fields are those of `headgate.core.http_fields`, the problem follows RFC 9457. No answer
contains an entity id, an address or the text of an exception.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from headgate.core.bucket import div_ceil, forecast
from headgate.core.decision import LimitStatus, Verdict
from headgate.core.engine import Decision
from headgate.core.errors import (
    DemandTooLarge,
    DisabledError,
    HeadgateError,
    RateLimiterUnavailable,
    RateLimitExceeded,
)
from headgate.core.http_fields import (
    Headers,
    policy_item,
    retry_fields,
    status_fields,
    status_item,
)
from headgate.core.limits import Limit
from headgate.core.record import cell_of

# --------------------------------------------------------------------------------------------------
# The limits of a decision, as clients see them.


class LimitSummary(NamedTuple):
    """One limit after the decision; amounts in whole tokens.

    `wait_ms` is the time until there is more, or enough for this request if it was refused; None
    if the limit is full or never refills. `window_s` is the time to fill it from empty.
    """

    name: str
    capacity: int
    remaining: int
    window_s: int | None
    wait_ms: int | None
    reset_at_ms: int | None
    exceeded: bool


def summarize(verdict: Verdict) -> list[LimitSummary]:
    """One summary per limit name: the tightest, if several buckets have that limit."""
    found: dict[str, LimitSummary] = {}
    buckets = {demand.key: record for demand, record in zip(verdict.demands, verdict.records)}  # noqa: B905
    for status in verdict.statuses:
        wait_ms, reset_at_ms = status.retry_after_ms or None, None
        for key, record in buckets.items():
            cell = cell_of(record, status.limit_name)
            if cell and (key.entity_id, key.resource) == (status.entity_id, status.resource):
                _, next_ms, reset_at_ms = forecast(
                    cell.tokens_milli, cell.epoch_ms, verdict.now_ms, cell.spec.rate
                )
                wait_ms = status.retry_after_ms if status.exceeded else next_ms
        _keep_tightest(found, limit_summary(status, wait_ms, reset_at_ms))
    return list(found.values())


def summarize_refusal(statuses: Sequence[LimitStatus]) -> list[LimitSummary]:
    """The same from a refusal's statuses alone."""
    found: dict[str, LimitSummary] = {}
    for status in statuses:
        _keep_tightest(found, limit_summary(status, status.retry_after_ms or None, None))
    return list(found.values())


def limit_summary(
    status: LimitStatus, wait_ms: int | None, reset_at_ms: int | None
) -> LimitSummary:
    limit = status.limit
    refused = status.exceeded and not limit.soft
    return LimitSummary(
        status.limit_name, limit.capacity, status.available, window_s(limit), wait_ms, reset_at_ms,
        refused,
    )  # fmt: skip


def window_s(limit: Limit) -> int | None:
    if not limit.refill_amount:
        return None
    return div_ceil(limit.capacity * limit.refill_period_seconds, limit.refill_amount)


def tightest(found: Sequence[LimitSummary]) -> LimitSummary | None:
    """The limit that refuses, else the one with the smallest part of its capacity left."""
    return min(found, key=_left, default=None)


def _keep_tightest(found: dict[str, LimitSummary], one: LimitSummary) -> None:
    twin = found.get(one.name)
    if twin is None or _left(one) < _left(twin):
        found[one.name] = one


def _left(one: LimitSummary) -> tuple[bool, float]:
    return not one.exceeded, one.remaining / one.capacity


QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
PROBLEM_TYPE = "application/problem+json"
STORE_RETRY_MS = 1000


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


def decision_answer(ruling: Decision) -> Answer:
    """The answer to a decision that was made."""
    verdict = ruling.verdict
    found = summarize(verdict)
    headers = _fields(found)
    if ruling.trouble is not None:
        headers.append(("x-ratelimit-degraded", "true"))
    if verdict.allowed:
        return Answer(200, headers)
    return _refusal_answer(found, headers, verdict.retry_after_ms)


def error_answer(error: HeadgateError) -> Answer:
    """The answer when the decision ended in an error. Bugs are raised, and so is a missing
    permission (StoreDenied), because the app's operator has to see it."""
    if isinstance(error, RateLimitExceeded):
        found = summarize_refusal(error.statuses)
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
    raise error


def _refusal_answer(found: Sequence[LimitSummary], headers: Headers, wait_ms: int | None) -> Answer:
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
    return Answer(429, [*headers, *retry_fields(wait_ms)], problem, wait_ms)


def _problem(status: int, name: str, title: str, detail: str) -> dict[str, Any]:
    kind = f"urn:headgate:problem:{name}"
    return {"type": kind, "title": title, "status": status, "detail": detail}


def _fields(found: Sequence[LimitSummary]) -> Headers:
    most_pressing = tightest(found)
    if most_pressing is None:
        return []
    capacity, remaining = most_pressing.capacity, most_pressing.remaining
    headers = status_fields(capacity, remaining, most_pressing.reset_at_ms)
    policies = [policy_item(one.name, one.capacity, one.window_s) for one in found]
    headers.append(("ratelimit-policy", ", ".join(policies)))
    items = [status_item(one.name, one.remaining, one.wait_ms) for one in found]
    headers.append(("ratelimit", ", ".join(items)))
    return headers
