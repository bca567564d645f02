"""Entities and stored limits as items, written in transactions that guard what they rely on.

The system item of a namespace says whether it may be used and counts its configuration's version.
Every lookup reads it anyway, because it holds the system's limits. Every change is one transaction
that moves this version on from where it was read, so what was read after it is guarded by it, and
that writes the items with their own guards, because they may have been read before it. The audit
event goes along.

An entity's item counts its children. The index that leads to them answers a moment late, so whoever
deletes a parent knows from the count whether it has seen them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headgate.core.errors import NamespaceNotFoundError
from headgate.core.history import AuditEvent
from headgate.core.levels import LINEAGE_MAX, Entity, Level, Page, Plan, StoredLevel
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.items import (
    CHILDREN,
    CONFIG_VERSION,
    ENTITIES,
    LEVEL_VERSION,
    Item,
    Key,
    Value,
    entity_as_item,
    entity_from_item,
    entity_key,
    is_limit_attribute,
    key_of,
    level_as_item,
    level_from_item,
    level_key,
    limits_as_attributes,
    number,
    number_of,
    plan_as_item,
    plan_from_item,
    plan_key,
    system_key,
    text,
    text_of,
)
from headgate.stores.dynamodb.catalog.registry import DynamoRegistry
from headgate.stores.dynamodb.client.calls import DynamoRequest
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.create import SCHEMA, check_schema
from headgate.stores.dynamodb.table.requests import Write
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
    check_active,
    first_page,
)

# --------------------------------------------------------------------------------------------------
# Telling a torn read: DynamoDB reads the items of a batch one after the other.
#
# A version must never go with limits that are older than it, or a process would hold its old limits
# against everybody's new ones for as long as it keeps them. So the system item, which counts the
# version, also says which items the last changes touched. Whoever reads it together with others
# sees whether one of them was read before its change, or after a change the count does not know
# yet.

RECENT = "recent"
TOUCHED_MAX = 16  # keys; that many changes do not happen while one batch is read

PUT, GONE = "+", "-"


def recent_changes(system: Item, version: int, touched: Sequence[tuple[str, Key]]) -> Value:
    """The list after a change, newest last: where items were put and where they are gone."""
    known = list(system.get(RECENT, {}).get("L", []))
    added = [text(f"{sign}{version} {_short(key)}") for sign, key in touched]
    return {"L": (known + added)[-TOUCHED_MAX:]}


def changes_in(namespace: str, system: Item) -> dict[Key, str]:
    """The last change of each key that the system item tells of."""
    last: dict[Key, str] = {}
    for entry in system.get(RECENT, {}).get("L", []):
        change, pk, sk = entry["S"].split(" ", 2)
        last[f"{namespace}/{pk}", sk] = change
    return last


def is_torn(version: int, changes: Mapping[Key, str], found: Mapping[Key, Item | None]) -> bool:
    """Whether some item is not of the moment that the system item's version tells."""
    for key, item in found.items():
        if item is not None and number_of(item, CONFIG_VERSION) > version:
            return True
        if key in changes and _before(item, changes[key]):
            return True
    return False


def _before(item: Item | None, change: str) -> bool:
    """Whether an item was read before a change of it."""
    sign, changed_at = change[0], int(change[1:])
    return sign == PUT if item is None else number_of(item, CONFIG_VERSION) < changed_at


def _short(key: Key) -> str:
    """The key without its namespace, as one text; no PK holds a blank."""
    return f"{key[0].partition('/')[2]} {key[1]}"


WRITES_MAX = 96  # of one change, beside the system item and the audit event
CHILDREN_PER_BATCH = 60  # freed in one step
LEVELS_PER_BATCH = 30  # deleted in one step
RESOURCES_MAX = 10_000  # that are listed

assert (
    CHILDREN_PER_BATCH + LEVELS_PER_BATCH + 3 <= WRITES_MAX
)  # the entity, its own parent and plan

SYSTEM = Level()


@dataclass(frozen=True, slots=True)
class DynamoNamespaceHead:
    """How a namespace that may be used stood when it was read."""

    namespace: str
    version: int
    item: Item

    @classmethod
    def of(cls, namespace: str, item: Item | None) -> DynamoNamespaceHead:
        """The head, if the namespace may be used and this headgate knows its schema."""
        if item is None or "state" not in item:
            raise NamespaceNotFoundError(namespace)
        check_schema(number_of(item, SCHEMA))
        check_active(namespace, text_of(item, "state"), text_of(item, "name") or namespace)
        return cls(namespace, number_of(item, CONFIG_VERSION), item)

    @property
    def next_version(self) -> int:
        return self.version + 1


