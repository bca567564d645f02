"""Entities, stored limits and namespaces in dicts under one lock."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.core.errors import Contended, NamespaceNotFoundError
from headgate.core.history import AuditEvent
from headgate.core.levels import (
    CommonLevels,
    Entity,
    Level,
    Lookup,
    Namespace,
    Page,
    Plan,
    StoredLevel,
)
from headgate.core.store import ExpiringRecord
from headgate.stores.catalog import RecordsCatalog
from headgate.stores.memory.buckets import MemoryStore
from headgate.stores.memory.ledger import MemoryLedger
from headgate.stores.records import (
    ACTIVE,
    Changes,
    ChangeWork,
    Document,
    DocumentKey,
    EntityFamily,
    PlanFamily,
    Result,
    Snapshot,
    build_lookup,
    check_active,
    first_page,
)

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

    def clear(self) -> None:
        with self._lock:
            self._texts.clear()

    def drop_namespace(self, namespace: str) -> None:
        with self._lock:
            for place in [place for place in self._texts if place[0] == namespace]:
                del self._texts[place]


@dataclass
class NamespaceRecords:
    """Everything of one namespace."""

    namespace: Namespace
    version: int = 0
    documents: dict[DocumentKey, Document] = field(default_factory=dict)

    def entities(self) -> list[Entity]:
        return [one for one in self.documents.values() if isinstance(one, Entity)]

    def listed_levels(self) -> list[Level]:
        """Where limits or an operator's switch are stored, rather than only an outage rule."""
        return [
            key
            for key, stored in self.documents.items()
            if isinstance(key, Level) and isinstance(stored, StoredLevel) and stored.is_listed
        ]


