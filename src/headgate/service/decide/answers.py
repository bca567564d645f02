"""What is answered: frozen values, and the JSON documents that say them.

Wires turn the values into headers and messages of their own. A refusal is a problem+json document
and a decision in one, so that both kinds of client find what they look for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from headgate.core.decision import LimitStatus
from headgate.core.history import iso_time_or_none
from headgate.service.decide.problems import Code, ServiceError, problem_body, problem_fields
from headgate.service.decide.targets import LimitConstants


class CheckResult(NamedTuple):
    """The decision on one (scope, identifier) and resource.

    Remaining, capacity and reset are those of the tightest limit; None where no limit applies (an
    operator lets it pass) or none was asked (the store is away). `code` is None where it was
    allowed. `shadowed`: let pass although a policy on trial would have refused. `instance` is where
    the dashboard explains a refusal.
    """

    allowed: bool
    scope: str
    resource: str
    tokens: int
    tokens_remaining: int | None = None
    tokens_capacity: int | None = None
    retry_after_ms: int | None = 0
    reset_at_ms: int | None = None
    limits: tuple[LimitStatus, ...] = ()
    code: Code | None = None
    degraded: bool = False
    degraded_reason: str | None = None
    shadowed: bool = False
    dry_run: bool = False
    instance: str | None = None

    @property
    def http_status(self) -> int:
        return 200 if self.code is None else self.code.http_status


class Admission(NamedTuple):
    """The commonest answer of all: tokens were taken of one limit, and nothing else is to be said.

    It tells what a CheckAnswer would, for a fraction of the cost.
    """

    limit: LimitConstants
    remaining: int
    wait_ms: int
    reset_at_ms: int


class CombinedResult(NamedTuple):
    """The decision on several descriptors, all or none; `results` are in the order asked.

    A result's own `allowed` says whether that descriptor alone had room. `blocking` is the first
    that takes longest to have room, `tightest` the one with the least left of its capacity.
    """

    allowed: bool
    results: tuple[CheckResult, ...]
    blocking: int | None = None
    tightest: int | None = None
    retry_after_ms: int | None = 0
    code: Code | None = None
    degraded: bool = False
    degraded_reason: str | None = None
    dry_run: bool = False

    @property
    def http_status(self) -> int:
        return 200 if self.code is None else self.code.http_status

    @property
    def foremost(self) -> CheckResult:
        """The result a caller should look at: what blocks, else what is tightest."""
        place = self.tightest if self.blocking is None else self.blocking
        return self.results[place or 0]


class BatchAnswer(NamedTuple):
    """One result per request, in the order asked: an answer, or the problem it met."""

    results: tuple[CheckResult | ServiceError, ...]


class LeaseState(StrEnum):
    OPEN = "open"
    SETTLED = "settled"
    RELEASED = "released"


class LeaseResult(NamedTuple):
    """A lease as it stands; `held` in whole tokens by limit name."""

    lease_id: str
    state: LeaseState
    expires_at_ms: int
    held: Mapping[str, int]
    degraded: bool = False


class AcquireResult(NamedTuple):
    """The decision, and the lease where it was allowed."""

    check: CheckResult
    lease: LeaseResult | None


class HealthState(StrEnum):
    HEALTHY = "HEALTHY"
    DEGRADED = "DEGRADED"
    UNHEALTHY = "UNHEALTHY"


class HealthResult(NamedTuple):
    """`ready` is whether to send traffic here: the store answers or the service fails open."""

    status: HealthState
    ready: bool
    store_available: bool
    breaker: str
    policies_trouble: str | None
    leases: int


def tightest_of(limits: Sequence[LimitStatus]) -> LimitStatus | None:
    """The limit with the least left of its capacity; one on trial only where there is no other."""
    if len(limits) == 1:
        return limits[0]
    return min(limits, key=lambda one: (one.limit.soft, one.fraction_left), default=None)


# --------------------------------------------------------------------------------------------------
# As JSON; the same for every wire that speaks it.

DEGRADED_WARNING = "the store gave no answer: admitted within this process's own bounds"


def check_body(answer: CheckResult) -> dict[str, Any]:
    body = {**_decision(answer, answer), "degraded": answer.degraded}
    if answer.shadowed:
        body["shadowed"] = True
    return _with_circumstances(body, answer, answer.instance, violated(answer))


def combined_body(answer: CombinedResult) -> dict[str, Any]:
    foremost = answer.foremost
    body = {
        **_decision(answer, foremost),
        "degraded": answer.degraded,
        "results": [_result(result) for result in answer.results],
        "blocking": _named(answer, answer.blocking),
        "most_restrictive": _named(answer, answer.tightest),
    }
    names = dict.fromkeys(name for result in answer.results for name in violated(result))
    return _with_circumstances(body, answer, foremost.instance, list(names))


def lease_body(answer: LeaseResult) -> dict[str, Any]:
    return {
        "lease_id": answer.lease_id,
        "state": answer.state.value,
        "expires_at": iso_time_or_none(answer.expires_at_ms),
        "held": dict(answer.held),
        "degraded": answer.degraded,
    }


def acquire_body(answer: AcquireResult) -> dict[str, Any]:
    body = check_body(answer.check)
    return body if answer.lease is None else {**body, **lease_body(answer.lease)}


def health_body(answer: HealthResult) -> dict[str, Any]:
    return {
        "status": answer.status.value,
        "ready": answer.ready,
        "storage_available": answer.store_available,
        "circuit_breaker": answer.breaker,
        # Anybody may ask this, and a policy file may hold a password: no word of it is repeated.
        "policies": "ok" if answer.policies_trouble is None else "broken",
        "leases": answer.leases,
    }


def violated(answer: CheckResult) -> list[str]:
    return [limit.limit_name for limit in answer.limits if limit.refuses]


def message_of(code: Code, retry_after_ms: int | None) -> str:
    """One sentence for people: what happened and what to do."""
    if code is Code.STORAGE_UNAVAILABLE:
        return "The store gives no answer and the service fails closed; try again."
    if retry_after_ms is None:
        return "A limit is used up and never refills; have it raised or topped up."
    return f"A rate limit is exceeded; try again in {retry_after_ms / 1000:g} s."


def _decision(answer: CheckResult | CombinedResult, tightest: CheckResult) -> dict[str, Any]:
    return {
        "allowed": answer.allowed,
        "tokens_remaining": tightest.tokens_remaining,
        "tokens_capacity": tightest.tokens_capacity,
        "reset_at": iso_time_or_none(tightest.reset_at_ms),
    }


def _with_circumstances(
    body: dict[str, Any],
    answer: CheckResult | CombinedResult,
    instance: str | None,
    violations: list[str],
) -> dict[str, Any]:
    """The body with what only some answers say: a dry run, a store that is away, a refusal."""
    if answer.dry_run:
        body["dry_run"] = True
    if answer.degraded:
        body["degraded_reason"] = answer.degraded_reason
        if answer.allowed:
            body["warning"] = DEGRADED_WARNING
    code, wait_ms = answer.code, answer.retry_after_ms
    if code is None:
        return body
    message = message_of(code, wait_ms)
    body["retry_after_seconds"] = None if wait_ms is None else wait_ms / 1000
    body["error"] = {"code": code.value, "message": message}
    body |= {**problem_fields(code), "detail": message}
    if code is Code.RATE_LIMIT_EXCEEDED:
        body["violated-policies"] = violations
    if instance is not None:
        body["instance"] = instance
    return body


def _result(answer: CheckResult) -> dict[str, Any]:
    found = {"scope": answer.scope, "resource": answer.resource, **_decision(answer, answer)}
    if not answer.allowed:
        wait_ms = answer.retry_after_ms
        found["retry_after_seconds"] = None if wait_ms is None else wait_ms / 1000
    if answer.shadowed:
        found["shadowed"] = True
    return found


def batch_item(result: CheckResult | ServiceError) -> dict[str, Any]:
    """Each item carries the status it would have had alone."""
    if isinstance(result, ServiceError):
        error = {"code": result.code.value, "message": result.detail}
        return {"allowed": False, **problem_body(result), "error": error}
    return {"status": result.http_status, **check_body(result)}


def _named(answer: CombinedResult, index: int | None) -> dict[str, str] | None:
    if index is None:
        return None
    result = answer.results[index]
    return {"scope": result.scope, "resource": result.resource}