@dataclass(frozen=True, slots=True)
class ReadItems:
    """The items a snapshot was made of; None where there is none."""

    head: DynamoNamespaceHead
    items: dict[DocumentKey, Item | None]

    def snapshot(self) -> Snapshot:
        documents: dict[DocumentKey, Document] = {}
        for key, item in self.items.items():
            if item is None:
                continue
            if isinstance(key, PlanKey):
                documents[key] = plan_from_item(item)
            elif not isinstance(key, Level):
                documents[key] = entity_from_item(item)
            elif (stored := _stored_from_item(key, item)) is not None:
                documents[key] = stored
        return Snapshot(self.head.namespace, self.head.version, documents, self)


class DynamoRecords(DynamoRegistry):
    async def within(self, work: ChangeWork[Result]) -> Result:
        return await work(self)

    async def read(self, namespace: str, *keys: DocumentKey, ancestors: bool = False) -> Snapshot:
        """The head comes in the same call, and how long history is kept where that is due."""
        home, places = system_key(namespace), {key: _place(namespace, key) for key in keys}
        now_ms = self._table.port.now_ms()
        due = self._table.retention.due(now_ms)
        found = await self._table.get_all((home, *places.values(), *due))
        for place in due:
            self._table.retention.learn(found.pop(place, {}), now_ms)
        head = DynamoNamespaceHead.of(namespace, found.get(home))
        seen = ReadItems(head, {key: found.get(place) for key, place in places.items()})
        if ancestors:
            await self._read_ancestors(seen)
        return seen.snapshot()

    async def read_family(self, namespace: str, entity_id: str) -> EntityFamily:
        alone = await self.read(namespace, entity_id)
        seen: ReadItems = alone.evidence
        item = seen.items[entity_id] or {}
        level_items = await self._levels(namespace, entity_id)
        count = number_of(item, CHILDREN)
        children = await self._children(namespace, entity_id) if count > 0 else []
        if count > 0 and not children:
            raise RecordsChanged  # the index does not know them yet
        levels: list[Level] = []
        for found in level_items[:LEVELS_PER_BATCH]:
            levels.append(Level(entity_id, text_of(found, "resource")))
            seen.items[levels[-1]] = found
        entities = [entity_from_item(child) for child in children]
        seen.items.update((one.id, child) for one, child in zip(entities, children, strict=True))
        is_complete = count <= len(children) and len(level_items) <= LEVELS_PER_BATCH
        return EntityFamily(seen.snapshot(), entities, levels, is_complete)

    async def read_plan_family(self, namespace: str, name: str) -> PlanFamily:
        alone = await self.read(namespace, PlanKey(name))
        seen: ReadItems = alone.evidence
        count = number_of(seen.items[PlanKey(name)] or {}, ENTITIES)
        pk = schema.pk_plan(namespace, name)
        request = ask.query(self._table.name, pk, index=schema.GSI3, limit=CHILDREN_PER_BATCH)
        found = await self._listed_entities(request, "plan", name) if count > 0 else []
        if count > 0 and not found:
            raise RecordsChanged  # the index does not know them yet
        entities = [entity_from_item(item) for item in found]
        seen.items.update((one.id, item) for one, item in zip(entities, found, strict=True))
        return PlanFamily(seen.snapshot(), entities, count)

    async def commit(self, seen: Snapshot, changes: Changes, event: AuditEvent | None) -> int:
        read: ReadItems = seen.evidence
        moved = _moved_counts(seen, changes)
        await self._read_missing(read, [one for one in moved if one not in changes])
        writes = [
            _write(read, key, document, moved) for key, document in changes.items() if key != SYSTEM
        ]
        writes += [
            ask.update(
                _place(seen.namespace, key),
                sets={CONFIG_VERSION: number(read.head.next_version)},
                adds={ENTITIES if isinstance(key, PlanKey) else CHILDREN: number(by)},
                guard=ask.if_unchanged(read.items[key]),
            )
            for key, by in moved.items()
            if key not in changes and read.items[key] is not None
        ]
        home = _home_write(read.head, changes, writes)
        events = await self._event_writes(seen.namespace, event)
        await self._table.transact([home, *writes, *events])
        return read.head.next_version

    async def entities(
        self, namespace: str, parent_id: str | None, limit: int, cursor: str | None
    ) -> Page:
        if parent_id is None:
            return await self._all_entities(namespace, limit, cursor)
        pk = schema.pk_parent(namespace, parent_id)
        request = ask.query(
            self._table.name, pk, _after("CHILD", cursor), index=schema.GSI1, limit=limit + 1
        )
        items = await self._query(namespace, request, limit + 1)
        return first_page([entity_from_item(item) for item in items], limit, lambda one: one.id)

    async def entities_with_limits(
        self, namespace: str, resource: str, limit: int, cursor: str | None
    ) -> Page:
        pk = schema.gsi3_pk_entity_config(namespace, resource)
        return await self._listed_ids(namespace, pk, limit, cursor)

    async def _listed_ids(self, namespace: str, pk: str, limit: int, cursor: str | None) -> Page:
        """The entities that one partition of an index leads to."""
        low = None if cursor is None else schema.clip_cursor(cursor) or schema.JUST_AFTER
        span = None if low is None else ask.above(low)
        request = ask.query(self._table.name, pk, span, index=schema.GSI3, limit=limit + 1)
        items = await self._query(namespace, request, limit + 1)
        return first_page([item["GSI3SK"]["S"] for item in items], limit, str)

    async def get_plan(self, namespace: str, name: str) -> Plan | None:
        return (await self.read(namespace, PlanKey(name))).plan(name)

    async def plans(self, namespace: str, limit: int, cursor: str | None) -> Page:
        """Their names from the index, then what they are now."""
        pk = schema.gsi2_pk_configs(namespace)
        span = _after("PLAN", cursor)
        request = ask.query(self._table.name, pk, span, index=schema.GSI2, limit=limit + 1)
        items = await self._query(namespace, request, limit + 1)
        keys = first_page([key_of(item) for item in items], limit, lambda key: key[0])
        found = await self._table.get_all(keys.items)
        plans = tuple(plan_from_item(found[key]) for key in keys.items if key in found)
        return Page(plans, None if keys.cursor is None else schema.last_name(keys.cursor))

    async def entities_on_plan(
        self, namespace: str, name: str, limit: int, cursor: str | None
    ) -> Page:
        return await self._listed_ids(namespace, schema.pk_plan(namespace, name), limit, cursor)

    async def resources(self, namespace: str, *, of_entities: bool) -> list[str]:
        if of_entities:
            return await self._resources_of_entities(namespace)
        pk = schema.gsi2_pk_configs(namespace)
        request = ask.query(self._table.name, pk, ask.begins("RESOURCE#"), index=schema.GSI2)
        items = await self._query(namespace, request)
        return [schema.last_name(item["GSI2SK"]["S"]) for item in items]

    async def _resources_of_entities(self, namespace: str) -> list[str]:
        """Each resource once: one step per resource, over all entities that have limits for it."""
        await self.read(namespace)
        pk, found = schema.gsi2_pk_configs(namespace), list[str]()
        span = ask.begins("ENTITY#")
        while len(found) < RESOURCES_MAX:
            request = ask.query(self._table.name, pk, span, index=schema.GSI2, limit=1)
            items, _ = await self._table.page(request)
            if not items:
                break
            found.append(items[0]["GSI2SK"]["S"].split("#")[1])
            after = f"ENTITY#{found[-1]}{schema.NEXT}"
            span = ask.between(after, f"ENTITY{schema.NEXT}")
        return found

    async def _all_entities(self, namespace: str, limit: int, cursor: str | None) -> Page:
        """All entities by id: their keys from the namespace's index, then what they are now."""
        request = ask.query(
            self._table.name,
            namespace,
            _after(f"{namespace}/ENTITY", cursor),
            index=schema.GSI4,
            only_sk=schema.META,
        )
        items = await self._query(namespace, request, limit + 1)
        keys = first_page([key_of(item) for item in items], limit, lambda key: key[0])
        found = await self._table.get_all(keys.items)
        entities = tuple(entity_from_item(found[key]) for key in keys.items if key in found)
        return Page(entities, None if keys.cursor is None else schema.last_name(keys.cursor))

    async def _query(
        self, namespace: str, request: DynamoRequest, enough: int | None = None
    ) -> list[Item]:
        """What an index says of a namespace that may be used."""
        wanted = ask.get(self._table.name, system_key(namespace))
        head, first = await self._table.together(wanted, request)
        DynamoNamespaceHead.of(namespace, head.get("Item"))
        return await self._table.rest(request, first, enough)

    async def _levels(self, namespace: str, entity_id: str) -> list[Item]:
        """One more than go in one step, if there are that many."""
        pk, most = schema.pk_entity(namespace, entity_id), LEVELS_PER_BATCH + 1
        span = ask.begins(schema.sk_config(""))
        return await self._table.every(ask.query(self._table.name, pk, span, limit=most), most)

    async def _children(self, namespace: str, parent_id: str) -> list[Item]:
        pk = schema.pk_parent(namespace, parent_id)
        request = ask.query(self._table.name, pk, index=schema.GSI1, limit=CHILDREN_PER_BATCH)
        return await self._listed_entities(request, "parent_id", parent_id)

    async def _listed_entities(self, request: DynamoRequest, name: str, value: str) -> list[Item]:
        """Some of them as they are now; the index may lead to others that have moved away."""
        listed, _ = await self._table.page(request)
        found = await self._table.get_all(key_of(item) for item in listed)
        return [item for item in found.values() if text_of(item, name) == value]

    async def _read_ancestors(self, seen: ReadItems) -> None:
        """Everybody above the entities, a generation at a time.

        They are read after the head, so its version guards them all.
        """
        line: list[DocumentKey] = list(seen.items)
        for _ in range(LINEAGE_MAX):
            parents = [text_of(seen.items[one] or {}, "parent_id") for one in line]
            line = [one for one in parents if one is not None]
            if not line:
                return
            await self._read_missing(seen, line)

    async def _read_missing(self, seen: ReadItems, keys: Sequence[DocumentKey]) -> None:
        """Reads those that were not read yet."""
        places = {one: _place(seen.head.namespace, one) for one in keys if one not in seen.items}
        found = await self._table.get_all(places.values()) if places else {}
        seen.items.update((one, found.get(place)) for one, place in places.items())


