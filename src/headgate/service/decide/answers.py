"""What is answered: from a decision to an answer, a frozen value, and to the JSON that says it.

Wires turn the values into headers and messages of their own. A refusal is a problem+json document
and a decision in one, so that both kinds of client find what they look for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple
from urllib.parse import urlencode

from headgate.core.decision import Demand, LimitStatus, Verdict
from headgate.core.errors import (
    Contended,
    Damaged,
    Full,
    StoreTrouble,
    Throttled,
    Unreachable,
    wait_text,
)
from headgate.core.history import iso_time_or_none
from headgate.core.record import Record
from headgate.layers.breaker import BreakerOpen
from headgate.layers.layer import ShadowVerdict
from headgate.service.decide.problems import Code, ServiceError, problem_body, problem_fields
from headgate.service.decide.rules import LimitConstants, Rule, Target


class CheckResult(NamedTuple):
    """The decision on one (scope, identifier) and resource.

    Remaining, capacity and reset are those of the tightest limit; None where no limit applies (an
    operator lets it pass) or none was asked (the store is away). `code` is None where it was
    allowed. `shadowed`: let pass although a policy on trial would have refused. `instance` is where
    the dashboard explains a refusal. `entity` is there where a request named the entity by its id.
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
    entity: str | None = None

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


class CombinedAdmission(NamedTuple):
    """The same of several descriptors: their limits, and the buckets as the admission left them.
    Tokens were taken of each, so none is full, and none in debt."""

    limits: Sequence[LimitConstants]
    records: Sequence[Record]
    now_ms: int
    targets: Sequence[Target]


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


class AdmissionWithLease(NamedTuple):
    """The same where there is nothing but a yes to be said of the decision."""

    check: Admission
    lease: LeaseResult


class ChargeResult(NamedTuple):
    """How the limits stand after a charge; refused where it had to fit and did not.

    `charged` is False where nothing was taken: it was refused, or had come before with the same
    idempotency key, or an operator lets the entity pass.
    `wait_ms` is the time until there is something again, 0 where there is.
    """

    answer: CheckResult | CombinedResult
    mode: str
    charged: bool
    wait_ms: int | None


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
# One decision as an answer.

# The most telling kind first: a BreakerOpen is an Unreachable, and Full is Contended.
_REASONS: tuple[tuple[type[StoreTrouble], str], ...] = (
    (BreakerOpen, "breaker_open"),
    (Throttled, "store_throttled"),
    (Unreachable, "store_unreachable"),
    (Full, "store_full"),
    (Contended, "store_busy"),
    (Damaged, "record_damaged"),
)


def reason_for(trouble: object) -> str:
    """A fixed code for why the store did not decide."""
    for kind, reason in _REASONS:
        if isinstance(trouble, kind):
            return reason
    return "store_trouble"


def check_result(
    verdict: Verdict,
    part: Sequence[Demand],
    rule: Rule | None,
    asked: tuple[str, str, int],
    trouble: StoreTrouble | None = None,
    dry_run: bool = False,
) -> CheckResult:
    """The answer to one part of a request, asked as (scope, resource, tokens)."""
    seen = verdict.refusal if isinstance(verdict, ShadowVerdict) else verdict
    limits = _limits(seen, part, rule)
    tightest = tightest_of(limits)
    retry_after_ms: int | None = 0
    blocked = shadowed = False
    for limit in limits:
        if limit.exceeded:
            if limit.limit.soft or seen is not verdict:
                shadowed = True
                continue
            blocked = True
            if limit.retry_after_ms is None:
                retry_after_ms = None
            elif retry_after_ms is not None and limit.retry_after_ms > retry_after_ms:
                retry_after_ms = limit.retry_after_ms
    if not verdict.allowed and len(verdict.demands) <= len(part):
        blocked = True  # a part that is the whole request is refused with it, whatever was read
    scope, resource, tokens = asked
    degraded = trouble is not None
    return CheckResult(
        not blocked,
        scope,
        resource,
        tokens,
        None if tightest is None else tightest.available,
        None if tightest is None else tightest.limit.capacity,
        retry_after_ms,
        None if tightest is None else tightest.reset_at_ms,
        limits,
        Code.RATE_LIMIT_EXCEEDED if blocked else None,
        degraded,
        reason_for(trouble) if degraded else None,
        shadowed,
        dry_run,
    )


