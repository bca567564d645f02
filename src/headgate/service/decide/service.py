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
from headgate.core.engine import Chosen, Ruled, Want
from headgate.core.errors import (
    HeadgateError,
    NamespaceStateError,
    RateLimiterUnavailable,
    RateLimitExceeded,
    StoreDenied,
    StoreTrouble,
)
from headgate.core.lease import LeaseBook
from headgate.core.levels import Explanation, OnUnavailable
from headgate.core.plan import ONE_EACH, Amounts, Each
from headgate.core.plan_cache import NO_DEFAULTS
from headgate.core.runtime import Event, Observer
from headgate.core.store import Store
from headgate.layers.breaker import Patience, State
from headgate.layers.stack import Layering, layered
from headgate.repository import Repository, layer_switches
from headgate.service.decide.answers import (
    AcquireAnswer,
    BatchAnswer,
    CheckAnswer,
    CombinedAnswer,
    Health,
    HealthAnswer,
    LeaseAnswer,
    Yes,
)
from headgate.service.decide.batch import decided_each
from headgate.service.decide.combine import combined, identifier_of, linked
from headgate.service.decide.evaluate import plain_yes, read, throttled, unavailable
from headgate.service.decide.namespaces import Room
from headgate.service.decide.problems import ServiceError, raise_translated
from headgate.service.decide.requests import (
    AcquireRequest,
    BatchRequest,
    ChangeRequest,
    CheckRequest,
    DescriptorsRequest,
)
from headgate.service.decide.rules import NoPolicies, Rule, Rules
from headgate.service.decide.targets import Place, Places, entity_id_of, rule_for
from headgate.service.leases.leases import Leases
from headgate.service.leases.store import DrawerShelf, LeaseShelf, MemoryShelf
from headgate.service.settings import DEFAULT_SETTINGS, Settings
from headgate.stores.memory.buckets import stand_in
from headgate.transport.gates import pace_for

LOG_DENIED_MS = 60_000

log = logging.getLogger("headgate.service")

OnAnswer = Callable[[CheckAnswer], None]
OnYes = Callable[[str, str, int, int], None]  # scope, resource, tokens, of how many checks
Asked = tuple[str, str, int]


