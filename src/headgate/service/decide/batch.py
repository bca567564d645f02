"""A batch: independent checks of one namespace, decided in one store call where there is one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from headgate.core.decision import Verdict
from headgate.core.engine import Decided, Want
from headgate.core.errors import HeadgateError
from headgate.core.plan import ONE_EACH, Each, Plan
from headgate.service.decide.answers import CheckAnswer, Yes
from headgate.service.decide.evaluate import plain_yes
from headgate.service.decide.namespaces import Room
from headgate.service.decide.problems import ServiceError
from headgate.service.decide.requests import BatchRequest, CheckRequest
from headgate.service.decide.targets import Place

if TYPE_CHECKING:
    from headgate.service.decide.service import OnYes, Service

# --------------------------------------------------------------------------------------------------
# Doing several things at once: the only place of the service's core that knows the event loop.

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


async def each(
    work: Callable[[ItemT], Awaitable[ResultT]], items: Sequence[ItemT], *, at_once: bool
) -> list[ResultT]:
    """The work on every item, in order. At once where it waits for a network: a port that pipelines
    sends all of it together then. One after another where nothing waits: tasks would only cost."""
    if at_once and len(items) > 1:
        return list(await asyncio.gather(*(_call_one(work, item) for item in items)))
    return [await work(item) for item in items]


async def _call_one(work: Callable[[ItemT], Awaitable[ResultT]], item: ItemT) -> ResultT:
    return await work(item)


Result = Yes | CheckAnswer | ServiceError


# One check on its way: its place, its tokens, what it wants, and the plan for it once there is one.
Item = tuple[Place, int, Want, Plan | None]


async def decided_each(
    service: Service, request: BatchRequest, *, whole: bool = False
) -> list[Result]:
    """One result per check, in their order; a problem of one is its result."""
    namespace, checks = request.namespace, request.requests
    if True in [check[4] for check in checks]:  # a dry run sees what those before it took
        return [await _alone(service, check, whole) for check in checks]
    try:
        room = await service.room(namespace)
    except ServiceError as problem:
        return [problem] * len(checks)
    items, ready = _items(service, room, checks)
    asked = items
    if not ready:
        items = await each(lambda one: _planned(room, one), items, at_once=service.waits)
        asked = [one for one in items if type(one) is tuple]
    rulings = await room.engine.consume_each(
        [one[2] for one in asked],  # type: ignore[index]  # no problem is among them
        [one[3] for one in asked],  # type: ignore[index]
    )
    return _results(service, items, rulings, namespace, whole)


def _items(
    service: Service, room: Room, checks: Sequence[CheckRequest]
) -> tuple[list[Item | ServiceError], bool]:
    """The items, and whether each is one and has its plan."""
    rules, now_ms = service.rules, service.clock()
    known, warm = service.places.under(rules), room.configs.warm
    found: list[Item | ServiceError] = []
    ready = True
    for check in checks:
        scope, identifier, resource, tokens, _, _, _, endpoint, _ = check
        place = known.get((scope, identifier, resource))
        if place is None:
            try:
                place = service.places.of(rules, scope, identifier, resource)
            except ServiceError as problem:
                found.append(problem)
                ready = False
                continue
        if tokens is None:
            tokens = 1 if endpoint is None else rules.cost_of(endpoint) or 1
        entity_id, chosen = place.entity_id, place.chosen
        plan = warm(entity_id, resource, chosen, now_ms)
        if plan is None:
            ready = False
        amounts = ONE_EACH if tokens == 1 else Each(tokens)
        found.append((place, tokens, (entity_id, resource, amounts, chosen), plan))
    return found, ready


async def _planned(room: Room, item: Item | ServiceError) -> Item | ServiceError:
    """Looks up who is not known yet. Trouble on the way is left to the engine, which meets it
    again and knows what it means."""
    if isinstance(item, ServiceError) or item[3] is not None:
        return item
    place, tokens, (entity_id, resource, amounts, chosen), plan = item
    now_ms = room.clock()
    try:
        entity_id = await room.entered(place.scope, entity_id, resource, now_ms)
        plan = await room.engine.plan(entity_id, resource, chosen, now_ms)
    except ServiceError as problem:
        return problem
    except HeadgateError:
        pass
    return place, tokens, (entity_id, resource, amounts, chosen), plan


def _results(
    service: Service,
    items: Sequence[Item | ServiceError],
    rulings: Sequence[Decided],
    namespace: str,
    whole: bool,
) -> list[Result]:
    told = iter(rulings)
    briefly = service.tells_briefly and not whole
    found: list[Result] = []
    yeses: list[tuple[Place, int]] = []
    for one in items:
        if isinstance(one, ServiceError):
            found.append(one)
            continue
        place, tokens, _, _ = one
        ruling = next(told)
        if type(ruling) is Verdict:
            yes = plain_yes(ruling, place) if briefly else None
            if yes is not None:
                found.append(yes)
                yeses.append((place, tokens))
                continue
        if isinstance(ruling, HeadgateError):
            found.append(_told(service, ruling, namespace, place, tokens))
        else:
            found.append(service.ruled(ruling, place, tokens, False, whole, namespace))
    if service.on_yes is not None:
        _count(yeses, service.on_yes)
    return found


def _count(yeses: Sequence[tuple[Place, int]], on_yes: OnYes) -> None:
    """Tells what was plainly admitted, neighbours of one kind at once."""
    scope = resource = ""
    tokens = checks = 0
    for place, taken in yeses:
        if place.resource != resource or place.scope != scope:
            if checks:
                on_yes(scope, resource, tokens, checks)
            scope, resource, tokens, checks = place.scope, place.resource, 0, 0
        tokens += taken
        checks += 1
    if checks:
        on_yes(scope, resource, tokens, checks)


async def _alone(service: Service, check: CheckRequest, whole: bool) -> Result:
    try:
        return await service.brief(check, whole=whole)
    except ServiceError as problem:
        return problem


def _told(
    service: Service, error: HeadgateError, namespace: str, place: Place, tokens: int
) -> Result:
    asked = (place.scope, place.resource, tokens)
    try:
        told = service.told(error, namespace, asked, False)
        return service.counted(told, namespace, place.identifier)
    except ServiceError as problem:
        return problem
