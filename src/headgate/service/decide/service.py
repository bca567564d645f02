"""Service: every request of every wire, decided here.

A wire decodes bytes, has `requests` parse them, calls one of the verbs below, and writes the answer
with `answers` and `http.write`. It holds no rules. A verb returns an answer, also for "limited" and
"the store is away"; whatever else is wrong is raised as ServiceError, and nothing was consumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from headgate.core.errors import HeadgateError, StoreDenied, StoreTrouble
from headgate.core.lease import LeaseAccount
from headgate.core.levels import Explanation, OnUnavailable
from headgate.core.plan import Amounts, Each
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
    HealthResult,
    HealthState,
    LeaseResult,
)
from headgate.service.decide.batch import decide_each
from headgate.service.decide.evaluate import (
    Checks,
    OnAdmitted,
    OnAnswer,
    check_result,
    with_explain_link,
)
from headgate.service.decide.namespaces import NamespaceService
from headgate.service.decide.problems import ServiceError, raise_service_error
from headgate.service.decide.requests import AcquireRequest, BatchRequest, ChangeRequest
from headgate.service.decide.rules import NoPolicies, Rule, Rules
from headgate.service.decide.targets import entity_id_of, rule_for
from headgate.service.leases.leases import Leases
from headgate.service.leases.store import LeaseStore, MemoryLeases, StoredLeases
from headgate.service.settings import DEFAULT_SETTINGS, ServiceSettings
from headgate.stores.memory.buckets import stand_in
from headgate.transport.gates import gate_factory_for


class Service(Checks):
    """One per process."""

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
        """`wrap_store` puts something between the store and all that asks it."""
        backend = repository.backend
        waits = backend.capabilities.shared != "process"
        super().__init__(
            rules or NoPolicies(), repository.clock, on_answer, on_admitted, waits=waits
        )
        self.repository = repository
        self.rules_trouble: str | None = None
        self.settings = settings
        self.breaker = BreakerState.CLOSED
        self._observer = observer
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
        self.leases = Leases(self._lease_store(), repository.clock)

    def _lease_store(self) -> LeaseStore:
        """In the store where that outlives the process."""
        backend, most = self.repository.backend, self.settings.leases_max
        if backend.expiring is None or not backend.capabilities.durable:
            return MemoryLeases(most)
        return StoredLeases(backend.expiring, self.namespace, self._namespaces, self.clock, most)

    async def batch(self, request: BatchRequest) -> BatchAnswer:
        """Each check for itself; a problem of one is its result and touches no other."""
        results = await decide_each(self, request, whole=True)
        return BatchAnswer(tuple(results))  # type: ignore[arg-type]  # no yes is told as just that

    async def decide_batch(
        self, request: BatchRequest
    ) -> list[Admission | CheckResult | ServiceError]:
        """The same, with plain yeses told as just that."""
        return await decide_each(self, request)

    async def acquire(self, request: AcquireRequest) -> AcquireResult:
        """Takes the amounts and answers with a lease on them."""
        rules = self.rules
        scope, identifier, resource = request.scope, request.identifier, request.resource
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
            ns.engine.settlements, store, verdict.demands, self.clock(),
            request.on_expiry == "keep", trouble is not None, verdict.untaken,
        )  # fmt: skip
        lease = await self.leases.open_lease(request.namespace, book, request.ttl_seconds * 1000)
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

    async def _change_lease(
        self, verb: Callable[[ChangeRequest], Any], request: ChangeRequest
    ) -> LeaseResult:
        try:
            answer: LeaseResult = await verb(request)
        except HeadgateError as error:
            raise_service_error(error)
        return answer

    def _breaker_changed(self, state: BreakerState) -> None:
        self.breaker = state
        if self._observer is not None:
            self._observer(Event("breaker", "", "", "", state.value))
