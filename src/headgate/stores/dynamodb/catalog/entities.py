"""Entities of one namespace.

An entity's item counts its children. The index that leads to them answers a moment late, so whoever
deletes a parent knows from the count whether it has seen them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headgate.core.errors import EntityExistsError, EntityNotFoundError
from headgate.core.history import audit_event
from headgate.core.levels import LINEAGE_MAX, Entity, Page, change_entity, check_parent
from headgate.core.store import entity_as_json
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.items import (
    CHILDREN,
    CONFIG_VERSION,
    Item,
    Key,
    entity_as_item,
    entity_from_item,
    entity_key,
    key_of,
    number,
    number_of,
    system_key,
)
from headgate.stores.dynamodb.catalog.records import (
    WRITES_MAX,
    DynamoNamespaceHead,
    commit,
    read,
    retry_if_changed,
)
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.requests import Write
from headgate.stores.dynamodb.table.table import ItemsChanged, Table


@dataclass(frozen=True, slots=True)
class DynamoAncestors:
    """Entities as they were read, by id; None where there is none."""

    head: DynamoNamespaceHead
    items: dict[str, Item | None]

    def get(self, entity_id: str) -> Entity | None:
        item = self.items.get(entity_id)
        return None if item is None else entity_from_item(item)

    def put(self, entity: Entity) -> Write:
        """The entity as it is now, if its item is as it was."""
        item = self.items[entity.id]
        children = 0 if item is None else number_of(item, CHILDREN)
        made = entity_as_item(self.head.namespace, entity, self.head.next_version, children)
        return ask.put(made, ask.if_unchanged(item))

    def count_children(self, parent_id: str | None, by: int) -> list[Write]:
        """A parent that exists has so many more children."""
        item = None if parent_id is None else self.items[parent_id]
        if parent_id is None or item is None:
            return []
        return [
            ask.update(
                entity_key(self.head.namespace, parent_id),
                sets={CONFIG_VERSION: number(self.head.next_version)},
                adds={CHILDREN: number(by)},
                guard=ask.if_unchanged(item),
            )
        ]


async def get(table: Table, namespace: str, entity_id: str) -> Entity | None:
    ancestors = await read_ancestors(table, namespace, entity_id)
    return ancestors.get(entity_id)


@retry_if_changed
async def create(
    table: Table, namespace: str, entity: Entity, principal: str | None, now_ms: int
) -> Entity:
    ancestors = await read_ancestors(table, namespace, entity.id, entity.parent_id)
    if ancestors.get(entity.id) is not None:
        raise EntityExistsError(entity.id)
    await _load_ancestors(table, ancestors, entity.parent_id)
    check_parent(entity.id, entity.parent_id, ancestors.get)
    made = replace(entity, created_ms=now_ms, version=1)
    event = audit_event(now_ms, "entity_created", entity.id, principal,
                        before=None, after=entity_as_json(made))  # fmt: skip
    await commit(
        table,
        ancestors.head,
        [ancestors.put(made), *ancestors.count_children(made.parent_id, 1)],
        event,
    )
    return made


@retry_if_changed
async def update(
    table: Table,
    namespace: str,
    entity_id: str,
    changes: Mapping[str, Any],
    version: int | None,
    principal: str | None,
    now_ms: int,
) -> Entity:
    ancestors = await read_ancestors(table, namespace, entity_id, changes.get("parent_id"))
    before = ancestors.get(entity_id)
    if before is None:
        raise EntityNotFoundError(entity_id)
    after = change_entity(before, dict(changes), version)
    moves = before.parent_id != after.parent_id
    await _load_ancestors(table, ancestors, after.parent_id, before.parent_id if moves else None)
    check_parent(entity_id, after.parent_id, ancestors.get)
    event = audit_event(now_ms, "entity_changed", entity_id, principal,
                        before=entity_as_json(before), after=entity_as_json(after))  # fmt: skip
    writes = [ancestors.put(after)]
    if moves:
        writes += ancestors.count_children(before.parent_id, -1) + ancestors.count_children(
            after.parent_id, 1
        )
    await commit(table, ancestors.head, writes, event)
    return after


async def list_entities(
    table: Table, namespace: str, parent_id: str | None, limit: int, cursor: str | None
) -> Page:
    if parent_id is None:
        return await _list_all(table, namespace, limit, cursor)
    span = after_name("CHILD", cursor)
    pk = schema.gsi1_pk(namespace, parent_id)
    request = ask.query(table.name, pk, span, index=schema.GSI1, limit=limit + 1)
    head, first = await table.together(ask.get(table.name, system_key(namespace)), request)
    DynamoNamespaceHead.of(namespace, head.get("Item"))
    items = await table.rest(request, first, limit + 1)
    found = tuple(entity_from_item(item) for item in items)
    return Page(found[:limit], found[limit - 1].id if len(found) > limit else None)


async def read_ancestors(table: Table, namespace: str, *entity_ids: str | None) -> DynamoAncestors:
    wanted = [entity_id for entity_id in entity_ids if entity_id is not None]
    keys: dict[str, Key] = {one: entity_key(namespace, one) for one in wanted}
    head, found = await read(table, namespace, *keys.values())
    return DynamoAncestors(head, {one: found.get(key) for one, key in keys.items()})


def after_name(stem: str, cursor: str | None) -> ask.KeyRange:
    """The keys `stem#name` whose name comes after the cursor."""
    if cursor is None:
        return ask.begins(f"{stem}#")
    low = f"{stem}#{schema.clip_cursor(cursor)}{schema.JUST_AFTER}"
    return ask.between(low, max(low, f"{stem}{schema.NEXT}"))


async def _load_ancestors(
    table: Table, ancestors: DynamoAncestors, *entity_ids: str | None
) -> None:
    """Everybody that check_parent may ask for, a generation at a time.

    They are read after the head, so its version guards them all.
    """
    namespace = ancestors.head.namespace
    line = list(entity_ids)
    for _ in range(LINEAGE_MAX):
        wanted = [one for one in line if one is not None and one not in ancestors.items]
        if wanted:
            found = await table.get_all(entity_key(namespace, one) for one in wanted)
            ancestors.items.update((one, found.get(entity_key(namespace, one))) for one in wanted)
        line = _parents(ancestors, line[:1])
        if not line:
            return


def _parents(ancestors: DynamoAncestors, entity_ids: list[str | None]) -> list[str | None]:
    entities = [ancestors.get(one) for one in entity_ids if one is not None]
    return [one.parent_id for one in entities if one is not None and one.parent_id is not None]


async def _list_all(table: Table, namespace: str, limit: int, cursor: str | None) -> Page:
    """All entities by id: their keys from the namespace's index, then what they are now."""
    span = after_name(f"{namespace}/ENTITY", cursor)
    request = ask.query(
        table.name, schema.gsi4_pk(namespace), span, index=schema.GSI4, only_sk=schema.sk_meta()
    )
    head, first = await table.together(ask.get(table.name, system_key(namespace)), request)
    DynamoNamespaceHead.of(namespace, head.get("Item"))
    keys = [item[schema.PK]["S"] for item in await table.rest(request, first, limit + 1)]
    page = [(pk, schema.sk_meta()) for pk in keys[:limit]]
    found = await table.get_all(page)
    entities = tuple(entity_from_item(found[key]) for key in page if key in found)
    return Page(entities, schema.entity_of_pk(keys[limit - 1]) if len(keys) > limit else None)


