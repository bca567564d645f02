"""Service: every request of every wire, decided here.

A wire decodes bytes, has `requests` parse them, calls one of the verbs below, and writes the answer
with `answers` and `http.messages`. It holds no rules. A verb returns an answer, also for "limited"
and "the store is away"; whatever else is wrong is raised as ServiceError, and nothing was consumed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import asdict, replace

from headgate.core.decision import Verdict
from headgate.core.engine import ChosenLimits, Request
from headgate.core.errors import (
    DemandTooLarge,
    HeadgateError,
    NamespaceStateError,
    RateLimiterUnavailable,
    RateLimitExceeded,
    StoreDenied,
    StoreTrouble,
)
from headgate.core.lease import LeaseAccount
from headgate.core.levels import Explanation, OnUnavailable
from headgate.core.plan import Amounts
from headgate.core.runtime import Event, Observer
from headgate.core.store import Store
from headgate.layers.breaker import BreakerConfig, BreakerOpen, BreakerState
from headgate.layers.stack import Layering, add_layers
from headgate.repository import Repository, layer_switches
from headgate.service.decide.answers import (
    AcquireResult,
    Admission,
    AdmissionWithLease,
    ChargeResult,
    CheckResult,
    CombinedAdmission,
    CombinedResult,
    HealthResult,
    HealthState,
    LeaseResult,
    check_result,
    reason_for,
    with_explain_link,
)
from headgate.service.decide.batch import decide_each
from headgate.service.decide.batch_engine import DecisionOrError, VerdictOrDecision
from headgate.service.decide.charges import charge, decide_hits
from headgate.service.decide.descriptors import decide_all
from headgate.service.decide.namespaces import NamespaceService
from headgate.service.decide.plain import Asked, note_windows, plain_admission, untroubled
from headgate.service.decide.problems import (
    STORE_RETRY_MS,
    Code,
    ServiceError,
    demand_too_large,
    raise_service_error,
)
from headgate.service.decide.requests import (
    AcquireRequest,
    BatchRequest,
    ChangeRequest,
    ChargeRequest,
    CheckRequest,
    DescriptorsRequest,
    check_amounts,
)
from headgate.service.decide.rules import (
    Rule,
    Rules,
    Target,
    TargetCache,
    rule_by_name,
)
from headgate.service.leases.leases import Leases
from headgate.service.leases.store import MemoryLeases, StoredLeases
from headgate.service.settings import DEFAULT_SETTINGS, ServiceSettings
from headgate.stores.memory.buckets import stand_in
from headgate.transport.gates import gate_factory_for

LOG_DENIED_MS = 60_000

log = logging.getLogger("headgate.service")

OnAnswer = Callable[[CheckResult], None]
# Scope, resource, tokens, of how many checks, and whether the limit is stored for the resource.
OnAdmitted = Callable[[str, str, int, int, bool], None]


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
        patience: BreakerConfig | None = None,
        wrap_store: Callable[[Store], Store] | None = None,
    ) -> None:
        """`on_admitted` is told in place of `on_answer` where tokens were taken and that is all, so
        who counts gives both; `wrap_store` puts something between the store and all that asks."""
        backend = repository.backend
        self.repository = repository
        self.rules = rules or Rules()
        self.clock = repository.clock
        self.waits = backend.capabilities.shared != "process"  # whether a store's answer takes time
        self.targets = TargetCache()
        self.on_admitted = on_admitted
        self._on_answer = on_answer
        self.known_namespaces: dict[str, NamespaceService] = {}
        self._log_denied_ms = 0  # when the next refusal of the store is worth a line
        self.rules_trouble: str | None = None
        self.settings = settings
        self.breaker = BreakerState.CLOSED
        self._observer = observer
        layering = Layering().for_store(backend.capabilities)
        layering = layering.override(layer_switches(repository.url))
        self.shadow = layering.shadow  # whether nobody is refused by a limit
        self._store = add_layers(
            backend.store if wrap_store is None else wrap_store(backend.store),
            clock=repository.clock,
            pace=gate_factory_for(repository.given_clock, blocking=False),
            patience=patience or BreakerConfig(),
            on_change=self._breaker_changed,
            **asdict(layering),
        )
        self.is_local = hasattr(self._store, "consume_local") and repository.drives_time
        self._fallback = stand_in(self.clock)
        self.leases = Leases(
            self._lease_store(), repository.clock, self._counts_of, settings.amount_max
        )

    async def check(self, request: CheckRequest) -> CheckResult:
        """Takes the tokens, or says how long to wait; a dry run takes nothing."""
        answer = await self.decide(request, whole=True)
        assert isinstance(answer, CheckResult)
        return answer

    async def decide(
        self, request: CheckRequest, *, whole: bool = False
    ) -> Admission | CheckResult:
        """The same; unless all of it is wanted, a plain yes is told as just that."""
        scope, identifier, resource, tokens, dry_run, _, namespace, endpoint, named = request
        asked = self._asked(scope, identifier, resource, tokens, named, endpoint)
        target, amounts, _, _ = asked
        ruling = await self._ruling(target, amounts, namespace, dry_run=dry_run)
        if whole or dry_run:
            return self.conclude(ruling, target, amounts, dry_run, namespace)
        return self.answer(ruling, asked, namespace)

    async def _ruling(
        self, target: Target, amounts: Amounts, namespace: str, *, dry_run: bool = False
    ) -> DecisionOrError:
        """What the engine says of one target, or the error in its place."""
        entity_id, resource, chosen = target.entity_id, target.resource, target.chosen
        try:
            ns = self.known_namespaces.get(namespace) or await self.namespace(namespace)
            now_ms = self.clock()
            plan = target.plan_at_hand(ns.configs, now_ms)
            if plan is None:
                entity_id = await ns.resolve_entity(target.scope, entity_id, resource, now_ms)
            want = (entity_id, resource, amounts, chosen)
            if plan is not None and not plan.bypass and not dry_run:
                demands = plan.demands(amounts)
                return await ns.engine.consume_planned((want,), (demands,), demands, now_ms)
            return await ns.engine.consume((want,), dry_run=dry_run)
        except HeadgateError as error:
            return error

    def _asked(
        self,
        scope: str,
        identifier: str,
        resource: str,
        tokens: int | None,
        named: Mapping[str, int] | None,
        endpoint: str | None,
    ) -> Asked:
        """Whose bucket, and how much of it."""
        rules, targets = self.rules, self.targets
        names = (scope, identifier, resource)
        target = targets.known.get(names) if targets.rules is rules else None
        if target is None:
            target = targets.of(rules, *names)
        if named is None and (tokens == 1 or (tokens is None and endpoint is None)):
            return target, target.one, 1, None
        check_amounts(self.settings.amount_max, tokens, named)
        tokens, amounts = target.wanted(rules, tokens, named, endpoint)
        return target, amounts, tokens, None

    def answer(
        self, ruling: DecisionOrError, asked: Asked, namespace: str
    ) -> Admission | CheckResult:
        """A plain yes where it is one, else the whole answer; told to whoever counts."""
        target, amounts, tokens, _ = asked
        verdict = ruling if isinstance(ruling, Verdict) else untroubled(ruling)
        if verdict is not None and verdict.allowed and len(verdict.demands) == 1:
            record, wanted = verdict.records[0], verdict.demands[0]
            admitted = plain_admission(record, wanted, verdict.now_ms, target)
            if admitted is not None:
                if self.on_admitted is not None:
                    is_stored = admitted.limit.is_stored
                    self.on_admitted(target.scope, target.resource, tokens, 1, is_stored)
                return admitted
        return self.conclude(ruling, target, amounts, False, namespace)

    def conclude(
        self,
        ruling: DecisionOrError,
        target: Target,
        amounts: Amounts,
        dry_run: bool,
        namespace: str,
    ) -> CheckResult:
        """The whole answer to a check, told to whoever counts."""
        answer = self.part_result(ruling, 0, target, amounts, dry_run, namespace)
        if self._on_answer is not None:
            self._on_answer(answer)
        return answer

    def part_result(
        self,
        ruling: DecisionOrError,
        part: int,
        target: Target,
        amounts: Amounts,
        dry_run: bool,
        namespace: str,
    ) -> CheckResult:
        """What a ruling, or the error in its place, says of one part of a request, with its link
        where that is a refusal. A verdict alone is a ruling with nothing else to say."""
        by_name = isinstance(amounts, Mapping)
        tokens = max(amounts.values()) if isinstance(amounts, Mapping) else amounts.tokens
        asked = (target.scope, target.resource, tokens)
        if isinstance(ruling, HeadgateError):
            if by_name and isinstance(ruling, DemandTooLarge):
                raise demand_too_large(ruling, f"amounts.{ruling.limit_name}") from ruling
            answer = self._error_result(ruling, namespace, asked, dry_run)
        else:
            verdict, parts, trouble = (
                (ruling, (ruling.demands,), None) if isinstance(ruling, Verdict) else ruling
            )
            answer = check_result(verdict, parts[part], target.rule, asked, trouble, dry_run)
        if target.entity is not None:
            answer = answer._replace(entity=target.entity)
        return with_explain_link(answer, namespace, target.identifier)

    async def check_all(self, request: DescriptorsRequest) -> CombinedResult:
        """All descriptors or none, in one atomic step."""
        answer = await decide_all(self, request, whole=True)
        assert isinstance(answer, CombinedResult)
        return answer

    async def decide_all(self, request: DescriptorsRequest) -> CombinedResult | CombinedAdmission:
        """The same, with a plain yes to all of them told as just that."""
        return await decide_all(self, request)

    async def charge(self, request: ChargeRequest) -> ChargeResult:
        """Takes what was used, known afterwards: into debt, or (as was asked) only if it fits."""
        return await charge(self, request)

    async def decide_hits(self, request: DescriptorsRequest) -> CombinedResult:
        """`check_all` with descriptors among them that look without taking, or charge."""
        return await decide_hits(self, request)

    def tell(self, results: Iterable[CheckResult], allowed: bool) -> None:
        """Results of one request, told to whoever counts: one that alone had room took nothing if
        another refused."""
        if self._on_answer is not None:
            for result in results:
                self._on_answer(result if allowed else result._replace(allowed=False))

    async def engine_request(
        self, ns: NamespaceService, target: Target, amounts: Amounts, limits: ChosenLimits
    ) -> Request:
        entity_id, resource, chosen = target.entity_id, target.resource, limits or target.chosen
        now_ms = self.clock()
        if limits is not None or target.plan_at_hand(ns.configs, now_ms) is None:
            entity_id = await ns.resolve_entity(target.scope, entity_id, resource, now_ms)
        return entity_id, resource, amounts, chosen

    def _error_result(
        self, error: HeadgateError, namespace: str, asked: tuple[str, str, int], dry_run: bool
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
                self.known_namespaces.pop(namespace, None)
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

    async def batch(self, request: BatchRequest) -> list[CheckResult | ServiceError]:
        """Each check for itself; a problem of one is its result and touches no other."""
        return await decide_each(self, request, whole=True)  # type: ignore[return-value]

    async def decide_batch(
        self, request: BatchRequest
    ) -> list[Admission | CheckResult | ServiceError]:
        """The same, with plain yeses told as just that."""
        return await decide_each(self, request)

    async def acquire(self, request: AcquireRequest) -> AcquireResult:
        """Takes the amounts and answers with a lease on them."""
        answer = await self.decide_acquire(request, whole=True)
        assert isinstance(answer, AcquireResult)
        return answer

    async def decide_acquire(
        self, request: AcquireRequest, *, whole: bool = False
    ) -> AcquireResult | AdmissionWithLease:
        """The same; unless all of it is wanted, a plain yes is told as just that."""
        identifier, resource, scope, tokens, named, _, _, namespace, endpoint = request
        asked = self._asked(scope, identifier, resource, tokens, named, endpoint)
        target, amounts, _, _ = asked
        await self.leases.ensure_capacity()
        ruling = await self._ruling(target, amounts, namespace)
        answer: Admission | CheckResult
        if whole:
            answer = self.conclude(ruling, target, amounts, False, namespace)
        else:
            answer = self.answer(ruling, asked, namespace)
        if isinstance(ruling, HeadgateError) or (
            isinstance(answer, CheckResult) and not answer.allowed
        ):
            assert isinstance(answer, CheckResult)
            return AcquireResult(answer, None)
        lease = await self._open_lease(request, ruling)
        if isinstance(answer, Admission):
            return AdmissionWithLease(answer, lease)
        return AcquireResult(answer, lease)

    async def _open_lease(self, request: AcquireRequest, ruling: VerdictOrDecision) -> LeaseResult:
        """A lease on what was taken, of the store or of this process where the store is away."""
        engine = (await self.namespace(request.namespace)).engine
        verdict, trouble = (
            (ruling, None) if isinstance(ruling, Verdict) else (ruling.verdict, ruling.trouble)
        )
        account = LeaseAccount(
            engine.settlements, engine.store if trouble is None else self._fallback,
            verdict.demands, self.clock(), request.on_expiry == "keep", trouble is not None,
            verdict.untaken,
        )  # fmt: skip
        note_windows(account, verdict)
        ttl_ms = request.ttl_seconds * 1000
        return await self.leases.open_lease(request.namespace, account, ttl_ms)

    async def adjust(self, request: ChangeRequest) -> LeaseResult:
        return await self._change_lease(self.leases.adjust, request)

    async def settle(self, request: ChangeRequest) -> LeaseResult:
        return await self._change_lease(self.leases.settle, request)

    async def release(self, request: ChangeRequest) -> LeaseResult:
        return await self._change_lease(self.leases.release, request)

    async def explain(
        self, namespace: str, entity_id: str, resource: str, rule: Rule | None
    ) -> Explanation:
        """Which level gives each limit in the end, where this policy matches."""
        try:
            ns = await self.namespace(namespace)
            return await ns.engine.explain(entity_id, resource, rule.defaults if rule else None)
        except HeadgateError as error:
            raise_service_error(error)

    async def health(self) -> HealthResult:
        """How things stand; asks the store once."""
        denied = False
        try:
            await self.repository.get_version_record()
            answers = True
        except HeadgateError as error:
            answers, denied = False, isinstance(error, StoreDenied)
        ready = answers or (self.settings.fail_open and not denied)
        status = HealthState.DEGRADED if ready else HealthState.UNHEALTHY
        if answers and self.breaker is BreakerState.CLOSED and self.rules_trouble is None:
            status = HealthState.HEALTHY
        return HealthResult(
            status, ready, answers, self.breaker.value, self.rules_trouble, len(self.leases.store)
        )

    async def namespace(self, namespace: str) -> NamespaceService:
        """The namespace's engine and operator flows; ServiceError NOT_FOUND where there is none."""
        ns = self.known_namespaces.get(namespace)
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
        if len(self.known_namespaces) >= self.settings.namespaces_max:
            self.known_namespaces.pop(next(iter(self.known_namespaces)))
        return self.known_namespaces.setdefault(namespace, ns)

    def set_fail_open(self, *, fail_open: bool) -> None:
        """From now on an outage means this, in every namespace."""
        self.settings = replace(self.settings, fail_open=fail_open)
        for ns in self.known_namespaces.values():
            ns.engine.on_unavailable = OnUnavailable.ALLOW if fail_open else OnUnavailable.BLOCK

    def observe(self, observer: Observer | None) -> Observer | None:
        """Who hears of every decision from now on; returns who heard before."""
        before, self._observer = self._observer, observer
        for ns in self.known_namespaces.values():
            ns.engine.observer = observer
        return before

    async def tick(self) -> None:
        """What must happen from time to time though nobody asks; call it about every second."""
        await self.leases.sweep()

    async def close(self) -> None:
        await self._store.close()

    async def _change_lease(
        self, verb: Callable[[ChangeRequest], Awaitable[LeaseResult]], request: ChangeRequest
    ) -> LeaseResult:
        try:
            return await verb(request)
        except HeadgateError as error:
            raise_service_error(error)

    def _breaker_changed(self, state: BreakerState) -> None:
        self.breaker = state
        if self._observer is not None:
            self._observer(Event("breaker", "", "", "", state.value))

    def _counts_of(self, entity_id: str, resource: str) -> Collection[str]:
        """The limits of an entity that tokens count for, as far as a policy says."""
        rule = rule_by_name(self.rules, entity_id, resource)
        return () if rule is None else rule.counts

    def _lease_store(self) -> MemoryLeases:
        """In the store where that outlives the process."""
        backend, most = self.repository.backend, self.settings.leases_max
        if backend.expiring is None or not backend.capabilities.durable:
            return MemoryLeases(most)
        return StoredLeases(
            backend.expiring, self.namespace, self.known_namespaces, self.clock, most
        )
