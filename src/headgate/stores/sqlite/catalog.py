"""The catalog: each method is one transaction over namespaces, entities and stored limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.core.levels import Entity, Level, Lookup, Namespace, Page, StoredLevel
from headgate.core.store import ExpiringRecord
from headgate.stores.sqlite import entities
from headgate.stores.sqlite import namespaces as tenants
from headgate.stores.sqlite import stored_limits as levels
from headgate.stores.sqlite.connection import READ, WRITE, Result, SqlitePort, Work
from headgate.stores.sqlite.rows import as_json, clamp, from_json
from headgate.stores.sqlite.schema import SCHEMA_VERSION, SqliteTransaction, named_queries, tables

PURGE_BATCH = 1000


class SqliteCatalog:
    def __init__(self, port: SqlitePort) -> None:
        self._port = port

    async def lookup(self, namespace: str, entity_id: str, resource: str) -> Lookup:
        return await self._port.call(
            lambda connection: levels.lookup(connection, namespace, entity_id, resource), READ
        )

    async def create_entity(
        self, namespace: str, entity: Entity, principal: str | None, now_ms: int
    ) -> Entity:
        return await self._within(
            namespace,
            lambda connection: entities.create(connection, namespace, entity, principal, now_ms),
        )

    async def get_entity(self, namespace: str, entity_id: str) -> Entity | None:
        return await self._within(
            namespace,
            lambda connection: entities.entity_reader(connection, namespace)(entity_id),
            READ,
        )

    async def update_entity(
        self,
        namespace: str,
        entity_id: str,
        changes: Mapping[str, Any],
        principal: str | None,
        now_ms: int,
        *,
        version: int | None = None,
    ) -> Entity:
        return await self._within(
            namespace,
            lambda connection: entities.update(
                connection, namespace, entity_id, changes, version, principal, now_ms
            ),
        )

    async def delete_entity(
        self, namespace: str, entity_id: str, principal: str | None, now_ms: int
    ) -> None:
        await self._within(
            namespace,
            lambda connection: entities.delete(connection, namespace, entity_id, principal, now_ms),
        )

    async def list_entities(
        self, namespace: str, *, parent_id: str | None, limit: int, cursor: str | None
    ) -> Page:
        return await self._within(
            namespace,
            lambda connection: entities.list_entities(
                connection, namespace, parent_id, limit, cursor
            ),
            READ,
        )

    async def update_stored(
        self,
        namespace: str,
        level: Level,
        changes: Mapping[str, Any],
        principal: str | None,
        now_ms: int,
    ) -> StoredLevel:
        return await self._within(
            namespace,
            lambda connection: levels.update(
                connection, namespace, level, changes, principal, now_ms
            ),
        )

    async def get_stored(self, namespace: str, level: Level) -> StoredLevel | None:
        return await self._within(
            namespace, lambda connection: levels.get(connection, namespace, level), READ
        )

    async def delete_stored(
        self, namespace: str, level: Level, principal: str | None, now_ms: int
    ) -> bool:
        return await self._within(
            namespace,
            lambda connection: levels.delete(connection, namespace, level, principal, now_ms),
        )

    async def list_resources(self, namespace: str, *, of_entities: bool) -> list[str]:
        return await self._within(
            namespace, lambda connection: levels.resources(connection, namespace, of_entities), READ
        )

    async def list_entities_with_limits(
        self, namespace: str, resource: str, *, limit: int, cursor: str | None
    ) -> Page:
        return await self._within(
            namespace,
            lambda connection: levels.entities(connection, namespace, resource, limit, cursor),
            READ,
        )

    async def register_namespace(self, name: str, principal: str | None, now_ms: int) -> Namespace:
        return await self._port.call(
            lambda connection: tenants.register(connection, name, principal, now_ms)
        )

    async def get_namespace(self, name: str) -> Namespace | None:
        return await self._port.call(lambda connection: tenants.get_active(connection, name), READ)

    async def list_namespaces(self, *, state: str) -> list[Namespace]:
        return await self._port.call(
            lambda connection: tenants.list_namespaces(connection, state), READ
        )

    async def delete_namespace(self, name: str, principal: str | None, now_ms: int) -> Namespace:
        return await self._port.call(
            lambda connection: tenants.delete(connection, name, principal, now_ms)
        )

    async def recover_namespace(
        self, namespace_id: str, principal: str | None, now_ms: int
    ) -> Namespace:
        return await self._port.call(
            lambda connection: tenants.recover(connection, namespace_id, principal, now_ms)
        )

    async def purge_namespace(self, namespace_id: str, principal: str | None, now_ms: int) -> int:
        await self._port.call(lambda connection: tenants.begin_purge(connection, namespace_id))
        total, done = 0, False
        while not done:  # in bites, so that others get their turn
            gone, done = await self._port.call(
                lambda connection: tenants.purge_some(connection, namespace_id, PURGE_BATCH)
            )
            total += gone
        return total

    async def get_version_record(self) -> Mapping[str, Any]:
        return await self._port.call(_notes, READ)

    async def set_version_record(self, values: Mapping[str, Any]) -> None:
        text = as_json(dict(values))
        await self._port.call(
            lambda connection: connection.execute(tenants.SQL["notes_put"], (text,)).rowcount
        )

    async def prepare(self) -> None:
        await self._port.call(_notes, READ)  # opening the file is what migrates it

    async def destroy(self) -> None:
        await self._port.call(_delete_everything)

    async def _within(self, namespace: str, work: Work[Result], begin: str = WRITE) -> Result:
        """The work, if the namespace is active at that moment."""

        def checked(connection: SqliteTransaction) -> Result:
            tenants.version_of(connection, namespace)
            return work(connection)

        return await self._port.call(checked, begin)


def _notes(connection: SqliteTransaction) -> Mapping[str, Any]:
    row = connection.execute(tenants.SQL["notes_get"]).fetchone()
    noted = {} if row is None else from_json("note", row[0])
    return {**noted, "schema_version": SCHEMA_VERSION}


def _delete_everything(connection: SqliteTransaction) -> None:
    for table in tables(connection):
        connection.execute(f"DELETE FROM {table}")


# --------------------------------------------------------------------------------------------------
# Small texts in a table.

SQL = named_queries("drawer.sql")


class SqliteExpiringRecords:
    def __init__(self, port: SqlitePort) -> None:
        self._port = port

    async def put(
        self, namespace: str, name: str, text: str, until_ms: int, *, seen: int | None
    ) -> int | None:
        values = (text, clamp(until_ms), namespace, name)

        def work(connection: SqliteTransaction) -> int:
            if seen is None:
                return connection.execute(SQL["add"], values).rowcount
            return connection.execute(SQL["change"], (*values, seen)).rowcount

        return 1 + (seen or 0) if await self._port.call(work) else None

    async def get(self, namespace: str, name: str) -> ExpiringRecord | None:
        row = await self._port.call(
            lambda connection: connection.execute(SQL["get"], (namespace, name)).fetchone(), READ
        )
        return None if row is None else ExpiringRecord(*row)

    async def drop(self, namespace: str, name: str, *, seen: int) -> bool:
        values = (namespace, name, seen)
        return bool(
            await self._port.call(
                lambda connection: connection.execute(SQL["drop"], values).rowcount
            )
        )

    async def due(
        self, namespace: str, before_ms: int, limit: int
    ) -> list[tuple[str, ExpiringRecord]]:
        values = (namespace, clamp(before_ms), limit)
        rows = await self._port.call(
            lambda connection: connection.execute(SQL["due"], values).fetchall(), READ
        )
        return [(name, ExpiringRecord(*rest)) for name, *rest in rows]
