"""Entities, stored limits, plans and namespaces: the same rules for every store.

Every change takes the same steps: read what it depends on, check it, build what comes of it, tell
of it in an audit event, and commit both at once. If somebody else has changed what was read, then
nothing is written and the change begins again. How to read and commit is the store's part: see
`headgate.stores.records`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from headgate.admin.documents import entity_as_json, stored_as_json
from headgate.core.errors import (
    Contended,
    EntityExistsError,
    EntityNotFoundError,
    NamespaceNotFoundError,
    NamespaceStateError,
    PlanNotFoundError,
)
from headgate.core.history import audit_event
from headgate.core.levels import (
    CommonLevels,
    Entity,
    Level,
    Lookup,
    Mode,
    Namespace,
    Page,
    StoredLevel,
    change_entity,
    change_stored,
    check_parent,
)
from headgate.core.limits import Limit, new_namespace_id
from headgate.core.store import Capabilities, ExpiringRecords, Ledger, Store
from headgate.stores.plans import DELETE_STEPS_MAX, PlanCatalog
from headgate.stores.records import (
    ACTIVE,
    DELETED,
    PURGING,
    Document,
    DocumentKey,
    PlanKey,
    Records,
    Snapshot,
    change,
    sendable,
)


class LookupVerb(Protocol):
    """See `headgate.core.store.Catalog.lookup`; made by each store, as the one hot read."""

    def __call__(
        self, namespace: str, entity_id: str, resource: str, known: CommonLevels | None = None
    ) -> Coroutine[Any, Any, Lookup]: ...


class RecordsCatalog(PlanCatalog):
    """Entities, stored limits, plans and namespaces. Every change leaves its audit event in the
    same step, and every change of limits, modes, parents or plans moves the namespace's version on.

    A store adds `lookup` and the four methods that raise here.
    """

    lookup: LookupVerb

    async def version(self, namespace: str) -> int:
        """The version of the namespace's configuration, of the smallest read there is."""
        return (await self.records.read(namespace)).version

    async def get_version_record(self) -> Mapping[str, Any]:
        """The schema's version and what else was noted; reading it proves the store answers."""
        raise NotImplementedError

    async def set_version_record(self, values: Mapping[str, Any]) -> None:
        """Notes beside the schema's version, which only migrations move."""
        raise NotImplementedError

    async def prepare(self) -> None:
        """The store's structures exist, of the schema this headgate writes."""
        raise NotImplementedError

    async def destroy(self) -> None:
        """Everything is gone, of every namespace."""
        raise NotImplementedError

    @change
    async def create_entity(
        self, records: Records, namespace: str, entity: Entity, principal: str | None, now_ms: int
    ) -> Entity:
        seen = await _read_entity(records, namespace, entity.id, entity.parent_id, entity.plan)
        if seen.entity(entity.id) is not None:
            raise EntityExistsError(entity.id)
        check_parent(entity.id, entity.parent_id, seen.entity)
        _check_plan(seen, entity.plan)
        made = replace(entity, created_ms=now_ms, version=1)
        event = audit_event(now_ms, "entity_created", entity.id, principal,
                            before=None, after=entity_as_json(made))  # fmt: skip
        await records.commit(seen, {made.id: made}, event)
        return made

    async def get_entity(self, namespace: str, entity_id: str) -> Entity | None:
        return (await self.records.read(namespace, entity_id)).entity(entity_id)

    @change
    async def update_entity(
        self,
        records: Records,
        namespace: str,
        entity_id: str,
        changes: Mapping[str, Any],
        principal: str | None,
        now_ms: int,
        *,
        version: int | None = None,
    ) -> Entity:
        """Some of parent_id, cascade, mode, name, metadata, plan; guarded by `version` if given."""
        named = changes.get("parent_id"), changes.get("plan")
        seen = await _read_entity(records, namespace, entity_id, *named)
        before = seen.entity(entity_id)
        if before is None:
            raise EntityNotFoundError(entity_id)
        after = change_entity(before, dict(changes), version)
        check_parent(entity_id, after.parent_id, seen.entity)
        _check_plan(seen, changes.get("plan"))
        event = audit_event(now_ms, "entity_changed", entity_id, principal,
                            before=entity_as_json(before), after=entity_as_json(after))  # fmt: skip
        await records.commit(seen, {entity_id: after}, event)
        return after

    async def delete_entity(
        self, namespace: str, entity_id: str, principal: str | None, now_ms: int
    ) -> None:
        """The entity and its stored limits are gone; its children stand alone. One that was never
        registered may have limits all the same.

        That is one step, unless there is more than one commit of the store takes. Then some go in
        steps before, and a deletion that was cut short is finished by the next.
        """
        for _ in range(DELETE_STEPS_MAX):
            if await self._delete_some(namespace, entity_id, principal, now_ms):
                return
        raise Contended(
            f"entity {entity_id!r} still has children or limits after {DELETE_STEPS_MAX} steps of "
            f"its deletion; those of the steps are gone: see who keeps adding some, and repeat it"
        )

    @change
    async def _delete_some(
        self, records: Records, namespace: str, entity_id: str, principal: str | None, now_ms: int
    ) -> bool:
        """Whether the entity is gone; False where only some of what it has is."""
        seen, children, levels, is_complete = await records.read_family(namespace, entity_id)
        before = seen.entity(entity_id)
        if before is None and not levels:
            raise EntityNotFoundError(entity_id)
        changes: dict[DocumentKey, Document | None] = {
            child.id: replace(child, parent_id=None, version=child.version + 1)
            for child in children
        }
        changes.update(dict.fromkeys(levels))
        if not is_complete:
            await records.commit(seen, changes, None)
            return False
        known = None if before is None else entity_as_json(before)
        event = audit_event(now_ms, "entity_deleted", entity_id, principal,
                            before=known, after=None)  # fmt: skip
        if before is not None:
            changes[entity_id] = None
        await records.commit(seen, changes, event)
        return True

    async def list_entities(
        self, namespace: str, *, parent_id: str | None, limit: int, cursor: str | None
    ) -> Page:
        return await self.records.entities(namespace, parent_id, limit, sendable(cursor))

    @change
    async def update_stored(
        self,
        records: Records,
        namespace: str,
        level: Level,
        changes: Mapping[str, Any],
        principal: str | None,
        now_ms: int,
    ) -> StoredLevel:
        """Some of limits, on_unavailable, mode at one level; what is not named stays."""
        seen = await records.read(namespace, level)
        before = seen.stored(level)
        after = change_stored(before, dict(changes), seen.version + 1)
        event = audit_event(now_ms, "limits_set", level.audit_id, principal, level.resource,
                            before=stored_as_json(before), after=stored_as_json(after))  # fmt: skip
        return replace(after, version=await records.commit(seen, {level: after}, event))

    async def get_stored(self, namespace: str, level: Level) -> StoredLevel | None:
        return (await self.records.read(namespace, level)).stored(level)

    @change
    async def delete_stored(
        self, records: Records, namespace: str, level: Level, principal: str | None, now_ms: int
    ) -> bool:
        """The level's limits and outage rule are gone (its mode stays); False if it had none."""
        seen = await records.read(namespace, level)
        before = seen.stored(level)
        if before is None:
            return False
        left = None
        if before.mode is not Mode.NORMAL:
            left = StoredLevel((), seen.version + 1, None, before.mode)
        event = audit_event(now_ms, "limits_deleted", level.audit_id, principal, level.resource,
                            before=stored_as_json(before), after=None)  # fmt: skip
        await records.commit(seen, {level: left}, event)
        return bool(before.limits) or before.on_unavailable is not None

    async def list_resources(self, namespace: str, *, of_entities: bool) -> list[str]:
        """Resources with defaults or an operator's switch, or (of_entities) with limits of some
        entity."""
        return await self.records.resources(namespace, of_entities=of_entities)

    async def list_entities_with_limits(
        self, namespace: str, resource: str, *, limit: int, cursor: str | None
    ) -> Page:
        return await self.records.entities_with_limits(namespace, resource, limit, sendable(cursor))

    @change
    async def register_namespace(
        self, records: Records, name: str, principal: str | None, now_ms: int
    ) -> Namespace:
        """The active namespace of that name, made where there is none."""
        found = await records.find_namespace(name)
        if found is not None:
            return found
        made = Namespace(new_namespace_id(), name, ACTIVE, now_ms)
        event = audit_event(now_ms, "namespace_registered", "$SYSTEM", principal,
                            before=None, after=asdict(made))  # fmt: skip
        return await records.transition(None, made, event)

    async def get_namespace(self, name: str) -> Namespace | None:
        """The active namespace of that name."""
        return await self.records.find_namespace(name)

    async def list_namespaces(self, *, state: str) -> list[Namespace]:
        """Those of a state by name; one that is half purged counts as deleted."""
        shown = (DELETED, PURGING) if state == DELETED else (state,)
        found = [one for one in await self.records.namespaces() if one.state in shown]
        return sorted(found, key=lambda one: (one.name, one.id))

    @change
    async def delete_namespace(
        self, records: Records, name: str, principal: str | None, now_ms: int
    ) -> Namespace:
        found = await records.find_namespace(name)
        if found is None:
            raise NamespaceNotFoundError(name)
        after = replace(found, state=DELETED, deleted_ms=now_ms)
        event = audit_event(now_ms, "namespace_deleted", "$SYSTEM", principal,
                            before=asdict(found), after=asdict(after))  # fmt: skip
        return await records.transition(found, after, event)

    @change
    async def recover_namespace(
        self, records: Records, namespace_id: str, principal: str | None, now_ms: int
    ) -> Namespace:
        found = await _get_deleted(records, namespace_id, "there is nothing to recover")
        if found.state == PURGING:
            raise NamespaceStateError(found.name, PURGING, "part of it is gone; purge it again")
        holder = await records.find_namespace(found.name)
        if holder is not None and holder.id != namespace_id:
            raise NamespaceStateError(
                found.name, "registered again since", "delete that one first, then recover this id"
            )
        after = replace(found, state=ACTIVE, deleted_ms=None)
        event = audit_event(now_ms, "namespace_recovered", "$SYSTEM", principal,
                            before=asdict(found), after=asdict(after))  # fmt: skip
        return await records.transition(found, after, event)

    async def purge_namespace(self, namespace_id: str, principal: str | None, now_ms: int) -> int:
        """How many records went; a purge that was cut short is finished by the next."""
        await self.begin_purge(namespace_id)
        return await self.records.purge(namespace_id)

    @change
    async def begin_purge(self, records: Records, namespace_id: str) -> None:
        """From now on the namespace cannot be recovered."""
        advice = "delete_namespace comes before purge_namespace"
        found = await _get_deleted(records, namespace_id, advice)
        if found.state != PURGING:
            await records.transition(found, replace(found, state=PURGING), None)


