"""The catalog's face: entities, stored limits and namespaces in one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.core.levels import Entity, Level, Lookup, Namespace, Page, StoredLevel
from headgate.core.record import BucketKey
from headgate.stores.dynamodb.catalog import entities
from headgate.stores.dynamodb.catalog import entities as people_leaving
from headgate.stores.dynamodb.catalog import lookup as levels_lookup
from headgate.stores.dynamodb.catalog import registry as tenants
from headgate.stores.dynamodb.catalog import registry as tenants_purge
from headgate.stores.dynamodb.catalog import stored_limits as levels
from headgate.stores.dynamodb.catalog.items import Item
from headgate.stores.dynamodb.table import create as table_making
from headgate.stores.dynamodb.table import create as versions
from headgate.stores.dynamodb.table import migrate as migrations
from headgate.stores.dynamodb.table.table import Table


def ignore_bucket(key: BucketKey, item: Item | None, now_ms: int) -> None:
    """Who has no buckets needs none brought along."""


class DynamoCatalog:
    """`prime` is given the buckets that a lookup reads along with the configuration."""

    def __init__(self, table: Table, prime: levels_lookup.Prime = ignore_bucket) -> None:
        self._table = table
        self._prime = prime

    async def lookup(self, namespace: str, entity_id: str, resource: str) -> Lookup:
        return await levels_lookup.lookup(self._table, namespace, entity_id, resource, self._prime)

    async def create_entity(
        self, namespace: str, entity: Entity, principal: str | None, now_ms: int
    ) -> Entity:
        return await entities.create(self._table, namespace, entity, principal, now_ms)

    async def get_entity(self, namespace: str, entity_id: str) -> Entity | None:
        return await entities.get(self._table, namespace, entity_id)

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
            self._table, namespace, entity_id, changes, version, principal, now_ms
        )

    async def delete_entity(
        self, namespace: str, entity_id: str, principal: str | None, now_ms: int
    ) -> None:
        await people_leaving.delete(self._table, namespace, entity_id, principal, now_ms)

    async def list_entities(
        self, namespace: str, *, parent_id: str | None, limit: int, cursor: str | None
    ) -> Page:
        return await entities.list_entities(self._table, namespace, parent_id, limit, cursor)

    async def update_stored(
        self,
        namespace: str,
        level: Level,
        changes: Mapping[str, Any],
        principal: str | None,
        now_ms: int,
    ) -> StoredLevel:
        return await levels.update(self._table, namespace, level, changes, principal, now_ms)

    async def get_stored(self, namespace: str, level: Level) -> StoredLevel | None:
        return await levels.get(self._table, namespace, level)

    async def delete_stored(
        self, namespace: str, level: Level, principal: str | None, now_ms: int
    ) -> bool:
        return await levels.delete(self._table, namespace, level, principal, now_ms)

    async def list_resources(self, namespace: str, *, of_entities: bool) -> list[str]:
        return await levels.resources(self._table, namespace, of_entities)

    async def list_entities_with_limits(
        self, namespace: str, resource: str, *, limit: int, cursor: str | None
    ) -> Page:
        return await levels.entities(self._table, namespace, resource, limit, cursor)

    async def register_namespace(self, name: str, principal: str | None, now_ms: int) -> Namespace:
        return await tenants.register(self._table, name, principal, now_ms)

    async def get_namespace(self, name: str) -> Namespace | None:
        return await tenants.get_active(self._table, name)

    async def list_namespaces(self, *, state: str) -> list[Namespace]:
        return await tenants.list_namespaces(self._table, state)

    async def delete_namespace(self, name: str, principal: str | None, now_ms: int) -> Namespace:
        return await tenants.delete(self._table, name, principal, now_ms)

    async def recover_namespace(
        self, namespace_id: str, principal: str | None, now_ms: int
    ) -> Namespace:
        return await tenants.recover(self._table, namespace_id, principal, now_ms)

    async def purge_namespace(self, namespace_id: str, principal: str | None, now_ms: int) -> int:
        return await tenants_purge.purge(self._table, namespace_id)

    async def get_version_record(self) -> Mapping[str, Any]:
        return await versions.get_record(self._table)

    async def set_version_record(self, values: Mapping[str, Any]) -> None:
        await versions.set_notes(self._table, values)

    async def prepare(self) -> None:
        await table_making.prepare(self._table)

    async def upgrade(
        self, *, dry_run: bool = False, report: migrations.Report | None = None
    ) -> list[migrations.MigrationProgress]:
        """See migrations.upgrade."""
        return await migrations.upgrade(
            self._table, dry_run=dry_run, report=report or migrations.ignore_progress
        )

    async def destroy(self) -> None:
        await table_making.destroy(self._table)
