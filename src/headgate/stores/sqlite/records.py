"""Entities, stored limits and namespaces in tables.

A change runs in one transaction, which locks out all other writers from its first read on. So a
commit has nothing to compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headgate.core.errors import NamespaceNotFoundError
from headgate.core.history import AuditEvent
from headgate.core.levels import (
    LINEAGE_MAX,
    CommonLevels,
    Entity,
    Level,
    Lookup,
    Namespace,
    Page,
    Plan,
    StoredLevel,
)
from headgate.core.runtime import run
from headgate.core.store import ExpiringRecord
from headgate.stores.catalog import RecordsCatalog
from headgate.stores.records import (
    ACTIVE,
    Changes,
    ChangeWork,
    Document,
    DocumentKey,
    EntityFamily,
    PlanFamily,
    PlanKey,
    Result,
    Snapshot,
    build_lookup,
    check_active,
    first_page,
)
from headgate.stores.sqlite.connection import READ, WRITE, SqlitePort, Work, fetch, write
from headgate.stores.sqlite.rows import (
    append,
    as_json,
    clamp,
    entity_as_row,
    entity_from_row,
    from_json,
    namespace_from_row,
    plan_as_text,
    plan_from_row,
    stored_as_text,
    stored_from_text,
)
from headgate.stores.sqlite.schema import SCHEMA_VERSION, SqliteTransaction, named_queries, tables

PURGE_BATCH = 1000
ENTITIES_PER_STEP = 1000  # that lose their plan
PURGED = ("entities", "stored", "plans", "buckets", "usage", "audit", "once", "drawer")
UNCOUNTED = 2  # of these, the last: they are no records that anybody has made

SQL = named_queries("catalog.sql")


class OpenTransaction:
    """A port whose calls are all part of one transaction."""

    def __init__(self, connection: SqliteTransaction) -> None:
        self._connection = connection

    async def call(self, work: Work[Result], begin: str = WRITE) -> Result:
        return work(self._connection)

    async def close(self) -> None:
        return None


class SqliteRecords:
    def __init__(self, port: SqlitePort) -> None:
        self._port = port

    async def within(self, work: ChangeWork[Result]) -> Result:
        return await self._port.call(
            lambda connection: run(work(SqliteRecords(OpenTransaction(connection))))
        )

    async def pause(self, attempt: int) -> None:
        return None

    async def read(self, namespace: str, *keys: DocumentKey, ancestors: bool = False) -> Snapshot:
        generations = LINEAGE_MAX + 1 if ancestors else 1

        def work(connection: SqliteTransaction) -> Snapshot:
            version = _active_version(connection, namespace)
            found: dict[DocumentKey, Document] = {}
            for key in keys:
                wanted: DocumentKey | None = key
                for _ in range(generations):
                    document = None if wanted is None else _get(connection, namespace, wanted)
                    if wanted is None or document is None:
                        break
                    found[wanted] = document
                    wanted = document.parent_id if isinstance(document, Entity) else None
            return Snapshot(namespace, version, found)

        return await self._port.call(work, READ)

    async def read_family(self, namespace: str, entity_id: str) -> EntityFamily:
        seen = await self.read(namespace, entity_id)
        values = (namespace, entity_id)
        children = await self._rows("children", values)
        levels = await self._rows("levels_of_entity", values)
        return EntityFamily(
            seen,
            [entity_from_row(row) for row in children],
            [Level(entity_id, resource) for (resource,) in levels],
            is_complete=True,
        )

    async def read_plan_family(self, namespace: str, name: str) -> PlanFamily:
        seen = await self.read(namespace, PlanKey(name))
        rows = await self._rows("entities_on_plan", (namespace, name, "", ENTITIES_PER_STEP))
        [(count,)] = await self._rows("plan_count", (namespace, name))
        return PlanFamily(seen, [entity_from_row(row) for row in rows], count)

    async def commit(self, seen: Snapshot, changes: Changes, event: AuditEvent | None) -> int:
        namespace = seen.namespace

        def work(connection: SqliteTransaction) -> int:
            for key, document in changes.items():
                _put(connection, namespace, key, document)
            row = connection.execute(SQL["namespace_changed"], (namespace,)).fetchone()
            if event is not None:
                append(connection, namespace, event)
            version: int = row[0]
            return version

        return await self._port.call(work)

    async def lookup(
        self, namespace: str, entity_id: str, resource: str, known: CommonLevels | None = None
    ) -> Lookup:
        def work(connection: SqliteTransaction) -> Lookup:
            return build_lookup(
                _active_version(connection, namespace),
                entity_id,
                resource,
                lambda one: _get_entity(connection, namespace, one),
                lambda level: _get_stored(connection, namespace, level),
                lambda name: _get_plan(connection, namespace, name),
            )

        return await self._port.call(work, READ)

    async def entities(
        self, namespace: str, parent_id: str | None, limit: int, cursor: str | None
    ) -> Page:
        whose = () if parent_id is None else (parent_id,)
        query = "entities" if parent_id is None else "entities_of_parent"
        rows = await self._listed(namespace, query, *whose, cursor or "", limit + 1)
        return first_page([entity_from_row(row) for row in rows], limit, lambda one: one.id)

    async def entities_with_limits(
        self, namespace: str, resource: str, limit: int, cursor: str | None
    ) -> Page:
        rows = await self._listed(namespace, "limited_entities", resource, cursor or "", limit + 1)
        return first_page([name for (name,) in rows], limit, str)

    async def resources(self, namespace: str, *, of_entities: bool) -> list[str]:
        query = "resources_of_entities" if of_entities else "resources"
        return [name for (name,) in await self._listed(namespace, query)]

    async def get_plan(self, namespace: str, name: str) -> Plan | None:
        found = (await self.read(namespace, PlanKey(name))).plan(name)
        [(count,)] = await self._rows("plan_count", (namespace, name))
        return None if found is None else replace(found, entities=count)

    async def plans(self, namespace: str, limit: int, cursor: str | None) -> Page:
        rows = await self._listed(namespace, "plans", cursor or "", limit + 1)
        return first_page([plan_from_row(row) for row in rows], limit, lambda one: one.name)

    async def entities_on_plan(
        self, namespace: str, name: str, limit: int, cursor: str | None
    ) -> Page:
        rows = await self._listed(namespace, "entities_on_plan", name, cursor or "", limit + 1)
        return first_page([row[0] for row in rows], limit, str)

    async def find_namespace(self, name: str) -> Namespace | None:
        return next(map(namespace_from_row, await self._rows("namespace_active", (name,))), None)

    async def get_namespace(self, namespace_id: str) -> Namespace | None:
        rows = await self._rows("namespace_get", (namespace_id,))
        return next(map(namespace_from_row, rows), None)

    async def namespaces(self) -> list[Namespace]:
        return [namespace_from_row(row) for row in await self._rows("namespaces", ())]

    async def transition(
        self, before: Namespace | None, after: Namespace, event: AuditEvent | None
    ) -> Namespace:
        def work(connection: SqliteTransaction) -> Namespace:
            if before is None:
                row = (after.id, after.name, after.created_ms)
                connection.execute(SQL["namespace_add"], row)
            else:
                change = (after.state, after.deleted_ms, after.id)
                connection.execute(SQL["namespace_state"], change)
                if after.state == ACTIVE:
                    connection.execute(SQL["namespace_changed"], (after.id,)).fetchone()
            if event is not None:
                append(connection, after.id, event)
            return after

        return await self._port.call(work)

    async def purge(self, namespace_id: str) -> int:
        total, is_done = 0, False
        while not is_done:  # in batches, so that others get their turn
            gone, is_done = await self.purge_some(namespace_id, PURGE_BATCH)
            total += gone
        return total

    async def purge_some(self, namespace_id: str, limit: int) -> tuple[int, bool]:
        """How many records went, at most `limit` of each kind, and whether nothing is left."""

        def work(connection: SqliteTransaction) -> tuple[int, bool]:
            gone = [
                connection.execute(SQL[f"purge_{kind}"], (namespace_id, limit)).rowcount
                for kind in PURGED
            ]
            is_done = max(gone) < limit
            if is_done:
                connection.execute(SQL["namespace_delete"], (namespace_id,))
            return sum(gone[:-UNCOUNTED]) + is_done, is_done

        return await self._port.call(work)

    async def _listed(self, namespace: str, query: str, *values: Any) -> list[Any]:
        """What a query finds in a namespace that may be used."""

        def work(connection: SqliteTransaction) -> list[Any]:
            _active_version(connection, namespace)
            return connection.execute(SQL[query], (namespace, *values)).fetchall()

        return await self._port.call(work, READ)

    async def _rows(self, query: str, values: tuple[Any, ...]) -> list[Any]:
        return await fetch(self._port, SQL[query], values)


def _active_version(connection: SqliteTransaction, namespace: str) -> int:
    """Which configuration version the namespace is at, if it may be used."""
    row = connection.execute(SQL["namespace_get"], (namespace,)).fetchone()
    if row is None:
        raise NamespaceNotFoundError(namespace)
    found = namespace_from_row(row)
    check_active(namespace, found.state, found.name)
    version: int = row[5]
    return version


def _get(connection: SqliteTransaction, namespace: str, key: DocumentKey) -> Document | None:
    if isinstance(key, Level):
        return _get_stored(connection, namespace, key)
    if isinstance(key, PlanKey):
        return _get_plan(connection, namespace, key.name)
    return _get_entity(connection, namespace, key)


def _get_entity(connection: SqliteTransaction, namespace: str, entity_id: str) -> Entity | None:
    row = connection.execute(SQL["entity_get"], (namespace, entity_id)).fetchone()
    return None if row is None else entity_from_row(row)


def _get_stored(connection: SqliteTransaction, namespace: str, level: Level) -> StoredLevel | None:
    row = connection.execute(SQL["stored_get"], _level_key(namespace, level)).fetchone()
    return None if row is None else stored_from_text(row[0])


def _get_plan(connection: SqliteTransaction, namespace: str, name: str) -> Plan | None:
    row = connection.execute(SQL["plan_get"], (namespace, name)).fetchone()
    return None if row is None else plan_from_row(row)


def _put(
    connection: SqliteTransaction, namespace: str, key: DocumentKey, document: Document | None
) -> None:
    if isinstance(document, Entity):
        connection.execute(SQL["entity_put"], entity_as_row(namespace, document))
    elif isinstance(document, Plan):
        row = (namespace, document.name, plan_as_text(document))
        connection.execute(SQL["plan_put"], row)
    elif isinstance(key, PlanKey):
        connection.execute(SQL["plan_delete"], (namespace, key.name))
    elif not isinstance(key, Level):
        connection.execute(SQL["entity_delete"], (namespace, key))
    elif document is None:
        connection.execute(SQL["stored_delete"], _level_key(namespace, key))
    else:
        values = (document.is_listed, stored_as_text(document))
        connection.execute(SQL["stored_put"], (*_level_key(namespace, key), *values))


def _level_key(namespace: str, level: Level) -> tuple[str, str, str]:
    """'' stands for the name that a level lacks."""
    return namespace, level.entity_id or "", level.resource or ""


class SqliteCatalog(RecordsCatalog):
    def __init__(self, port: SqlitePort) -> None:
        records = SqliteRecords(port)
        super().__init__(records)
        self.lookup = records.lookup
        self._port = port

    async def get_version_record(self) -> Mapping[str, Any]:
        return await self._port.call(_notes, READ)

    async def set_version_record(self, values: Mapping[str, Any]) -> None:
        await write(self._port, SQL["notes_put"], (as_json(dict(values)),))

    async def prepare(self) -> None:
        await self._port.call(_notes, READ)  # opening the file is what migrates it

    async def destroy(self) -> None:
        await self._port.call(_delete_everything)


def _notes(connection: SqliteTransaction) -> Mapping[str, Any]:
    row = connection.execute(SQL["notes_get"]).fetchone()
    noted = {} if row is None else from_json("note", row[0])
    return {**noted, "schema_version": SCHEMA_VERSION}


def _delete_everything(connection: SqliteTransaction) -> None:
    for table in tables(connection):
        connection.execute(f"DELETE FROM {table}")


# --------------------------------------------------------------------------------------------------
# Small texts in a table.

EXPIRING = named_queries("expiring.sql")  # the table keeps its first name, drawer


class SqliteExpiringRecords:
    def __init__(self, port: SqlitePort) -> None:
        self._port = port

    async def put(
        self, namespace: str, name: str, text: str, until_ms: int, *, seen: int | None
    ) -> int | None:
        values = (text, clamp(until_ms), namespace, name)
        if seen is None:
            written = await write(self._port, EXPIRING["add"], values)
        else:
            written = await write(self._port, EXPIRING["change"], (*values, seen))
        return 1 + (seen or 0) if written else None

    async def get(self, namespace: str, name: str) -> ExpiringRecord | None:
        rows = await fetch(self._port, EXPIRING["get"], (namespace, name))
        return ExpiringRecord(*rows[0]) if rows else None

    async def drop(self, namespace: str, name: str, *, seen: int) -> bool:
        return bool(await write(self._port, EXPIRING["drop"], (namespace, name, seen)))

    async def due(
        self, namespace: str, before_ms: int, limit: int
    ) -> list[tuple[str, ExpiringRecord]]:
        rows = await fetch(self._port, EXPIRING["due"], (namespace, clamp(before_ms), limit))
        return [(name, ExpiringRecord(*rest)) for name, *rest in rows]
