"""What a plan needs to know, in one batch per generation.

The keys and the reading of the items are here as plain functions, so that whoever fetches a bucket
can fetch them in the same batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headgate.entities import Level, Lookup, Standing
from headgate.lineage import LINEAGE_MAX
from headgate.names import DEFAULT_RESOURCE
from headgate.record import BucketKey
from headgate.stores.dynamodb.catalog_recent import is_torn
from headgate.stores.dynamodb.catalog_steps import Head
from headgate.stores.dynamodb.items import (
    LEVEL_VERSION,
    Item,
    Key,
    entity_from_item,
    entity_key,
    level_from_item,
    level_key,
    system_key,
)
from headgate.stores.dynamodb.seen import bucket_key
from headgate.stores.dynamodb.table import Table, contended

READS_MAX = 8

Found = Mapping[Key, Item]
Prime = Callable[[BucketKey, Item | None, int], None]


async def lookup(
    table: Table, namespace: str, entity_id: str, resource: str, prime: Prime
) -> Lookup:
    """The configuration of an entity and those it cascades to, all of one version.

    Their buckets come along in the same batches, and are given to `prime`.
    """
    own = BucketKey(namespace, entity_id, resource)
    for attempt in range(READS_MAX):
        keys = lookup_keys(namespace, entity_id, resource)
        found = await table.get_all((*keys, bucket_key(own)))
        prime(own, found.get(bucket_key(own)), table.port.now_ms())
        seen = await continued(table, namespace, entity_id, resource, found, prime)
        if seen is not None:
            return seen
        await table.pause(attempt)
    raise contended(READS_MAX)


def lookup_keys(namespace: str, entity_id: str, resource: str) -> list[Key]:
    """The entity, its two levels, the resource's and the system's."""
    of_resource = level_key(namespace, Level(None, resource))
    return [system_key(namespace), of_resource, *_own_keys(namespace, entity_id, resource)]


async def continued(
    table: Table, namespace: str, entity_id: str, resource: str, first: Found, prime: Prime
) -> Lookup | None:
    """The lookup that begins with the items of lookup_keys; None where it was torn: read again.

    A parent it cascades to costs one batch more. The head is read along with each, so that the
    last one tells of every change that came between.
    """
    home = system_key(namespace)
    head = Head.of(namespace, first.get(home))
    found = dict(first)
    names, wanted = [entity_id], _parent(namespace, entity_id, found)
    asked = set(lookup_keys(namespace, entity_id, resource))
    while wanted is not None and len(names) < LINEAGE_MAX:
        keys = _own_keys(namespace, wanted, resource)
        bucket = BucketKey(namespace, wanted, resource)
        found.update(await table.get_all((home, *keys, bucket_key(bucket))))
        prime(bucket, found.get(bucket_key(bucket)), table.port.now_ms())
        head = Head.of(namespace, found.get(home))
        asked.update(keys)
        names.append(wanted)
        wanted = _parent(namespace, wanted, found)
    if is_torn(head.item, {key: found.get(key) for key in asked if key != home}):
        return None
    return Lookup(
        head.version, tuple(_standing(namespace, name, resource, found) for name in names)
    )


def _standing(namespace: str, entity_id: str, resource: str, found: Found) -> Standing:
    item = found.get(entity_key(namespace, entity_id))

    def level(of: Level) -> Item | None:
        return found.get(level_key(namespace, of))

    return Standing(
        entity_id,
        None if item is None else entity_from_item(item),
        level_from_item(level(Level(entity_id, resource))),
        level_from_item(level(Level(entity_id, DEFAULT_RESOURCE))),
        level_from_item(level(Level(None, resource))),
        level_from_item(level(Level()), LEVEL_VERSION),
    )


def _parent(namespace: str, entity_id: str, found: Found) -> str | None:
    item = found.get(entity_key(namespace, entity_id))
    entity = None if item is None else entity_from_item(item)
    return entity.parent_id if entity is not None and entity.cascade else None


def _own_keys(namespace: str, entity_id: str, resource: str) -> list[Key]:
    return [
        entity_key(namespace, entity_id),
        level_key(namespace, Level(entity_id, resource)),
        level_key(namespace, Level(entity_id, DEFAULT_RESOURCE)),
    ]