def _moved_counts(seen: Snapshot, changes: Changes) -> Counter[DocumentKey]:
    """How many children more or less each parent has after the changes, and each plan entities."""
    moved = Counter[DocumentKey]()
    for key, after in changes.items():
        before = seen.documents.get(key)
        for entity, by in ((before, -1), (after, 1)):
            if isinstance(entity, Entity) and entity.parent_id is not None:
                moved[entity.parent_id] += by
            if isinstance(entity, Entity) and entity.plan is not None:
                moved[PlanKey(entity.plan)] += by
    return Counter({key: by for key, by in moved.items() if by})


def _write(
    read: ReadItems, key: DocumentKey, document: Document | None, moved: Counter[DocumentKey]
) -> Write:
    """The document as it is now, or is no more, if its item is as it was."""
    item, namespace = read.items.get(key), read.head.namespace
    guard = ask.if_unchanged(item)
    if document is None:
        return ask.delete(_place(namespace, key), guard)
    if isinstance(document, Entity):
        children = number_of(item or {}, CHILDREN) + moved[document.id]
        put = entity_as_item(namespace, document, read.head.next_version, children)
        return ask.put(put, guard)
    if isinstance(document, Plan):
        entities = number_of(item or {}, ENTITIES) + moved[PlanKey(document.name)]
        put = plan_as_item(namespace, document, read.head.next_version, entities)
        return ask.put(put, guard)
    assert isinstance(key, Level)
    return ask.put(level_as_item(namespace, key, document), guard)


