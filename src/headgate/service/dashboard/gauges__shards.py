"""How buckets are divided in the store, where it divides any; looked at only when asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headgate.core.record import BucketKey
from headgate.core.store import Shard, Sharded
from headgate.service.dashboard.gauges import limits_of

if TYPE_CHECKING:
    from headgate.service.decide.service import Service

LOOKED_AT_MAX = 40  # buckets; each costs a read


async def shards_of(service: Service, namespace: str) -> dict[str, Any]:
    """The buckets in the most parts first; `sharding` says whether the store divides at all."""
    room = await service.room(namespace)
    store: Any = room.home.backend.store
    if not hasattr(store, "shards"):
        return {"sharding": False, "buckets": [], "whole": True}
    page = await store.find(await room.configs.namespace_id(), limit=LOOKED_AT_MAX)
    found = [await _bucket(store, key) for key in page.items]
    shown = [one for one in found if one["shards"]]
    return {
        "sharding": True,
        "buckets": sorted(shown, key=lambda one: -len(one["shards"])),
        "whole": page.cursor is None,
    }


async def _bucket(store: Sharded, key: BucketKey) -> dict[str, Any]:
    now_ms, shards = await store.shards(key, None)
    return {
        "entity": key.entity_id,
        "resource": key.resource,
        "shards": [_shard(one, now_ms) for one in shards],
    }


def _shard(shard: Shard, now_ms: int) -> dict[str, Any]:
    return {
        "number": shard.number,
        "depth": shard.depth,
        "parts": 1 << shard.depth,  # it has one of so many
        "written_per_s": shard.written_per_s,
        "limits": limits_of(shard.record, now_ms),
    }
