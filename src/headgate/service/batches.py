"""A batch: independent checks of one namespace, decided in one store call where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headgate.errors import HeadgateError
from headgate.plan import Plan, each_of
from headgate.service.answers import CheckAnswer, Yes
from headgate.service.places import Place
from headgate.service.port import each
from headgate.service.problems import ServiceError
from headgate.service.requests import BatchRequest, CheckRequest
from headgate.service.rooms import Room

if TYPE_CHECKING:
    from headgate.service.service import Service

Result = Yes | CheckAnswer | ServiceError


class Item:
    """One check on its way: its place, what it wants, and the plan for it once there is one."""

    __slots__ = ("entity_id", "place", "plan", "tokens")

    def __init__(self, place: Place, tokens: int, plan: Plan | None) -> None:
        self.place = place
        self.tokens = tokens
        self.plan = plan
        self.entity_id = place.entity_id


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
    items = _items(service, room, checks)
    cold = [one for one in items if type(one) is Item and one.plan is None]
    if cold:
        troubles = await each(lambda one: _planned(room, one), cold, at_once=service.waits)
        denied = {one: trouble for one, trouble in zip(cold, troubles, strict=True) if trouble}
        items = [denied.get(one, one) if isinstance(one, Item) else one for one in items]
    asked = [one for one in items if isinstance(one, Item)]
    rulings = await room.engine.consume_each(
        [(one.entity_id, one.place.resource, each_of(one.tokens), one.place.chosen)
         for one in asked],
        [one.plan for one in asked],
    )  # fmt: skip
    told = iter(rulings)
    found: list[Result] = []
    for one in items:
        if isinstance(one, ServiceError):
            found.append(one)
            continue
        ruling = next(told)
        if isinstance(ruling, HeadgateError):
            found.append(_told(service, ruling, namespace, one))
        else:
            found.append(service.ruled(ruling, one.place, one.tokens, False, whole, namespace))
    return found


def _items(
    service: Service, room: Room, checks: Sequence[CheckRequest]
) -> list[Item | ServiceError]:
    rules, now_ms = service.rules, service.clock()
    place_of, warm = service.places.of, room.configs.warm
    found: list[Item | ServiceError] = []
    for scope, identifier, resource, tokens, _, _, _, endpoint, _ in checks:
        try:
            place = place_of(rules, scope, identifier, resource)
        except ServiceError as problem:
            found.append(problem)
            continue
        if tokens is None:
            cost = 1 if endpoint is None else rules.cost_of(endpoint) or 1
        else:
            cost = tokens
        plan = warm(place.entity_id, resource, place.chosen, now_ms)
        found.append(Item(place, cost, plan))
    return found


async def _planned(room: Room, item: Item) -> ServiceError | None:
    """Looks up who is not known yet. Trouble on the way is left to the engine, which meets it
    again and knows what it means."""
    place, now_ms = item.place, room.clock()
    try:
        item.entity_id = await room.entered(place.scope, place.entity_id, place.resource, now_ms)
        item.plan = await room.engine.plan(item.entity_id, place.resource, place.chosen, now_ms)
    except ServiceError as problem:
        return problem
    except HeadgateError:
        return None
    return None


async def _alone(service: Service, check: CheckRequest, whole: bool) -> Result:
    try:
        return await service.brief(check, whole=whole)
    except ServiceError as problem:
        return problem


def _told(service: Service, error: HeadgateError, namespace: str, item: Item) -> Result:
    asked = (item.place.scope, item.place.resource, item.tokens)
    try:
        told = service.told(error, namespace, asked, False)
        return service.counted(told, namespace, item.place.identifier)
    except ServiceError as problem:
        return problem
