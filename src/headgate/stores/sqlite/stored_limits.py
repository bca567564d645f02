"""Stored limits of one namespace, level by level; '' in a key is the name a level lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.core.levels import (
    EntityConfig,
    Level,
    Lookup,
    Mode,
    Page,
    StoredLevel,
    change_stored,
    lineage,
)
from headgate.core.limits import DEFAULT_RESOURCE
from headgate.core.store import stored_as_json
from headgate.stores.sqlite.entities import entity_reader
from headgate.stores.sqlite.namespaces import advance_version, version_of
from headgate.stores.sqlite.rows import note, stored_as_text, stored_from_text
from headgate.stores.sqlite.schema import SqliteTransaction, named_queries

SQL = named_queries("catalog.sql")


def lookup(connection: SqliteTransaction, namespace: str, entity_id: str, resource: str) -> Lookup:
    """The configuration of an entity and those it cascades to, all of one moment."""
    version = version_of(connection, namespace)
    of_resource = get(connection, namespace, Level(None, resource))
    of_system = get(connection, namespace, Level())
    return Lookup(
        version,
        tuple(
            EntityConfig(
                name,
                entity,
                get(connection, namespace, Level(name, resource)),
                get(connection, namespace, Level(name, DEFAULT_RESOURCE)),
                of_resource,
                of_system,
            )
            for name, entity in lineage(entity_id, entity_reader(connection, namespace))
        ),
    )


def get(connection: SqliteTransaction, namespace: str, level: Level) -> StoredLevel | None:
    row = connection.execute(SQL["stored_get"], _key(namespace, level)).fetchone()
    return None if row is None else stored_from_text(row[0])


def update(
    connection: SqliteTransaction,
    namespace: str,
    level: Level,
    changes: Mapping[str, Any],
    principal: str | None,
    now_ms: int,
) -> StoredLevel:
    before = get(connection, namespace, level)
    after = change_stored(before, dict(changes), advance_version(connection, namespace))
    _put(connection, namespace, level, after)
    note(connection, namespace, now_ms, "limits_set", level.audit_id, principal, level.resource,
         before=stored_as_json(before), after=stored_as_json(after))  # fmt: skip
    return after


def delete(
    connection: SqliteTransaction, namespace: str, level: Level, principal: str | None, now_ms: int
) -> bool:
    """The level's limits and outage rule are gone (its mode stays); False if it had none."""
    before = get(connection, namespace, level)
    if before is None:
        return False
    version = advance_version(connection, namespace)
    if before.mode is Mode.NORMAL:
        connection.execute(SQL["stored_delete"], _key(namespace, level))
    else:
        _put(connection, namespace, level, StoredLevel((), version, None, before.mode))
    note(connection, namespace, now_ms, "limits_deleted", level.audit_id, principal,
         level.resource, before=stored_as_json(before), after=None)  # fmt: skip
    return bool(before.limits) or before.on_unavailable is not None


def resources(connection: SqliteTransaction, namespace: str, of_entities: bool) -> list[str]:
    query = SQL["resources_of_entities" if of_entities else "resources"]
    return [name for (name,) in connection.execute(query, (namespace,)).fetchall()]


def entities(
    connection: SqliteTransaction, namespace: str, resource: str, limit: int, cursor: str | None
) -> Page:
    """Who has limits of its own for the resource."""
    values = (namespace, resource, cursor or "", limit + 1)
    rows = connection.execute(SQL["limited_entities"], values).fetchall()
    names = tuple(name for (name,) in rows[:limit])
    return Page(names, names[-1] if len(rows) > limit else None)


def _put(connection: SqliteTransaction, namespace: str, level: Level, stored: StoredLevel) -> None:
    values = (bool(stored.limits), stored_as_text(stored))
    connection.execute(SQL["stored_put"], (*_key(namespace, level), *values))


def _key(namespace: str, level: Level) -> tuple[str, str, str]:
    return namespace, level.entity_id or "", level.resource or ""
