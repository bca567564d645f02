"""Checks: from a request to the engine's decision, and from that to an answer.

Most requests are plain admissions of one limit: those are read straight from the record. All others
go by the statuses of the verdict: what is tightest, what blocks, what a caller is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from urllib.parse import urlencode

from headgate.core.bucket import MILLI
from headgate.core.decision import Demand, LimitStatus, Verdict
from headgate.core.engine import ChosenLimits, Request, VerdictOrDecision
from headgate.core.errors import (
    Contended,
    Damaged,
    Full,
    HeadgateError,
    NamespaceStateError,
    RateLimiterUnavailable,
    RateLimitExceeded,
    StoreDenied,
    StoreTrouble,
    Throttled,
    Unreachable,
)
from headgate.core.history import TIME_MS_MAX
from headgate.core.plan import ONE_EACH, Amounts, Each
from headgate.core.plan_cache import NO_DEFAULTS
from headgate.core.record import TERMS
from headgate.core.runtime import Clock
from headgate.layers.breaker import BreakerOpen
from headgate.layers.layer import ShadowVerdict
from headgate.service.decide.answers import Admission, CheckResult, CombinedResult, tightest_of
from headgate.service.decide.namespaces import NamespaceService
from headgate.service.decide.problems import STORE_RETRY_MS, Code, invalid, raise_service_error
from headgate.service.decide.requests import GLOBAL_SCOPE, CheckRequest, DescriptorsRequest
from headgate.service.decide.rules import IDENTIFIER_KEYS, Rule, Rules
from headgate.service.decide.targets import (
    Target,
    TargetCache,
    entity_id_of,
    is_identifier,
    rule_for,
)

LOG_DENIED_MS = 60_000

log = logging.getLogger("headgate.service")

OnAnswer = Callable[[CheckResult], None]
OnAdmitted = Callable[[str, str, int, int], None]  # scope, resource, tokens, of how many checks
CheckedAmount = tuple[str, str, int]  # scope, resource, tokens


class Checks:
    """Decides checks: alone, or several all or none. `rules` may be replaced at any time, as a
    whole."""

    def __init__(
        self,
        rules: Rules,
        clock: Clock,
        on_answer: OnAnswer | None,
        on_admitted: OnAdmitted | None,
        *,
        waits: bool,
    ) -> None:
        """`on_admitted` is told in place of `on_answer` where tokens were taken and that is all;
        `waits` is whether the store answers over a network or a disk."""
        self.rules = rules
        self.clock = clock
        self.waits = waits
        self.targets = TargetCache()
        self.on_admitted = on_admitted
        self.has_fast_path = on_answer is None or on_admitted is not None
        self._on_answer = on_answer
        self._namespaces: dict[str, NamespaceService] = {}
        self._log_denied_ms = 0  # when the next refusal of the store is worth a line

    async def namespace(self, namespace: str) -> NamespaceService:
        """The namespace's engine and operator flows; ServiceError NOT_FOUND where there is none."""
        raise NotImplementedError

    async def check(self, request: CheckRequest) -> CheckResult:
        """Takes the tokens, or says how long to wait; a dry run takes nothing."""
        answer = await self.decide(request, whole=True)
        assert isinstance(answer, CheckResult)
        return answer

    async def decide(
        self, request: CheckRequest, *, whole: bool = False
    ) -> Admission | CheckResult:
        """The same; unless all of it is wanted, a plain yes is told as just that."""
        scope, identifier, resource, tokens, dry_run, _, namespace, endpoint, limits = request
        rules, targets = self.rules, self.targets
        target = None
        if targets.rules is rules:
            target = targets.known.get((scope, identifier, resource))
        if target is None:
            target = targets.of(rules, scope, identifier, resource)
        if tokens is None:
            tokens = 1 if endpoint is None else rules.cost_of(endpoint) or 1
        try:
            ns = self._namespaces.get(namespace) or await self.namespace(namespace)
            entity_id = target.entity_id
            chosen = limits or target.chosen
            now_ms = self.clock()
            plan = ns.configs.cached_plan(entity_id, resource, chosen, now_ms)
            if plan is None:
                entity_id = await ns.resolve_entity(scope, entity_id, resource, now_ms)
            want = (entity_id, resource, ONE_EACH if tokens == 1 else Each(tokens), chosen)
            if plan is not None and not plan.bypass and not dry_run:
                ruling = await ns.engine.consume_planned(want, plan.demands(want[2]), now_ms)
            else:
                ruling = await ns.engine.consume((want,), dry_run=dry_run)
        except HeadgateError as error:
            error_result = self.error_result(error, namespace, (scope, resource, tokens), dry_run)
            return self.report(error_result, namespace, identifier)
        if self.has_fast_path and not whole and not dry_run:
            if isinstance(ruling, Verdict):
                admitted = plain_admission(ruling, target)
            else:  # buckets of this process decided where there was trouble: that is to be told
                trouble = ruling.trouble
                admitted = plain_admission(ruling.verdict, target) if trouble is None else None
            if admitted is not None:
                if self.on_admitted is not None:
                    self.on_admitted(scope, resource, tokens, 1)
                return admitted
        return self.conclude(ruling, target, tokens, dry_run, namespace)

    def conclude(
        self, ruling: VerdictOrDecision, target: Target, tokens: int, dry_run: bool, namespace: str
    ) -> CheckResult:
        """The whole answer that a ruling comes to, counted; a verdict alone is one with nothing
        else to say."""
        verdict, parts, trouble = (
            (ruling, (ruling.demands,), None) if isinstance(ruling, Verdict) else ruling
        )
        asked = (target.scope, target.resource, tokens)
        answer = check_result(verdict, parts[0], target.rule, asked, trouble, dry_run)
        return self.report(answer, namespace, target.identifier)

    def report(self, answer: CheckResult, namespace: str, identifier: str) -> CheckResult:
        """The answer, with its link where it is a refusal, told to whoever counts."""
        if answer.code is not None:
            answer = with_explain_link(answer, namespace, identifier)
        if self._on_answer is not None:
            self._on_answer(answer)
        return answer

    async def check_all(self, request: DescriptorsRequest) -> CombinedResult:
        """All descriptors or none, in one atomic step."""
        rules = self.rules
        cost = request.tokens or self._cost(rules, request.endpoint)
        asked: list[CheckedAmount] = []
        chosen: list[Rule | None] = []
        for one in request.descriptors:
            chosen.append(rule_for(rules, one.scope, one.resource))
            asked.append((one.scope, one.resource, cost if one.tokens is None else one.tokens))
        names = [identifier_of(rules, request, index) for index in range(len(asked))]
        try:
            ns = self._namespaces.get(request.namespace) or await self.namespace(request.namespace)
            wants = [
                await self._engine_request(
                    ns, scope, name, resource, Each(tokens), rule, one.limits
                )
                for (scope, resource, tokens), name, rule, one in zip(
                    asked, names, chosen, request.descriptors, strict=True
                )
            ]
            verdict, parts, trouble = await ns.engine.consume(wants, dry_run=request.dry_run)
        except HeadgateError as error:
            results = [
                self.error_result(error, request.namespace, one, request.dry_run) for one in asked
            ]
        else:
            results = [
                check_result(verdict, part, rule, one, trouble, request.dry_run)
                for part, rule, one in zip(parts, chosen, asked, strict=True)
            ]
        whole = combine(
            [
                one if one.code is None else with_explain_link(one, request.namespace, name)
                for one, name in zip(results, names, strict=True)
            ]
        )
        if self._on_answer is not None:
            for result in whole.results:  # one that alone had room took nothing if another refused
                self._on_answer(result if whole.allowed else result._replace(allowed=False))
        return whole

    async def _engine_request(
        self,
        ns: NamespaceService,
        scope: str,
        identifier: str,
        resource: str,
        amounts: Amounts,
        rule: Rule | None,
        limits: ChosenLimits,
    ) -> Request:
        entity_id = entity_id_of(scope, identifier)
        chosen = limits or (NO_DEFAULTS if rule is None else rule.defaults)
        now_ms = self.clock()
        if ns.configs.cached_plan(entity_id, resource, chosen, now_ms) is None:
            entity_id = await ns.resolve_entity(scope, entity_id, resource, now_ms)
        return entity_id, resource, amounts, chosen

    def error_result(
        self, error: HeadgateError, namespace: str, asked: CheckedAmount, dry_run: bool
    ) -> CheckResult:
        """The answer where an error is one: the store is away, or has a speed limit of its own."""
        reason: str | None = None
        if isinstance(error, RateLimitExceeded):  # how much is left is not known then
            code, wait_ms = Code.RATE_LIMIT_EXCEEDED, error.retry_after_ms
        elif isinstance(error, RateLimiterUnavailable):  # the service fails closed
            open_ms = error.cause.retry_in_ms if isinstance(error.cause, BreakerOpen) else 0
            code, wait_ms = Code.STORAGE_UNAVAILABLE, open_ms or STORE_RETRY_MS
            reason = reason_for(error.cause)
        else:
            if isinstance(error, StoreDenied):
                self.log_denied(error)
            if isinstance(error, NamespaceStateError):
                self._namespaces.pop(namespace, None)
            raise_service_error(error)
        return CheckResult(
            False, *asked, retry_after_ms=wait_ms, code=code, degraded=reason is not None,
            degraded_reason=reason, dry_run=dry_run,
        )  # fmt: skip

    def log_denied(self, error: StoreDenied) -> None:
        """Tells the operator the missing right, which callers are not told; once a minute."""
        now_ms = self.clock()
        if now_ms >= self._log_denied_ms:
            self._log_denied_ms = now_ms + LOG_DENIED_MS
            log.error("the store refuses the service, so no request is admitted: %s", error)

    def _cost(self, rules: Rules, endpoint: str | None) -> int:
        return 1 if endpoint is None else rules.cost_of(endpoint) or 1


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


