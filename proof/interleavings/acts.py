"""What clients do in scenes: each act is one call of the store, in whole tokens."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from headgate.core.decision import Demand
from headgate.core.limits import Spec
from headgate.core.record import BucketKey, Terms
from headgate.stores.dynamodb.protocol.flow import Flow, run_flow
from headgate.stores.dynamodb.sharding.pool import read_shards
from headgate.stores.dynamodb.sharding.router import try_change
from headgate.stores.dynamodb.sharding.shares import children_of
from headgate.stores.dynamodb.sharding.split import can_merge, merge_request
from headgate.stores.dynamodb.store import DynamoStore
from proof.interleavings.clients import TABLE, Op
from proof.interleavings.scene import Watch

START_MS = 1_750_000_000_000
STEP_MS = 1000
KEY = BucketKey("space", "e", "r")
OTHER = BucketKey("space", "p", "r")


def terms(capacity: int, amount: int, period_ms: int = STEP_MS, version: int = 1) -> Terms:
    """One limit, in whole tokens per period."""
    spec = Spec("x", capacity * 1000, amount * 1000, period_ms, False)
    return Terms((spec,), version, sources=("resource",))


def two_limits(version: int, *, soft: str = "", **limits: tuple[int, int]) -> Terms:
    """Limits by name: capacity and tokens per second; one of them may be soft."""
    specs = tuple(
        Spec(name, capacity * 1000, amount * 1000, STEP_MS, name == soft)
        for name, (capacity, amount) in limits.items()
    )
    return Terms(specs, version, sources=("resource",) * len(specs))


def override(capacity: int, amount: int) -> Terms:
    """Limits that come with a call: they win, and have no version."""
    return Terms((Spec("x", capacity * 1000, amount * 1000, STEP_MS, False),), own=True)


def take_of(held: Terms, **amounts: int) -> Op:
    line = tuple(amounts[spec.name] * 1000 if spec.name in amounts else None for spec in held.specs)
    demands = (Demand(KEY, held, line),)
    return Op("take", demands, lambda store, now_ms: store.consume(demands, now_ms))


def take(held: Terms, amount: int, *keys: BucketKey, route: int = 0) -> Op:
    demands = tuple(Demand(key, held, (amount * 1000,)) for key in keys or (KEY,))
    return Op("take", demands, lambda store, now_ms: store.consume(demands, now_ms), route)


def adjust(held: Terms, amount: int, key: BucketKey = KEY, route: int = 0) -> Op:
    demands = (Demand(key, held, (amount * 1000,)),)
    return Op("adjust", demands, lambda store, now_ms: store.adjust(demands, now_ms), route)


def grant(held: Terms, amount: int, key: BucketKey = KEY, text: str | None = None) -> Op:
    """Tokens given by an operator: no consumption, and never past the brim."""
    demands = (Demand(key, held, (-amount * 1000,)),)
    return Op(
        "grant",
        demands,
        lambda store, now_ms: store.adjust(demands, now_ms, metered=False, once=text),
    )


def once(held: Terms, amount: int, text: str, key: BucketKey = KEY) -> Op:
    demands = (Demand(key, held, (amount * 1000,)),)
    return Op("adjust", demands, lambda store, now_ms: store.adjust(demands, now_ms, once=text))


def forget(held: Terms, key: BucketKey = KEY) -> Op:
    demands = (Demand(key, held, (0,)),)
    return Op("forget", demands, lambda store, now_ms: store.forget([key]))


def split(held: Terms, shard: int = 0) -> Op:
    """A shard is divided, as if it had taken too many writes."""

    def flow(store: DynamoStore, now_ms: int) -> Flow[bool]:
        known = store._cache.open(KEY)
        for seen in (yield from read_shards(TABLE, known, now_ms)):
            if seen.shard == shard:
                return (yield from store._taker.split(known, seen, now_ms))
        return False

    return _reshape(held, flow)


def merge(held: Terms, shard: int = 0) -> Op:
    """A shard takes back what it gave last, as if both had been idle."""

    def flow(store: DynamoStore, now_ms: int) -> Flow[bool]:
        known = store._cache.open(KEY)
        shards = {seen.shard: seen for seen in (yield from read_shards(TABLE, known, now_ms))}
        children = children_of(shard, shards[shard].depth) if shard in shards else []
        if not children or not can_merge(shards[shard], shards[children[-1]]):
            return False
        request = merge_request(TABLE, KEY, shards[shard], shards[children[-1]], now_ms)
        return (yield from try_change(request))

    return _reshape(held, flow)


def _reshape(held: Terms, flow: Any) -> Op:
    def begin(store: DynamoStore, now_ms: int) -> Coroutine[Any, Any, Any]:
        return run_flow(store._port, flow(store, now_ms))

    return Op("reshape", (Demand(KEY, held, (0,)),), begin)


def watch(held: Terms, key: BucketKey = KEY) -> Watch:
    spec = held.specs[0]
    return Watch(key, "x", spec.capacity_milli, spec.amount_milli, spec.period_ms)


def moments(*seconds: int) -> tuple[int, ...]:
    return tuple(START_MS + STEP_MS * second for second in seconds)
