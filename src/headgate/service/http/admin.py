"""Operator routes on entities, stored limits and namespaces: parse, call, show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.core.errors import EntityNotFoundError, ValidationError
from headgate.core.levels import OnUnavailable
from headgate.core.limits import LIMITS_MAX, Limit, parse_limits, parse_namespace
from headgate.service.decide.problems import invalid, not_found
from headgate.service.decide.requests import parse_flag, parse_list
from headgate.service.http.callers import Ask, Document
from headgate.service.http.documents import entity_json, limits_json, namespace_json
from headgate.service.keys.access import KEYS_NAMESPACE
from headgate.service.keys.key import Scope

READ, ADMIN = Scope.READ, Scope.ADMIN
PAGE = 100
CHANGES = ("parent_id", "cascade", "mode", "version")
MODES = ("normal", "disabled", "bypass")


async def list_namespaces(ask: Ask) -> Document:
    found = await ask.service.repository.list_namespaces()
    return {"items": [namespace_json(one) for one in found if one.name != KEYS_NAMESPACE]}


async def list_deleted(ask: Ask) -> Document:
    found = await ask.service.repository.list_orphan_namespaces()
    return {"items": [namespace_json(one) for one in found if one.name != KEYS_NAMESPACE]}


async def get_namespace(ask: Ask) -> Document:
    found = await ask.service.repository.get_namespace(ask.path["namespace"])
    if found is None:
        raise not_found()
    return namespace_json(found)


async def put_namespace(ask: Ask) -> Document:
    name = parse_namespace(ask.path["namespace"])
    await ask.service.repository.register_namespace(name, ask.principal)
    return await get_namespace(ask)


async def delete_namespace(ask: Ask) -> None:
    room = await ask.room()
    await room.home.delete_namespace(ask.path["namespace"], ask.principal)


async def recover_namespace(ask: Ask) -> Document:
    found = await ask.service.repository.recover_namespace(ask.path["namespace_id"], ask.principal)
    return namespace_json(found)


async def purge_namespace(ask: Ask) -> Document:
    repository = ask.service.repository
    return {"records": await repository.purge_namespace(ask.path["namespace_id"], ask.principal)}


async def list_entities(ask: Ask) -> Document:
    room = await ask.room()
    found, cursor = await room.list_entities(ask.query.get("limit", PAGE), ask.query.get("cursor"))
    return {"items": [entity_json(one) for one in found], "cursor": cursor}


async def create_entity(ask: Ask) -> Document:
    given = ask.fields("id", "name", "parent_id", "cascade", "metadata", needed=("id",))
    _permit_parent(ask, given.get("parent_id"))
    room = await ask.room()
    made = await room.create_entity(
        given["id"],
        _title(given.get("name")),
        given.get("parent_id"),
        parse_flag(given.get("cascade", False), "cascade"),
        given.get("metadata"),
        ask.principal,
    )
    return entity_json(made)


async def get_entity(ask: Ask) -> Document:
    room = await ask.room()
    found = await room.get_entity(ask.path["entity_id"])
    if found is None:
        raise EntityNotFoundError(ask.path["entity_id"])
    return entity_json(found)


async def change_entity(ask: Ask) -> Document:
    given = ask.fields(*CHANGES, nullable=("parent_id",))
    version = given.get("version")
    if "mode" in given and len(given) > 1:
        raise invalid("mode", "is changed by itself; send the other changes apart")
    if version is not None and (type(version) is not int or version < 1):
        raise invalid("version", "must be the whole number that the entity was read with")
    if not given.keys() & {"parent_id", "cascade", "mode"}:
        raise invalid("request", "changes nothing; say parent_id, cascade or mode")
    room = await ask.room()
    entity_id = ask.path["entity_id"]
    known = await room.get_entity(entity_id)
    if known is None:
        raise EntityNotFoundError(entity_id)
    if "mode" in given:
        await _switch(ask, given["mode"], {"entity_id": entity_id})
    else:
        cascade = given.get("cascade")
        parent_id = given.get("parent_id", known.parent_id)
        if parent_id != known.parent_id or cascade:
            _permit_parent(ask, parent_id)
        await room.set_parent(
            entity_id,
            parent_id,
            None if cascade is None else parse_flag(cascade, "cascade"),
            ask.principal,
            known.version if version is None else version,
        )
    return await get_entity(ask)


async def delete_entity(ask: Ask) -> None:
    room = await ask.room()
    await room.delete_entity(ask.path["entity_id"], ask.principal)


async def list_children(ask: Ask) -> Document:
    room = await ask.room()
    found = await room.get_children(ask.path["entity_id"])
    return {"items": [entity_json(one) for one in found if _reaches(ask, READ, one.id)]}


async def switch_resource(ask: Ask) -> Document:
    given = ask.fields("mode", needed=("mode",))
    await _switch(ask, given["mode"], {"resource": ask.path["resource"]})
    return {"resource": ask.path["resource"], "mode": given["mode"]}


async def get_system_limits(ask: Ask) -> Document:
    room = await ask.room()
    limits, rule = await room.get_system_defaults()
    return {**limits_json(limits), "on_unavailable": rule.value if rule else None}


async def put_system_limits(ask: Ask) -> Document:
    given = ask.fields("limits", "on_unavailable", needed=("limits",))
    limits = _limits(given)
    told = given.get("on_unavailable")
    if told not in (None, "allow", "block"):
        raise invalid("on_unavailable", "must be 'allow' or 'block'")
    room = await ask.room()
    rule = None if told is None else OnUnavailable(told)
    await room.set_system_defaults(limits, rule, ask.principal)
    return await get_system_limits(ask)


async def delete_system_limits(ask: Ask) -> None:
    room = await ask.room()
    await room.delete_system_defaults(ask.principal)


async def list_resource_limits(ask: Ask) -> Document:
    room = await ask.room()
    return {"items": await room.list_resources_with_defaults()}


async def get_resource_limits(ask: Ask) -> Document:
    room = await ask.room()
    return limits_json(await room.get_resource_defaults(ask.path["resource"]))


async def put_resource_limits(ask: Ask) -> Document:
    limits = _limits(ask.fields("limits", needed=("limits",)))
    room = await ask.room()
    await room.set_resource_defaults(ask.path["resource"], limits, ask.principal)
    return await get_resource_limits(ask)


async def delete_resource_limits(ask: Ask) -> None:
    room = await ask.room()
    await room.delete_resource_defaults(ask.path["resource"], ask.principal)


async def get_entity_limits(ask: Ask) -> Document:
    room = await ask.room()
    return limits_json(await room.get_limits(ask.path["entity_id"], ask.path["resource"]))


async def put_entity_limits(ask: Ask) -> Document:
    limits = _limits(ask.fields("limits", needed=("limits",)))
    room = await ask.room()
    await room.set_limits(ask.path["entity_id"], limits, ask.path["resource"], ask.principal)
    return await get_entity_limits(ask)


async def delete_entity_limits(ask: Ask) -> None:
    room = await ask.room()
    await room.delete_limits(ask.path["entity_id"], ask.path["resource"], ask.principal)


def _reaches(ask: Ask, need: Scope, entity_id: str) -> bool:
    return ask.caller.refuses(need, ask.path["namespace"], entity_id) is None


def _permit_parent(ask: Ask, parent_id: object) -> None:
    """Whoever may act for some entities cannot have others pay for them: a foreign parent looks as
    if it were not there."""
    if isinstance(parent_id, str) and not _reaches(ask, ADMIN, parent_id):
        raise EntityNotFoundError(parent_id)


async def _switch(ask: Ask, mode: object, whom: Mapping[str, str]) -> None:
    if mode not in MODES:
        raise invalid("mode", f"must be one of {', '.join(MODES)}")
    room = await ask.room()
    verb = {"normal": room.enable, "disabled": room.disable, "bypass": room.bypass}[str(mode)]
    await verb(**whom, principal=ask.principal)


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
