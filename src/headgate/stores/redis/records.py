"""Entities and stored limits in hashes, and an index of them in a sorted set.

A commit compares the texts that its snapshot was read from, so changes of other documents may come
in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headgate.core.history import AuditEvent
from headgate.core.levels import (
    LINEAGE_MAX,
    CommonLevels,
    Entity,
    EntityConfig,
    Level,
    Lookup,
    Page,
    Plan,
    StoredLevel,
)
from headgate.core.limits import DEFAULT_RESOURCE
from headgate.core.store import ExpiringRecord
from headgate.stores.catalog import RecordsCatalog
from headgate.stores.records import (
    Changes,
    ChangeWork,
    Document,
    DocumentKey,
    EntityFamily,
    PlanFamily,
    PlanKey,
    RecordsChanged,
    Result,
    Snapshot,
    first_page,
)
from headgate.stores.redis import keys
from headgate.stores.redis import scripts as scan
from headgate.stores.redis.client.calls import RedisPort
from headgate.stores.redis.documents import (
    SCHEMA_VERSION,
    Command,
    as_json,
    check_schema,
    commit_active,
    entity_as_text,
    entity_from_text,
    event_writes,
    from_json,
    plan_as_text,
    plan_from_text,
    read,
    read_active,
    run_active,
    stored_as_text,
    stored_from_text,
)
from headgate.stores.redis.encoding import check_limits
from headgate.stores.redis.registry import SCHEMA, RedisRegistry
from headgate.stores.redis.scripts import load_script

READ_ANCESTORS = load_script("catalog_kin", "catalog_head")
PAGE = load_script("catalog_page", "catalog_head")
LOOKUP = load_script("catalog_lookup", "catalog_head")
RESOURCES = load_script("catalog_resources", "catalog_head")
PLANS = load_script("catalog_plans", "catalog_head")
PER_GENERATION = 5  # values of a lookup's reply
CHILDREN_PER_BATCH = 1000  # children freed in one step
ENTITIES_PER_STEP = 1000  # that lose their plan


class RedisRecords(RedisRegistry):
    async def within(self, work: ChangeWork[Result]) -> Result:
        return await work(self)

    async def read(self, namespace: str, *wanted: DocumentKey, ancestors: bool = False) -> Snapshot:
        if ancestors:
            names = (keys.entities(namespace), keys.levels(namespace))
            ids = [one for one in wanted if isinstance(one, str)]
            plans = [one for one in wanted if isinstance(one, PlanKey)]
            args: list[str | int] = [LINEAGE_MAX + 1, plans[0].name if plans else "", *ids]
            version, (plan, *rows) = await run_active(
                self._port, READ_ANCESTORS, namespace, names, args
            )
            found: dict[DocumentKey, str | None] = dict.fromkeys(plans, plan)
            found.update(zip(rows[0::2], rows[1::2], strict=True))
            return _snapshot(namespace, version, found)
        commands = [_read_command(namespace, key) for key in wanted]
        version, texts = await read_active(self._port, namespace, *commands)
        return _snapshot(namespace, version, dict(zip(wanted, texts, strict=True)))

    async def read_family(self, namespace: str, entity_id: str) -> EntityFamily:
        index, entities = keys.index(namespace), keys.entities(namespace)
        family, own = keys.span("c", entity_id), keys.span("l", entity_id)
        version, (text, entries, levels, count) = await read_active(
            self._port,
            namespace,
            ("HGET", entities, entity_id),
            ("ZRANGEBYLEX", index, *family, "LIMIT", 0, CHILDREN_PER_BATCH),
            ("ZRANGEBYLEX", index, *own),
            ("ZLEXCOUNT", index, *family),
        )
        children = [keys.last_name(entry) for entry in entries]
        texts = await self._port.command("HMGET", entities, *children) if children else []
        if None in texts:
            raise RecordsChanged
        family_texts: dict[DocumentKey, str | None] = {entity_id: text}
        family_texts.update(zip(children, texts, strict=True))
        seen = _snapshot(namespace, version, family_texts)
        seen.evidence.extend(
            [
                (count, ("ZLEXCOUNT", index, *family)),
                (len(levels), ("ZLEXCOUNT", index, *own)),
                *((0, ("ZSCORE", index, entry)) for entry in levels),
            ]
        )
        return EntityFamily(
            seen,
            [entity_from_text(*pair) for pair in zip(children, texts, strict=True)],
            [Level(entity_id, keys.last_name(entry)) for entry in levels],
            is_complete=count <= len(children),
        )

    async def read_plan_family(self, namespace: str, name: str) -> PlanFamily:
        index, entities, key = keys.index(namespace), keys.entities(namespace), PlanKey(name)
        members = keys.span("m", name)
        version, (text, entries, count) = await read_active(
            self._port,
            namespace,
            _read_command(namespace, key),
            ("ZRANGEBYLEX", index, *members, "LIMIT", 0, ENTITIES_PER_STEP),
            ("ZLEXCOUNT", index, *members),
        )
        ids = [keys.last_name(entry) for entry in entries]
        texts = await self._port.command("HMGET", entities, *ids) if ids else []
        if None in texts:
            raise RecordsChanged
        seen = _snapshot(namespace, version, {key: text, **dict(zip(ids, texts, strict=True))})
        seen.evidence.append((count, ("ZLEXCOUNT", index, *members)))
        found = [entity_from_text(*pair) for pair in zip(ids, texts, strict=True)]
        return PlanFamily(seen, found, count)

    async def commit(self, seen: Snapshot, changes: Changes, event: AuditEvent | None) -> int:
        namespace = seen.namespace
        writes: list[Command] = []
        for key, document in changes.items():
            if isinstance(key, Level):
                assert document is None or isinstance(document, StoredLevel)
                writes += _level_writes(namespace, key, document)
            elif isinstance(key, PlanKey):
                assert document is None or isinstance(document, Plan)
                writes += _plan_writes(namespace, key.name, document)
            else:
                assert document is None or isinstance(document, Entity)
                writes += _entity_writes(namespace, key, seen.entity(key), document)
        if event is not None:
            if any(isinstance(document, (StoredLevel, Plan)) for document in changes.values()):
                event = _without_version(event)
            writes += event_writes(namespace, event)
        return await commit_active(self._port, namespace, seen.evidence, writes)

    async def lookup(
        self, namespace: str, entity_id: str, resource: str, known: CommonLevels | None = None
    ) -> Lookup:
        """The configuration of an entity and those it cascades to, in one call."""
        names = (keys.entities(namespace), keys.levels(namespace))
        args = (entity_id, resource, DEFAULT_RESOURCE, LINEAGE_MAX)
        version, reply = await run_active(self._port, LOOKUP, namespace, names, args)
        of_resource, of_system = _stored(reply[0]), _stored(reply[1])
        configs = []
        for at in range(2, len(reply), PER_GENERATION):
            name, text, own, default, of_plan = reply[at : at + PER_GENERATION]
            entity = None if text is None else entity_from_text(name, text)
            levels = (_stored(own), _stored(default), of_resource, of_system)
            plan = None if of_plan is None else plan_from_text(of_plan)
            configs.append(EntityConfig(name, entity, *levels, plan))
        return Lookup(version, tuple(configs))

    async def entities(
        self, namespace: str, parent_id: str | None, limit: int, cursor: str | None
    ) -> Page:
        stem = ("e",) if parent_id is None else ("c", parent_id)
        names = (keys.index(namespace), keys.entities(namespace))
        args = (*keys.span(*stem, after=cursor), limit + 1, len(keys.entry(*stem, "")))
        _, rows = await run_active(self._port, PAGE, namespace, names, args)
        pairs = zip(rows[0::2], rows[1::2], strict=True)
        return first_page([entity_from_text(*pair) for pair in pairs], limit, lambda one: one.id)

    async def entities_with_limits(
        self, namespace: str, resource: str, limit: int, cursor: str | None
    ) -> Page:
        span = keys.span("r", resource, after=cursor)
        return first_page(await self._names(namespace, *span, "LIMIT", 0, limit + 1), limit, str)

    async def resources(self, namespace: str, *, of_entities: bool) -> list[str]:
        if not of_entities:
            return await self._names(namespace, *keys.span("d"))
        names = (keys.index(namespace),)
        return (await run_active(self._port, RESOURCES, namespace, names, ()))[1]

    async def get_plan(self, namespace: str, name: str) -> Plan | None:
        count: Command = ("ZLEXCOUNT", keys.index(namespace), *keys.span("m", name))
        command = _read_command(namespace, PlanKey(name))
        _, (text, entities) = await read_active(self._port, namespace, command, count)
        return None if text is None else replace(plan_from_text(text), entities=entities)

    async def plans(self, namespace: str, limit: int, cursor: str | None) -> Page:
        names = (keys.index(namespace), keys.levels(namespace))
        args = (*keys.span("p", after=cursor), limit + 1)
        _, rows = await run_active(self._port, PLANS, namespace, names, args)
        pairs = zip(rows[0::2], rows[1::2], strict=True)
        found = [replace(plan_from_text(text), entities=count) for text, count in pairs]
        return first_page(found, limit, lambda one: one.name)

    async def entities_on_plan(
        self, namespace: str, name: str, limit: int, cursor: str | None
    ) -> Page:
        span = keys.span("m", name, after=cursor)
        return first_page(await self._names(namespace, *span, "LIMIT", 0, limit + 1), limit, str)

    async def _names(self, namespace: str, *span: str | int) -> list[str]:
        """The last names of some entries of the index."""
        command = ("ZRANGEBYLEX", keys.index(namespace), *span)
        _, [entries] = await read_active(self._port, namespace, command)
        return [keys.last_name(entry) for entry in entries]


def _snapshot(namespace: str, version: int, texts: Mapping[DocumentKey, str | None]) -> Snapshot:
    documents: dict[DocumentKey, Document] = {
        key: _document(key, text) for key, text in texts.items() if text is not None
    }
    evidence = [(text, _read_command(namespace, key)) for key, text in texts.items()]
    return Snapshot(namespace, version, documents, evidence)


def _document(key: DocumentKey, text: str) -> Document:
    if isinstance(key, Level):
        return stored_from_text(text)
    return plan_from_text(text) if isinstance(key, PlanKey) else entity_from_text(key, text)


def _read_command(namespace: str, key: DocumentKey) -> Command:
    if isinstance(key, Level):
        return ("HGET", keys.levels(namespace), keys.level_field(key))
    if isinstance(key, PlanKey):
        return ("HGET", keys.levels(namespace), keys.plan_field(key.name))
    return ("HGET", keys.entities(namespace), key)


def _entity_writes(
    namespace: str, entity_id: str, before: Entity | None, after: Entity | None
) -> list[Command]:
    """The entity as it is now, or is no more, and the index entries that lead to it."""
    index, entities = keys.index(namespace), keys.entities(namespace)
    old = None if before is None else before.parent_id
    new = None if after is None else after.parent_id
    writes: list[Command] = []
    if old is not None and old != new:
        writes.append(("ZREM", index, keys.entry("c", old, entity_id)))
    old_plan = None if before is None else before.plan
    new_plan = None if after is None else after.plan
    if old_plan is not None and old_plan != new_plan:
        writes.append(("ZREM", index, keys.entry("m", old_plan, entity_id)))
    if after is None:
        return [
            *writes,
            ("HDEL", entities, entity_id),
            ("ZREM", index, keys.entry("e", entity_id)),
        ]
    writes.append(("HSET", entities, entity_id, entity_as_text(after)))
    if before is None:
        writes.append(("ZADD", index, 0, keys.entry("e", entity_id)))
    if new is not None:
        writes.append(("ZADD", index, 0, keys.entry("c", new, entity_id)))
    if new_plan is not None:
        writes.append(("ZADD", index, 0, keys.entry("m", new_plan, entity_id)))
    return writes


def _plan_writes(namespace: str, name: str, after: Plan | None) -> list[Command]:
    index, levels, entry = keys.index(namespace), keys.levels(namespace), keys.entry("p", name)
    field = keys.plan_field(name)
    if after is None:
        return [("HDEL", levels, field), ("ZREM", index, entry)]
    check_limits(after.limits)
    for limits in after.resources.values():
        check_limits(limits)
    return [("HSET", levels, field, plan_as_text(after)), ("ZADD", index, 0, entry)]


def _level_writes(namespace: str, level: Level, after: StoredLevel | None) -> list[Command]:
    """The level as it is now, or is no more, and the index entries that lead to it."""
    index, levels, field = keys.index(namespace), keys.levels(namespace), keys.level_field(level)
    own = keys.entry("l", field)
    listed = None  # the entry that lists of levels read; the system's needs none
    if level.resource is not None and level.entity_id is None:
        listed = keys.entry("d", level.resource)
    elif level.resource is not None and level.entity_id is not None:
        listed = keys.entry("r", level.resource, level.entity_id)
    if after is None:
        return [("HDEL", levels, field), ("ZREM", index, own, listed or own)]
    check_limits(after.limits)
    writes: list[Command] = [("HSET", levels, field, stored_as_text(after))]
    if level.entity_id is not None:
        writes.append(("ZADD", index, 0, own))
    if listed is not None:
        writes.append(("ZADD", index, 0, listed) if after.is_listed else ("ZREM", index, listed))
    return writes


def _without_version(event: AuditEvent) -> AuditEvent:
    """An event about a level or a plan, with room for the version that the script gives to both."""
    after = event.details["after"]
    if after is None:
        return event
    return replace(event, details={**event.details, "after": {**after, "version": None}})


def _stored(text: str | None) -> StoredLevel | None:
    return None if text is None else stored_from_text(text)


class RedisCatalog(RecordsCatalog):
    def __init__(self, port: RedisPort) -> None:
        records = RedisRecords(port)
        super().__init__(records)
        self.lookup = records.lookup
        self._port = port

    async def get_version_record(self) -> Mapping[str, Any]:
        schema, text = await read(self._port, SCHEMA, ("HGET", keys.META, "notes"))
        noted = {} if text is None else from_json("note", text)
        return {**noted, "schema_version": int(schema or SCHEMA_VERSION)}

    async def set_version_record(self, values: Mapping[str, Any]) -> None:
        await self._port.command("HSET", keys.META, "notes", as_json(dict(values)))

    async def prepare(self) -> None:
        """The schema's version is noted; a newer one is refused."""
        await self._port.command("HSETNX", keys.META, "schema_version", SCHEMA_VERSION)
        [schema] = await read(self._port, SCHEMA)
        check_schema(schema)

    async def destroy(self) -> None:
        await scan.unlink(self._port, await scan.matching_keys(self._port, keys.EVERYTHING))


# --------------------------------------------------------------------------------------------------
# Small texts in a hash of each namespace, with their ends in a sorted set beside it.

PUT = load_script("expiring_put")
DROP = load_script("expiring_drop")
DUE = load_script("expiring_due")


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