def _limits(verdict: Verdict, part: Sequence[Demand], rule: Rule | None) -> tuple[LimitStatus, ...]:
    """The limits that one part of the request asked of its buckets, by the names a policy gave."""
    if not part:
        return ()
    found = verdict.statuses
    if len(verdict.demands) > 1:
        wanted = {(demand.key.entity_id, demand.key.resource) for demand in part}
        found = [one for one in found if (one.entity_id, one.resource) in wanted]
    if rule is not None:  # _make takes half of the time of _replace
        found = [
            LimitStatus._make((*one[:2], rule.label(one.limit_name), *one[3:]))
            if one.source == "limiter"
            else one
            for one in found
        ]
    return tuple(found)


# --------------------------------------------------------------------------------------------------
# Several descriptors in one request: what their results come to.


def combine(results: Sequence[CheckResult]) -> CombinedResult:
    """All results together; a code on any refuses the whole."""
    first = results[0]
    blocking: int | None = None
    tightest: int | None = None
    longest = least = 0.0
    for index, one in enumerate(results):
        if one.code is not None:
            wait_ms = float("inf") if one.retry_after_ms is None else one.retry_after_ms
            if blocking is None or wait_ms > longest:
                blocking, longest = index, wait_ms
        if one.tokens_capacity:
            left = (one.tokens_remaining or 0) / one.tokens_capacity
            if tightest is None or left < least:
                tightest, least = index, left
    code: Code | None = None if blocking is None else results[blocking].code
    return CombinedResult(
        blocking is None,
        tuple(results),
        None if code is Code.STORAGE_UNAVAILABLE else blocking,
        tightest,
        0 if blocking is None else results[blocking].retry_after_ms,
        code,
        first.degraded,
        first.degraded_reason,
        first.dry_run,
    )


def with_explain_link(answer: CheckResult, namespace: str, identifier: str) -> CheckResult:
    """The answer with the page that explains it, as seen from the service's root, where a limit
    refused it."""
    if answer.code is not Code.RATE_LIMIT_EXCEEDED:
        return answer
    asked = {"namespace": namespace, "scope": answer.scope, "identifier": identifier,
             "resource": answer.resource}  # fmt: skip
    if answer.entity is not None:
        asked = {"namespace": namespace, "entity": answer.entity, "resource": answer.resource}
    return answer._replace(instance=f"/ui/explain?{urlencode(asked)}")


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
        "blocking": _descriptor_name(answer, answer.blocking),
        "most_restrictive": _descriptor_name(answer, answer.tightest),
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


def charge_body(answer: ChargeResult) -> dict[str, Any]:
    found, wait_ms = answer.answer, answer.wait_ms
    body = check_body(found) if isinstance(found, CheckResult) else combined_body(found)
    wait_s = None if wait_ms is None else wait_ms / 1000
    return {
        **body, "mode": answer.mode, "charged": answer.charged, "retry_after_seconds": wait_s,
    }  # fmt: skip


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


def message_of(answer: CheckResult | CombinedResult) -> str:
    """One sentence for people on a refusal: what happened and what to do."""
    wait_ms = answer.retry_after_ms
    if answer.code is Code.STORAGE_UNAVAILABLE:
        return "The store gives no answer and the service fails closed; try again."
    if wait_ms is None:
        return "A limit is used up and never refills; have it raised or topped up."
    foremost = answer if isinstance(answer, CheckResult) else answer.foremost
    return f"A rate limit is exceeded; try again in {wait_text(wait_ms, foremost.limits)}."


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
    message = message_of(answer)
    body["retry_after_seconds"] = None if wait_ms is None else wait_ms / 1000
    body["error"] = {"code": code.value, "message": message}
    body |= {**problem_fields(code), "detail": message}
    if code is Code.RATE_LIMIT_EXCEEDED:
        body["violated-policies"] = violations
    if instance is not None:
        body["instance"] = instance
    return body


def _result(answer: CheckResult) -> dict[str, Any]:
    found = {**_place(answer), **_decision(answer, answer)}
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


def _descriptor_name(answer: CombinedResult, index: int | None) -> dict[str, Any] | None:
    return None if index is None else _place(answer.results[index])


def _place(answer: CheckResult) -> dict[str, Any]:
    """What was asked about: an entity of no scope has none to tell."""
    place: dict[str, Any] = {"scope": answer.scope or None, "resource": answer.resource}
    return place if answer.entity is None else {**place, "entity": answer.entity}
