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
    Level,
    Lookup,
    Mode,
    Namespace,
    Page,
    Standing,
    Stored,
    changed,
    check_parent,
    lineage,
    updated,
)
from headgate.core.limits import DEFAULT_RESOURCE, new_namespace_id
from headgate.core.store import Kept, entity_as_json, stored_as_json
from headgate.stores.memory.buckets import MemoryStore
from headgate.stores.memory.ledger import MemoryLedger

# --------------------------------------------------------------------------------------------------
# Small texts in memory; at most so many.

TEXTS_MAX = 100_000


class MemoryDrawer:
    def __init__(self, texts_max: int = TEXTS_MAX) -> None:
        self._texts: dict[tuple[str, str], Kept] = {}
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
            self._texts[namespace, name] = Kept(text, until_ms, version)
            return version

    async def get(self, namespace: str, name: str) -> Kept | None:
        return self._texts.get((namespace, name))

    async def drop(self, namespace: str, name: str, *, seen: int) -> bool:
        with self._lock:
            found = self._texts.get((namespace, name))
            if found is None or found.version != seen:
                return False
            del self._texts[namespace, name]
            return True

    async def due(self, namespace: str, before_ms: int, limit: int) -> list[tuple[str, Kept]]:
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
class Tenant:
    """Everything of one namespace."""

    namespace: Namespace
    version: int = 0
    entities: dict[str, Entity] = field(default_factory=dict)
    stored: dict[Level, Stored] = field(default_factory=dict)


