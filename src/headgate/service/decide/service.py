"""Service: every request of every wire, decided here.

A wire decodes bytes, has `requests` parse them, calls one of the verbs below, and writes the answer
with `bodies` and `headers`. It holds no rules. A verb returns an answer, also for "limited" and
"the store is away"; whatever else is wrong is raised as ServiceError, and nothing was consumed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Self

from headgate.core.decision import Verdict
from headgate.core.engine import ChosenLimits, Request, VerdictOrDecision
from headgate.core.errors import (
    HeadgateError,
    NamespaceStateError,
    RateLimiterUnavailable,
    RateLimitExceeded,
    StoreDenied,
    StoreTrouble,
)
from headgate.core.lease import LeaseAccount
from headgate.core.levels import Explanation, OnUnavailable
from headgate.core.plan import ONE_EACH, Amounts, Each
from headgate.core.plan_cache import NO_DEFAULTS
from headgate.core.runtime import Event, Observer
from headgate.core.store import Store
from headgate.layers.breaker import BreakerConfig, BreakerState
from headgate.layers.stack import Layering, add_layers
from headgate.repository import Repository, layer_switches
from headgate.service.decide.answers import (
    AcquireResult,
    Admission,
    BatchAnswer,
    CheckResult,
    CombinedResult,
    HealthResult,
    HealthState,
    LeaseResult,
)
from headgate.service.decide.batch import decide_each
from headgate.service.decide.combine import combine, identifier_of, with_explain_link
from headgate.service.decide.evaluate import (
    check_result,
    plain_admission,
    throttled_result,
    unavailable_result,
)
from headgate.service.decide.namespaces import NamespaceService
from headgate.service.decide.problems import ServiceError, raise_service_error
from headgate.service.decide.requests import (
    AcquireRequest,
    BatchRequest,
    ChangeRequest,
    CheckRequest,
    DescriptorsRequest,
)
from headgate.service.decide.rules import NoPolicies, Rule, Rules
from headgate.service.decide.targets import Target, TargetCache, entity_id_of, rule_for
from headgate.service.leases.leases import Leases
from headgate.service.leases.store import LeaseStore, MemoryLeases, StoredLeases
from headgate.service.settings import DEFAULT_SETTINGS, ServiceSettings
from headgate.stores.memory.buckets import stand_in
from headgate.transport.gates import gate_factory_for

LOG_DENIED_MS = 60_000

log = logging.getLogger("headgate.service")

OnAnswer = Callable[[CheckResult], None]
OnAdmitted = Callable[[str, str, int, int], None]  # scope, resource, tokens, of how many checks
CheckedAmount = tuple[str, str, int]


class Service:
    """One per process. `rules` may be replaced at any time, as a whole."""

    def __init__(
        self,
        repository: Repository,
        rules: Rules | None = None,
        settings: ServiceSettings = DEFAULT_SETTINGS,
        *,
        observer: Observer | None = None,
        on_answer: OnAnswer | None = None,
        on_admitted: OnAdmitted | None = None,
        store: LeaseStore | None = None,
        patience: BreakerConfig | None = None,
        wrap_store: Callable[[Store], Store] | None = None,
    ) -> None:
        """`watched` puts something between the store and all that asks it."""
        self.repository = repository
        self.rules: Rules = rules or NoPolicies()
        self.rules_trouble: str | None = None
        self.settings = settings
        self.breaker = BreakerState.CLOSED
        self.clock = repository.clock
        self._observer = observer
        self._on_answer = on_answer
        self.on_admitted = (
            on_admitted  # told in place of on_answer where tokens were taken and that is all
        )
        self.has_fast_path = on_answer is None or on_admitted is not None
        self.targets = TargetCache()
        backend = repository.backend
        layering = Layering().for_store(backend.capabilities)
        self._store = add_layers(
            backend.store if wrap_store is None else wrap_store(backend.store),
            clock=repository.clock,
            pace=gate_factory_for(repository.given_clock, blocking=False),
            patience=patience or BreakerConfig(),
            on_change=self._breaker_changed,
            **asdict(layering.override(layer_switches(repository.url))),
        )
        self._fallback = stand_in(self.clock)
        self.waits = backend.capabilities.shared != "process"
        self._namespaces: dict[str, NamespaceService] = {}
        self._log_denied_ms = 0  # when the next refusal of the store is worth a line
        self.leases = Leases(store or self._lease_store(), repository.clock)

    def _lease_store(self) -> LeaseStore:
        """In the store where that outlives the process."""
        backend, most = self.repository.backend, self.settings.leases_max
        if backend.expiring is None or not backend.capabilities.durable:
            return MemoryLeases(most)
        return StoredLeases(backend.expiring, self.namespace, self._namespaces, self.clock, most)

    @classmethod
    async def open(
        cls,
        url: str | None = None,
        rules: Rules | None = None,
        settings: ServiceSettings | None = None,
    ) -> Self:
        """A service on the store a URL names, which is there and fit for use."""
        return cls(await Repository.open(url), rules, settings or DEFAULT_SETTINGS)

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

    async def batch(self, request: BatchRequest) -> BatchAnswer:
        """Each check for itself; a problem of one is its result and touches no other."""
        results = await decide_each(self, request, whole=True)
        return BatchAnswer(tuple(results))  # type: ignore[arg-type]  # no yes is told as just that

    async def decide_batch(
        self, request: BatchRequest
    ) -> list[Admission | CheckResult | ServiceError]:
        """The same, with plain yeses told as just that."""
        return await decide_each(self, request)

    def conclude(
        self,
        ruling: VerdictOrDecision,
        target: Target,
        tokens: int,
        dry_run: bool,
        namespace: str,
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

    async def acquire(self, request: AcquireRequest) -> AcquireResult:
        """Takes the amounts and answers with a lease on them."""
        rules = self.rules
        scope, identifier, resource = request[:3]
        amounts: Amounts
        if request.amounts is not None:
            tokens, amounts = max(request.amounts.values()), request.amounts
        else:
            tokens = request.tokens or self._cost(rules, request.endpoint)
            amounts = Each(tokens)
        rule = rule_for(rules, scope, resource)
        asked = (scope, resource, tokens)
        await self.leases.ensure_capacity()
        try:
            ns = self._namespaces.get(request.namespace) or await self.namespace(request.namespace)
            want = await self._engine_request(ns, scope, identifier, resource, amounts, rule, None)
            verdict, parts, trouble = await ns.engine.consume((want,))
        except HeadgateError as error:
            answer = self.error_result(error, request.namespace, asked, False)
        else:
            answer = check_result(verdict, parts[0], rule, asked, trouble)
        if answer.code is not None:
            answer = with_explain_link(answer, request.namespace, identifier)
        if self._on_answer is not None:
            self._on_answer(answer)
        if not answer.allowed:
            return AcquireResult(answer, None)
        store = ns.engine.store if trouble is None else self._fallback
        book = LeaseAccount(
            ns.engine.settlements, store, verdict.demands, self.clock(), request.keep,
            trouble is not None, verdict.untaken,
        )  # fmt: skip
        lease = await self.leases.open_lease(request.namespace, book, request.ttl_ms)
        return AcquireResult(answer, lease)

    async def lease(self, lease_id: str, namespace: str) -> LeaseResult:
        return await self.leases.read(lease_id, namespace)

    async def adjust(self, request: ChangeRequest) -> LeaseResult:
        return await self._change_lease(self.leases.adjust, request)

    async def settle(self, request: ChangeRequest) -> LeaseResult:
        return await self._change_lease(self.leases.settle, request)

    async def release(self, request: ChangeRequest) -> LeaseResult:
        return await self._change_lease(self.leases.release, request)

    async def explain(
        self, namespace: str, scope: str, identifier: str, resource: str
    ) -> tuple[Rule | None, Explanation]:
        """The policy that matches, and which level gives each limit in the end."""
        rule = rule_for(self.rules, scope, resource)
        return rule, await self._explain(namespace, entity_id_of(scope, identifier), resource, rule)

    async def explain_entity(
        self, namespace: str, entity_id: str, resource: str
    ) -> tuple[Rule | None, Explanation]:
        """The same by an entity's id: teams and companies have no scope that requests name."""
        scope, colon, _ = entity_id.partition(":")
        rule = self.rules.limits_for(scope if colon else "", resource)
        return rule, await self._explain(namespace, entity_id, resource, rule)

    async def _explain(
        self, namespace: str, entity_id: str, resource: str, rule: Rule | None
    ) -> Explanation:
        try:
            ns = await self.namespace(namespace)
            found = await ns.engine.explain(entity_id, resource, rule.defaults if rule else None)
        except HeadgateError as error:
            raise_service_error(error)
        return found

    async def health(self) -> HealthResult:
        """How things stand; asks the store once."""
        denied = False
        try:
            await self.repository.get_version_record()
            answers = True
        except HeadgateError as error:
            answers, denied = False, isinstance(error, StoreDenied)
        ready = answers or (self.settings.fail_open and not denied)
        well = answers and self.breaker is BreakerState.CLOSED and self.rules_trouble is None
        status = (
            HealthState.HEALTHY
            if well
            else HealthState.DEGRADED
            if ready
            else HealthState.UNHEALTHY
        )
        return HealthResult(
            status, ready, answers, self.breaker.value, self.rules_trouble, len(self.leases.store)
        )

    async def namespace(self, namespace: str) -> NamespaceService:
        """The namespace's engine and operator flows; ServiceError NOT_FOUND where there is none."""
        ns = self._namespaces.get(namespace)
        if ns is not None:
            return ns
        home = self.repository.namespace(namespace)
        ns = NamespaceService(home, self._store, self._fallback, self.settings, self._observer)
        try:
            await home.configs.namespace_id()
        except StoreTrouble:  # the engine decides what an outage means; the next call asks again
            return ns
        except HeadgateError as error:
            raise_service_error(error)
        if len(self._namespaces) >= self.settings.namespaces_max:
            self._namespaces.pop(next(iter(self._namespaces)))
        return self._namespaces.setdefault(namespace, ns)

    def set_fail_open(self, *, fail_open: bool) -> None:
        """From now on an outage means this, in every namespace."""
        self.settings = replace(self.settings, fail_open=fail_open)
        for ns in self._namespaces.values():
            ns.engine.on_unavailable = OnUnavailable.ALLOW if fail_open else OnUnavailable.BLOCK

    def observe(self, observer: Observer | None) -> Observer | None:
        """Who hears of every decision from now on; returns who heard before."""
        before, self._observer = self._observer, observer
        for ns in self._namespaces.values():
            ns.engine.observer = observer
        return before

    async def tick(self) -> None:
        """What must happen from time to time though nobody asks; call it about every second."""
        await self.leases.sweep()

    async def close(self) -> None:
        await self._store.close()

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

    async def _change_lease(
        self, verb: Callable[[ChangeRequest], Any], request: ChangeRequest
    ) -> LeaseResult:
        try:
            answer: LeaseResult = await verb(request)
        except HeadgateError as error:
            raise_service_error(error)
        return answer

    def error_result(
        self, error: HeadgateError, namespace: str, asked: CheckedAmount, dry_run: bool
    ) -> CheckResult:
        """The answer where an error is one: the store is away, or has a speed limit of its own."""
        if isinstance(error, RateLimitExceeded):
            return throttled_result(error, asked, dry_run)
        if not isinstance(error, RateLimiterUnavailable):
            if isinstance(error, StoreDenied):
                self.log_denied(error)
            if isinstance(error, NamespaceStateError):
                self._namespaces.pop(namespace, None)
            raise_service_error(error)
        return unavailable_result(error, asked, dry_run)

    def log_denied(self, error: StoreDenied) -> None:
        """Tells the operator the missing right, which callers are not told; once a minute."""
        now_ms = self.clock()
        if now_ms >= self._log_denied_ms:
            self._log_denied_ms = now_ms + LOG_DENIED_MS
            log.error("the store refuses the service, so no request is admitted: %s", error)

    def _cost(self, rules: Rules, endpoint: str | None) -> int:
        return 1 if endpoint is None else rules.cost_of(endpoint) or 1

    def _breaker_changed(self, state: BreakerState) -> None:
        self.breaker = state
        if self._observer is not None:
            self._observer(Event("breaker", "", "", "", state.value))
