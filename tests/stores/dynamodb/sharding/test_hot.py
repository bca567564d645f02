"""One entity at 20 000 acquires a second, on partitions that bear a thousand writes each."""

from __future__ import annotations

import os
import random

import pytest

from headgate import Limit
from headgate.core.errors import Throttled
from headgate.core.runtime import run
from headgate.stores.dynamodb import over_port
from headgate.stores.dynamodb.store import DynamoStore
from proof.model.engine import Engine
from proof.model.port import ModelPort
from tests.stores.dynamodb.protocol.test_races import Throttling
from tests.stores.dynamodb.sharding.kit import START_MS, Bucket

CLIENTS = 8
PER_MS = 20
RUN_MS = int(os.environ.get("HEADGATE_HOT_MS", "1100"))
RATES = {"enough": 25, "too little": 15}  # tokens a millisecond, where 20 are asked for


@pytest.mark.parametrize("allowance", RATES)
def test_a_hot_entity_spreads_over_shards_and_stays_within_its_limit(allowance: str) -> None:
    rate = RATES[allowance]
    limit = Limit.custom("x", 4000, rate * 1000, 1)
    now_ms = START_MS
    throttling = Throttling(ModelPort(Engine(), lambda: now_ms))
    throttling.clock = lambda: now_ms
    run(over_port(throttling, "hot", blocking=True).catalog.prepare())
    buckets = []
    for number in range(CLIENTS):
        store = over_port(throttling, "hot", blocking=True, usage="off").store
        assert isinstance(store, DynamoStore)
        store._cache._rng = random.Random(number)
        buckets.append(Bucket(store, [limit], "hot"))
    rng = random.Random(20)
    asked, waited, admitted = 0, 0, [0] * (RUN_MS + 1)
    for step in range(RUN_MS):
        now_ms = START_MS + step
        for _ in range(PER_MS):
            bucket = rng.choice(buckets)
            bucket.now_ms = now_ms
            asked += 1
            try:
                admitted[step] += bucket.take(x=1).allowed
            except Throttled:
                waited += 1
    shards = buckets[0].shards()
    total = sum(admitted)
    print(f"{asked} asked, {total} admitted, {waited} waited, {len(shards)} shards")  # noqa: T201
    if allowance == "enough":
        assert waited < asked / 100
    assert 16 <= len(shards) <= 64
    assert buckets[0].consumed() == total * 1000
    _within_limit(admitted, rate)
    assert total >= 0.9 * min(asked, 4000 + rate * RUN_MS)


def _within_limit(admitted: list[int], rate: int) -> None:
    """Over every interval: the most that any start exceeds its allowance by, in one pass."""
    worst = 0
    for count in admitted:
        worst = max(0, worst - rate) + count
        assert worst <= 4000 + rate