class MemoryRecords:
    """The lock is held for the whole of a change, so no change ever meets another."""

    def __init__(
        self, store: MemoryStore, ledger: MemoryLedger, expiring: MemoryExpiringRecords
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._expiring = expiring
        self._by_namespace: dict[str, NamespaceRecords] = {}
        self._lock = threading.RLock()

    async def within(self, work: ChangeWork[Result]) -> Result:
        with self._lock:
            return await work(self)

    async def pause(self, attempt: int) -> None:
        return None

    async def read(self, namespace: str, *keys: DocumentKey, ancestors: bool = False) -> Snapshot:
        with self._lock:
            records = self._active(namespace)
            return Snapshot(namespace, records.version, records.documents)

    async def read_family(self, namespace: str, entity_id: str) -> EntityFamily:
        with self._lock:
            records = self._active(namespace)
            seen = Snapshot(namespace, records.version, records.documents)
            children = [one for one in records.entities() if one.parent_id == entity_id]
            levels = [
                key
                for key in records.documents
                if isinstance(key, Level) and key.entity_id == entity_id
            ]
            return EntityFamily(seen, children, levels, is_complete=True)

    async def read_plan_family(self, namespace: str, name: str) -> PlanFamily:
        with self._lock:
            records = self._active(namespace)
            seen = Snapshot(namespace, records.version, records.documents)
            found = [one for one in records.entities() if one.plan == name]
            return PlanFamily(seen, found, len(found))

    async def commit(self, seen: Snapshot, changes: Changes, event: AuditEvent | None) -> int:
        with self._lock:
            records = self._active(seen.namespace)
            for key, document in changes.items():
                if document is None:
                    del records.documents[key]
                else:
                    records.documents[key] = document
            records.version += 1
            if event is not None:
                await self._ledger.append(seen.namespace, event)
            return records.version

    async def lookup(
        self, namespace: str, entity_id: str, resource: str, known: CommonLevels | None = None
    ) -> Lookup:
        with self._lock:
            records = self._active(namespace)
            seen = Snapshot(namespace, records.version, records.documents)
            return build_lookup(
                seen.version, entity_id, resource, seen.entity, seen.stored, seen.plan
            )

    async def entities(
        self, namespace: str, parent_id: str | None, limit: int, cursor: str | None
    ) -> Page:
        with self._lock:
            found = self._active(namespace).entities()
        listed = [
            one
            for one in found
            if parent_id in (None, one.parent_id) and (cursor is None or one.id > cursor)
        ]
        return first_page(sorted(listed, key=lambda one: one.id), limit, lambda one: one.id)

    async def entities_with_limits(
        self, namespace: str, resource: str, limit: int, cursor: str | None
    ) -> Page:
        with self._lock:
            levels = self._active(namespace).listed_levels()
        names = [
            level.entity_id
            for level in levels
            if level.entity_id is not None
            and level.resource == resource
            and (cursor is None or level.entity_id > cursor)
        ]
        return first_page(sorted(names), limit, str)

    async def resources(self, namespace: str, *, of_entities: bool) -> list[str]:
        with self._lock:
            levels = self._active(namespace).listed_levels()
        return sorted(
            {
                level.resource
                for level in levels
                if level.resource is not None and (level.entity_id is not None) is of_entities
            }
        )

    async def get_plan(self, namespace: str, name: str) -> Plan | None:
        return next((one for one in self._plans(namespace) if one.name == name), None)

    async def plans(self, namespace: str, limit: int, cursor: str | None) -> Page:
        found = [one for one in self._plans(namespace) if one.name > (cursor or "")]
        return first_page(sorted(found, key=lambda one: one.name), limit, lambda one: one.name)

    def _plans(self, namespace: str) -> list[Plan]:
        with self._lock:
            documents = list(self._active(namespace).documents.values())
        counts = Counter(one.plan for one in documents if isinstance(one, Entity))
        plans = [one for one in documents if isinstance(one, Plan)]
        return [replace(one, entities=counts[one.name]) for one in plans]

    async def entities_on_plan(
        self, namespace: str, name: str, limit: int, cursor: str | None
    ) -> Page:
        with self._lock:
            found = self._active(namespace).entities()
        names = [one.id for one in found if one.plan == name and (cursor or "") < one.id]
        return first_page(sorted(names), limit, str)

    async def find_namespace(self, name: str) -> Namespace | None:
        for found in await self.namespaces():
            if found.name == name and found.state == ACTIVE:
                return found
        return None

    async def get_namespace(self, namespace_id: str) -> Namespace | None:
        records = self._by_namespace.get(namespace_id)
        return None if records is None else records.namespace

    async def namespaces(self) -> list[Namespace]:
        with self._lock:
            return [records.namespace for records in self._by_namespace.values()]

    async def transition(
        self, before: Namespace | None, after: Namespace, event: AuditEvent | None
    ) -> Namespace:
        with self._lock:
            if before is None:
                self._by_namespace[after.id] = NamespaceRecords(after)
            records = self._by_namespace[after.id]
            records.namespace = after
            if before is not None and after.state == ACTIVE:
                records.version += 1
            if event is not None:
                await self._ledger.append(after.id, event)
            return after

    async def purge(self, namespace_id: str) -> int:
        with self._lock:
            records = self._by_namespace.pop(namespace_id, None)
            if records is None:  # somebody else has purged it meanwhile
                raise NamespaceNotFoundError(namespace_id)
            gone = 1 + len(records.documents) + self._store.drop_namespace(namespace_id)
            self._expiring.drop_namespace(namespace_id)
            return gone + self._ledger.drop_namespace(namespace_id)

    async def destroy(self) -> None:
        with self._lock:
            self._by_namespace.clear()
            self._store.clear()
            self._ledger.clear()
            self._expiring.clear()

    def _active(self, namespace: str) -> NamespaceRecords:
        records = self._by_namespace.get(namespace)
        if records is None:
            raise NamespaceNotFoundError(namespace)
        check_active(namespace, records.namespace.state, records.namespace.name)
        return records


class MemoryCatalog(RecordsCatalog):
    def __init__(self, records: MemoryRecords) -> None:
        super().__init__(records)
        self.lookup = records.lookup
        self._destroy = records.destroy
        self._notes: dict[str, Any] = {}

    async def get_version_record(self) -> Mapping[str, Any]:
        return {**self._notes, "schema_version": 1}

    async def set_version_record(self, values: Mapping[str, Any]) -> None:
        self._notes = dict(values)

    async def prepare(self) -> None:
        return None

    async def destroy(self) -> None:
        await self._destroy()
        self._notes = {}