class MemoryCatalog:
    def __init__(self, store: MemoryStore, ledger: MemoryLedger, drawer: MemoryDrawer) -> None:
        self._store = store
        self._ledger = ledger
        self._drawer = drawer
        self._tenants: dict[str, Tenant] = {}
        self._notes: dict[str, Any] = {}
        self._lock = threading.Lock()

    async def lookup(self, namespace: str, entity_id: str, resource: str) -> Lookup:
        with self._lock:
            tenant = self._tenant(namespace)
            get = tenant.stored.get
            standings = tuple(
                Standing(
                    name,
                    entity,
                    get(Level(name, resource)),
                    get(Level(name, DEFAULT_RESOURCE)),
                    get(Level(None, resource)),
                    get(Level()),
                )
                for name, entity in lineage(entity_id, tenant.entities.get)
            )
            return Lookup(tenant.version, standings)

    async def create_entity(
        self, namespace: str, entity: Entity, principal: str | None, now_ms: int
    ) -> Entity:
        with self._lock:
            tenant = self._tenant(namespace)
            if entity.id in tenant.entities:
                raise EntityExistsError(entity.id)
            check_parent(entity.id, entity.parent_id, tenant.entities.get)
            made = replace(entity, created_ms=now_ms, version=1)
            tenant.entities[entity.id] = made
            tenant.version += 1
            self._note(namespace, now_ms, "entity_created", entity.id, principal,
                       before=None, after=entity_as_json(made))  # fmt: skip
            return made

    async def get_entity(self, namespace: str, entity_id: str) -> Entity | None:
        with self._lock:
            return self._tenant(namespace).entities.get(entity_id)

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
            tenant = self._tenant(namespace)
            before = tenant.entities.get(entity_id)
            if before is None:
                raise EntityNotFoundError(entity_id)
            after = changed(before, dict(changes), version)
            check_parent(entity_id, after.parent_id, tenant.entities.get)
            tenant.entities[entity_id] = after
            tenant.version += 1
            self._note(namespace, now_ms, "entity_changed", entity_id, principal,
                       before=entity_as_json(before), after=entity_as_json(after))  # fmt: skip
            return after

    async def delete_entity(
        self, namespace: str, entity_id: str, principal: str | None, now_ms: int
    ) -> None:
        with self._lock:
            tenant = self._tenant(namespace)
            before = tenant.entities.pop(entity_id, None)
            if before is None:
                raise EntityNotFoundError(entity_id)
            for level in [level for level in tenant.stored if level.entity_id == entity_id]:
                del tenant.stored[level]
            for child in [e for e in tenant.entities.values() if e.parent_id == entity_id]:
                tenant.entities[child.id] = replace(
                    child, parent_id=None, version=child.version + 1
                )
            tenant.version += 1
            self._note(namespace, now_ms, "entity_deleted", entity_id, principal,
                       before=entity_as_json(before), after=None)  # fmt: skip

    async def list_entities(
        self, namespace: str, *, parent_id: str | None, limit: int, cursor: str | None
    ) -> Page:
        with self._lock:
            entities = self._tenant(namespace).entities
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
    ) -> Stored:
        with self._lock:
            tenant = self._tenant(namespace)
            before = tenant.stored.get(level)
            tenant.version += 1
            after = updated(before, dict(changes), tenant.version)
            tenant.stored[level] = after
            self._note(namespace, now_ms, "limits_set", level.audit_id, principal, level.resource,
                       before=stored_as_json(before), after=stored_as_json(after))  # fmt: skip
            return after

    async def get_stored(self, namespace: str, level: Level) -> Stored | None:
        with self._lock:
            return self._tenant(namespace).stored.get(level)

    async def delete_stored(
        self, namespace: str, level: Level, principal: str | None, now_ms: int
    ) -> bool:
        with self._lock:
            tenant = self._tenant(namespace)
            before = tenant.stored.pop(level, None)
            if before is None:
                return False
            tenant.version += 1
            if before.mode is not Mode.NORMAL:
                tenant.stored[level] = Stored((), tenant.version, None, before.mode)
            self._note(namespace, now_ms, "limits_deleted", level.audit_id, principal,
                       level.resource, before=stored_as_json(before), after=None)  # fmt: skip
            return bool(before.limits) or before.on_unavailable is not None

    async def list_resources(self, namespace: str, *, of_entities: bool) -> list[str]:
        with self._lock:
            levels = self._tenant(namespace).stored
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
                for level, stored in self._tenant(namespace).stored.items()
                if level.entity_id is not None and level.resource == resource and stored.limits
            ]
            return _page(names, limit, cursor)

    async def register_namespace(self, name: str, principal: str | None, now_ms: int) -> Namespace:
        with self._lock:
            tenant = self._active(name)
            if tenant is None:
                made = Namespace(new_namespace_id(), name, "active", now_ms)
                tenant = self._tenants[made.id] = Tenant(made)
                self._note(made.id, now_ms, "namespace_registered", "$SYSTEM", principal,
                           before=None, after=asdict(made))  # fmt: skip
            return tenant.namespace

    async def get_namespace(self, name: str) -> Namespace | None:
        with self._lock:
            tenant = self._active(name)
            return None if tenant is None else tenant.namespace

    async def list_namespaces(self, *, state: str) -> list[Namespace]:
        with self._lock:
            found = [t.namespace for t in self._tenants.values() if t.namespace.state == state]
        return sorted(found, key=lambda one: (one.name, one.id))

    async def delete_namespace(self, name: str, principal: str | None, now_ms: int) -> Namespace:
        with self._lock:
            tenant = self._active(name)
            if tenant is None:
                raise NamespaceNotFoundError(name)
            before = tenant.namespace
            tenant.namespace = replace(before, state="deleted", deleted_ms=now_ms)
            self._note(tenant.namespace.id, now_ms, "namespace_deleted", "$SYSTEM", principal,
                       before=asdict(before), after=asdict(tenant.namespace))  # fmt: skip
            return tenant.namespace

    async def recover_namespace(
        self, namespace_id: str, principal: str | None, now_ms: int
    ) -> Namespace:
        with self._lock:
            tenant = self._deleted(namespace_id, "there is nothing to recover")
            name = tenant.namespace.name
            if self._active(name) is not None:
                raise NamespaceStateError(
                    name, "registered again since", "delete that one first, then recover this id"
                )
            before = tenant.namespace
            tenant.namespace = replace(before, state="active", deleted_ms=None)
            tenant.version += 1
            self._note(namespace_id, now_ms, "namespace_recovered", "$SYSTEM", principal,
                       before=asdict(before), after=asdict(tenant.namespace))  # fmt: skip
            return tenant.namespace

    async def purge_namespace(self, namespace_id: str, principal: str | None, now_ms: int) -> int:
        with self._lock:
            tenant = self._deleted(namespace_id, "delete_namespace comes before purge_namespace")
            del self._tenants[namespace_id]
            gone = 1 + len(tenant.entities) + len(tenant.stored)
            gone += self._store.drop_namespace(namespace_id)
            self._drawer.drop_namespace(namespace_id)
            return gone + self._ledger.drop_namespace(namespace_id)

    async def get_version_record(self) -> Mapping[str, Any]:
        return {**self._notes, "schema_version": 1}

    async def set_version_record(self, values: Mapping[str, Any]) -> None:
        self._notes = dict(values)

    async def prepare(self) -> None:
        return None

    async def destroy(self) -> None:
        with self._lock:
            for namespace in list(self._tenants):
                del self._tenants[namespace]
                self._store.drop_namespace(namespace)
                self._drawer.drop_namespace(namespace)
                self._ledger.drop_namespace(namespace)

    def _tenant(self, namespace: str) -> Tenant:
        tenant = self._tenants.get(namespace)
        if tenant is None:
            raise NamespaceNotFoundError(namespace)
        if tenant.namespace.state != "active":
            raise NamespaceStateError(
                tenant.namespace.name, tenant.namespace.state,
                f"recover_namespace('{namespace}') brings it back",
            )  # fmt: skip
        return tenant

    def _active(self, name: str) -> Tenant | None:
        for tenant in self._tenants.values():
            if tenant.namespace.name == name and tenant.namespace.state == "active":
                return tenant
        return None

    def _deleted(self, namespace_id: str, advice: str) -> Tenant:
        tenant = self._tenants.get(namespace_id)
        if tenant is None:
            raise NamespaceNotFoundError(namespace_id)
        if tenant.namespace.state != "deleted":
            raise NamespaceStateError(tenant.namespace.name, tenant.namespace.state, advice)
        return tenant

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
