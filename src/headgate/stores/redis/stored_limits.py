"""Stored limits of one namespace, level by level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headgate.core.history import audit_event
from headgate.core.levels import (
    LINEAGE_MAX,
    EntityConfig,
    Level,
    Lookup,
    Mode,
    Page,
    StoredLevel,
    change_stored,
)
from headgate.core.limits import DEFAULT_RESOURCE
from headgate.core.store import stored_as_json
from headgate.stores.redis import keys
from headgate.stores.redis.catalog_steps import (
    Command,
    CommitGuard,
    commit_active,
    event_write,
    read_active,
    retry_if_changed,
    run_active,
)
from headgate.stores.redis.catalog_text import entity_from_text, stored_as_text, stored_from_text
from headgate.stores.redis.client.calls import RedisPort
from headgate.stores.redis.encoding import check_limits
from headgate.stores.redis.scripts import load_script

LOOKUP = load_script("catalog_lookup", "catalog_head")
RESOURCES = load_script("catalog_resources", "catalog_head")
PER_GENERATION = 4


async def lookup(port: RedisPort, namespace: str, entity_id: str, resource: str) -> Lookup:
    """The configuration of an entity and those it cascades to, in one call."""
    names = (keys.entities(namespace), keys.levels(namespace))
    args = (entity_id, resource, DEFAULT_RESOURCE, LINEAGE_MAX)
    version, reply = await run_active(port, LOOKUP, namespace, names, args)
    of_resource, of_system = _stored(reply[0]), _stored(reply[1])
    standings = []
    for at in range(2, len(reply), PER_GENERATION):
        name, text, own, default = reply[at : at + PER_GENERATION]
        entity = None if text is None else entity_from_text(name, text)
        standings.append(
            EntityConfig(name, entity, _stored(own), _stored(default), of_resource, of_system)
        )
    return Lookup(version, tuple(standings))


async def get(port: RedisPort, namespace: str, level: Level) -> StoredLevel | None:
    [text] = await read_active(port, namespace, _read_command(namespace, level))
    return _stored(text)


@retry_if_changed
async def update(
    port: RedisPort,
    namespace: str,
    level: Level,
    changes: Mapping[str, Any],
    principal: str | None,
    now_ms: int,
) -> StoredLevel:
    check_limits(changes.get("limits", ()))
    reading = _read_command(namespace, level)
    [text] = await read_active(port, namespace, reading)
    before = _stored(text)
    after = change_stored(before, dict(changes), 0)  # its version is the script's to give
    shown = {**(stored_as_json(after) or {}), "version": None}
    event = audit_event(now_ms, "limits_set", level.audit_id, principal, level.resource,
                        before=stored_as_json(before), after=shown)  # fmt: skip
    writes = [*_put(namespace, level, after), event_write(namespace, event)]
    guards: list[CommitGuard] = [(text, reading)]
    return replace(after, version=await commit_active(port, namespace, guards, writes))


@retry_if_changed
async def delete(
    port: RedisPort, namespace: str, level: Level, principal: str | None, now_ms: int
) -> bool:
    """The level's limits and outage rule are gone (its mode stays); False if it had none."""
    reading = _read_command(namespace, level)
    [text] = await read_active(port, namespace, reading)
    before = _stored(text)
    if before is None:
        return False
    event = audit_event(now_ms, "limits_deleted", level.audit_id, principal, level.resource,
                        before=stored_as_json(before), after=None)  # fmt: skip
    if before.mode is Mode.NORMAL:
        writes = _drop(namespace, level)
    else:
        writes = _put(namespace, level, StoredLevel(mode=before.mode))
    await commit_active(
        port, namespace, [(text, reading)], [*writes, event_write(namespace, event)]
    )
    return bool(before.limits) or before.on_unavailable is not None


async def resources(port: RedisPort, namespace: str, of_entities: bool) -> list[str]:
    index = keys.index(namespace)
    if of_entities:
        return (await run_active(port, RESOURCES, namespace, (index,), ()))[1]
    [entries] = await read_active(port, namespace, ("ZRANGEBYLEX", index, *keys.span("d")))
    return [keys.last_name(entry) for entry in entries]


async def entities(
    port: RedisPort, namespace: str, resource: str, limit: int, cursor: str | None
) -> Page:
    """Who has limits of its own for the resource."""
    span = keys.span("r", resource, after=cursor)
    command = ("ZRANGEBYLEX", keys.index(namespace), *span, "LIMIT", 0, limit + 1)
    [entries] = await read_active(port, namespace, command)
    names = tuple(keys.last_name(entry) for entry in entries)
    return Page(names[:limit], names[limit - 1] if len(names) > limit else None)


def _read_command(namespace: str, level: Level) -> Command:
    return ("HGET", keys.levels(namespace), keys.level_field(level))


def _put(namespace: str, level: Level, stored: StoredLevel) -> list[Command]:
    """The level as it is now, and the index entries that lead to it."""
    index = keys.index(namespace)
    field = keys.level_field(level)
    writes: list[Command] = [("HSET", keys.levels(namespace), field, stored_as_text(stored))]
    if level.entity_id is not None:
        writes.append(("ZADD", index, 0, keys.entry("l", field)))
    limited = _limits_entry(level)
    if limited is not None:
        writes.append(("ZADD", index, 0, limited) if stored.limits else ("ZREM", index, limited))
    return writes


def _drop(namespace: str, level: Level) -> list[Command]:
    field = keys.level_field(level)
    gone = [entry for entry in (keys.entry("l", field), _limits_entry(level)) if entry is not None]
    return [("HDEL", keys.levels(namespace), field), ("ZREM", keys.index(namespace), *gone)]


def _limits_entry(level: Level) -> str | None:
    """The index entry of a level that has limits; the system's needs none."""
    if level.resource is None:
        return None
    if level.entity_id is None:
        return keys.entry("d", level.resource)
    return keys.entry("r", level.resource, level.entity_id)


def _stored(text: str | None) -> StoredLevel | None:
    return None if text is None else stored_from_text(text)
