"""A bucket in several shards: nothing made, nothing lost, and the same answers as from one."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headgate.core.decision import Verdict, credits_of
from headgate.core.errors import RateLimitExceeded
from headgate.core.lease import refusal_error
from headgate.core.limits import Limit
from headgate.core.record import Terms, cell_of
from headgate.core.runtime import run
from headgate.layers.rejections import Rejections
from headgate.stores.dynamodb.client.calls import run_flow
from headgate.stores.dynamodb.protocol.item import BucketView
from headgate.stores.dynamodb.protocol.transaction import take_all
from headgate.stores.dynamodb.sharding.pool import read_shards
from headgate.stores.dynamodb.sharding.shares import capacity_share, children_of, leaf_of
from headgate.stores.dynamodb.store import DynamoStore
from headgate.testing import FakeClock, RecordingStore
from tests.stores.dynamodb.kit import Bucket, divided, opened


def test_shares_of_all_leaves_are_the_whole() -> None:
    rng = random.Random(3)
    for _ in range(300):
        depths = {0: 0}
        for _ in range(rng.randint(0, 12)):
            shard = rng.choice(list(depths))
            if depths[shard] < 6:
                depths[shard] += 1
                depths[children_of(shard, depths[shard])[-1]] = depths[shard]
        capacity = rng.choice((1, 7, 1000, 12_345, 10**9))
        assert sum(capacity_share(capacity, s, d) for s, d in depths.items()) == capacity
        counts = dict.fromkeys(depths, 0)
        for number in range(64):
            counts[leaf_of(number, depths)] += 1
        assert all(counts[shard] == 64 >> depth for shard, depth in depths.items())


@pytest.mark.parametrize("taken", [0, 3, 70, 100])
def test_splits_and_merges_conserve_every_token(store: DynamoStore, taken: int) -> None:
    limits = [Limit.per_second("x", 100), Limit.per_minute("y", 999)]
    bucket = Bucket(store, limits)
    assert bucket.take(x=taken, y=7).allowed
    bucket.now_ms += 13
    levels = bucket.level(), bucket.level("y")
    for count in range(2, 9):
        bucket.split_to(count)
        assert (bucket.level(), bucket.level("y")) == levels
        assert bucket.consumed() == taken * 1000
    bucket.now_ms += 50
    most = min(100_000, levels[0] + 50 * 100), min(999_000, levels[1] + 50 * 999_000 // 60_000)
    grown = bucket.level(), bucket.level("y")
    for least, top in zip(grown, most, strict=True):
        assert top - 8 <= least <= top
    while bucket.merge_one():
        assert (bucket.level(), bucket.level("y")) == grown
        assert bucket.consumed() == taken * 1000
    [whole] = bucket.shards()
    assert whole.depth == 0
    assert whole.ttl_s is not None
    assert whole.record[0].specs == bucket.terms.specs


def test_a_store_tells_how_a_bucket_is_divided(clients: list[DynamoStore]) -> None:
    """Also one that did not divide it: the items are asked."""
    bucket = Bucket(clients[0], [Limit.per_hour("x", 100)])
    assert run(clients[1].shards(bucket.key, bucket.now_ms)) == (bucket.now_ms, [])
    bucket.take(x=40)
    [whole] = run(clients[1].shards(bucket.key, bucket.now_ms))[1]
    assert (whole.number, whole.depth) == (0, 0)
    bucket.split_to(3)
    found = run(clients[1].shards(bucket.key, bucket.now_ms))[1]
    assert [(one.number, one.depth) for one in found] == [(0, 2), (1, 1), (2, 2)]
    cells = [cell_of(one.record, "x") for one in found]
    assert sum(cell.level_milli(bucket.now_ms) for cell in cells if cell) == 60_000
    assert [cell.spec.capacity_milli for cell in cells if cell] == [25_000, 50_000, 25_000]


def test_capacity_one_on_eight_shards_admits_exactly_one(store: DynamoStore) -> None:
    bucket = divided(store, Limit.per_minute("x", 1), shards=8)
    assert [bucket.take(x=1).allowed for _ in range(6)] == [True] + [False] * 5
    verdict = bucket.take(x=1)
    assert verdict.retry_after_ms == 60_000
    bucket.now_ms += 59_999
    assert not bucket.take(x=1).allowed
    bucket.now_ms += 1
    assert bucket.take(x=1).allowed


def test_a_refusal_on_shards_tells_the_least_wait(store: DynamoStore) -> None:
    rng = random.Random(5)
    for count in (2, 3, 5):
        bucket = divided(store, Limit.custom("x", 20, 7, 3), Limit.per_minute("y", 9), shards=count)
        for _ in range(12):
            amounts = {"x": rng.randint(1, 20), "y": rng.randint(0, 9)}
            dry = bucket.check(**amounts)
            verdict = bucket.take(**amounts)
            assert (dry.allowed, dry.retry_after_ms) == (verdict.allowed, verdict.retry_after_ms)
            if verdict.allowed:
                continue
            wait_ms = verdict.retry_after_ms
            bucket.now_ms += wait_ms - 1
            assert not bucket.take(**amounts).allowed
            bucket.now_ms += 1
            assert bucket.take(**amounts).allowed


def test_new_limits_reach_every_shard_and_hand_out_nothing(store: DynamoStore) -> None:
    bucket = Bucket(store, [Limit.per_minute("x", 40)])
    assert bucket.take(x=40).allowed
    bucket.split_to(4)
    bucket.terms = Terms((Limit.per_minute("x", 400).spec,), 2)
    assert not bucket.take(x=1).allowed
    assert {seen.whole.version for seen in bucket.shards()} == {2}
    bucket.now_ms += 150
    assert bucket.take(x=1).allowed
    assert not bucket.take(x=1).allowed
    bucket.now_ms += 600_000
    assert bucket.level() == 400_000
    bucket.terms = Terms((Limit.per_minute("x", 8).spec,), 3)
    assert [bucket.take(x=1).allowed for _ in range(12)].count(True) == 8


def test_forgetting_takes_all_shards(store: DynamoStore) -> None:
    bucket = Bucket(store, [Limit.per_minute("x", 40)])
    assert bucket.take(x=40).allowed
    bucket.split_to(5)
    run(store.forget([bucket.key]))
    assert bucket.shards() == []
    assert bucket.take(x=40).allowed
    bucket.split_to(3)
    assert bucket.level() == 0


def test_a_bucket_is_divided_and_put_together_on_a_real_engine(dynamo_endpoint: str) -> None:
    """Splits, a take from several shards, a credit to them and merges are its transactions."""
    store: Any = opened(dynamo_endpoint, options="&usage=off").store
    bucket = divided(store, Limit.per_hour("x", 100), Limit.per_hour("y", 10))
    assert bucket.take(x=60, y=6).allowed
    refused = bucket.take(x=41)
    assert (refused.allowed, refused.statuses[0].available) == (False, 40)
    bucket.adjust(x=-50, y=1)
    for shards in (4, 3, 2, 1):
        store._cache.drop(bucket.key)  # as the table has it
        assert len(bucket.shards()) == shards
        assert (bucket.level(), bucket.consumed()) == (90_000, 10_000)
        assert (bucket.level("y"), bucket.consumed("y")) == (3000, 7000)
        assert bucket.merge_one() == (shards > 1)
    run(store.close())


def test_slow_traffic_never_splits(store: DynamoStore) -> None:
    bucket = Bucket(store, [Limit.per_second("x", 10**6)])
    for _ in range(1500):
        assert bucket.take(x=1).allowed
        bucket.now_ms += 2
    assert len(bucket.shards()) == 1


def test_fast_traffic_splits_and_rests_merge(store: DynamoStore) -> None:
    bucket = Bucket(store, [Limit.per_second("x", 10**6)])
    for _ in range(1400):
        assert bucket.take(x=1).allowed
        bucket.now_ms += 1
    assert len(bucket.shards()) > 1
    for _ in range(12):
        bucket.now_ms += 11_000
        assert bucket.take(x=1).allowed
    assert len(bucket.shards()) == 1
    assert bucket.consumed() == 1412 * 1000


def test_a_refusal_of_a_divided_bucket_is_repeated_without_a_call(store: DynamoStore) -> None:
    """With the exact wait, for the very demand, until somebody gives back or a second is over."""
    bucket = Bucket(store, [Limit.per_second("x", 8), Limit.per_minute("y", 600)])
    bucket.take(x=1, y=1)
    bucket.split_to(4)
    bucket.take(x=7, y=1)
    clock = FakeClock(bucket.now_ms)
    asked = RecordingStore(store)
    layer = Rejections(asked, clock)

    def refusal(x: int, y: int = 1) -> Verdict:
        return run(layer.consume([bucket.demand(x=x, y=y)], clock()))

    first = refusal(6)
    assert not first.allowed
    assert not first.exact_records
    calls = len(asked.calls)
    for later_ms in (0, 1, 100, first.retry_after_ms - 1):
        clock.now_ms = bucket.now_ms + later_ms
        again = refusal(6)
        assert not again.allowed
        assert again.retry_after_ms == first.retry_after_ms - later_ms
        assert [s.limit_name for s in again.violations] == ["x"]
    assert len(asked.calls) == calls
    clock.now_ms = bucket.now_ms + 100
    assert not refusal(7).allowed  # another amount: its wait was not told
    assert len(asked.calls) == calls + 1
    run(layer.adjust([bucket.demand(x=-8)], clock()))
    assert refusal(6).allowed


def test_a_demand_that_was_admitted_meanwhile_ends_what_was_told(store: DynamoStore) -> None:
    bucket = Bucket(store, [Limit.per_second("x", 8)])
    bucket.take(x=1)
    bucket.split_to(4)
    bucket.take(x=4)
    clock = FakeClock(bucket.now_ms)
    layer = Rejections(store, clock)
    first = run(layer.consume([bucket.demand(x=6)], clock()))
    assert run(layer.consume([bucket.demand(x=1)], clock())).allowed
    second = run(layer.consume([bucket.demand(x=6)], clock()))
    assert second.retry_after_ms > first.retry_after_ms


def test_a_strict_take_knows_a_divided_bucket_by_any_of_its_shards(store: DynamoStore) -> None:
    """Also where the first was forgotten meanwhile, as a task of the same process may do."""
    bucket, other = (Bucket(store, [Limit.per_second("x", 8)]) for _ in range(2))
    bucket.take(x=1)
    bucket.split()
    known = store._cache.open(bucket.key)
    known.shards = {seen.shard: seen for seen in bucket.shards() if seen.shard}
    demands = [bucket.demand(x=1), other.demand(x=1)]
    flow = take_all(store._table.name, store._cache, demands, bucket.now_ms)
    assert run(run_flow(store._port, flow)) is None


def keys_asked(bucket: Bucket, known: BucketView) -> list[int]:
    """How many keys each call of a reading asks for."""
    flow = read_shards(bucket.store._table.name, known, bucket.now_ms)
    request, asked = next(flow), []
    while True:
        asked.append(len(request.params["RequestItems"][bucket.store._table.name]["Keys"]))
        try:
            request = flow.send(run(bucket.store._port.call(request)))
        except StopIteration as done:
            assert [seen.shard for seen in done.value] == list(known.shards)
            return asked


def test_shards_that_were_told_of_are_read_together_with_the_rest(store: DynamoStore) -> None:
    bucket = Bucket(store, [Limit.per_hour("x", 100)])
    bucket.take(x=0)
    known = BucketView(bucket.key)
    assert keys_asked(bucket, known) == [1]
    bucket.split_to(4)
    assert keys_asked(bucket, known) == [1, 3, 4]  # of the fourth the third has to tell
    assert keys_asked(bucket, known) == [4]
    while bucket.merge_one():
        pass
    assert keys_asked(bucket, known) == [4]
    assert keys_asked(bucket, known) == [1]


# Soft limits of divided buckets: what was only counted in some shard never becomes tokens.

SOFT = Limit.custom("x", 40, 0, 1, soft=True)  # never refills: every token can be counted
HARD = Limit.custom("y", 4000, 0, 1)


def state(bucket: Bucket) -> tuple[int, ...]:
    bucket.store._cache.drop(bucket.key)  # as the table has it, not as it was guessed here
    return tuple(find(name) for name in ("x", "y") for find in (bucket.level, bucket.consumed))


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_what_is_taken_and_undone_leaves_no_trace(store: DynamoStore, shards: int) -> None:
    rng = random.Random(shards)
    bucket = divided(store, SOFT, HARD, shards=shards)
    for step in range(60):
        before = state(bucket)
        verdict = bucket.take(x=rng.choice((0, 1, 3, 7, 25, 90)), y=rng.randint(0, 30))
        assert verdict.allowed
        if step % 5:
            run(store.adjust(credits_of(verdict), bucket.now_ms))
            assert state(bucket) == before
        elif step % 10:
            bucket.adjust(x=rng.choice((-6, 2, 9)))  # also into debt: one shard's level differs


def test_a_soft_limit_is_passed_where_all_shards_together_have_too_little(
    store: DynamoStore,
) -> None:
    """Also where one of them has enough while another owes."""
    bucket = divided(store, SOFT, HARD, shards=2)
    bucket.adjust(x=35)
    level, consumed, *_ = state(bucket)
    verdict = bucket.take(x=39, y=2500)  # y is gathered from both
    assert verdict.allowed
    assert verdict.untaken == [(0, "x")]
    assert state(bucket)[:2] == (level, consumed + 39_000)
    run(store.adjust(credits_of(verdict), bucket.now_ms))
    assert state(bucket) == (level, consumed, 4_000_000, 0)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_refusal_of_a_divided_bucket_is_of_its_hard_limits_only(
    store: DynamoStore, shards: int
) -> None:
    bucket = divided(store, SOFT, Limit.per_second("y", 40), shards=shards)
    assert bucket.take(x=40, y=40).allowed
    verdict = bucket.take(x=30, y=30)
    error = refusal_error(verdict)
    assert isinstance(error, RateLimitExceeded)
    assert {status.limit_name for status in error.violations} == {"y"}
    assert error.retry_after_ms == verdict.retry_after_ms == 750
    bucket.now_ms += 749
    assert not bucket.take(x=30, y=30).allowed
    bucket.now_ms += 1
    assert bucket.take(x=30, y=30).allowed
