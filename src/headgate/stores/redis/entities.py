"""Entities of one namespace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from headgate.core.errors import EntityExistsError, EntityNotFoundError
from headgate.core.history import audit_event
from headgate.core.levels import LINEAGE_MAX, Entity, Page, change_entity, check_parent
from headgate.core.store import entity_as_json
from headgate.stores.records import RecordsChanged
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
from headgate.stores.redis.catalog_text import entity_as_text, entity_from_text
from headgate.stores.redis.client.port import RedisPort
from headgate.stores.redis.scripts import load_script

READ_ANCESTORS = load_script("catalog_kin", "catalog_head")
PAGE = load_script("catalog_page", "catalog_head")
CHILDREN_PER_BATCH = 1000  # children freed in one step


class RedisAncestors:
    """Entities and everybody above them as they were read, and what must not change meanwhile."""

    def __init__(self, namespace: str, texts: Mapping[str, str | None]) -> None:
        self._entities = {
            entity_id: entity_from_text(entity_id, text)
            for entity_id, text in texts.items()
            if text is not None
        }
        self.get = self._entities.get
        self.guards: list[CommitGuard] = [
            (text, ("HGET", keys.entities(namespace), entity_id))
            for entity_id, text in texts.items()
        ]


async def get(port: RedisPort, namespace: str, entity_id: str) -> Entity | None:
    [text] = await read_active(port, namespace, ("HGET", keys.entities(namespace), entity_id))
    return None if text is None else entity_from_text(entity_id, text)


@retry_if_changed
async def create(
    port: RedisPort, namespace: str, entity: Entity, principal: str | None, now_ms: int
) -> Entity:
    ancestors = await _read_ancestors(port, namespace, entity.id, entity.parent_id)
    if ancestors.get(entity.id) is not None:
        raise EntityExistsError(entity.id)
    check_parent(entity.id, entity.parent_id, ancestors.get)
    made = replace(entity, created_ms=now_ms, version=1)
    event = audit_event(now_ms, "entity_created", entity.id, principal,
                        before=None, after=entity_as_json(made))  # fmt: skip
    writes = [*_put(namespace, None, made), event_write(namespace, event)]
    await commit_active(port, namespace, ancestors.guards, writes)
    return made


@retry_if_changed
async def update(
    port: RedisPort,
    namespace: str,
    entity_id: str,
    changes: Mapping[str, Any],
    version: int | None,
    principal: str | None,
    now_ms: int,
) -> Entity:
    ancestors = await _read_ancestors(port, namespace, entity_id, changes.get("parent_id"))
    before = ancestors.get(entity_id)
    if before is None:
        raise EntityNotFoundError(entity_id)
    after = change_entity(before, dict(changes), version)
    check_parent(entity_id, after.parent_id, ancestors.get)
    event = audit_event(now_ms, "entity_changed", entity_id, principal,
                        before=entity_as_json(before), after=entity_as_json(after))  # fmt: skip
    writes = [*_put(namespace, before, after), event_write(namespace, event)]
    await commit_active(port, namespace, ancestors.guards, writes)
    return after


async def delete(
    port: RedisPort, namespace: str, entity_id: str, principal: str | None, now_ms: int
) -> None:
    """The entity and its stored limits are gone; its children stand alone.

    That is one step, unless it has more children than one step takes. Then some are freed in steps
    before, and a deletion that was cut short is finished by the next.
    """
    while not await _delete(port, namespace, entity_id, principal, now_ms):
        pass


async def list_entities(
    port: RedisPort, namespace: str, parent_id: str | None, limit: int, cursor: str | None
) -> Page:
    stem = ("e",) if parent_id is None else ("c", parent_id)
    names = (keys.index(namespace), keys.entities(namespace))
    args = (*keys.span(*stem, after=cursor), limit + 1, len(keys.entry(*stem, "")))
    _, rows = await run_active(port, PAGE, namespace, names, args)
    found = tuple(
        entity_from_text(entity_id, text)
        for entity_id, text in zip(rows[0::2], rows[1::2], strict=True)
    )
    return Page(found[:limit], found[limit - 1].id if len(found) > limit else None)


@retry_if_changed
async def _delete(
    port: RedisPort, namespace: str, entity_id: str, principal: str | None, now_ms: int
) -> bool:
    """Whether the entity is gone; False where only some of its many children were freed."""
    index, entities = keys.index(namespace), keys.entities(namespace)
    family, own = keys.span("c", entity_id), keys.span("l", entity_id)
    text, entries, levels, count = await read_active(
        port,
        namespace,
        ("HGET", entities, entity_id),
        ("ZRANGEBYLEX", index, *family, "LIMIT", 0, CHILDREN_PER_BATCH),
        ("ZRANGEBYLEX", index, *own),
        ("ZLEXCOUNT", index, *family),
    )
    if text is None:
        raise EntityNotFoundError(entity_id)
    guards: list[CommitGuard] = [(text, ("HGET", entities, entity_id))]
    freed, writes = await _free(
        port, namespace, entity_id, [keys.last_name(entry) for entry in entries]
    )
    if count > len(entries):
        await commit_active(port, namespace, [*guards, *freed], writes)
        return False
    before = entity_from_text(entity_id, text)
    guards += [
        (count, ("ZLEXCOUNT", index, *family)),
        (len(levels), ("ZLEXCOUNT", index, *own)),
        *((0, ("ZSCORE", index, entry)) for entry in levels),
    ]
    writes += _drop(namespace, before, [keys.last_name(entry) for entry in levels])
    event = audit_event(now_ms, "entity_deleted", entity_id, principal,
                        before=entity_as_json(before), after=None)  # fmt: skip
    writes.append(event_write(namespace, event))
    await commit_active(port, namespace, [*guards, *freed], writes)
    return True


async def _free(
    port: RedisPort, namespace: str, parent_id: str, children: Sequence[str]
) -> tuple[list[CommitGuard], list[Command]]:
    """What makes children stand alone, and what they must still be then."""
    if not children:
        return [], []
    entities = keys.entities(namespace)
    texts = await port.command("HMGET", entities, *children)
    guards: list[CommitGuard] = []
    writes: list[Command] = []
    for entity_id, text in zip(children, texts, strict=True):
        if text is None:
            raise RecordsChanged
        child = entity_from_text(entity_id, text)
        guards.append((text, ("HGET", entities, entity_id)))
        alone = replace(child, parent_id=None, version=child.version + 1)
        writes += _put(namespace, child, alone)
    return guards, writes


async def _read_ancestors(
    port: RedisPort, namespace: str, *entity_ids: str | None
) -> RedisAncestors:
    wanted = [entity_id for entity_id in entity_ids if entity_id is not None]
    generations = LINEAGE_MAX + 1  # the entity itself, and all that check_parent may ask for
    names = (keys.entities(namespace),)
    _, rows = await run_active(port, READ_ANCESTORS, namespace, names, (generations, *wanted))
    return RedisAncestors(namespace, dict(zip(rows[0::2], rows[1::2], strict=True)))


def _put(namespace: str, before: Entity | None, after: Entity) -> list[Command]:
    """The entity as it is now, and the index entries that lead to it."""
    index = keys.index(namespace)
    writes: list[Command] = [("HSET", keys.entities(namespace), after.id, entity_as_text(after))]
    if before is None:
        writes.append(("ZADD", index, 0, keys.entry("e", after.id)))
    elif before.parent_id is not None and before.parent_id != after.parent_id:
        writes.append(("ZREM", index, keys.entry("c", before.parent_id, after.id)))
    if after.parent_id is not None:
        writes.append(("ZADD", index, 0, keys.entry("c", after.parent_id, after.id)))
    return writes


def _drop(namespace: str, entity: Entity, resources: Sequence[str]) -> list[Command]:
    """Neither the entity nor its levels are left, nor any entry that leads to them."""
    index, levels = keys.index(namespace), keys.levels(namespace)
    writes: list[Command] = [
        ("HDEL", keys.entities(namespace), entity.id),
        ("ZREM", index, keys.entry("e", entity.id)),
    ]
    if entity.parent_id is not None:
        writes.append(("ZREM", index, keys.entry("c", entity.parent_id, entity.id)))
    for resource in resources:
        writes += [
            ("HDEL", levels, keys.entry(entity.id, resource)),
            ("ZREM", index, keys.entry("l", entity.id, resource)),
            ("ZREM", index, keys.entry("r", resource, entity.id)),
        ]
    return writes
