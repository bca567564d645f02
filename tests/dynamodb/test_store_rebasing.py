"""A later epoch changes nothing that anybody can see: of twins one is rebased all the time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from dynamodb.model.engine import Engine, Snapshot
from dynamodb.model.port import ModelPort
from dynamodb.shard_kit import START_MS, Bucket
from headgate.core.limits import Limit
from headgate.core.record import BucketKey, Record, Terms, cells_of
from headgate.core.runtime import run
from headgate.stores.dynamodb import over_port
from headgate.stores.dynamodb.client.port import ConditionFailed, DynamoRequest
from headgate.stores.dynamodb.protocol.item import ItemState, bucket_key
from headgate.stores.dynamodb.protocol.rebase import AGE_MS, SLACK_MS, rebase_request
from headgate.stores.dynamodb.schema import layout_of
from headgate.stores.dynamodb.store import DynamoStore

HOUR_MS = 3_600_000
KEY = BucketKey("n" * 11, "e", "r")
ODD = Limit.custom("odd", 777, refill_amount=13, refill_period_seconds=7)


class Twin(Bucket):
    """A bucket on a model of the service, with a client that keeps what it saw."""

    def __init__(self, limits: Sequence[Limit]) -> None:
        port = ModelPort(Engine(Snapshot(tables={"model": {}})), lambda: self.now_ms)
        store = over_port(port, "model", blocking=True, usage="off").store
        assert isinstance(store, DynamoStore)
        super().__init__(store, limits, "e")

    def under(self, limits: Sequence[Limit]) -> None:
        self.terms = Terms(tuple(limit.spec for limit in limits), self.terms.version + 1)

    def rebase(self, *, age_ms: int = 0) -> int:
        """How many shards count from a later epoch now."""
        asked = [
            rebase_request("model", self.key, seen, self.now_ms, age_ms=age_ms)
            for seen in self.shards()
        ]
        for request in asked:
            if request is not None:
                run(self.store._port.call(request))
        return sum(request is not None for request in asked)

    def numbers(self) -> list[int]:
        """How large what is stored has become."""
        return [abs(cell.tokens_milli) for seen in self.shards() for cell in cells_of(seen.record)]


LIMITS = (
    [Limit.per_minute("x", 100)],
    [Limit.per_second("x", 5), Limit.per_day("y", 500)],
    [Limit.per_minute("x", 7), ODD],
    [Limit.per_hour("x", 3), Limit.per_minute("y", 59, burst=80), Limit.per_day("z", 11)],
)


@pytest.mark.parametrize("limits", LIMITS, ids=lambda found: "-".join(one.name for one in found))
@pytest.mark.parametrize("seed", range(4))
def test_twins_are_told_the_same(limits: list[Limit], seed: int) -> None:
    """Takes, debts, credits, new limits, long and short pauses: verdicts and waits are equal."""
    rng = random.Random(f"{seed} {limits}")
    plain, warmed = Twin(limits), Twin(limits)
    moved = allowed = refused = 0
    for _ in range(250):
        step_ms = rng.choice((0, 1, 3, 17, 999, 60_000, HOUR_MS, 5 * HOUR_MS + 7))
        amounts = {one.name: rng.randint(0, 1 + one.capacity // 2) for one in limits}
        act = rng.random()
        for twin in (plain, warmed):
            twin.now_ms += step_ms
            if act < 0.1:
                twin.under([_quicker(one) if act < 0.05 else one for one in limits])
        moved += warmed.rebase(age_ms=rng.choice((0, AGE_MS)))
        if act > 0.85:
            sign = -1 if act > 0.93 else 1
            for twin in (plain, warmed):
                twin.adjust(**{name: sign * amount for name, amount in amounts.items()})
        told = [twin.take(**amounts) for twin in (plain, warmed)]
        assert repr(told[0]) == repr(told[1])  # with every status and wait
        assert repr(plain.check(**amounts)) == repr(warmed.check(**amounts))
        for one in limits:
            assert plain.level(one.name) == warmed.level(one.name)
            assert plain.consumed(one.name) == warmed.consumed(one.name)
        allowed += told[0].allowed
        refused += not told[0].allowed
    assert moved > 40
    assert allowed > 20
    assert refused > 20


def _quicker(limit: Limit) -> Limit:
    return Limit.per_minute(limit.name, limit.capacity + 1)


def test_numbers_stay_small_and_a_second_time_there_is_nothing_to_do() -> None:
    plain, warmed = Twin([Limit.per_second("x", 1000)]), Twin([Limit.per_second("x", 1000)])
    for twin in (plain, warmed):
        assert twin.take(x=1).allowed
        for _ in range(50):
            twin.now_ms += 24 * HOUR_MS
            assert twin.take(x=900).allowed
            if twin is warmed:
                assert twin.rebase(age_ms=AGE_MS) == 1
                assert twin.rebase(age_ms=AGE_MS) == 0
    assert max(plain.numbers()) > 4 * 10**12
    assert max(warmed.numbers()) < 10**8  # a minute's worth: the slack


def test_shards_are_rebased_each_for_itself() -> None:
    limits = [Limit.per_minute("x", 100), Limit.per_day("y", 5000)]
    plain, warmed = Twin(limits), Twin(limits)
    for twin in (plain, warmed):
        assert twin.take(x=60, y=4999).allowed
        twin.split_to(4)
        twin.now_ms += 2 * HOUR_MS + 1
    assert warmed.rebase(age_ms=AGE_MS) == 4
    for later_ms in (0, 1, 2, 61_234, HOUR_MS):
        for twin in (plain, warmed):
            twin.now_ms += later_ms
        for name in ("x", "y"):
            assert plain.level(name) == warmed.level(name)
            assert plain.consumed(name) == warmed.consumed(name)


def test_what_others_took_meanwhile_is_not_lost() -> None:
    bucket = Twin([Limit.per_hour("x", 100)])
    assert bucket.take(x=100).allowed
    bucket.now_ms += HOUR_MS // 2
    [seen] = bucket.shards()
    request = rebase_request("model", KEY, seen, bucket.now_ms, age_ms=0)
    assert request is not None
    assert bucket.take(x=40).allowed  # between the look and the write
    run(bucket.store._port.call(request))
    assert bucket.level("x") == 10_000
    assert bucket.consumed("x") == 140_000
    assert not bucket.take(x=11).allowed
    assert bucket.take(x=10).allowed


def test_a_full_bucket_that_was_taken_from_meanwhile_is_left_alone() -> None:
    bucket = Twin([Limit.per_second("x", 100)])
    assert bucket.take(x=100).allowed
    bucket.now_ms += 2 * HOUR_MS
    [seen] = bucket.shards()
    request = rebase_request("model", KEY, seen, bucket.now_ms)
    assert request is not None
    assert bucket.take(x=90).allowed
    with pytest.raises(ConditionFailed):
        run(bucket.store._port.call(request))
    assert bucket.level("x") == 10_000


def test_a_bucket_made_anew_or_rebased_by_another_is_not_touched() -> None:
    bucket = Twin([Limit.per_hour("x", 100)])
    assert bucket.take(x=100).allowed
    bucket.now_ms += 2 * HOUR_MS
    [seen] = bucket.shards()
    request = rebase_request("model", KEY, seen, bucket.now_ms)
    assert request is not None
    run(bucket.store._port.call(request))
    with pytest.raises(ConditionFailed):
        run(bucket.store._port.call(request))
    run(bucket.store.forget([KEY]))
    with pytest.raises(ConditionFailed):
        run(bucket.store._port.call(request))
    assert bucket.shards() == []  # no part of an item is left behind


def seen_of(
    *limits: Limit, epochs: Sequence[int], item_epoch_ms: int, tokens: int = 0
) -> ItemState:
    terms = Terms(tuple(limit.spec for limit in limits), 1)
    cells: list[Any] = [terms, 0, 0]
    for epoch_ms in epochs:
        cells += (epoch_ms, tokens, 0, 0)
    record: Record = tuple(cells)
    return ItemState(record, terms, layout_of(terms), 0, 0, 77, item_epoch_ms, None, 9, 0)


def names_in(request: DynamoRequest) -> set[str]:
    return set(request.params["ExpressionAttributeNames"].values())


def test_epochs_of_their_own_move_on_their_own() -> None:
    one, two = Limit.per_minute("x", 100), Limit.per_minute("y", 7)
    now_ms = START_MS + AGE_MS
    young = seen_of(one, two, epochs=[START_MS, now_ms - 1], item_epoch_ms=START_MS)
    request = rebase_request("t", KEY, young, now_ms)
    assert request is not None
    assert names_in(request) == {"g", "rf", "b_x_tk", "b_x_rf"}
    old = seen_of(one, two, epochs=[now_ms - 1, START_MS], item_epoch_ms=now_ms - 1)
    request = rebase_request("t", KEY, old, now_ms)
    assert request is not None
    assert names_in(request) == {"g", "b_x_rf", "b_y_rf", "b_y_tk"}
    assert request.params["Key"]["PK"]["S"] == bucket_key(KEY)[0]
    neither = seen_of(one, two, epochs=[now_ms - 1, now_ms - 1], item_epoch_ms=now_ms - 1)
    assert rebase_request("t", KEY, neither, now_ms) is None


def test_an_epoch_moves_only_where_nothing_is_under_way() -> None:
    """Of 13 in 7 seconds whole millitokens arrive every 7 ms; of 1 in three years hardly ever."""
    now_ms = START_MS + AGE_MS + 3
    request = rebase_request(
        "t", KEY, seen_of(ODD, epochs=[START_MS], item_epoch_ms=START_MS), now_ms
    )
    assert request is not None
    values = request.params["ExpressionAttributeValues"].values()
    epochs = [int(value["N"]) for value in values if int(value["N"]) > START_MS]
    assert len(epochs) == 1
    assert (epochs[0] - START_MS) % 7 == 0
    assert now_ms - SLACK_MS - 7 < epochs[0] <= now_ms - SLACK_MS
    slow = Limit.custom("w", 10, refill_amount=1, refill_period_seconds=100_000_007)
    lazy = seen_of(slow, epochs=[START_MS], item_epoch_ms=START_MS)
    assert rebase_request("t", KEY, lazy, START_MS + 100_000_007 + SLACK_MS) is not None
    assert rebase_request("t", KEY, lazy, START_MS + 100_000_006, age_ms=0, slack_ms=0) is None


def test_a_limit_without_refill_keeps_its_tokens() -> None:
    never = Limit.custom("q", 10, refill_amount=0, refill_period_seconds=1)
    bucket = Twin([never])
    assert bucket.take(q=4).allowed
    bucket.now_ms += 3 * HOUR_MS
    bucket.rebase()
    assert bucket.level("q") == 6000
    assert not bucket.take(q=7).allowed
