"""Entities of one namespace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headgate.core.errors import EntityExistsError, EntityNotFoundError
from headgate.core.levels import Entity, GetEntity, Page, change_entity, check_parent
from headgate.core.store import entity_as_json
from headgate.stores.sqlite.namespaces import advance_version
from headgate.stores.sqlite.rows import entity_as_row, entity_from_row, note
from headgate.stores.sqlite.schema import SqliteTransaction, named_queries

SQL = named_queries("catalog.sql")


def entity_reader(connection: SqliteTransaction, namespace: str) -> GetEntity:
    """Reads one entity after the other, all at the moment of this transaction."""

    def get(entity_id: str) -> Entity | None:
        row = connection.execute(SQL["entity_get"], (namespace, entity_id)).fetchone()
        return None if row is None else entity_from_row(row)

    return get


def create(
    connection: SqliteTransaction,
    namespace: str,
    entity: Entity,
    principal: str | None,
    now_ms: int,
) -> Entity:
    get = entity_reader(connection, namespace)
    if get(entity.id) is not None:
        raise EntityExistsError(entity.id)
    check_parent(entity.id, entity.parent_id, get)
    made = replace(entity, created_ms=now_ms, version=1)
    connection.execute(SQL["entity_put"], entity_as_row(namespace, made))
    advance_version(connection, namespace)
    note(connection, namespace, now_ms, "entity_created", entity.id, principal,
         before=None, after=entity_as_json(made))  # fmt: skip
    return made


def update(
    connection: SqliteTransaction,
    namespace: str,
    entity_id: str,
    changes: Mapping[str, Any],
    version: int | None,
    principal: str | None,
    now_ms: int,
) -> Entity:
    get = entity_reader(connection, namespace)
    before = get(entity_id)
    if before is None:
        raise EntityNotFoundError(entity_id)
    after = change_entity(before, dict(changes), version)
    check_parent(entity_id, after.parent_id, get)
    connection.execute(SQL["entity_put"], entity_as_row(namespace, after))
    advance_version(connection, namespace)
    note(connection, namespace, now_ms, "entity_changed", entity_id, principal,
         before=entity_as_json(before), after=entity_as_json(after))  # fmt: skip
    return after


def delete(
    connection: SqliteTransaction,
    namespace: str,
    entity_id: str,
    principal: str | None,
    now_ms: int,
) -> None:
    """The entity and its stored limits are gone; its children stand alone."""
    before = entity_reader(connection, namespace)(entity_id)
    if before is None:
        raise EntityNotFoundError(entity_id)
    for query in ("entity_delete", "stored_delete_of_entity", "entity_orphan_children"):
        connection.execute(SQL[query], (namespace, entity_id))
    advance_version(connection, namespace)
    note(connection, namespace, now_ms, "entity_deleted", entity_id, principal,
         before=entity_as_json(before), after=None)  # fmt: skip


def list_entities(
    connection: SqliteTransaction,
    namespace: str,
    parent_id: str | None,
    limit: int,
    cursor: str | None,
) -> Page:
    after = cursor or ""
    if parent_id is None:
        rows = connection.execute(SQL["entities"], (namespace, after, limit + 1)).fetchall()
    else:
        values = (namespace, parent_id, after, limit + 1)
        rows = connection.execute(SQL["entities_of_parent"], values).fetchall()
    found = tuple(entity_from_row(row) for row in rows[:limit])
    return Page(found, found[-1].id if len(rows) > limit else None)
