"""From a decision of the engine to an answer: what is tightest, what blocks, what a caller is told.

Most requests are plain admissions of one limit: those are read straight from the record. All others
go by the statuses of the verdict.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.core.bucket import MILLI
from headgate.core.decision import Demand, LimitStatus, Verdict
from headgate.core.errors import (
    Contended,
    Damaged,
    Full,
    RateLimiterUnavailable,
    RateLimitExceeded,
    StoreTrouble,
    Throttled,
    Unreachable,
)
from headgate.core.history import TIME_MS_MAX
from headgate.core.record import TERMS
from headgate.layers.breaker import BreakerOpen
from headgate.layers.layer import ShadowVerdict
from headgate.service.decide.answers import Admission, CheckResult, tightest_of
from headgate.service.decide.problems import STORE_RETRY_MS, Code
from headgate.service.decide.rules import Rule
from headgate.service.decide.targets import Target

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


def plain_admission(verdict: Verdict, target: Target) -> Admission | None:
    """The answer where there is nothing but a yes to tell; None where `read` has to look closer."""
    demands = verdict.demands
    if not verdict.allowed or len(demands) != 1:  # one that was let pass has no demands
        return None
    record = verdict.records[0]
    terms = record[TERMS]
    frame = target.frame
    if frame is None or frame.terms is not terms:
        frame = target.frame_for(terms)
    if frame is None or terms.core is not demands[0].terms:
        return None
    _, _, _, epoch_ms, tokens, _, _ = record  # a frame is of one limit
    now_ms, period_ms, amount = verdict.now_ms, frame.period_ms, frame.amount_milli
    capacity = frame.capacity_milli
    level = tokens + (now_ms - epoch_ms) * amount // period_ms
    reset_ms = epoch_ms - (tokens - capacity) * period_ms // amount
    if level >= capacity or not 0 <= reset_ms <= TIME_MS_MAX:
        return None
    whole = level // MILLI
    wait_ms = epoch_ms - now_ms - (tokens - MILLI - whole * MILLI) * period_ms // amount
    return tuple.__new__(
        Admission, (frame, whole, wait_ms, reset_ms)
    )  # a third of what Yes(…) takes


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


def throttled_result(
    error: RateLimitExceeded, asked: tuple[str, str, int], dry_run: bool
) -> CheckResult:
    """A store's own speed limit on a key: refused, and how much is left is not known."""
    return CheckResult(
        False,
        *asked,
        retry_after_ms=error.retry_after_ms,
        code=Code.RATE_LIMIT_EXCEEDED,
        dry_run=dry_run,
    )


def unavailable_result(
    error: RateLimiterUnavailable, asked: tuple[str, str, int], dry_run: bool
) -> CheckResult:
    """The store is away and the service fails closed."""
    cause = error.cause
    wait_ms = cause.retry_in_ms if isinstance(cause, BreakerOpen) else 0
    return CheckResult(
        False,
        *asked,
        retry_after_ms=wait_ms or STORE_RETRY_MS,
        code=Code.STORAGE_UNAVAILABLE,
        degraded=True,
        degraded_reason=reason_for(cause),
        dry_run=dry_run,
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
