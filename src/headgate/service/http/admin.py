"""Operator routes on entities, stored limits and namespaces: parse, call, show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.admin.documents import entity_as_json, limits_as_json, namespace_as_json
from headgate.core.errors import EntityNotFoundError, ValidationError
from headgate.core.levels import OnUnavailable
from headgate.core.limits import LIMITS_MAX, Limit, parse_limits, parse_namespace
from headgate.service.decide.problems import invalid, not_found
from headgate.service.decide.requests import parse_flag, parse_list
from headgate.service.http.callers import Document, RouteCall
from headgate.service.keys.access import KEYS_NAMESPACE
from headgate.service.keys.key import KeyScope

READ, ADMIN = KeyScope.READ, KeyScope.ADMIN
PAGE = 100
CHANGES = ("parent_id", "cascade", "mode", "version")
MODES = ("normal", "disabled", "bypass")


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
    ns = await call.namespace()
    await ns.home.delete_namespace(call.path["namespace"], call.principal)


async def recover_namespace(call: RouteCall) -> Document:
    found = await call.service.repository.recover_namespace(
        call.path["namespace_id"], call.principal
    )
    return namespace_as_json(found)


async def purge_namespace(call: RouteCall) -> Document:
    repository = call.service.repository
    return {"records": await repository.purge_namespace(call.path["namespace_id"], call.principal)}


async def list_entities(call: RouteCall) -> Document:
    ns = await call.namespace()
    found, cursor = await ns.list_entities(call.query.get("limit", PAGE), call.query.get("cursor"))
    return {"items": [entity_as_json(one) for one in found], "cursor": cursor}


async def create_entity(call: RouteCall) -> Document:
    given = call.fields("id", "name", "parent_id", "cascade", "metadata", needed=("id",))
    _permit_parent(call, given.get("parent_id"))
    ns = await call.namespace()
    made = await ns.create_entity(
        given["id"],
        _title(given.get("name")),
        given.get("parent_id"),
        parse_flag(given.get("cascade", False), "cascade"),
        given.get("metadata"),
        call.principal,
    )
    return entity_as_json(made)


async def get_entity(call: RouteCall) -> Document:
    ns = await call.namespace()
    found = await ns.get_entity(call.path["entity_id"])
    if found is None:
        raise EntityNotFoundError(call.path["entity_id"])
    return entity_as_json(found)


async def change_entity(call: RouteCall) -> Document:
    given = call.fields(*CHANGES, nullable=("parent_id",))
    version = given.get("version")
    if "mode" in given and len(given) > 1:
        raise invalid("mode", "is changed by itself; send the other changes apart")
    if version is not None and (type(version) is not int or version < 1):
        raise invalid("version", "must be the whole number that the entity was read with")
    if not given.keys() & {"parent_id", "cascade", "mode"}:
        raise invalid("request", "changes nothing; say parent_id, cascade or mode")
    ns = await call.namespace()
    entity_id = call.path["entity_id"]
    known = await ns.get_entity(entity_id)
    if known is None:
        raise EntityNotFoundError(entity_id)
    if "mode" in given:
        await _switch(call, given["mode"], {"entity_id": entity_id})
    else:
        cascade = given.get("cascade")
        parent_id = given.get("parent_id", known.parent_id)
        if parent_id != known.parent_id or cascade:
            _permit_parent(call, parent_id)
        await ns.set_parent(
            entity_id,
            parent_id,
            None if cascade is None else parse_flag(cascade, "cascade"),
            call.principal,
            known.version if version is None else version,
        )
    return await get_entity(call)


async def delete_entity(call: RouteCall) -> None:
    ns = await call.namespace()
    await ns.delete_entity(call.path["entity_id"], call.principal)


async def list_children(call: RouteCall) -> Document:
    ns = await call.namespace()
    found = await ns.get_children(call.path["entity_id"])
    return {"items": [entity_as_json(one) for one in found if _reaches(call, READ, one.id)]}


async def switch_resource(call: RouteCall) -> Document:
    given = call.fields("mode", needed=("mode",))
    await _switch(call, given["mode"], {"resource": call.path["resource"]})
    return {"resource": call.path["resource"], "mode": given["mode"]}


async def get_system_limits(call: RouteCall) -> Document:
    ns = await call.namespace()
    limits, rule = await ns.get_system_defaults()
    return {"limits": limits_as_json(limits), "on_unavailable": rule.value if rule else None}


async def put_system_limits(call: RouteCall) -> Document:
    given = call.fields("limits", "on_unavailable", needed=("limits",))
    limits = _limits(given)
    told = given.get("on_unavailable")
    if told not in (None, "allow", "block"):
        raise invalid("on_unavailable", "must be 'allow' or 'block'")
    ns = await call.namespace()
    rule = None if told is None else OnUnavailable(told)
    await ns.set_system_defaults(limits, rule, call.principal)
    return await get_system_limits(call)


async def delete_system_limits(call: RouteCall) -> None:
    ns = await call.namespace()
    await ns.delete_system_defaults(call.principal)


async def list_resource_limits(call: RouteCall) -> Document:
    ns = await call.namespace()
    return {"items": await ns.list_resources_with_defaults()}


async def get_resource_limits(call: RouteCall) -> Document:
    ns = await call.namespace()
    return {"limits": limits_as_json(await ns.get_resource_defaults(call.path["resource"]))}


async def put_resource_limits(call: RouteCall) -> Document:
    limits = _limits(call.fields("limits", needed=("limits",)))
    ns = await call.namespace()
    await ns.set_resource_defaults(call.path["resource"], limits, call.principal)
    return await get_resource_limits(call)


async def delete_resource_limits(call: RouteCall) -> None:
    ns = await call.namespace()
    await ns.delete_resource_defaults(call.path["resource"], call.principal)


async def get_entity_limits(call: RouteCall) -> Document:
    ns = await call.namespace()
    return {
        "limits": limits_as_json(await ns.get_limits(call.path["entity_id"], call.path["resource"]))
    }


async def put_entity_limits(call: RouteCall) -> Document:
    limits = _limits(call.fields("limits", needed=("limits",)))
    ns = await call.namespace()
    await ns.set_limits(call.path["entity_id"], limits, call.path["resource"], call.principal)
    return await get_entity_limits(call)


async def delete_entity_limits(call: RouteCall) -> None:
    ns = await call.namespace()
    await ns.delete_limits(call.path["entity_id"], call.path["resource"], call.principal)


def _reaches(call: RouteCall, need: KeyScope, entity_id: str) -> bool:
    return call.caller.refusal_for(need, call.path["namespace"], entity_id) is None


def _permit_parent(call: RouteCall, parent_id: object) -> None:
    """Whoever may act for some entities cannot have others pay for them: a foreign parent looks as
    if it were not there."""
    if isinstance(parent_id, str) and not _reaches(call, ADMIN, parent_id):
        raise EntityNotFoundError(parent_id)


async def _switch(call: RouteCall, mode: object, whom: Mapping[str, str]) -> None:
    if mode not in MODES:
        raise invalid("mode", f"must be one of {', '.join(MODES)}")
    ns = await call.namespace()
    verb = {"normal": ns.enable, "disabled": ns.disable, "bypass": ns.bypass}[str(mode)]
    await verb(**whom, principal=call.principal)


def _limits(given: Mapping[str, Any]) -> list[Limit]:
    """Limits as objects, or in words: "100/minute burst 150"."""
    listed = parse_list(given["limits"], "limits", LIMITS_MAX)
    try:
        found = [Limit.parse(one) if isinstance(one, str) else _limit(one) for one in listed]
        return list(parse_limits(found))
    except ValidationError as error:
        raise invalid("limits", f"has a {error.field} that {error.reason}") from None


def _limit(values: object) -> Limit:
    return Limit.from_dict(values)  # type: ignore[arg-type]  # it looks itself


def _title(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.isprintable() or not 1 <= len(value) <= 256:
        raise invalid("name", "must be 1 to 256 printable characters")
    return value
