"""A batch: independent checks of one namespace, decided in one store call where there is one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headgate.core.decision import Verdict
from headgate.core.engine import Request
from headgate.core.errors import HeadgateError
from headgate.core.plan import Amounts, RequestPlan
from headgate.service.decide.answers import Admission, CheckResult
from headgate.service.decide.batch_engine import DecisionOrError
from headgate.service.decide.namespaces import NamespaceService
from headgate.service.decide.plain import plain_admission
from headgate.service.decide.problems import ServiceError
from headgate.service.decide.requests import BatchRequest, CheckRequest, check_amounts
from headgate.service.decide.rules import Target

if TYPE_CHECKING:
    from headgate.service.decide.service import OnAdmitted, Service

ItemResult = Admission | CheckResult | ServiceError


# One check on its way: its place, its tokens, what it wants, and the plan for it once there is one.
Item = tuple[Target, int, Request, RequestPlan | None]


async def decide_each(
    service: Service, request: BatchRequest, *, whole: bool = False
) -> list[ItemResult]:
    """One result per check, in their order; a problem of one is its result."""
    namespace, checks = request.namespace, request.requests
    most = service.settings.amount_max
    for place, (_, _, _, tokens, _, _, _, _, amounts) in enumerate(checks):
        # One that asks for too much refuses them all, as any does that is badly formed.
        if amounts is not None or (tokens is not None and tokens > most):
            check_amounts(most, tokens, amounts, f"requests[{place}].")
    if True in [check[4] for check in checks]:  # a dry run sees what those before it took
        return [await _decide_one(service, check, whole) for check in checks]
    try:
        ns = await service.namespace(namespace)
    except ServiceError as problem:
        return [problem] * len(checks)
    items, ready = _items(service, ns, checks)
    asked = items
    if not ready:
        items = await _plan_items(ns, items, at_once=service.waits)
        asked = [one for one in items if type(one) is tuple]
    rulings = await ns.engine.consume_each(
        [one[2] for one in asked],  # type: ignore[index]  # no problem is among them
        [one[3] for one in asked],  # type: ignore[index]
    )
    return _results(service, items, rulings, namespace, whole)


def _items(
    service: Service, ns: NamespaceService, checks: Sequence[CheckRequest]
) -> tuple[list[Item | ServiceError], bool]:
    """The items, and whether each is one and has its plan."""
    rules, now_ms = service.rules, service.clock()
    known, configs = service.targets.for_rules(rules), ns.configs
    found: list[Item | ServiceError] = []
    ready = True
    for check in checks:
        scope, identifier, resource, tokens, _, _, _, endpoint, amounts = check
        target = known.get((scope, identifier, resource))
        if target is None:
            try:
                target = service.targets.of(rules, scope, identifier, resource)
            except ServiceError as problem:
                found.append(problem)
                ready = False
                continue
        wanted: Amounts = target.one
        if amounts is None and (tokens == 1 or (tokens is None and endpoint is None)):
            tokens = 1
        else:
            tokens, wanted = target.wanted(rules, tokens, amounts, endpoint)
        entity_id, chosen = target.entity_id, target.chosen
        plan = target.plan_at_hand(configs, now_ms)
        if plan is None:
            ready = False
        found.append((target, tokens, (entity_id, resource, wanted, chosen), plan))
    return found, ready


async def _plan_items(
    ns: NamespaceService, items: Sequence[Item | ServiceError], *, at_once: bool
) -> list[Item | ServiceError]:
    """At once where it waits for a network: a port that pipelines sends all of it together then.
    One after another where nothing waits: tasks would only cost."""
    if at_once and len(items) > 1:
        return await asyncio.gather(*[_plan_item(ns, one) for one in items])
    return [await _plan_item(ns, one) for one in items]


async def _plan_item(ns: NamespaceService, item: Item | ServiceError) -> Item | ServiceError:
    """Looks up who is not known yet. Trouble on the way is left to the engine, which meets it
    again and knows what it means."""
    if isinstance(item, ServiceError) or item[3] is not None:
        return item
    target, tokens, (entity_id, resource, amounts, chosen), plan = item
    now_ms = ns.clock()
    try:
        entity_id = await ns.resolve_entity(target.scope, entity_id, resource, now_ms)
        plan = await ns.engine.plan(entity_id, resource, chosen, now_ms)
    except ServiceError as problem:
        return problem
    except HeadgateError:
        pass
    return target, tokens, (entity_id, resource, amounts, chosen), plan


def _results(
    service: Service,
    items: Sequence[Item | ServiceError],
    rulings: Sequence[DecisionOrError],
    namespace: str,
    whole: bool,
) -> list[ItemResult]:
    remaining = iter(rulings)
    found: list[ItemResult] = []
    admissions: list[tuple[Target, int]] = []
    for one in items:
        if isinstance(one, ServiceError):
            found.append(one)
            continue
        target, tokens, request, _ = one
        ruling = next(remaining)
        if (
            not whole
            and isinstance(ruling, Verdict)
            and ruling.allowed
            and len(ruling.demands) == 1
        ):
            record, wanted = ruling.records[0], ruling.demands[0]
            admitted = plain_admission(record, wanted, ruling.now_ms, target)
            if admitted is not None:
                found.append(admitted)
                admissions.append((target, tokens))
                continue
        try:
            found.append(service.conclude(ruling, target, request[2], False, namespace))
        except ServiceError as problem:
            found.append(problem)
    if service.on_admitted is not None:
        _count(admissions, service.on_admitted)
    return found


def _count(admissions: Sequence[tuple[Target, int]], on_admitted: OnAdmitted) -> None:
    """Tells what was plainly admitted, neighbours of one kind at once."""
    scope = resource = ""
    tokens = checks = 0
    is_stored = False
    for target, taken in admissions:
        if target.resource != resource or target.scope != scope:
            if checks:
                on_admitted(scope, resource, tokens, checks, is_stored)
            scope, resource, tokens, checks = target.scope, target.resource, 0, 0
            is_stored = target.frame is not None and target.frame.is_stored
        tokens += taken
        checks += 1
    if checks:
        on_admitted(scope, resource, tokens, checks, is_stored)


async def _decide_one(service: Service, check: CheckRequest, whole: bool) -> ItemResult:
    try:
        return await service.decide(check, whole=whole)
    except ServiceError as problem:
        return problem
