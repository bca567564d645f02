"""Debits and credits on a divided bucket: no shard has anything while another owes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headgate.core.decision import Demand, Verdict
from headgate.core.errors import StoreTrouble
from headgate.core.limits import Limit
from headgate.core.record import BucketKey, Terms, cell_of, new_record
from headgate.core.runtime import run
from headgate.stores.dynamodb.client.calls import TransactionCancelled
from headgate.stores.dynamodb.protocol.adjust import STILL_TRIES
from headgate.stores.dynamodb.sharding.gather import divide_adjustment, even_out
from headgate.stores.dynamodb.sharding.shares import share_of
from headgate.stores.dynamodb.sharding.split import split_request
from headgate.stores.dynamodb.store import DynamoStore
from tests.stores.dynamodb.kit import Bucket, divided, engine_with_table, store_on


@pytest.mark.parametrize("debit", [1, 10, 60, 99])
def test_a_debit_is_taken_from_shards_that_have_it(store: DynamoStore, debit: int) -> None:
    bucket = divided(store, Limit.per_hour("x", 100))
    for _ in range(4):
        assert bucket.take(x=20).allowed  # one shard after the other is nearly drained
    bucket.adjust(x=debit)
    assert bucket.level() == (20 - debit) * 1000
    levels = bucket.levels()
    assert min(levels) >= 0 or max(levels) <= 0
    assert bucket.consumed() == (80 + debit) * 1000


def test_what_is_owed_is_paid_before_anything_is_admitted(store: DynamoStore) -> None:
    bucket = divided(store, Limit.per_minute("x", 60), shards=8)
    bucket.adjust(x=100)
    refused = bucket.take(x=1)
    assert (refused.allowed, refused.retry_after_ms) == (False, 41_000)
    for elapsed_ms in (0, 20_000, 39_000, 40_999):
        later = Bucket(store, [Limit.per_minute("x", 60)], bucket.key.entity_id)
        later.now_ms = bucket.now_ms + elapsed_ms
        assert not later.take(x=1).allowed
    bucket.now_ms += 41_000
    assert bucket.take(x=1).allowed


@pytest.mark.parametrize("seed", range(10))
def test_nothing_passes_a_divided_bucket_until_its_wait_is_over(seed: int) -> None:
    """Not even a demand for nothing, and whichever shard is asked: debts are divided into whole
    millitokens, so one shard has paid a little before the others have."""
    rng = random.Random(seed)
    capacity = rng.choice((8, 9, 10, 65, 100))
    amount = capacity * rng.choice((1, 3, 1000)) if rng.random() < 0.5 else rng.choice((1, 7))
    limit = Limit.custom("x", capacity, amount, rng.choice((1, 7, 60, 3600)))
    engine = engine_with_table()

    def asked(now_ms: int, wanted: int) -> Verdict:
        """By somebody who comes anew; what is taken is put back."""
        kept = engine.snapshot
        newcomer = store_on(engine)
        newcomer._cache._rng.seed(rng.random())
        caller = Bucket(newcomer, [limit], bucket.key.entity_id)
        caller.now_ms = now_ms
        verdict = caller.take(x=wanted)
        engine.snapshot = kept
        return verdict

    bucket = Bucket(store_on(engine), [limit])
    bucket.take(x=0)
    for _ in range(rng.randint(1, 7)):
        seen = rng.choice(bucket.shards())
        bucket.split(seen.shard)
    bucket.now_ms += rng.choice((0, 1, 13, 999))
    bucket.adjust(x=capacity + rng.choice((1, 5, 3 * capacity, 3000 * capacity)))
    for wanted in (0, 1):
        wait_ms = asked(bucket.now_ms, wanted).retry_after_ms
        assert wait_ms
        for early_ms in (1, 2, 10, 1000):
            if early_ms <= wait_ms:
                for _ in range(4):
                    assert not asked(bucket.now_ms + wait_ms - early_ms, wanted).allowed
        assert asked(bucket.now_ms + wait_ms, wanted).allowed


@pytest.mark.parametrize("moved", [-45, -1, 5])
def test_a_debt_that_moved_meanwhile_is_not_divided(store: DynamoStore, moved: int) -> None:
    """One half would have what the other owes."""
    bucket = Bucket(store, [Limit.per_hour("x", 100)])
    bucket.take(x=100)
    bucket.adjust(x=40)
    [seen] = bucket.shards()
    bucket.adjust(x=moved)
    with pytest.raises(TransactionCancelled):
        run(store._port.call(split_request(store._table.name, bucket.key, seen, bucket.now_ms)))
    assert bucket.levels() == [(-40 - moved) * 1000]
    bucket.split()
    levels = bucket.levels()
    assert len(levels) == 2
    assert min(levels) >= 0 or max(levels) <= 0


def test_a_debit_is_weighed_five_times_before_it_is_written_as_it_is(
    clients: list[DynamoStore],
) -> None:
    """Each time on shards that were read anew, while somebody else moves them in between."""
    mine, theirs = (Bucket(store, [Limit.per_hour("x", 100)], "weighed") for store in clients)
    mine.take(x=0)
    mine.split_to(2)
    mine.take(x=100)
    flow = mine.store._adjuster.adjust(mine.demand(x=40), mine.now_ms, metered=True)
    operations: list[str] = []
    outcome: Any = None
    while True:
        try:
            request = next(flow) if outcome is None else flow.send(outcome)
        except StopIteration:
            break
        operations.append(request.operation)
        if request.operation == "TransactWriteItems":
            theirs.adjust(x=-4)
        try:
            outcome = run(mine.store._port.call(request))
        except StoreTrouble as trouble:
            outcome = trouble
    assert "UpdateItem" not in operations  # such as one that makes a bucket which is there
    transactions = operations.count("TransactWriteItems")
    assert transactions == STILL_TRIES + 1
    assert mine.level() == (-40 + 4 * transactions) * 1000


def test_a_credit_pays_all_debts_alike(store: DynamoStore) -> None:
    bucket = divided(store, Limit.per_hour("x", 100))
    bucket.adjust(x=140)
    bucket.adjust(x=-30)
    levels = bucket.levels()
    assert sum(levels) == -10_000
    assert max(levels) <= 0
    bucket.adjust(x=-2)  # small: to one shard, were it not for the debt
    assert max(bucket.levels()) <= 0
    assert not bucket.take(x=0).allowed


def test_a_client_that_saw_tokens_does_not_put_one_shard_into_debt(
    clients: list[DynamoStore],
) -> None:
    one = divided(clients[0], Limit.per_hour("x", 100))
    two = Bucket(clients[1], [Limit.per_hour("x", 100)], one.key.entity_id)
    assert two.take(x=1).allowed
    assert one.take(x=96).allowed
    for _ in range(3):
        two.adjust(x=1)  # it knows shards that are nearly full
    levels = one.levels()
    assert sum(levels) == 0
    assert min(levels) >= 0
    two.adjust(x=2)
    assert max(one.levels()) <= 0


def test_a_credit_planned_before_a_debt_is_not_an_advance(clients: list[DynamoStore]) -> None:
    one = divided(clients[0], Limit.per_hour("x", 100))
    two = Bucket(clients[1], [Limit.per_hour("x", 100)], one.key.entity_id)
    assert two.take(x=1).allowed
    one.adjust(x=150)
    two.adjust(x=-1)
    levels = one.levels()
    assert sum(levels) == -50_000
    assert max(levels) < 0


def test_an_adjustment_with_a_key_is_placed_the_same_way(store: DynamoStore) -> None:
    bucket = divided(store, Limit.per_hour("x", 100))
    assert bucket.take(x=90).allowed
    demand = bucket.demand(x=30)
    assert run(store.adjust([demand], bucket.now_ms, metered=True, once="k"))
    assert bucket.level() == -20_000
    assert max(bucket.levels()) <= 0


def test_each_limit_is_placed_by_its_own_levels(store: DynamoStore) -> None:
    bucket = divided(store, Limit.per_hour("x", 100), Limit.per_hour("y", 40))
    bucket.adjust(x=120, y=-3)
    bucket.adjust(x=-10, y=30)
    assert (bucket.level("x"), bucket.level("y")) == (-10_000, 10_000)
    assert max(bucket.levels("x")) <= 0
    assert min(bucket.levels("y")) >= 0


def test_a_large_debt_is_paid_by_all_shards_at_one_moment() -> None:
    """Of 65 tokens in 8 shards the capacities differ by a millitoken, the paces do not."""
    terms = Terms((Limit.per_minute("x", 65).spec,), 1)
    shares = [(0, 4), (8, 4), (4, 3), (2, 2), (1, 1)]
    records = [new_record(share_of(terms, shard, depth), 0) for shard, depth in shares]
    demand = Demand(BucketKey("n" * 11, "e", "r"), terms, (65_000 * 3000,))
    parts = divide_adjustment(demand, records, 0)
    ends = []
    for record, part in zip(records, parts, strict=True):
        cell = cell_of(record, "x")
        owed = part["x"].amount_milli - cell.spec.capacity_milli
        ends.append(owed * cell.spec.period_ms // cell.spec.amount_milli)
    assert sum(part["x"].amount_milli for part in parts) == 65_000 * 3000
    assert max(ends) - min(ends) <= 2 * 16 * 60_000 // 65_000 + 1  # a millitoken of the slowest


def test_amounts_are_evened_out_exactly() -> None:
    rng = random.Random(17)
    for _ in range(3000):
        rooms = [rng.choice((1, 125, 500, rng.randint(1, 5000))) for _ in range(rng.randint(1, 8))]
        levels = [rng.randint(-2 * room, room) for room in rooms]
        amount = rng.randint(-5000, 5000)
        given = even_out(levels, rooms, amount)
        assert sum(given) == amount
        assert all(part >= 0 for part in given) if amount > 0 else all(part <= 0 for part in given)
        after = [level - part for level, part in zip(levels, given, strict=True)]
        if amount > 0 and sum(level for level in levels if level > 0) < amount:
            assert max(after) <= 0
        if amount > 0 and min(levels) >= 0 and sum(levels) >= amount:
            assert min(after) >= 0
        if amount < 0 and sum(after) <= 0 and max(levels) <= 0:
            assert max(after) <= 1  # a credit rounds up


def test_shards_without_room_take_it_as_one() -> None:
    assert even_out([0, 0], [0, 0], 5) == [5, 0]
    assert even_out([0, 0], [0, 0], -5) == [-5, 0]
    assert even_out([3, 4], [10, 10], 0) == [0, 0]


def test_the_wait_of_a_divided_bucket_that_was_not_asked_is_its_shards(store: DynamoStore) -> None:
    """A take of several buckets was refused by another of them. A shard that is full gains nothing
    while the one beside it refills, so the wait is twice what their sum would tell."""
    bucket = divided(store, Limit.per_minute("x", 60), shards=2)
    assert bucket.take(x=30).allowed
    assert sorted(bucket.levels()) == [0, 30_000]
    told = store._refusal([bucket.demand(x=45)], {}, bucket.now_ms)
    assert told.retry_after_ms == bucket.take(x=45).retry_after_ms == 30_000
    bucket.now_ms += 30_000
    assert bucket.take(x=45).allowed


def test_a_refusal_knows_a_bucket_that_was_given_back_to_shards_nobody_told_of(
    store: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told as full, and remembered as if it were in one piece."""
    bucket = divided(store, Limit.per_minute("x", 60), shards=2)
    other = Bucket(store, [Limit.per_minute("y", 60)])
    assert bucket.take(x=30).allowed
    assert other.take(y=60).allowed
    undo = store._undo

    async def undo_and_forget(*given: Any) -> Any:
        trouble = await undo(*given)
        store._cache.drop(bucket.key)
        return trouble

    monkeypatch.setattr(store, "_undo", undo_and_forget)
    demands = [bucket.demand(x=20), other.demand(y=1)]
    told = run(store.consume(demands, bucket.now_ms))
    assert [status.available for status in told.statuses] == [30, 0]
    assert not told.exact_records


def test_a_take_from_a_divided_bucket_does_not_tell_its_waits(store: DynamoStore) -> None:
    bucket = divided(store, Limit.per_minute("x", 60), shards=2)
    assert not bucket.take(x=1).exact_records
    assert Bucket(store, [Limit.per_minute("x", 60)]).take(x=1).exact_records
