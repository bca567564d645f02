"""From a ruling of the engine to an answer: how each limit stands, what is tightest, what blocks.

This runs for every request, so it reads the records of a verdict directly, with the arithmetic of
`headgate.core.bucket`, and makes nothing that no wire will show.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.core.bucket import MILLI, calculate_retry_after, forecast
from headgate.core.decision import Demand, Verdict
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
from headgate.core.limits import Spec
from headgate.core.record import CELLS, STRIDE, TERMS, TOKENS
from headgate.layers.breaker import BreakerOpen
from headgate.layers.layer import ShadowVerdict
from headgate.service.decide.answers import Admission, AppliedLimit, CheckResult, tightest_of
from headgate.service.decide.bodies import TIME_MS_MAX
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
            if limit.soft or seen is not verdict:
                shadowed = True
                continue
            blocked = True
            if limit.wait_ms is None:
                retry_after_ms = None
            elif retry_after_ms is not None and limit.wait_ms > retry_after_ms:
                retry_after_ms = limit.wait_ms
    if not verdict.allowed and len(verdict.demands) <= len(part):
        blocked = True  # a part that is the whole request is refused with it, whatever was read
    scope, resource, tokens = asked
    degraded = trouble is not None
    return CheckResult(
        not blocked,
        scope,
        resource,
        tokens,
        None if tightest is None else tightest.remaining,
        None if tightest is None else tightest.capacity,
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


def _limits(
    verdict: Verdict, part: Sequence[Demand], rule: Rule | None
) -> tuple[AppliedLimit, ...]:
    if len(verdict.demands) == 1:
        return tuple(_bucket(verdict, 0, rule)) if part else ()
    wanted = {demand.key.text for demand in part}
    return tuple(
        applied
        for index, demand in enumerate(verdict.demands)
        if demand.key.text in wanted
        for applied in _bucket(verdict, index, rule)
    )


def _reported_wait_ms(
    verdict: Verdict, demand: Demand, limit_name: str, otherwise_ms: int | None
) -> int | None:
    """The wait as the verdict tells it, where a record cannot: a bucket kept in parts."""
    key = demand.key
    for status in verdict.statuses:
        names = status.entity_id, status.resource, status.limit_name
        if names == (key.entity_id, key.resource, limit_name):
            return status.retry_after_ms
    return otherwise_ms


def _bucket(verdict: Verdict, index: int, rule: Rule | None) -> list[AppliedLimit]:
    """The limits that were asked of one bucket of a verdict."""
    demand = verdict.demands[index]
    after = verdict.records[index]
    held = after[TERMS]
    found: list[AppliedLimit] = []
    for asked, wanted_milli in zip(demand.terms.specs, demand.amounts, strict=True):
        name = asked[0]
        at = held.index.get(name)
        if wanted_milli is None or at is None:
            continue
        spec: Spec = held.specs[at]
        rate = spec.rate
        if rule is not None and held.sources[at] == "limiter":
            name = rule.label(name)
        at = CELLS + STRIDE * at
        remaining, wait_ms, full_ms = forecast(after[at + TOKENS], after[at], verdict.now_ms, rate)
        exceeded = False
        if spec.soft or not verdict.allowed:  # else it was passed, or the verdict were another
            before = verdict.before[index]
            least_ms = calculate_retry_after(
                before[at + TOKENS], before[at], verdict.now_ms, rate, wanted_milli
            )
            if not verdict.exact_records:
                least_ms = _reported_wait_ms(verdict, demand, spec.name, least_ms)
            exceeded = least_ms != 0
            wait_ms = least_ms if exceeded else wait_ms
        capacity_milli, amount_milli, period_ms = rate
        window_ms = -(-capacity_milli * period_ms // amount_milli) if amount_milli else None
        found.append(
            AppliedLimit(
                name, capacity_milli // MILLI, remaining,
                None if window_ms is None else -(-window_ms // 1000),
                wait_ms, full_ms, exceeded, spec.soft,
            )
        )  # fmt: skip
    return found