def _home_write(head: DynamoNamespaceHead, changes: Changes, writes: Sequence[Write]) -> Write:
    """The system item: it counts the version, tells of the writes and has the system's level."""
    version = head.next_version
    touched = [_touched(write) for write in writes]
    sets: Item = {
        CONFIG_VERSION: number(version),
        RECENT: recent_changes(head.item, version, touched),
    }
    removes: list[str] = []
    if SYSTEM in changes:
        level = changes[SYSTEM]
        if isinstance(level, StoredLevel):
            sets |= {**limits_as_attributes(level), LEVEL_VERSION: number(level.version)}
        old = [name for name in head.item if is_limit_attribute(name) or name == LEVEL_VERSION]
        removes = [name for name in old if name not in sets]
    return ask.update(
        system_key(head.namespace),
        sets=sets,
        removes=removes,
        guard=ask.if_both(ask.if_unchanged(head.item), ask.if_one_of("state", "active")),
    )


def _touched(write: Write) -> tuple[str, Key]:
    [(verb, params)] = write.items()
    item = params.get("Key") or params["Item"]
    return GONE if verb == "Delete" else PUT, key_of(item)


def _stored_from_item(level: Level, item: Item) -> StoredLevel | None:
    return level_from_item(item, LEVEL_VERSION if level == SYSTEM else CONFIG_VERSION)


def _place(namespace: str, key: DocumentKey) -> Key:
    if isinstance(key, PlanKey):
        return plan_key(namespace, key.name)
    return level_key(namespace, key) if isinstance(key, Level) else entity_key(namespace, key)


def _after(stem: str, cursor: str | None) -> ask.KeyRange:
    """The keys `stem#name` whose name comes after the cursor."""
    if cursor is None:
        return ask.begins(f"{stem}#")
    low = f"{stem}#{schema.clip_cursor(cursor)}{schema.JUST_AFTER}"
    return ask.between(low, max(low, f"{stem}{schema.NEXT}"))