async def _read_entity(
    records: Records, namespace: str, entity_id: str, parent_id: str | None, plan: str | None
) -> Snapshot:
    """An entity, everybody above it and its parent to be, and the plan it is to be on."""
    keys: list[DocumentKey] = [one for one in (entity_id, parent_id) if one is not None]
    if plan is not None:
        keys.append(PlanKey(plan))
    return await records.read(namespace, *keys, ancestors=True)


def _check_plan(seen: Snapshot, plan: str | None) -> None:
    if plan is not None and seen.plan(plan) is None:
        raise PlanNotFoundError(plan)


async def _get_deleted(records: Records, namespace_id: str, advice: str) -> Namespace:
    """A namespace that is deleted, or half purged."""
    found = await records.get_namespace(namespace_id)
    if found is None:
        raise NamespaceNotFoundError(namespace_id)
    if found.state == ACTIVE:
        raise NamespaceStateError(found.name, found.state, advice)
    return found


@dataclass(frozen=True, slots=True)
class Backend:
    """A store, its catalog and its ledger opened together, and what they can do. Without
    `expiring`, what must outlive the process is kept in the process. `check_limits` raises a
    ValidationError for limits that the store cannot keep exactly; None where it keeps all."""

    store: Store
    catalog: RecordsCatalog
    ledger: Ledger
    capabilities: Capabilities
    expiring: ExpiringRecords | None = None
    check_limits: Callable[[Sequence[Limit]], None] | None = None
