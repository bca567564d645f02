"""Reading a bucket that is kept in several shards: all of them, as they are now."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.core.errors import StoreTrouble, Throttled
from headgate.stores.dynamodb.catalog.items import Item, Key, key_of
from headgate.stores.dynamodb.protocol.flow import Flow
from headgate.stores.dynamodb.protocol.item import Seen, bucket_key
from headgate.stores.dynamodb.protocol.state_cache import Known
from headgate.stores.dynamodb.sharding.shares import DEPTH_MAX, children_of
from headgate.stores.dynamodb.table import requests as ask

ROUNDS_MAX = 4  # of asking for what a batch left out, and of reading a bucket that changes shape


def read_items(table: str, keys: Sequence[Key]) -> Flow[dict[Key, Item]]:
    """The items that exist, in one call; more where the service leaves some out."""
    found: dict[Key, Item] = {}
    left = list(keys)
    for _ in range(ROUNDS_MAX):
        outcome = yield ask.batch_get(table, left)
        if isinstance(outcome, StoreTrouble):
            raise outcome
        items = outcome.get("Responses", {}).get(table, [])
        found.update((key_of(item), item) for item in items)
        undone = outcome.get("UnprocessedKeys", {}).get(table, {}).get("Keys")
        if not undone:
            return found
        left = [key_of(key) for key in undone]
    raise Throttled(f"DynamoDB left part of a BatchGetItem on {table} undone; try again later")


def read_shards(table: str, known: Known, now_ms: int) -> Flow[list[Seen]]:
    """All shards of the bucket, from one answer; none where there is no bucket.

    It begins with those that are known. Where they tell of others all are read again: tokens go
    from shard to shard, so states of different moments may lack what at no moment was missing.
    """
    wanted = {0, *known.shards}
    for _ in range(ROUNDS_MAX + DEPTH_MAX):
        places = {bucket_key(known.key, shard): shard for shard in sorted(wanted)}
        items = yield from read_items(table, list(places))
        found: dict[int, Seen] = {}
        for key, shard in places.items():
            seen = known.note(shard, items[key], now_ms) if key in items else None
            if seen is not None:
                found[shard] = seen
        if 0 not in found:
            known.note(0, None, now_ms)
            return []
        wanted = reachable(found)
        if wanted <= found.keys():
            known.shards = {shard: found[shard] for shard in sorted(wanted)}
            return list(known.shards.values())
    raise Throttled(
        f"the bucket of {known.key.entity_id} on {known.key.resource} is being divided or put "
        f"together; nothing was changed: try again in a moment"
    )


def reachable(found: dict[int, Seen]) -> set[int]:
    """The shards that the first one leads to, also those that are not read yet."""
    told, ahead = set(), [0]
    while ahead:
        shard = ahead.pop()
        told.add(shard)
        if shard in found:
            ahead += children_of(shard, found[shard].depth)
    return told
