"""What the routes about plans do: named sets of limits that entities refer to."""

from __future__ import annotations

from headgate.admin import documents
from headgate.core.errors import EntityNotFoundError, PlanNotFoundError
from headgate.core.levels import Plan
from headgate.core.limits import parse_resource
from headgate.service.http import calls
from headgate.service.http.calls import Document, RouteCall

PAGE = 100


async def list_plans(call: RouteCall) -> Document:
    found, cursor = await call.ns.list_plans(
        call.query.get("limit", PAGE), call.query.get("cursor")
    )
    return {"items": [documents.listed_plan_as_json(one) for one in found], "cursor": cursor}


async def get_plan(call: RouteCall) -> Document:
    return documents.listed_plan_as_json(await _known_plan(call))


async def put_plan(call: RouteCall) -> Document:
    """What it gives for every resource; the plan is made where there is none."""
    limits = calls.limits_of(call.body(calls.PlanLimitsBody).limits)
    await call.ns.set_plan(call.path["plan"], limits, None, call.principal)
    return await get_plan(call)


async def delete_plan(call: RouteCall) -> Document:
    unassigned = await call.ns.delete_plan(
        call.path["plan"], unassign=call.query.get("unassign", False), principal=call.principal
    )
    return {"unassigned": unassigned}


async def list_entities(call: RouteCall) -> Document:
    plan = await _known_plan(call)
    found, cursor = await call.ns.list_entities_on_plan(
        plan.name, call.query.get("limit", PAGE), call.query.get("cursor")
    )
    return {"items": found, "cursor": cursor}


async def get_plan_limits(call: RouteCall) -> Document:
    plan = await _known_plan(call)
    return {"limits": documents.limits_as_json(plan.limits_for(_resource(call)))}


async def put_plan_limits(call: RouteCall) -> Document:
    limits = calls.limits_of(call.body(calls.LimitsBody).limits)
    await call.ns.set_plan(call.path["plan"], limits, _resource(call), call.principal)
    return await get_plan_limits(call)


async def delete_plan_limits(call: RouteCall) -> None:
    await call.ns.set_plan(call.path["plan"], [], _resource(call), call.principal)


async def assign_plan(call: RouteCall) -> Document:
    """The entity is on this plan, or with null on none."""
    given = call.body(calls.PlanAssignmentBody)
    entity_id = call.path["entity_id"]
    found = await call.ns.get_entity(entity_id)
    if found is None:
        raise EntityNotFoundError(entity_id)
    version = given.version or found.version
    after = await call.ns.assign_plan(entity_id, given.plan, call.principal, version)
    return documents.entity_as_json(after)


async def _known_plan(call: RouteCall) -> Plan:
    found = await call.ns.get_plan(call.path["plan"])
    if found is None:
        raise PlanNotFoundError(call.path["plan"])
    return found


def _resource(call: RouteCall) -> str:
    return parse_resource(call.path["resource"])