# --------------------------------------------------------------------------------------------------
# Deleting an entity: its limits go along, its children stand alone.

CHILDREN_PER_BATCH = 60  # freed in one step
LEVELS_PER_BATCH = 30  # deleted in one step

assert CHILDREN_PER_BATCH + LEVELS_PER_BATCH + 2 <= WRITES_MAX  # the entity and its own parent, too


async def delete(
    table: Table, namespace: str, entity_id: str, principal: str | None, now_ms: int
) -> None:
    """One step, unless there is more than one transaction takes.

    Then some go in steps before, and a deletion that was cut short is finished by the next.
    """
    while not await _delete(table, namespace, entity_id, principal, now_ms):
        pass


@retry_if_changed
async def _delete(
    table: Table, namespace: str, entity_id: str, principal: str | None, now_ms: int
) -> bool:
    """Whether the entity is gone; False where only some of what it has is."""
    ancestors = await read_ancestors(table, namespace, entity_id)
    before, item = ancestors.get(entity_id), ancestors.items[entity_id]
    if before is None or item is None:
        raise EntityNotFoundError(entity_id)
    levels = await _levels(table, namespace, entity_id)
    count = number_of(item, CHILDREN)
    children = await _children(table, namespace, entity_id) if count > 0 else []
    if count > 0 and not children:
        raise ItemsChanged  # the index does not know them yet
    writes = [_detach(ancestors, child) for child in children]
    writes += [ask.delete(key_of(level), ask.PRESENT) for level in levels[:LEVELS_PER_BATCH]]
    if count > len(children) or len(levels) > LEVELS_PER_BATCH:
        await commit(
            table,
            ancestors.head,
            [*writes, *ancestors.count_children(entity_id, -len(children))],
            None,
        )
        return False
    event = audit_event(now_ms, "entity_deleted", entity_id, principal,
                        before=entity_as_json(before), after=None)  # fmt: skip
    writes.append(ask.delete(entity_key(namespace, entity_id), ask.if_unchanged(item)))
    writes += await _count_in_parent(table, ancestors, before)
    await commit(table, ancestors.head, writes, event)
    return True


async def _levels(table: Table, namespace: str, entity_id: str) -> list[Item]:
    pk = schema.pk_entity(namespace, entity_id)
    request = ask.query(
        table.name, pk, ask.begins(schema.sk_config("")), limit=LEVELS_PER_BATCH + 1
    )
    return await table.every(request, LEVELS_PER_BATCH + 1)


async def _children(table: Table, namespace: str, parent_id: str) -> list[Item]:
    """Some of them as they are now; the index may lead to others that have moved away."""
    pk = schema.gsi1_pk(namespace, parent_id)
    request = ask.query(table.name, pk, index=schema.GSI1, limit=CHILDREN_PER_BATCH)
    list_entities, _ = await table.page(request)
    found = await table.get_all(key_of(item) for item in list_entities)
    return [item for item in found.values() if entity_from_item(item).parent_id == parent_id]


async def _count_in_parent(table: Table, ancestors: DynamoAncestors, entity: Entity) -> list[Write]:
    if entity.parent_id is None:
        return []
    key = entity_key(ancestors.head.namespace, entity.parent_id)
    ancestors.items[entity.parent_id] = await table.get(key)
    return ancestors.count_children(entity.parent_id, -1)


def _detach(ancestors: DynamoAncestors, item: Item) -> Write:
    child = entity_from_item(item)
    alone = replace(child, parent_id=None, version=child.version + 1)
    return ask.update(
        entity_key(ancestors.head.namespace, child.id),
        sets={
            "version": number(alone.version),
            CONFIG_VERSION: number(ancestors.head.next_version),
        },
        removes=("parent_id", "GSI1PK", "GSI1SK"),
        guard=ask.if_unchanged(item),
    )
