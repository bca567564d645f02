"""The catalog of one table: the shared rules over its records, and the lookup of its own.

A lookup reads what it needs in one batch per generation, and the buckets along with it. Plans that
the process does not know yet are one batch more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from headgate.core.levels import (
    LINEAGE_MAX,
    CommonLevels,
    Entity,
    EntityConfig,
    Lookup,
    Plan,
    StoredLevel,
)
from headgate.core.limits import DEFAULT_RESOURCE
from headgate.core.record import BucketKey
from headgate.stores.catalog import RecordsCatalog
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.items import (
    LEVEL_VERSION,
    NOTES,
    RECORD,
    Item,
    Key,
    as_json,
    entity_from_item,
    json_of,
    level_from_item,
    plan_from_item,
    plan_key,
    system_key,
)
from headgate.stores.dynamodb.catalog.records import (
    DynamoNamespaceHead,
    DynamoRecords,
    changes_in,
    is_torn,
)
from headgate.stores.dynamodb.protocol.item import bucket_key
from headgate.stores.dynamodb.table import create, migrate
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.table import Table
from headgate.stores.records import contended

# --------------------------------------------------------------------------------------------------
# Levels that every lookup brings along: an item that is as it was is not read again.
#
# Entities without limits of their own get by on the resource's and the system's. Those items come
# with every lookup and hardly ever change; comparing them costs less than reading them.

LEVELS_MAX = 1024


class SystemItem(NamedTuple):
    """What the system item says to a lookup."""

    item: Item
    version: int
    level: StoredLevel | None
    changes: Mapping[Key, str]  # the last one of each key that the item tells of


_system_items: dict[str, SystemItem] = {}
_levels: dict[Key, tuple[Item, StoredLevel | None]] = {}


def system_item_of(namespace: str, item: Item | None) -> SystemItem:
    """The home of a namespace that may be used."""
    known = _system_items.get(namespace)
    if known is not None and known.item == item:
        return known
    head = DynamoNamespaceHead.of(namespace, item)
    level = level_from_item(head.item, LEVEL_VERSION)
    home = SystemItem(head.item, head.version, level, changes_in(namespace, head.item))
    if len(_system_items) >= LEVELS_MAX:
        _system_items.clear()
    _system_items[namespace] = home
    return home


def cached_level(key: Key, item: Item | None) -> StoredLevel | None:
    """As `level_from_item`."""
    if item is None:
        return None
    known = _levels.get(key)
    if known is not None and known[0] == item:
        return known[1]
    stored = level_from_item(item)
    if len(_levels) >= LEVELS_MAX:
        _levels.clear()
    _levels[key] = (item, stored)
    return stored


READS_MAX = 8

Found = Mapping[Key, Item]
Prime = Callable[[BucketKey, Item | None, int], None]


def ignore_bucket(key: BucketKey, item: Item | None, now_ms: int) -> None:
    """Who has no buckets needs none brought along."""


class DynamoCatalog(RecordsCatalog):
    """`prime` is given the buckets that a lookup reads along with the configuration."""

    def __init__(self, table: Table, prime: Prime = ignore_bucket) -> None:
        super().__init__(DynamoRecords(table))
        self._table = table
        self._prime = prime

    async def lookup(
        self, namespace: str, entity_id: str, resource: str, known: CommonLevels | None = None
    ) -> Lookup:
        """The configuration of an entity and those it cascades to, all of one version.

        With known levels neither the system's nor the resource's item is read. All processes read
        these two, and a partition bears 3 000 reads a second: they would be the bound of how many
        new entities there can be. The same is true of a plan that many entities are on.
        """
        own = BucketKey(namespace, entity_id, resource)
        if known is not None and known.is_whole:
            seen = await self._read_own(own, known)
            if seen is not None:
                return seen
        for attempt in range(READS_MAX):
            seen = await self._read_lookup(own, known, last_word=attempt > 0)
            if seen is not None:
                return seen
            await self._table.pause(attempt)
        raise contended(READS_MAX)

    async def _read_lookup(
        self, own: BucketKey, known: CommonLevels | None, *, last_word: bool
    ) -> Lookup | None:
        """The lookup; None where it was torn: read again.

        A parent it cascades to costs one batch more. The head is read along with each, so that the
        last one tells of every change that came between.
        """
        system, of_resource, *theirs = lookup_keys(own.namespace, own.entity_id, own.resource)
        found = await self._get_with_bucket(own, system, of_resource, *theirs)
        home = system_item_of(own.namespace, found.get(system))
        common = found.get(of_resource)
        read = {of_resource: common, **{key: found.get(key) for key in theirs}}
        configs = [_own_config(own.entity_id, theirs, found)]
        while (wanted := _cascades_to(configs[-1][1])) and len(configs) < LINEAGE_MAX:
            theirs = _own_keys(own.namespace, wanted, own.resource)
            bucket = BucketKey(own.namespace, wanted, own.resource)
            found = await self._get_with_bucket(bucket, system, *theirs)
            home = system_item_of(own.namespace, found.get(system))
            read.update((key, found.get(key)) for key in theirs)
            configs.append(_own_config(wanted, theirs, found))
        plans = dict(known.plans) if known is not None and known.version == home.version else {}
        if wanted_plans := _missing_plans(own.namespace, configs, plans):
            found = await self._table.get_all((system, *wanted_plans.values()))
            was, home = home, system_item_of(own.namespace, found.get(system))
            read.update((key, found.get(key)) for key in wanted_plans.values())
            if plans and home.version != was.version:
                return None  # those that were known may be others by now
            if not last_word and not all(key in found for key in wanted_plans.values()):
                return None  # an entity's plan is deleted after the entity has left it
            plans |= _plans_in(wanted_plans, found)
        if is_torn(home.version, home.changes, read):
            return None
        level = cached_level(of_resource, common)
        return Lookup(home.version, _configs(configs, level, home.level, plans))

    async def _read_own(self, own: BucketKey, known: CommonLevels) -> Lookup | None:
        """The lookup under levels that are known; None where a part of it is newer than they are.

        A part that was deleted since then is missing, and nothing tells of it. So the lookup may
        know more than its version says, and never less.
        """
        configs: list[OwnConfig] = []
        wanted: str | None = own.entity_id
        while wanted is not None and len(configs) < LINEAGE_MAX:
            keys = _own_keys(own.namespace, wanted, own.resource)
            found = await self._get_with_bucket(
                BucketKey(own.namespace, wanted, own.resource), *keys
            )
            if is_torn(known.version, {}, {key: found.get(key) for key in keys}):
                return None
            configs.append(_own_config(wanted, keys, found))
            wanted = _cascades_to(configs[-1][1])
        plans = dict(known.plans)
        if wanted_plans := _missing_plans(own.namespace, configs, plans):
            found = await self._table.get_all(wanted_plans.values())
            if is_torn(known.version, {}, found) or len(found) < len(wanted_plans):
                return None
            plans |= _plans_in(wanted_plans, found)
        return Lookup(known.version, _configs(configs, known.resource, known.system, plans))

    async def version(self, namespace: str) -> int:
        """One item, strongly consistent: a read unit."""
        return system_item_of(namespace, await self._table.get(system_key(namespace))).version

    async def _get_with_bucket(self, bucket: BucketKey, *keys: Key) -> dict[Key, Item]:
        place = bucket_key(bucket)
        found = await self._table.get_all((*keys, place))
        self._prime(bucket, found.get(place), self._table.port.now_ms())
        return found

    async def get_version_record(self) -> Mapping[str, Any]:
        record = await self._table.get(RECORD) or {}
        version = create.noted_version(record) or create.SCHEMA_VERSION
        return {**json_of(record, NOTES, {}), create.SCHEMA: version}

    async def set_version_record(self, values: Mapping[str, Any]) -> None:
        create.noted_version(await self._table.get(RECORD) or {})
        written = {NOTES: as_json(dict(values))}
        await self._table.write(ask.update(RECORD, sets=written))
        self._table.retention.learn(written, self._table.port.now_ms())

    async def prepare(self) -> None:
        await create.prepare(self._table)

    async def upgrade(
        self, *, dry_run: bool = False, report: migrate.Report | None = None
    ) -> list[migrate.MigrationProgress]:
        """See migrate.upgrade."""
        return await migrate.upgrade(self._table, dry_run=dry_run, report=report)

    async def destroy(self) -> None:
        await create.destroy(self._table)


def lookup_keys(namespace: str, entity_id: str, resource: str) -> list[Key]:
    """The system's, the resource's, the entity and its two levels."""
    of_resource = (schema.pk_resource(namespace, resource), schema.sk_config())
    return [system_key(namespace), of_resource, *_own_keys(namespace, entity_id, resource)]


# An entity's id, the entity, its limits for the resource and its limits for every resource.
OwnConfig = tuple[str, Entity | None, StoredLevel | None, StoredLevel | None]


def _own_config(name: str, keys: Sequence[Key], found: Found) -> OwnConfig:
    meta, own, own_default = map(found.get, keys)
    entity = None if meta is None else entity_from_item(meta)
    return name, entity, level_from_item(own), level_from_item(own_default)


def _cascades_to(entity: Entity | None) -> str | None:
    return entity.parent_id if entity is not None and entity.cascade else None


def _missing_plans(
    namespace: str, configs: Sequence[OwnConfig], known: Mapping[str, Plan]
) -> dict[str, Key]:
    """The plans that entities refer to and that are not known yet, and where they are."""
    names = {entity.plan for _, entity, _, _ in configs if entity is not None}
    return {name: plan_key(namespace, name) for name in names if name and name not in known}


def _plans_in(keys: Mapping[str, Key], found: Found) -> dict[str, Plan]:
    return {name: plan_from_item(found[key]) for name, key in keys.items() if key in found}


def _configs(
    own: Sequence[OwnConfig],
    of_resource: StoredLevel | None,
    of_system: StoredLevel | None,
    plans: Mapping[str, Plan],
) -> tuple[EntityConfig, ...]:
    return tuple(
        EntityConfig(*one, of_resource, of_system, plans.get(one[1].plan or "") if one[1] else None)
        for one in own
    )


def _own_keys(namespace: str, entity_id: str, resource: str) -> list[Key]:
    pk = schema.pk_entity(namespace, entity_id)
    return [
        (pk, schema.META),
        (pk, schema.sk_config(resource)),
        (pk, schema.sk_config(DEFAULT_RESOURCE)),
    ]
