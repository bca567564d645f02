"""Charges: what was used, said afterwards; and looks, which come before them.

The cost of a stream is known at its end. So a request looks first, which takes nothing and is
refused while no whole token is left, and the charge follows: it is taken whatever is there, and may
leave a debt that the next look has to wait for. docs/adr/0025-charges.md says why.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from headgate.core.decision import Demand, LimitStatus, Verdict
from headgate.core.engine import Decision, Engine
from headgate.core.errors import (
    DisabledError,
    HeadgateError,
    RateLimiterUnavailable,
    StoreTrouble,
)
from headgate.core.plan import LOOK, Amounts, Charge, Tokens
from headgate.core.record import BucketKey
from headgate.core.refill.bucket import MILLI
from headgate.core.store import PeekResult, Store
from headgate.layers.layer import ShadowVerdict
from headgate.service.decide.answers import ChargeResult, CheckResult, CombinedResult, combine
from headgate.service.decide.batch_engine import DecisionOrError
from headgate.service.decide.problems import (
    STORE_RETRY_MS,
    Code,
    ServiceError,
    invalid,
    raise_service_error,
)
from headgate.service.decide.requests import (
    ChargeRequest,
    CheckDescriptor,
    DescriptorsRequest,
    check_amounts,
    identifier_of,
)
from headgate.service.decide.rules import (
    BY_NAME,
    DEBT,
    FIT,
    Target,
    cost_of_call,
    rule_for,
)

if TYPE_CHECKING:
    from headgate.service.decide.service import Service

LOOKED_MAX = 4096

# --------------------------------------------------------------------------------------------------
# The engine's flow with charges in the place of takes.


class ChargeVerdict(Verdict):
    """Allowed, for a charge is never refused. `standing` is the look after it, so it knows the wait
    until there is something again; None where the store gave no answer to that. `applied` is False
    where the charge had come before."""

    __slots__ = ("applied", "standing")

    is_plain = False

    def __init__(
        self, demands: Sequence[Demand], standing: Verdict | None, applied: bool, now_ms: int
    ) -> None:
        super().__init__(True, demands, (), now_ms)
        self.standing = standing
        self.applied = applied
        self.outdated = standing is not None and standing.outdated

    @property
    def statuses(self) -> list[LimitStatus]:
        if self.standing is None:
            return []
        charged = self._charged()
        return [
            one._replace(requested=charged.get(place_of(one), 0), exceeded=False, retry_after_ms=0)
            for one in self.standing.statuses
        ]

    def had_some(self, part: Sequence[Demand]) -> bool:
        """Whether a look just before the charge had passed, as far as this part goes."""
        if self.standing is None:
            return True
        charged = self._charged()
        touched = {(demand.key.entity_id, demand.key.resource) for demand in part}
        return all(
            one.limit.soft or one.available + charged.get(place_of(one), 0) > 0
            for one in self.standing.statuses
            if (one.entity_id, one.resource) in touched
        )

    def _charged(self) -> dict[tuple[str, str, str], int]:
        """Whole tokens by the place of a limit."""
        return {
            (demand.key.entity_id, demand.key.resource, name): milli // MILLI
            for demand in self.demands
            for name, milli in demand.named()
        }


def place_of(status: LimitStatus) -> tuple[str, str, str]:
    return status.entity_id, status.resource, status.limit_name


class ChargedStore:
    """A store in which a take is a charge: it goes into debt, and credits stop at the brim."""

    def __init__(self, store: Store, once: str | None) -> None:
        self._store = store
        self._once = once

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        applied = await self._store.adjust(demands, now_ms, once=self._once)
        try:
            peeked = await self.peek([demand.key for demand in demands], now_ms)
        except StoreTrouble:  # the charge stands: only what is left is not known
            return ChargeVerdict(demands, None, applied, now_ms or 0)
        looks = [Demand(one.key, one.terms, _look_at(one)) for one in demands]
        return ChargeVerdict(demands, peeked.verdict(looks), applied, peeked.now_ms)

    async def peek(self, keys: Sequence[BucketKey], now_ms: int | None) -> PeekResult:
        return await self._store.peek(keys, now_ms)


def _look_at(demand: Demand) -> tuple[int | None, ...]:
    return tuple(None if amount is None else MILLI for amount in demand.amounts)


def charging(engine: Engine, once: str | None = None) -> Engine:
    """The same engine, whose takes are charges, on its store and where that is away."""
    found = copy.copy(engine)
    found.store = ChargedStore(engine.store, once)  # type: ignore[assignment]
    found.fallback = ChargedStore(engine.fallback, once)  # type: ignore[assignment]
    return found


# --------------------------------------------------------------------------------------------------
# The verb.


class _Part(NamedTuple):
    """One bucket that is to be charged."""

    target: Target
    charged: Mapping[str, int] | int

    @property
    def each(self) -> Sequence[int]:
        return (self.charged,) if isinstance(self.charged, int) else tuple(self.charged.values())

    def wanted(self, *, takes: bool) -> Amounts:
        if not takes:
            return Charge(self.charged, self.target.counts)
        if isinstance(self.charged, int):
            return Tokens(self.charged, self.target.counts)
        return self.charged


async def charge(service: Service, request: ChargeRequest) -> ChargeResult:
    """Takes what was used; with the mode "fit" only if all of it is there."""
    parts = _parts(service, request)
    mode, namespace, once = _mode(request, parts), request.namespace, request.idempotency_key
    amounts = [amount for part in parts for amount in part.each]
    takes = mode == FIT and max(amounts) > 0
    if takes and min(amounts) < 0:
        raise invalid("mode", "fit takes or gives back; say both in two charges, or use debt")
    if mode == FIT and once is not None:
        raise invalid(
            "idempotency_key", "goes with the mode debt; what must fit can be refused, and has none"
        )
    wanted = [part.wanted(takes=takes) for part in parts]
    ruling: DecisionOrError
    try:
        ns = await service.namespace(namespace)
        wants = [
            await service.engine_request(ns, part.target, one, None)
            for part, one in zip(parts, wanted, strict=True)
        ]
        if once is not None:
            # Top-ups have keys, too, and the unknown may share an entity: neither meets these.
            once = f"charge\n{parts[0].target.entity_id}\n{once}"
        ruling = await (ns.engine if takes else charging(ns.engine, once)).consume(wants)
    except HeadgateError as error:
        if isinstance(error, RateLimiterUnavailable) and error.maybe_applied:
            raise _unknown_fate() from error
        ruling = error
    results = [
        service.part_result(ruling, at, part.target, wanted[at], False, namespace)
        for at, part in enumerate(parts)
    ]
    whole = combine(results)
    verdict = ruling.verdict if isinstance(ruling, Decision) else None
    repeated = isinstance(verdict, ChargeVerdict) and not verdict.applied
    let_pass = verdict is not None and not verdict.demands  # by an operator, or a shadow
    service.tell([one._replace(tokens=0) if repeated else one for one in results], whole.allowed)
    wait_ms = whole.retry_after_ms
    if isinstance(verdict, ChargeVerdict) and verdict.standing is not None:
        wait_ms = verdict.standing.retry_after_ms
    answer = results[0] if request.is_single else whole
    return ChargeResult(answer, mode, whole.allowed and not (repeated or let_pass), wait_ms)


def _parts(service: Service, request: ChargeRequest) -> list[_Part]:
    rules, found, most = service.rules, [], service.settings.amount_max
    check_amounts(most, request.tokens, None, signed=True)
    usual = request.tokens
    if usual is None:
        usual = cost_of_call(rules, request.endpoint)
    for index, one in enumerate(request.descriptors):
        where = "" if request.is_single else f"descriptors[{index}]."
        check_amounts(most, one.tokens, one.amounts, where, signed=True)
        if one.scope != BY_NAME:
            rule_for(rules, one.scope, one.resource)  # an unknown scope is told first
        name = identifier_of(rules, request, index)
        target = service.targets.of(rules, one.scope, name, one.resource)
        tokens = usual if one.tokens is None else one.tokens
        found.append(_Part(target, tokens if one.amounts is None else one.amounts))
    return found


def _mode(request: ChargeRequest, parts: Sequence[_Part]) -> str:
    """What was asked for, else what the policies say, else a debt: what was used was used."""
    if request.mode is not None:
        return request.mode
    said = [None if part.target.rule is None else part.target.rule.charge for part in parts]
    return FIT if FIT in said else DEBT


def _unknown_fate() -> ServiceError:
    return ServiceError(
        Code.DEADLINE_EXCEEDED,
        "the store gave no answer, so it is not known whether the charge was applied; repeat it "
        "only with the same idempotency_key",
        retry_after_ms=STORE_RETRY_MS,
    )


# --------------------------------------------------------------------------------------------------
# Looks, takes and charges in one request, as Envoy sends them.


Kind = tuple[str, str, str]  # namespace, scope, resource


class Asked(NamedTuple):
    """What a descriptor asks. `kind` is what it is about; None where the hits themselves or the
    policy say whether they are a charge."""

    hit: CheckDescriptor
    kind: Kind | None


class Looked:
    """Which kinds of buckets were looked at with no hits: what hits
    one later is a charge. Those that nobody has looked at for longest make room, and are learned
    again from the next look."""

    def __init__(self) -> None:
        self._seen: dict[Kind, None] = {}

    def __contains__(self, kind: object) -> bool:
        return kind in self._seen

    def note(self, kind: Kind) -> None:
        self._seen.pop(kind, None)
        if len(self._seen) >= LOOKED_MAX:
            del self._seen[next(iter(self._seen))]
        self._seen[kind] = None

    def hits_of(self, asked: Sequence[Asked | None]) -> list[CheckDescriptor | None]:
        """The hits, those marked that are what a stream has cost and not what a request asks for.

        Envoy does not say at which end of a stream it asks. Its way to charge at the end is to look
        at the beginning, with no hits: so hits on what is looked at are charges, unless the policy
        has said it. A look changes what the hits of others mean, so the caller must be one who may
        ask all of this.
        """
        for one in asked:
            if one is not None and one.kind is not None and one.hit.tokens == 0:
                self.note(one.kind)
        return [
            one
            and (one.hit._replace(charge=True) if one.kind in self and one.hit.tokens else one.hit)
            for one in asked
        ]


async def decide_hits(service: Service, request: DescriptorsRequest) -> CombinedResult:
    """Takes of all descriptors or of none, after every look has passed; charges in any case.

    What would refuse the request is found out before anything is taken (S6): whether there is a
    limit for each part, and whether a look at what is charged would pass.
    """
    hits = request.descriptors
    looks = [at for at, hit in enumerate(hits) if hit.tokens == 0 and not hit.charge]
    charges = [at for at, hit in enumerate(hits) if hit.charge]
    if not looks and not charges:
        return await service.check_all(request)
    takes = [at for at in range(len(hits)) if at not in (*looks, *charges)]
    step = _Step(service, request)
    try:
        results, passes = await _decide_others(step, looks, takes, charges)
    except ServiceError as error:
        if error.code is Code.ENTITY_DISABLED:
            await step.charge(charges)
        raise
    told = [results[at] for at in sorted(results)]
    found = await step.charge(charges)
    service.tell(told, passes)
    results |= zip(charges, found, strict=True)
    return combine([results[at] for at in range(len(hits))])


async def _decide_others(
    step: _Step, looks: Sequence[int], takes: Sequence[int], charges: Sequence[int]
) -> tuple[dict[int, CheckResult], bool]:
    """The results of looks and takes by their place, and whether all of them pass."""
    if takes and charges:
        await step.prepare()
    seen = await step.look([*looks, *charges] if takes else looks)
    results = dict(zip(looks, seen, strict=False))
    passes = all(one.code is None for one in seen)
    results |= zip(takes, await step.take(takes, dry_run=not passes), strict=True)
    return results, passes and all(results[at].code is None for at in takes)


class _Step:
    """The descriptors of one request, to be decided by kind."""

    def __init__(self, service: Service, request: DescriptorsRequest) -> None:
        self._service = service
        self._hits = request.descriptors
        self._namespace = request.namespace
        rules = service.rules
        self._targets = [
            service.targets.of(rules, hit.scope, identifier_of(rules, request, at), hit.resource)
            for at, hit in enumerate(request.descriptors)
        ]

    async def prepare(self) -> None:
        """Raises where some part of the request cannot be decided at all."""
        error = await self._obstacle(range(len(self._hits)))
        if error is not None:
            raise_service_error(error)

    async def _obstacle(self, places: Sequence[int]) -> HeadgateError | None:
        """Why a look at these could not be decided."""
        service = self._service
        try:
            ns = await service.namespace(self._namespace)
            for at in places:
                hit, target = self._hits[at], self._targets[at]
                want = await service.engine_request(ns, target, LOOK, hit.limits)
                await ns.engine.plan(want[0], want[1], want[3], service.clock())
        except StoreTrouble:  # it is met again where it is known what it means
            return None
        except HeadgateError as error:
            return error
        return None

    async def look(self, places: Sequence[int]) -> list[CheckResult]:
        looks = [LOOK] * len(places)
        ruling = await self._rule(places, looks, dry_run=True, observed=True)
        return self._results(ruling, places, looks)

    async def take(self, places: Sequence[int], *, dry_run: bool) -> list[CheckResult]:
        amounts = [
            Tokens(self._hits[at].tokens or 0, self._targets[at].counts, every=True)
            for at in places
        ]
        return self._results(await self._rule(places, amounts, dry_run=dry_run), places, amounts)

    async def charge(self, places: Sequence[int]) -> list[CheckResult]:
        """They are taken. Where a look just before had been refused, the answer is that refusal: so
        whoever charges without a look, or is taken for somebody who does, is limited all the same.
        Somebody who was disabled meanwhile is charged, too, and told so.
        """
        obstacle = await self._obstacle(places)
        amounts = [
            Charge(self._hits[at].tokens or 0, self._targets[at].counts, every=True)
            for at in places
        ]
        ruling = await self._rule(places, amounts, charged=True)
        results = self._results(ruling, places, amounts)
        self._service.tell(results, True)
        if isinstance(obstacle, DisabledError):
            raise_service_error(obstacle)
        verdict = ruling.verdict if isinstance(ruling, Decision) else None
        shadow = self._service.shadow
        if shadow or not isinstance(verdict, ChargeVerdict) or verdict.standing is None:
            return results
        assert isinstance(ruling, Decision)
        after = self._results(ruling._replace(verdict=verdict.standing), places, amounts)
        return [
            result if verdict.had_some(part) else late
            for result, late, part in zip(results, after, ruling.parts, strict=True)
        ]

    async def _rule(
        self,
        places: Sequence[int],
        amounts: Sequence[Amounts],
        *,
        dry_run: bool = False,
        observed: bool = False,
        charged: bool = False,
    ) -> DecisionOrError | None:
        if not places:
            return None
        service = self._service
        try:
            ns = await service.namespace(self._namespace)
            wants = [
                await service.engine_request(ns, self._targets[at], amount, self._hits[at].limits)
                for at, amount in zip(places, amounts, strict=True)
            ]
            engine = charging(ns.engine) if charged else ns.engine
            found = await engine.consume(wants, dry_run=dry_run)
        except HeadgateError as error:
            return error
        if dry_run and service.shadow and not found.verdict.allowed:
            found = found._replace(verdict=ShadowVerdict(found.verdict))
        if observed and found.trouble is None:
            kind = "admitted" if found.verdict.allowed else "refused"
            engine.notify(kind, wants[0][0], wants[0][1])
        return found

    def _results(
        self,
        ruling: DecisionOrError | None,
        places: Sequence[int],
        amounts: Sequence[Amounts],
    ) -> list[CheckResult]:
        if ruling is None:
            return []
        return [
            self._service.part_result(
                ruling, part, self._targets[at], amounts[part], False, self._namespace
            )
            for part, at in enumerate(places)
        ]