def plain_admission(verdict: Verdict, target: Target) -> Admission | None:
    """The answer where there is nothing but a yes to tell; `check_result` tells all others."""
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
    values = (frame, whole, wait_ms, reset_ms)
    return tuple.__new__(Admission, values)  # a third of what Admission(…) takes


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
# Several descriptors in one request: whose each is, and what their results come to.


def identifier_of(rules: Rules, request: DescriptorsRequest, index: int) -> str:
    """The descriptor's own identifier, else the request's where it is of that scope, else the
    metadata entry that names the scope's.

    An identifier of another scope is never used: limiting an address by a user's name would give
    every user a fresh one.
    """
    one = request.descriptors[index]
    if one.identifier is not None:
        return one.identifier
    if one.scope == request.scope and request.identifier is not None:
        return request.identifier
    key = rules.identifier_key(one.scope) or IDENTIFIER_KEYS.get(one.scope, one.scope)
    found = request.metadata.get(key)
    if found is not None and is_identifier(found):
        return found
    if one.scope == GLOBAL_SCOPE:
        return GLOBAL_SCOPE
    raise invalid(
        f"descriptors[{index}].identifier",
        f"is missing; give it here, or as metadata {key!r}, which must be text without control "
        f"characters",
    )


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
    return answer._replace(instance=f"/ui/explain?{urlencode(asked)}")
