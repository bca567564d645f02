"""What both searches do with a store by hand: divide a bucket and put it together again, and ask
while nobody else is there."""

from __future__ import annotations

from typing import Any

from headgate.core.decision import Demand
from headgate.core.limits import Spec
from headgate.core.record import BucketKey, Terms
from headgate.core.refill.resets import INSTANTS_MAX, schedule_of
from headgate.core.runtime import run
from headgate.core.store import Store
from headgate.stores.dynamodb import over_port
from headgate.stores.dynamodb.client.calls import Flow
from headgate.stores.dynamodb.sharding.pool import read_shards
from headgate.stores.dynamodb.sharding.router import try_change
from headgate.stores.dynamodb.sharding.shares import children_of
from headgate.stores.dynamodb.sharding.split import can_merge, can_split, merge_request
from headgate.stores.dynamodb.store import DynamoStore
from proof.model.buckets import Bucket
from proof.model.engine import Engine, ModelPort

LONG = 64  # times the time to refill: then all is full, also in the smallest shard
FILLED = [True, True, False]  # all but one token, the last one, one more


def split(store: DynamoStore, key: BucketKey, shard: int, now_ms: int) -> Flow[bool]:
    """A shard is divided, as if it had taken too many writes."""
    known = store._cache.open(key)
    for seen in (yield from read_shards(store._table.name, known, now_ms)):
        if seen.shard == shard and can_split(seen, known.largest):
            return (yield from store._taker.split(known, seen, now_ms))
    return False


def merge(store: DynamoStore, key: BucketKey, shard: int, now_ms: int) -> Flow[bool]:
    """A shard takes back what it gave last, as if both had been idle."""
    table, known = store._table.name, store._cache.open(key)
    shards = {seen.shard: seen for seen in (yield from read_shards(table, known, now_ms))}
    children = children_of(shard, shards[shard].depth) if shard in shards else []
    if not children or not can_merge(shards[shard], shards[children[-1]]):
        return False
    request = merge_request(table, key, shards[shard], shards[children[-1]], now_ms)
    return (yield from try_change(request))


def store_on(engine: Engine, table: str, **options: Any) -> Store:
    """For whoever comes with a time of its own."""
    port = ModelPort(engine, lambda: 0)
    return over_port(port, table, blocking=True, usage="off", **options).store


def demand_for(key: BucketKey, terms: Terms, limit: str, milli: int) -> Demand:
    line = tuple(milli if spec.name == limit else None for spec in terms.specs)
    return Demand(key, terms, line)


def wait_fault(store: Store, demand: Demand, now_ms: int) -> tuple[str, str] | None:
    """S2, S3: refused one millisecond before the wait is over, admitted then. Else the promise that
    is broken, and how."""
    verdict = run(store.consume([demand], now_ms))
    wait_ms = verdict.retry_after_ms
    if verdict.allowed:
        return None
    if not wait_ms:
        return "S2", f"{demand} was refused with a wait of {wait_ms}"
    if run(store.consume([demand], now_ms + wait_ms - 1)).allowed:
        return "S2", f"{demand} was admitted before its wait of {wait_ms} ms"
    if not run(store.consume([demand], now_ms + wait_ms)).allowed:
        return "S3", f"{demand} was refused after its wait of {wait_ms} ms"
    return None


def fill_rounds(
    store: Store, bucket: Bucket, key: BucketKey, terms: Terms, spec: Spec, now_ms: int
) -> list[list[bool]]:
    """What a bucket gives of a limit long after, and long after that again: the first round may
    meet old limits, the second is FILLED if it gives exactly the capacity."""
    parts = [shard.parts[spec.name] for shard in bucket.values() if spec.name in shard.parts]
    owed = spec.capacity_milli + sum(abs(part.tokens) for part in parts)
    slowest = max([part.period_ms / max(part.amount, 1) for part in parts], default=0)
    if spec.resets is None:
        slowest = max(slowest, spec.period_ms / spec.amount_milli)
    else:
        first_ms, *_, last_ms = schedule_of(spec.resets).instants(now_ms, INSTANTS_MAX)
        slowest = max(slowest, (last_ms - first_ms) / spec.capacity_milli)  # more than one window
    long_ms = LONG * (int(owed * slowest) + 10_000)
    asked = [demand_for(key, terms, spec.name, milli)
             for milli in (spec.capacity_milli - 1000, 1000, 1000)]  # fmt: skip
    return [
        [run(store.consume([one], now_ms + long_ms * number)).allowed for one in asked]
        for number in (1, 2)
    ]
