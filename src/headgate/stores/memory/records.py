"""Entities, stored limits and namespaces in dicts under one lock."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from headgate.core.errors import (
    Contended,
    EntityExistsError,
    EntityNotFoundError,
    NamespaceNotFoundError,
    NamespaceStateError,
)
from headgate.core.history import audit_event
from headgate.core.levels import (
    Entity,
    EntityConfig,
    Level,
    Lookup,
    Mode,
    Namespace,
    Page,
    StoredLevel,
    change_entity,
    change_stored,
    check_parent,
    lineage,
)
from headgate.core.limits import DEFAULT_RESOURCE, new_namespace_id
from headgate.core.store import ExpiringRecord, entity_as_json, stored_as_json
from headgate.stores.memory.buckets import MemoryStore
from headgate.stores.memory.ledger import MemoryLedger

# --------------------------------------------------------------------------------------------------
# Small texts in memory; at most so many.

TEXTS_MAX = 100_000


class MemoryExpiringRecords:
    def __init__(self, texts_max: int = TEXTS_MAX) -> None:
        self._texts: dict[tuple[str, str], ExpiringRecord] = {}
        self._texts_max = texts_max
        self._lock = threading.Lock()

    async def put(
        self, namespace: str, name: str, text: str, until_ms: int, *, seen: int | None
    ) -> int | None:
        with self._lock:
            found = self._texts.get((namespace, name))
            if (None if found is None else found.version) != seen:
                return None
            if found is None and len(self._texts) >= self._texts_max:
                raise Contended(f"{self._texts_max} texts are kept already; nothing was kept")
            version = 1 + (seen or 0)
            self._texts[namespace, name] = ExpiringRecord(text, until_ms, version)
            return version

    async def get(self, namespace: str, name: str) -> ExpiringRecord | None:
        return self._texts.get((namespace, name))

    async def drop(self, namespace: str, name: str, *, seen: int) -> bool:
        with self._lock:
            found = self._texts.get((namespace, name))
            if found is None or found.version != seen:
                return False
            del self._texts[namespace, name]
            return True

    async def due(
        self, namespace: str, before_ms: int, limit: int
    ) -> list[tuple[str, ExpiringRecord]]:
        with self._lock:
            found = [
                (name, kept)
                for (owner, name), kept in self._texts.items()
                if owner == namespace and kept.until_ms < before_ms
            ]
        return sorted(found, key=lambda pair: (pair[1].until_ms, pair[0]))[:limit]

    def drop_namespace(self, namespace: str) -> None:
        with self._lock:
            for place in [place for place in self._texts if place[0] == namespace]:
                del self._texts[place]


@dataclass
class NamespaceRecords:
    """Everything of one namespace."""

    namespace: Namespace
    version: int = 0
    entities: dict[str, Entity] = field(default_factory=dict)
    stored: dict[Level, StoredLevel] = field(default_factory=dict)


class MemoryCatalog:
    def __init__(
        self, store: MemoryStore, ledger: MemoryLedger, expiring: MemoryExpiringRecords
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._expiring = expiring
        self._by_namespace: dict[str, NamespaceRecords] = {}
        self._notes: dict[str, Any] = {}
        self._lock = threading.Lock()

    async def lookup(self, namespace: str, entity_id: str, resource: str) -> Lookup:
        with self._lock:
            records = self._active_records(namespace)
            get = records.stored.get
            standings = tuple(
                EntityConfig(
                    name,
                    entity,
                    get(Level(name, resource)),
                    get(Level(name, DEFAULT_RESOURCE)),
                    get(Level(None, resource)),
                    get(Level()),
                )
                for name, entity in lineage(entity_id, records.entities.get)
            )
            return Lookup(records.version, standings)

    async def create_entity(
        self, namespace: str, entity: Entity, principal: str | None, now_ms: int
    ) -> Entity:
        with self._lock:
            records = self._active_records(namespace)
            if entity.id in records.entities:
                raise EntityExistsError(entity.id)
            check_parent(entity.id, entity.parent_id, records.entities.get)
            made = replace(entity, created_ms=now_ms, version=1)
            records.entities[entity.id] = made
            records.version += 1
            self._note(namespace, now_ms, "entity_created", entity.id, principal,
                       before=None, after=entity_as_json(made))  # fmt: skip
            return made

    async def get_entity(self, namespace: str, entity_id: str) -> Entity | None:
        with self._lock:
            return self._active_records(namespace).entities.get(entity_id)

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
        with self._lock:
            records = self._active_records(namespace)
            before = records.entities.get(entity_id)
            if before is None:
                raise EntityNotFoundError(entity_id)
            after = change_entity(before, dict(changes), version)
            check_parent(entity_id, after.parent_id, records.entities.get)
            records.entities[entity_id] = after
            records.version += 1
            self._note(namespace, now_ms, "entity_changed", entity_id, principal,
                       before=entity_as_json(before), after=entity_as_json(after))  # fmt: skip
            return after

    async def delete_entity(
        self, namespace: str, entity_id: str, principal: str | None, now_ms: int
    ) -> None:
        with self._lock:
            records = self._active_records(namespace)
            before = records.entities.pop(entity_id, None)
            if before is None:
                raise EntityNotFoundError(entity_id)
            for level in [level for level in records.stored if level.entity_id == entity_id]:
                del records.stored[level]
            for child in [e for e in records.entities.values() if e.parent_id == entity_id]:
                records.entities[child.id] = replace(
                    child, parent_id=None, version=child.version + 1
                )
            records.version += 1
            self._note(namespace, now_ms, "entity_deleted", entity_id, principal,
                       before=entity_as_json(before), after=None)  # fmt: skip

    async def list_entities(
        self, namespace: str, *, parent_id: str | None, limit: int, cursor: str | None
    ) -> Page:
        with self._lock:
            entities = self._active_records(namespace).entities
            names = [n for n, e in entities.items() if parent_id in (None, e.parent_id)]
            page = _page(names, limit, cursor)
            return Page(tuple(entities[name] for name in page.items), page.cursor)

    async def update_stored(
        self,
        namespace: str,
        level: Level,
        changes: Mapping[str, Any],
        principal: str | None,
        now_ms: int,
    ) -> StoredLevel:
        with self._lock:
            records = self._active_records(namespace)
            before = records.stored.get(level)
            records.version += 1
            after = change_stored(before, dict(changes), records.version)
            records.stored[level] = after
            self._note(namespace, now_ms, "limits_set", level.audit_id, principal, level.resource,
                       before=stored_as_json(before), after=stored_as_json(after))  # fmt: skip
            return after

    async def get_stored(self, namespace: str, level: Level) -> StoredLevel | None:
        with self._lock:
            return self._active_records(namespace).stored.get(level)

    async def delete_stored(
        self, namespace: str, level: Level, principal: str | None, now_ms: int
    ) -> bool:
        with self._lock:
            records = self._active_records(namespace)
            before = records.stored.pop(level, None)
            if before is None:
                return False
            records.version += 1
            if before.mode is not Mode.NORMAL:
                records.stored[level] = StoredLevel((), records.version, None, before.mode)
            self._note(namespace, now_ms, "limits_deleted", level.audit_id, principal,
                       level.resource, before=stored_as_json(before), after=None)  # fmt: skip
            return bool(before.limits) or before.on_unavailable is not None

    async def list_resources(self, namespace: str, *, of_entities: bool) -> list[str]:
        with self._lock:
            levels = self._active_records(namespace).stored
            return sorted(
                {
                    level.resource
                    for level, stored in levels.items()
                    if level.resource is not None
                    and (level.entity_id is not None) is of_entities
                    and stored.limits
                }
            )

    async def list_entities_with_limits(
        self, namespace: str, resource: str, *, limit: int, cursor: str | None
    ) -> Page:
        with self._lock:
            names = [
                level.entity_id
                for level, stored in self._active_records(namespace).stored.items()
                if level.entity_id is not None and level.resource == resource and stored.limits
            ]
            return _page(names, limit, cursor)

    async def register_namespace(self, name: str, principal: str | None, now_ms: int) -> Namespace:
        with self._lock:
            records = self._active(name)
            if records is None:
                made = Namespace(new_namespace_id(), name, "active", now_ms)
                records = self._by_namespace[made.id] = NamespaceRecords(made)
                self._note(made.id, now_ms, "namespace_registered", "$SYSTEM", principal,
                           before=None, after=asdict(made))  # fmt: skip
            return records.namespace

    async def get_namespace(self, name: str) -> Namespace | None:
        with self._lock:
            records = self._active(name)
            return None if records is None else records.namespace

    async def list_namespaces(self, *, state: str) -> list[Namespace]:
        with self._lock:
            found = [t.namespace for t in self._by_namespace.values() if t.namespace.state == state]
        return sorted(found, key=lambda one: (one.name, one.id))

    async def delete_namespace(self, name: str, principal: str | None, now_ms: int) -> Namespace:
        with self._lock:
            records = self._active(name)
            if records is None:
                raise NamespaceNotFoundError(name)
            before = records.namespace
            records.namespace = replace(before, state="deleted", deleted_ms=now_ms)
            self._note(records.namespace.id, now_ms, "namespace_deleted", "$SYSTEM", principal,
                       before=asdict(before), after=asdict(records.namespace))  # fmt: skip
            return records.namespace

    async def recover_namespace(
        self, namespace_id: str, principal: str | None, now_ms: int
    ) -> Namespace:
        with self._lock:
            records = self._deleted(namespace_id, "there is nothing to recover")
            name = records.namespace.name
            if self._active(name) is not None:
                raise NamespaceStateError(
                    name, "registered again since", "delete that one first, then recover this id"
                )
            before = records.namespace
            records.namespace = replace(before, state="active", deleted_ms=None)
            records.version += 1
            self._note(namespace_id, now_ms, "namespace_recovered", "$SYSTEM", principal,
                       before=asdict(before), after=asdict(records.namespace))  # fmt: skip
            return records.namespace

    async def purge_namespace(self, namespace_id: str, principal: str | None, now_ms: int) -> int:
        with self._lock:
            records = self._deleted(namespace_id, "delete_namespace comes before purge_namespace")
            del self._by_namespace[namespace_id]
            gone = 1 + len(records.entities) + len(records.stored)
            gone += self._store.drop_namespace(namespace_id)
            self._expiring.drop_namespace(namespace_id)
            return gone + self._ledger.drop_namespace(namespace_id)

    async def get_version_record(self) -> Mapping[str, Any]:
        return {**self._notes, "schema_version": 1}

    async def set_version_record(self, values: Mapping[str, Any]) -> None:
        self._notes = dict(values)

    async def prepare(self) -> None:
        return None

    async def destroy(self) -> None:
        with self._lock:
            for namespace in list(self._by_namespace):
                del self._by_namespace[namespace]
                self._store.drop_namespace(namespace)
                self._expiring.drop_namespace(namespace)
                self._ledger.drop_namespace(namespace)

    def _active_records(self, namespace: str) -> NamespaceRecords:
        records = self._by_namespace.get(namespace)
        if records is None:
            raise NamespaceNotFoundError(namespace)
        if records.namespace.state != "active":
            raise NamespaceStateError(
                records.namespace.name, records.namespace.state,
                f"recover_namespace('{namespace}') brings it back",
            )  # fmt: skip
        return records

    def _active(self, name: str) -> NamespaceRecords | None:
        for records in self._by_namespace.values():
            if records.namespace.name == name and records.namespace.state == "active":
                return records
        return None

    def _deleted(self, namespace_id: str, advice: str) -> NamespaceRecords:
        records = self._by_namespace.get(namespace_id)
        if records is None:
            raise NamespaceNotFoundError(namespace_id)
        if records.namespace.state != "deleted":
            raise NamespaceStateError(records.namespace.name, records.namespace.state, advice)
        return records

    def _note(
        self,
        namespace: str,
        now_ms: int,
        action: str,
        entity_id: str,
        principal: str | None,
        resource: str | None = None,
        **details: Any,
    ) -> None:
        event = audit_event(now_ms, action, entity_id, principal, resource, **details)
        self._ledger.note(namespace, event)


def _page(names: list[str], limit: int, cursor: str | None) -> Page:
    rest = sorted(name for name in names if cursor is None or name > cursor)
    return Page(tuple(rest[:limit]), rest[limit - 1] if len(rest) > limit else None)
