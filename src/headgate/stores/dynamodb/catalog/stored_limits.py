"""Stored limits of one namespace, level by level."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.core.history import audit_event
from headgate.core.levels import Level, Mode, Page, StoredLevel, change_stored
from headgate.core.store import stored_as_json
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.items import (
    CONFIG_VERSION,
    LEVEL_VERSION,
    Item,
    is_limit_attribute,
    level_as_item,
    level_from_item,
    level_key,
    limits_as_attributes,
    number,
    system_key,
)
from headgate.stores.dynamodb.catalog.records import (
    DynamoNamespaceHead,
    commit,
    read,
    retry_if_changed,
)
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.requests import Write
from headgate.stores.dynamodb.table.table import Table

RESOURCES_MAX = 10_000  # that are listed

SYSTEM = Level()


async def get(table: Table, namespace: str, level: Level) -> StoredLevel | None:
    return (await _read(table, namespace, level))[2]


@retry_if_changed
async def update(
    table: Table,
    namespace: str,
    level: Level,
    changes: Mapping[str, Any],
    principal: str | None,
    now_ms: int,
) -> StoredLevel:
    head, item, before = await _read(table, namespace, level)
    after = change_stored(before, dict(changes), head.next_version)
    event = audit_event(now_ms, "limits_set", level.audit_id, principal, level.resource,
                        before=stored_as_json(before), after=stored_as_json(after))  # fmt: skip
    if level == SYSTEM:
        sets, removes = _on_system(head, after)
        await commit(table, head, [], event, sets=sets, removes=removes)
    else:
        await commit(table, head, [_put(head, level, item, after)], event)
    return after


@retry_if_changed
async def delete(
    table: Table, namespace: str, level: Level, principal: str | None, now_ms: int
) -> bool:
    """The level's limits and outage rule are gone (its mode stays); False if it had none."""
    head, item, before = await _read(table, namespace, level)
    if before is None:
        return False
    left = None
    if before.mode is not Mode.NORMAL:
        left = StoredLevel((), head.next_version, None, before.mode)
    event = audit_event(now_ms, "limits_deleted", level.audit_id, principal, level.resource,
                        before=stored_as_json(before), after=None)  # fmt: skip
    if level == SYSTEM:
        sets, removes = _on_system(head, left)
        await commit(table, head, [], event, sets=sets, removes=removes)
    elif left is not None:
        await commit(table, head, [_put(head, level, item, left)], event)
    else:
        gone = ask.delete(level_key(namespace, level), ask.if_unchanged(item))
        await commit(table, head, [gone], event)
    return bool(before.limits) or before.on_unavailable is not None


async def resources(table: Table, namespace: str, of_entities: bool) -> list[str]:
    if of_entities:
        return await _resources_of_entities(table, namespace)
    pk = schema.gsi2_pk_configs(namespace)
    request = ask.query(table.name, pk, ask.begins("RESOURCE#"), index=schema.GSI2)
    items = await _query_index(table, namespace, request)
    return [schema.last_name(item["GSI2SK"]["S"]) for item in items]


async def entities(
    table: Table, namespace: str, resource: str, limit: int, cursor: str | None
) -> Page:
    """Who has limits of its own for the resource."""
    span = None if cursor is None else ask.above(schema.clip_cursor(cursor) or schema.JUST_AFTER)
    pk = schema.gsi3_pk_entity_config(namespace, resource)
    request = ask.query(table.name, pk, span, index=schema.GSI3, limit=limit + 1)
    items = await _query_index(table, namespace, request, limit + 1)
    names = tuple(item["GSI3SK"]["S"] for item in items)
    return Page(names[:limit], names[limit - 1] if len(names) > limit else None)


async def _resources_of_entities(table: Table, namespace: str) -> list[str]:
    """Each resource once: one step per resource, over all entities that have limits for it."""
    await read(table, namespace)
    pk, found = schema.gsi2_pk_configs(namespace), list[str]()
    span = ask.begins("ENTITY#")
    while len(found) < RESOURCES_MAX:
        request = ask.query(table.name, pk, span, index=schema.GSI2, limit=1)
        items, _ = await table.page(request)
        if not items:
            break
        found.append(items[0]["GSI2SK"]["S"].split("#")[1])
        after = f"ENTITY#{found[-1]}{schema.NEXT}"
        span = ask.between(after, f"ENTITY{schema.NEXT}")
    return found


async def _query_index(
    table: Table, namespace: str, request: Any, enough: int | None = None
) -> list[Item]:
    """What an index says of a namespace that may be used."""
    head, first = await table.together(ask.get(table.name, system_key(namespace)), request)
    DynamoNamespaceHead.of(namespace, head.get("Item"))
    return await table.rest(request, first, enough)


async def _read(
    table: Table, namespace: str, level: Level
) -> tuple[DynamoNamespaceHead, Item | None, StoredLevel | None]:
    key = level_key(namespace, level)
    head, found = await read(table, namespace, key)
    item = found.get(key)
    version_in = LEVEL_VERSION if level == SYSTEM else CONFIG_VERSION
    return head, item, level_from_item(item, version_in)


def _put(head: DynamoNamespaceHead, level: Level, before: Item | None, after: StoredLevel) -> Write:
    return ask.put(level_as_item(head.namespace, level, after), ask.if_unchanged(before))


def _on_system(head: DynamoNamespaceHead, after: StoredLevel | None) -> tuple[Item, list[str]]:
    """What to set on the system item and what to take off it, so that it has this level."""
    sets: Item = {}
    if after is not None:
        sets = {**limits_as_attributes(after), LEVEL_VERSION: number(after.version)}
    old = [name for name in head.item if is_limit_attribute(name) or name == LEVEL_VERSION]
    return sets, [name for name in old if name not in sets]
