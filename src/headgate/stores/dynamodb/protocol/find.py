"""Which buckets exist: keys from an index, page by page; an index answers a moment late."""

from __future__ import annotations

from headgate.core.levels import Page
from headgate.core.record import BucketKey
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.items import Item, key_of
from headgate.stores.dynamodb.client.calls import DynamoRequest, Flow
from headgate.stores.dynamodb.protocol.flow import ATTEMPTS_MAX, commit, too_contended
from headgate.stores.dynamodb.protocol.item import GENERATION, BucketView, ItemState, bucket_key
from headgate.stores.dynamodb.protocol.update_expression import UpdateExpression
from headgate.stores.dynamodb.sharding.pool import read_shards
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.table import Table

SPARE = 8  # items read beyond a page's size: shards of the same buckets


async def page(
    table: Table,
    namespace: str,
    entity_id: str | None,
    resource: str | None,
    limit: int,
    cursor: str | None,
) -> Page:
    """Each bucket once, whatever number of shards it has."""
    index, request = _query(table.name, namespace, entity_id, resource, limit, cursor)
    found: list[tuple[str, BucketKey]] = []
    start: Item | None = None
    while len(found) <= limit:
        items, start = await table.page(request, start)
        for item in items:
            place = schema.parse_bucket_pk(key_of(item)[0])
            key = BucketKey(place.namespace, place.entity_id, place.resource)
            if not place.shard and resource in (None, key.resource):
                found.append((_order(index, key), key))
        if start is None:
            break
    following = found[limit - 1][0] if len(found) > limit else None
    return Page(tuple(key for _, key in found[:limit]), following)


def _query(
    table: str,
    namespace: str,
    entity_id: str | None,
    resource: str | None,
    limit: int,
    cursor: str | None,
) -> tuple[str, DynamoRequest]:
    if entity_id is not None:
        index, pk = schema.GSI3, schema.pk_entity(namespace, entity_id)
        stem = "BUCKET#" if resource is None else f"BUCKET#{resource}#"
    elif resource is not None:
        index, pk, stem = schema.GSI2, schema.pk_resource(namespace, resource), "BUCKET#"
    else:
        index, pk, stem = schema.GSI4, namespace, f"{namespace}/BUCKET#"
    low = stem if cursor is None else max(stem, schema.clip_cursor(cursor) + schema.JUST_AFTER)
    span = ask.between(low, stem[:-1] + schema.NEXT)
    return index, ask.query(table, pk, span, index=index, limit=limit + SPARE)


def _order(index: str, key: BucketKey) -> str:
    """The sort key of the bucket's first shard in the index."""
    if index == schema.GSI3:
        return schema.gsi3_sk_bucket(key.resource, 0)
    if index == schema.GSI2:
        return schema.gsi2_sk_bucket(key.entity_id, 0)
    return bucket_key(key)[0]


# --------------------------------------------------------------------------------------------------
# Deleting a bucket with all its shards in one step: none is left behind without the first.


def forget(table: str, known: BucketView) -> Flow[None]:
    """The bucket is gone, as if never used."""
    for _ in range(ATTEMPTS_MAX):
        shards = yield from read_shards(table, known, 0)
        if not shards:
            return
        if (yield from commit(table, [_deletion(known, seen) for seen in shards])) is None:
            return  # else it was split, merged or put under other limits meanwhile
    raise too_contended(known.key)


def _deletion(known: BucketView, seen: ItemState) -> ask.Write:
    draft = UpdateExpression()
    draft.equal(GENERATION, seen.generation)
    return {"Delete": draft.check(bucket_key(known.key, seen.shard))}
