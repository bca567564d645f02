"""Deleting an entity: its limits go along, its children stand alone."""

from __future__ import annotations

from dataclasses import replace

from headgate.core.errors import EntityNotFoundError
from headgate.core.history import audit_event
from headgate.core.levels__entities import Entity
from headgate.core.store import entity_as_json
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.entities import Kin, read_kin
from headgate.stores.dynamodb.catalog.items import (
    CHILDREN,
    CONFIG_VERSION,
    Item,
    entity_from_item,
    entity_key,
    key_of,
    number,
    number_of,
)
from headgate.stores.dynamodb.catalog.records import WRITES_MAX, commit, repeated
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.requests import Write
from headgate.stores.dynamodb.table.table import Changed, Table

CHILDREN_BITE = 60  # freed in one step
LEVELS_BITE = 30  # deleted in one step

assert CHILDREN_BITE + LEVELS_BITE + 2 <= WRITES_MAX  # the entity and its own parent, too


async def delete(
    table: Table, namespace: str, entity_id: str, principal: str | None, now_ms: int
) -> None:
    """One step, unless there is more than one transaction takes.

    Then some go in steps before, and a deletion that was cut short is finished by the next.
    """
    while not await _delete(table, namespace, entity_id, principal, now_ms):
        pass


@repeated
async def _delete(
    table: Table, namespace: str, entity_id: str, principal: str | None, now_ms: int
) -> bool:
    """Whether the entity is gone; False where only some of what it has is."""
    kin = await read_kin(table, namespace, entity_id)
    before, item = kin.get(entity_id), kin.items[entity_id]
    if before is None or item is None:
        raise EntityNotFoundError(entity_id)
    levels = await _levels(table, namespace, entity_id)
    count = number_of(item, CHILDREN)
    children = await _children(table, namespace, entity_id) if count > 0 else []
    if count > 0 and not children:
        raise Changed  # the index does not know them yet
    writes = [_freed(kin, child) for child in children]
    writes += [ask.delete(key_of(level), ask.PRESENT) for level in levels[:LEVELS_BITE]]
    if count > len(children) or len(levels) > LEVELS_BITE:
        await commit(table, kin.head, [*writes, *kin.counted(entity_id, -len(children))], None)
        return False
    event = audit_event(now_ms, "entity_deleted", entity_id, principal,
                        before=entity_as_json(before), after=None)  # fmt: skip
    writes.append(ask.delete(entity_key(namespace, entity_id), ask.unchanged(item)))
    writes += await _parent_counted(table, kin, before)
    await commit(table, kin.head, writes, event)
    return True


async def _levels(table: Table, namespace: str, entity_id: str) -> list[Item]:
    pk = schema.pk_entity(namespace, entity_id)
    request = ask.query(table.name, pk, ask.begins(schema.sk_config("")), limit=LEVELS_BITE + 1)
    return await table.every(request, LEVELS_BITE + 1)


async def _children(table: Table, namespace: str, parent_id: str) -> list[Item]:
    """Some of them as they are now; the index may lead to others that have moved away."""
    pk = schema.gsi1_pk(namespace, parent_id)
    request = ask.query(table.name, pk, index=schema.GSI1, limit=CHILDREN_BITE)
    listed, _ = await table.page(request)
    found = await table.get_all(key_of(item) for item in listed)
    return [item for item in found.values() if entity_from_item(item).parent_id == parent_id]


async def _parent_counted(table: Table, kin: Kin, entity: Entity) -> list[Write]:
    if entity.parent_id is None:
        return []
    key = entity_key(kin.head.namespace, entity.parent_id)
    kin.items[entity.parent_id] = await table.get(key)
    return kin.counted(entity.parent_id, -1)


def _freed(kin: Kin, item: Item) -> Write:
    child = entity_from_item(item)
    alone = replace(child, parent_id=None, version=child.version + 1)
    return ask.update(
        entity_key(kin.head.namespace, child.id),
        sets={
            "version": number(alone.version),
            CONFIG_VERSION: number(kin.head.next_version),
        },
        removes=("parent_id", "GSI1PK", "GSI1SK"),
        guard=ask.unchanged(item),
    )
