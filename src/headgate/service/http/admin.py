"""Operator routes on entities, stored limits and namespaces: parse, call, show."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import UNSET

from headgate.admin.documents import entity_as_json, limits_as_json, namespace_as_json
from headgate.core.errors import EntityNotFoundError, ValidationError
from headgate.core.levels import OnUnavailable
from headgate.core.limits import Limit, parse_limits, parse_namespace
from headgate.service.decide.problems import invalid, not_found
from headgate.service.http.calls import (
    Document,
    EntityChangeBody,
    LimitBody,
    LimitsBody,
    ModeChangeBody,
    ModeName,
    NewEntityBody,
    RouteCall,
    SystemLimitsChangeBody,
)
from headgate.service.keys.access import KEYS_NAMESPACE
from headgate.service.keys.key import KeyScope

READ, ADMIN = KeyScope.READ, KeyScope.ADMIN
PAGE = 100


async def list_namespaces(call: RouteCall) -> Document:
    found = await call.service.repository.list_namespaces()
    return {"items": [namespace_as_json(one) for one in found if one.name != KEYS_NAMESPACE]}


async def list_deleted(call: RouteCall) -> Document:
    found = await call.service.repository.list_orphan_namespaces()
    return {"items": [namespace_as_json(one) for one in found if one.name != KEYS_NAMESPACE]}


async def get_namespace(call: RouteCall) -> Document:
    found = await call.service.repository.get_namespace(call.path["namespace"])
    if found is None:
        raise not_found()
    return namespace_as_json(found)


async def put_namespace(call: RouteCall) -> Document:
    name = parse_namespace(call.path["namespace"])
    await call.service.repository.register_namespace(name, call.principal)
    return await get_namespace(call)


async def delete_namespace(call: RouteCall) -> None:
    ns = await call.service.namespace(call.path["namespace"])
    await ns.home.delete_namespace(ns.home.namespace_name, call.principal)


async def recover_namespace(call: RouteCall) -> Document:
    found = await call.service.repository.recover_namespace(
        call.path["namespace_id"], call.principal
    )
    return namespace_as_json(found)


async def purge_namespace(call: RouteCall) -> Document:
    repository = call.service.repository
    return {"records": await repository.purge_namespace(call.path["namespace_id"], call.principal)}


async def list_entities(call: RouteCall) -> Document:
    found, cursor = await call.ns.list_entities(
        call.query.get("limit", PAGE), call.query.get("cursor")
    )
    return {"items": [entity_as_json(one) for one in found], "cursor": cursor}


async def create_entity(call: RouteCall) -> Document:
    given = call.body(NewEntityBody)
    parent_id = given.parent_id or None
    _permit_parent(call, parent_id)
    made = await call.ns.create_entity(
        given.id,
        given.name or None,
        parent_id,
        given.cascade is True,
        given.metadata or None,
        call.principal,
    )
    return entity_as_json(made)


async def get_entity(call: RouteCall) -> Document:
    found = await call.ns.get_entity(call.path["entity_id"])
    if found is None:
        raise EntityNotFoundError(call.path["entity_id"])
    return entity_as_json(found)


async def change_entity(call: RouteCall) -> Document:
    given = call.body(EntityChangeBody)
    moves = given.parent_id is not UNSET or given.cascade is not UNSET
    if given.mode is not UNSET and (moves or given.version is not UNSET):
        raise invalid("mode", "is changed by itself; send the other changes apart")
    if given.mode is UNSET and not moves:
        raise invalid("request", "changes nothing; say parent_id, cascade or mode")
    entity_id = call.path["entity_id"]
    known = await call.ns.get_entity(entity_id)
    if known is None:
        raise EntityNotFoundError(entity_id)
    if given.mode is not UNSET:
        await _switch(call, given.mode, {"entity_id": entity_id})
    else:
        parent_id = known.parent_id if given.parent_id is UNSET else given.parent_id
        if parent_id != known.parent_id or given.cascade:
            _permit_parent(call, parent_id)
        await call.ns.set_parent(
            entity_id,
            parent_id,
            None if given.cascade is UNSET else given.cascade,
            call.principal,
            given.version or known.version,
        )
    return await get_entity(call)


async def delete_entity(call: RouteCall) -> None:
    await call.ns.delete_entity(call.path["entity_id"], call.principal)


async def list_children(call: RouteCall) -> Document:
    found = await call.ns.get_children(call.path["entity_id"])
    return {"items": [entity_as_json(one) for one in found if _reaches(call, READ, one.id)]}


async def switch_resource(call: RouteCall) -> Document:
    given = call.body(ModeChangeBody)
    await _switch(call, given.mode, {"resource": call.path["resource"]})
    return {"resource": call.path["resource"], "mode": given.mode}


async def get_system_limits(call: RouteCall) -> Document:
    limits, rule = await call.ns.get_system_defaults()
    return {"limits": limits_as_json(limits), "on_unavailable": rule.value if rule else None}


async def put_system_limits(call: RouteCall) -> Document:
    given = call.body(SystemLimitsChangeBody)
    limits = _limits(given.limits)
    rule = OnUnavailable(given.on_unavailable) if given.on_unavailable else None
    await call.ns.set_system_defaults(limits, rule, call.principal)
    return await get_system_limits(call)


async def delete_system_limits(call: RouteCall) -> None:
    await call.ns.delete_system_defaults(call.principal)


async def list_resource_limits(call: RouteCall) -> Document:
    return {"items": await call.ns.list_resources_with_defaults()}


async def get_resource_limits(call: RouteCall) -> Document:
    return {"limits": limits_as_json(await call.ns.get_resource_defaults(call.path["resource"]))}


async def put_resource_limits(call: RouteCall) -> Document:
    limits = _limits(call.body(LimitsBody).limits)
    await call.ns.set_resource_defaults(call.path["resource"], limits, call.principal)
    return await get_resource_limits(call)


async def delete_resource_limits(call: RouteCall) -> None:
    await call.ns.delete_resource_defaults(call.path["resource"], call.principal)


async def get_entity_limits(call: RouteCall) -> Document:
    return {
        "limits": limits_as_json(
            await call.ns.get_limits(call.path["entity_id"], call.path["resource"])
        )
    }


async def put_entity_limits(call: RouteCall) -> Document:
    limits = _limits(call.body(LimitsBody).limits)
    await call.ns.set_limits(call.path["entity_id"], limits, call.path["resource"], call.principal)
    return await get_entity_limits(call)


async def delete_entity_limits(call: RouteCall) -> None:
    await call.ns.delete_limits(call.path["entity_id"], call.path["resource"], call.principal)


def _reaches(call: RouteCall, need: KeyScope, entity_id: str) -> bool:
    return call.caller.refusal_for(need, call.path["namespace"], entity_id) is None


def _permit_parent(call: RouteCall, parent_id: str | None) -> None:
    """Whoever may act for some entities cannot have others pay for them: a foreign parent looks as
    if it were not there."""
    if parent_id is not None and not _reaches(call, ADMIN, parent_id):
        raise EntityNotFoundError(parent_id)


async def _switch(call: RouteCall, mode: ModeName, whom: Mapping[str, str]) -> None:
    verb = {"normal": call.ns.enable, "disabled": call.ns.disable, "bypass": call.ns.bypass}[mode]
    await verb(**whom, principal=call.principal)


def _limits(given: list[str | LimitBody]) -> list[Limit]:
    """Limits as objects, or in words: "100/minute burst 150"."""
    try:
        found = [
            Limit.parse(one) if isinstance(one, str) else Limit(*msgspec.structs.astuple(one))
            for one in given
        ]
        return list(parse_limits(found))
    except ValidationError as error:
        raise invalid("limits", f"has a {error.field} that {error.reason}") from None
