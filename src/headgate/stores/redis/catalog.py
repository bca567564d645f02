"""The catalog's face: entities, stored limits and namespaces in Redis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.core.levels import Entity, Level, Lookup, Namespace, Page, StoredLevel
from headgate.core.store import ExpiringRecord
from headgate.stores.redis import entities, keys
from headgate.stores.redis import registry as tenants
from headgate.stores.redis import registry as tenants_purge
from headgate.stores.redis import stored_limits as levels
from headgate.stores.redis.catalog_steps import SCHEMA_VERSION, check_schema, read
from headgate.stores.redis.catalog_text import as_json, from_json
from headgate.stores.redis.client.calls import RedisPort
from headgate.stores.redis.scripts import load_script


class RedisCatalog:
    def __init__(self, port: RedisPort) -> None:
        self._port = port

    async def lookup(self, namespace: str, entity_id: str, resource: str) -> Lookup:
        return await levels.lookup(self._port, namespace, entity_id, resource)

    async def create_entity(
        self, namespace: str, entity: Entity, principal: str | None, now_ms: int
    ) -> Entity:
        return await entities.create(self._port, namespace, entity, principal, now_ms)

    async def get_entity(self, namespace: str, entity_id: str) -> Entity | None:
        return await entities.get(self._port, namespace, entity_id)

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
        return await entities.update(
            self._port, namespace, entity_id, changes, version, principal, now_ms
        )

    async def delete_entity(
        self, namespace: str, entity_id: str, principal: str | None, now_ms: int
    ) -> None:
        await entities.delete(self._port, namespace, entity_id, principal, now_ms)

    async def list_entities(
        self, namespace: str, *, parent_id: str | None, limit: int, cursor: str | None
    ) -> Page:
        return await entities.list_entities(self._port, namespace, parent_id, limit, cursor)

    async def update_stored(
        self,
        namespace: str,
        level: Level,
        changes: Mapping[str, Any],
        principal: str | None,
        now_ms: int,
    ) -> StoredLevel:
        return await levels.update(self._port, namespace, level, changes, principal, now_ms)

    async def get_stored(self, namespace: str, level: Level) -> StoredLevel | None:
        return await levels.get(self._port, namespace, level)

    async def delete_stored(
        self, namespace: str, level: Level, principal: str | None, now_ms: int
    ) -> bool:
        return await levels.delete(self._port, namespace, level, principal, now_ms)

    async def list_resources(self, namespace: str, *, of_entities: bool) -> list[str]:
        return await levels.resources(self._port, namespace, of_entities)

    async def list_entities_with_limits(
        self, namespace: str, resource: str, *, limit: int, cursor: str | None
    ) -> Page:
        return await levels.entities(self._port, namespace, resource, limit, cursor)

    async def register_namespace(self, name: str, principal: str | None, now_ms: int) -> Namespace:
        return await tenants.register(self._port, name, principal, now_ms)

    async def get_namespace(self, name: str) -> Namespace | None:
        return await tenants.get_active(self._port, name)

    async def list_namespaces(self, *, state: str) -> list[Namespace]:
        return await tenants.list_namespaces(self._port, state)

    async def delete_namespace(self, name: str, principal: str | None, now_ms: int) -> Namespace:
        return await tenants.delete(self._port, name, principal, now_ms)

    async def recover_namespace(
        self, namespace_id: str, principal: str | None, now_ms: int
    ) -> Namespace:
        return await tenants.recover(self._port, namespace_id, principal, now_ms)

    async def purge_namespace(self, namespace_id: str, principal: str | None, now_ms: int) -> int:
        return await tenants_purge.purge(self._port, namespace_id)

    async def get_version_record(self) -> Mapping[str, Any]:
        schema, text = await read(self._port, tenants.SCHEMA, ("HGET", keys.META, "notes"))
        noted = {} if text is None else from_json("note", text)
        return {**noted, "schema_version": int(schema or SCHEMA_VERSION)}

    async def set_version_record(self, values: Mapping[str, Any]) -> None:
        await self._port.command("HSET", keys.META, "notes", as_json(dict(values)))

    async def prepare(self) -> None:
        """The schema's version is noted; a newer one is refused."""
        await self._port.command("HSETNX", keys.META, "schema_version", SCHEMA_VERSION)
        [schema] = await read(self._port, tenants.SCHEMA)
        check_schema(schema)

    async def destroy(self) -> None:
        await tenants_purge.destroy(self._port)


# --------------------------------------------------------------------------------------------------
# Small texts in a hash of each namespace, with their ends in a sorted set beside it.

PUT = load_script("drawer_put")
DROP = load_script("drawer_drop")
DUE = load_script("drawer_due")


class RedisExpiringRecords:
    def __init__(self, port: RedisPort) -> None:
        self._port = port

    async def put(
        self, namespace: str, name: str, text: str, until_ms: int, *, seen: int | None
    ) -> int | None:
        args: list[str | int] = [name, text, until_ms, "" if seen is None else seen]
        version: int = await self._port.script(PUT, _keys(namespace), args)
        return version or None

    async def get(self, namespace: str, name: str) -> ExpiringRecord | None:
        found = await self._port.command("HGET", keys.expiring(namespace), name)
        return None if found is None else _record_from_reply(found)

    async def drop(self, namespace: str, name: str, *, seen: int) -> bool:
        return bool(await self._port.script(DROP, _keys(namespace), [name, seen]))

    async def due(
        self, namespace: str, before_ms: int, limit: int
    ) -> list[tuple[str, ExpiringRecord]]:
        found = await self._port.script(DUE, _keys(namespace), [before_ms, limit])
        pairs = zip(found[::2], found[1::2], strict=True)
        return [(name, _record_from_reply(text)) for name, text in pairs if text]


def _keys(namespace: str) -> list[str]:
    return [keys.expiring(namespace), keys.expiring_ends(namespace)]


def _record_from_reply(found: str) -> ExpiringRecord:
    version, until_ms, text = found.split(" ", 2)
    return ExpiringRecord(text, int(until_ms), int(version))