class Service:
    """One per process. `rules` may be replaced at any time, as a whole."""

    def __init__(
        self,
        repository: Repository,
        rules: Rules | None = None,
        settings: Settings = DEFAULT_SETTINGS,
        *,
        observer: Observer | None = None,
        on_answer: OnAnswer | None = None,
        on_yes: OnYes | None = None,
        shelf: LeaseShelf | None = None,
        patience: Patience | None = None,
        watched: Callable[[Store], Store] | None = None,
    ) -> None:
        """`watched` puts something between the store and all that asks it."""
        self.repository = repository
        self.rules: Rules = rules or NoPolicies()
        self.rules_trouble: str | None = None
        self.settings = settings
        self.breaker = State.CLOSED
        self.clock = repository.clock
        self._observer = observer
        self._on_answer = on_answer
        self.on_yes = on_yes  # told in place of on_answer where tokens were taken and that is all
        self.tells_briefly = on_answer is None or on_yes is not None
        self.places = Places()
        backend = repository.backend
        layering = Layering().of_use(backend.capabilities)
        self._store = layered(
            backend.store if watched is None else watched(backend.store),
            clock=repository.clock,
            pace=pace_for(repository.given_clock, blocking=False),
            patience=patience or Patience(),
            on_change=self._breaker_changed,
            **asdict(layering.overruled(layer_switches(repository.url))),
        )
        self._fallback = stand_in(self.clock)
        self.waits = backend.capabilities.shared != "process"
        self._rooms: dict[str, Room] = {}
        self._log_denied_ms = 0  # when the next refusal of the store is worth a line
        self.leases = Leases(shelf or self._shelf(), repository.clock)

    def _shelf(self) -> LeaseShelf:
        """In the store where that outlives the process."""
        backend, most = self.repository.backend, self.settings.leases_max
        if backend.drawer is None or not backend.capabilities.durable:
            return MemoryShelf(most)
        return DrawerShelf(backend.drawer, self.room, self._rooms, self.clock, most)

    @classmethod
    async def open(
        cls, url: str | None = None, rules: Rules | None = None, settings: Settings | None = None
    ) -> Self:
        """A service on the store a URL names, which is there and fit for use."""
        return cls(await Repository.open(url), rules, settings or DEFAULT_SETTINGS)

    async def check(self, request: CheckRequest) -> CheckAnswer:
        """Takes the tokens, or says how long to wait; a dry run takes nothing."""
        answer = await self.brief(request, whole=True)
        assert isinstance(answer, CheckAnswer)
        return answer

    async def brief(self, request: CheckRequest, *, whole: bool = False) -> Yes | CheckAnswer:
        """The same; unless all of it is wanted, a plain yes is told as just that."""
        scope, identifier, resource, tokens, dry_run, _, namespace, endpoint, limits = request
        rules = self.rules
        place = self.places.under(rules).get((scope, identifier, resource))
        if place is None:
            place = self.places.of(rules, scope, identifier, resource)
        if tokens is None:
            tokens = 1 if endpoint is None else rules.cost_of(endpoint) or 1
        try:
            room = self._rooms.get(namespace) or await self.room(namespace)
            entity_id = place.entity_id
            chosen = limits or place.chosen
            now_ms = self.clock()
            plan = room.configs.warm(entity_id, resource, chosen, now_ms)
            if plan is None:
                entity_id = await room.entered(scope, entity_id, resource, now_ms)
            want = (entity_id, resource, ONE_EACH if tokens == 1 else Each(tokens), chosen)
            if plan is not None and not plan.bypass and not dry_run:
                ruling = await room.engine.consume_planned(want, plan.demands(want[2]), now_ms)
            else:
                ruling = await room.engine.consume((want,), dry_run=dry_run)
        except HeadgateError as error:
            told = self.told(error, namespace, (scope, resource, tokens), dry_run)
            return self.counted(told, namespace, identifier)
        return self.ruled(ruling, place, tokens, dry_run, whole, namespace)

    async def batch(self, request: BatchRequest) -> BatchAnswer:
        """Each check for itself; a problem of one is its result and touches no other."""
        results = await decided_each(self, request, whole=True)
        return BatchAnswer(tuple(results))  # type: ignore[arg-type]  # no yes is told as just that

    async def brief_batch(self, request: BatchRequest) -> list[Yes | CheckAnswer | ServiceError]:
        """The same, with plain yeses told as just that."""
        return await decided_each(self, request)

    def ruled(
        self, ruling: Ruled, place: Place, tokens: int, dry_run: bool, whole: bool, namespace: str
    ) -> Yes | CheckAnswer:
        """What a ruling comes to, counted; a verdict alone is one with nothing else to say."""
        verdict, parts, trouble = (
            (ruling, (ruling.demands,), None) if isinstance(ruling, Verdict) else ruling
        )
        if not (whole or dry_run or trouble is not None) and self.tells_briefly:
            yes = plain_yes(verdict, place)
            if yes is not None:
                if self.on_yes is not None:
                    self.on_yes(place.scope, place.resource, tokens, 1)
                return yes
        asked = (place.scope, place.resource, tokens)
        answer = read(verdict, parts[0], place.rule, asked, trouble, dry_run)
        return self.counted(answer, namespace, place.identifier)

    def counted(self, answer: CheckAnswer, namespace: str, identifier: str) -> CheckAnswer:
        """The answer, with its link where it is a refusal, told to whoever counts."""
        if answer.code is not None:
            answer = linked(answer, namespace, identifier)
        if self._on_answer is not None:
            self._on_answer(answer)
        return answer

    async def check_all(self, request: DescriptorsRequest) -> CombinedAnswer:
        """All descriptors or none, in one atomic step."""
        rules = self.rules
        cost = request.tokens or self._cost(rules, request.endpoint)
        asked: list[Asked] = []
        chosen: list[Rule | None] = []
        for one in request.descriptors:
            chosen.append(rule_for(rules, one.scope, one.resource))
            asked.append((one.scope, one.resource, cost if one.tokens is None else one.tokens))
        names = [identifier_of(rules, request, place) for place in range(len(asked))]
        try:
            room = self._rooms.get(request.namespace) or await self.room(request.namespace)
            wants = [
                await self._want(room, scope, name, resource, Each(tokens), rule, one.limits)
                for (scope, resource, tokens), name, rule, one in zip(
                    asked, names, chosen, request.descriptors, strict=True
                )
            ]
            verdict, parts, trouble = await room.engine.consume(wants, dry_run=request.dry_run)
        except HeadgateError as error:
            results = [self.told(error, request.namespace, one, request.dry_run) for one in asked]
        else:
            results = [
                read(verdict, part, rule, one, trouble, request.dry_run)
                for part, rule, one in zip(parts, chosen, asked, strict=True)
            ]
        whole = combined(
            [
                one if one.code is None else linked(one, request.namespace, name)
                for one, name in zip(results, names, strict=True)
            ]
        )
        if self._on_answer is not None:
            for result in whole.results:  # one that alone had room took nothing if another refused
                self._on_answer(result if whole.allowed else result._replace(allowed=False))
        return whole

    async def acquire(self, request: AcquireRequest) -> AcquireAnswer:
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
        await self.leases.room()
        try:
            room = self._rooms.get(request.namespace) or await self.room(request.namespace)
            want = await self._want(room, scope, identifier, resource, amounts, rule, None)
            verdict, parts, trouble = await room.engine.consume((want,))
        except HeadgateError as error:
            answer = self.told(error, request.namespace, asked, False)
        else:
            answer = read(verdict, parts[0], rule, asked, trouble)
        if answer.code is not None:
            answer = linked(answer, request.namespace, identifier)
        if self._on_answer is not None:
            self._on_answer(answer)
        if not answer.allowed:
            return AcquireAnswer(answer, None)
        store = room.engine.store if trouble is None else self._fallback
        book = LeaseBook(
            room.engine.settlements, store, verdict.demands, self.clock(), request.keep,
            trouble is not None, verdict.untaken,
        )  # fmt: skip
        lease = await self.leases.opened(request.namespace, book, request.ttl_ms)
        return AcquireAnswer(answer, lease)

    async def lease(self, lease_id: str, namespace: str) -> LeaseAnswer:
        return await self.leases.read(lease_id, namespace)

    async def adjust(self, request: ChangeRequest) -> LeaseAnswer:
        return await self._leasing(self.leases.adjust, request)

    async def settle(self, request: ChangeRequest) -> LeaseAnswer:
        return await self._leasing(self.leases.settle, request)

    async def release(self, request: ChangeRequest) -> LeaseAnswer:
        return await self._leasing(self.leases.release, request)

    async def explain(
        self, namespace: str, scope: str, identifier: str, resource: str
    ) -> tuple[Rule | None, Explanation]:
        """The policy that matches, and which level gives each limit in the end."""
        rule = rule_for(self.rules, scope, resource)
        return rule, await self._explained(
            namespace, entity_id_of(scope, identifier), resource, rule
        )

    async def explain_entity(
        self, namespace: str, entity_id: str, resource: str
    ) -> tuple[Rule | None, Explanation]:
        """The same by an entity's id: teams and companies have no scope that requests name."""
        scope, colon, _ = entity_id.partition(":")
        rule = self.rules.limits_for(scope if colon else "", resource)
        return rule, await self._explained(namespace, entity_id, resource, rule)

    async def _explained(
        self, namespace: str, entity_id: str, resource: str, rule: Rule | None
    ) -> Explanation:
        try:
            room = await self.room(namespace)
            found = await room.engine.explain(entity_id, resource, rule.defaults if rule else None)
        except HeadgateError as error:
            raise_translated(error)
        return found

    async def health(self) -> HealthAnswer:
        """How things stand; asks the store once."""
        denied = False
        try:
            await self.repository.get_version_record()
            answers = True
        except HeadgateError as error:
            answers, denied = False, isinstance(error, StoreDenied)
        ready = answers or (self.settings.fail_open and not denied)
        well = answers and self.breaker is State.CLOSED and self.rules_trouble is None
        status = Health.HEALTHY if well else Health.DEGRADED if ready else Health.UNHEALTHY
        return HealthAnswer(
            status, ready, answers, self.breaker.value, self.rules_trouble, len(self.leases.shelf)
        )

    async def room(self, namespace: str) -> Room:
        """The namespace's engine and operator flows; ServiceError NOT_FOUND where there is none."""
        room = self._rooms.get(namespace)
        if room is not None:
            return room
        home = self.repository.namespace(namespace)
        room = Room(home, self._store, self._fallback, self.settings, self._observer)
        try:
            await home.configs.namespace_id()
        except StoreTrouble:  # the engine decides what an outage means; the next call asks again
            return room
        except HeadgateError as error:
            raise_translated(error)
        if len(self._rooms) >= self.settings.namespaces_max:
            self._rooms.pop(next(iter(self._rooms)))
        return self._rooms.setdefault(namespace, room)

    def go_by(self, *, fail_open: bool) -> None:
        """From now on an outage means this, in every namespace."""
        self.settings = replace(self.settings, fail_open=fail_open)
        for room in self._rooms.values():
            room.engine.on_unavailable = OnUnavailable.ALLOW if fail_open else OnUnavailable.BLOCK

    def observe(self, observer: Observer | None) -> Observer | None:
        """Who hears of every decision from now on; returns who heard before."""
        before, self._observer = self._observer, observer
        for room in self._rooms.values():
            room.engine.observer = observer
        return before

    async def tick(self) -> None:
        """What must happen from time to time though nobody asks; call it about every second."""
        await self.leases.sweep()

    async def close(self) -> None:
        await self._store.close()

    async def _want(
        self,
        room: Room,
        scope: str,
        identifier: str,
        resource: str,
        amounts: Amounts,
        rule: Rule | None,
        limits: Chosen,
    ) -> Want:
        entity_id = entity_id_of(scope, identifier)
        chosen = limits or (NO_DEFAULTS if rule is None else rule.defaults)
        now_ms = self.clock()
        if room.configs.warm(entity_id, resource, chosen, now_ms) is None:
            entity_id = await room.entered(scope, entity_id, resource, now_ms)
        return entity_id, resource, amounts, chosen

    async def _leasing(
        self, verb: Callable[[ChangeRequest], Any], request: ChangeRequest
    ) -> LeaseAnswer:
        try:
            answer: LeaseAnswer = await verb(request)
        except HeadgateError as error:
            raise_translated(error)
        return answer

    def told(
        self, error: HeadgateError, namespace: str, asked: Asked, dry_run: bool
    ) -> CheckAnswer:
        """The answer where an error is one: the store is away, or has a speed limit of its own."""
        if isinstance(error, RateLimitExceeded):
            return throttled(error, asked, dry_run)
        if not isinstance(error, RateLimiterUnavailable):
            if isinstance(error, StoreDenied):
                self.log_denied(error)
            if isinstance(error, NamespaceStateError):
                self._rooms.pop(namespace, None)
            raise_translated(error)
        return unavailable(error, asked, dry_run)

    def log_denied(self, error: StoreDenied) -> None:
        """Tells the operator the missing right, which callers are not told; once a minute."""
        now_ms = self.clock()
        if now_ms >= self._log_denied_ms:
            self._log_denied_ms = now_ms + LOG_DENIED_MS
            log.error("the store refuses the service, so no request is admitted: %s", error)

    def _cost(self, rules: Rules, endpoint: str | None) -> int:
        return 1 if endpoint is None else rules.cost_of(endpoint) or 1

    def _breaker_changed(self, state: State) -> None:
        self.breaker = state
        if self._observer is not None:
            self._observer(Event("breaker", "", "", "", state.value))
