"""Clients that know only what they last saw, items in odd states, answers that get lost."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headgate import Limit
from headgate.core.decision import Demand, credit_of
from headgate.core.errors import Damaged, Throttled, Unreachable
from headgate.core.plan import join_halves
from headgate.core.record import Terms
from headgate.core.runtime import run
from headgate.stores.dynamodb.client.calls import DynamoRequest
from headgate.stores.dynamodb.protocol.item import bucket_key
from headgate.stores.dynamodb.store import DynamoStore
from headgate.stores.dynamodb.table.table import PAUSE_MS, PAUSE_MS_MAX
from proof.model.engine import ModelPort
from tests.stores.dynamodb.kit import (
    START_MS,
    TABLE,
    Bucket,
    Watched,
    engine_with_table,
    fresh_table,
    opened,
    spent,
    store_on,
)

PER_MINUTE = [Limit.per_minute("x", 10)]
Clients = list[DynamoStore]


@pytest.mark.parametrize(
    ("state", "left"), [("full", 10), ("empty", 0), ("in debt", -12), ("half full", 4)]
)
def test_two_clients_in_turns(clients: Clients, state: str, left: int) -> None:
    """Whatever the other did meanwhile, a client is told the truth, at the cost of one failure."""
    one = Bucket(clients[0], PER_MINUTE)
    two = one.seen_by(clients[1])
    assert one.take(x=1).allowed
    assert two.take(x=1).allowed
    if state == "full":
        one.now_ms = two.now_ms = one.now_ms + 60_000
    else:
        one.adjust(x=8 - left)
    spent(clients[1])
    verdict = two.take(x=1)
    assert verdict.allowed == (left > 0)
    assert spent(clients[1]) <= 2
    assert one.level() == (left - 1 if left > 0 else left) * 1000
    if left <= 0:
        assert verdict.retry_after_ms == (1 - left) * 6000
        assert verdict.statuses[0].available == left


def test_clients_that_keep_a_bucket_near_full_seldom_fail(clients: Clients) -> None:
    """Predictions about a bucket that others move too use a band below the brim."""
    one = Bucket(clients[0], [Limit.per_second("x", 160)])
    two = one.seen_by(clients[1])
    rng = random.Random(1)
    for _ in range(300):
        one.now_ms = two.now_ms = one.now_ms + rng.randint(2, 14)
        assert rng.choice((one, two)).take(x=1).allowed
    assert spent(clients[0]) + spent(clients[1]) <= 330
    assert one.level() >= 160_000 - 160_000 // 16 - 5000


def test_strict_gives_no_burst_away() -> None:
    engine = engine_with_table()
    buckets = [Bucket(store_on(engine, strict=True), PER_MINUTE, "strictly") for _ in range(2)]
    rng = random.Random(2)
    for _ in range(30):
        for bucket in buckets:
            bucket.now_ms += 60_000
        taken = 0
        while rng.choice(buckets).take(x=1).allowed:
            taken += 1
        assert taken == 10


def _cascaded_in_items(bucket: Bucket) -> int:
    """What its shards' items say came by cascade."""
    store, found = bucket.store, 0
    for seen in bucket.shards():
        pk, sk = bucket_key(bucket.key, seen.shard)
        asked = {"TableName": store._table.name, "Key": {"PK": {"S": pk}, "SK": {"S": sk}}}
        item = run(store._port.call(DynamoRequest("GetItem", asked)))["Item"]
        found += int(item.get("b_x_cc", {"N": "0"})["N"])
    return found


@pytest.mark.parametrize("strict", [False, True], ids=["apart", "strict"])
@pytest.mark.parametrize("shards", [1, 4])
def test_items_hold_what_came_by_cascade_whatever_way_it_was_written(
    strict: bool, shards: int
) -> None:
    """Made, taken, gathered, adjusted, undone, in a transaction or not: never a unit lost, none for
    what was refused. A bucket nobody cascades to has no such attribute."""
    store = store_on(engine_with_table(), strict=strict)
    child, parent, narrow = (Bucket(store, [Limit.per_day("x", size)]) for size in (9999, 9999, 1))
    rng = random.Random(shards + strict)
    wanted = 0
    for step in range(60):
        amount = rng.choice((1, 7, 700))
        asked = parent.demand(x=amount)
        cascaded = Demand(asked.key, asked.terms, asked.amounts, cascaded=asked.amounts)
        if step == 5 and shards > 1:
            parent.split_to(shards)
        match rng.randrange(5) if step else 0:
            case 0 | 1:
                done = run(store.consume([child.demand(x=1), cascaded], parent.now_ms)).allowed
            case 2:  # refused by the third bucket, and undone
                asked_too = [child.demand(x=1), cascaded, narrow.demand(x=2)]
                assert not run(store.consume(asked_too, parent.now_ms)).allowed
                done = False
            case 3:
                both = join_halves(parent.demand(x=3), cascaded)
                done = run(store.consume([child.demand(x=1), both], parent.now_ms)).allowed
            case _:
                run(store.adjust([credit_of(cascaded, ())], parent.now_ms))
                amount, done = -amount, True
        wanted += amount * 1000 if done else 0
        assert _cascaded_in_items(parent) == wanted
    assert _cascaded_in_items(child) == 0


def test_a_stale_cache_costs_one_failed_write(clients: Clients) -> None:
    one = Bucket(clients[0], PER_MINUTE)
    two = one.seen_by(clients[1])
    assert two.take(x=1).allowed
    one.terms = Terms((Limit.per_minute("x", 100).spec, Limit.per_hour("y", 50).spec), 7)
    assert one.take(x=2, y=1).allowed
    spent(clients[1])
    verdict = two.take(x=7)
    assert verdict.allowed
    assert verdict.outdated
    assert spent(clients[1]) == 2
    assert two.level() == 0


@pytest.mark.parametrize("way", ["credit", "forget"])
@pytest.mark.parametrize("strict", [False, True], ids=["apart", "strict"])
def test_a_client_that_was_refused_asks_again(way: str, strict: bool) -> None:
    """Others may have given back meanwhile: what was seen before this call refuses nothing."""
    engine = engine_with_table()
    stores = [store_on(engine, strict=strict) for _ in range(2)]
    never = [Limit.custom("x", 3, 0, 1)]
    one, other = Bucket(stores[0], never), Bucket(stores[0], never)
    two = one.seen_by(stores[1])
    assert one.take(x=3).allowed
    assert not one.take(x=1).allowed
    if way == "credit":
        two.adjust(x=-2)
    else:
        run(stores[1].forget([two.key]))
    both = [one.demand(x=1), other.demand(x=0)]
    assert run(stores[0].consume(both, one.now_ms)).allowed
    assert one.take(x=1).allowed


def call(bucket: Bucket, operation: str, **params: Any) -> None:
    """A request about the item of a bucket, past its store."""
    pk, sk = bucket_key(bucket.key)
    key = {"PK": {"S": pk}, "SK": {"S": sk}}
    where = {"Item": {**key, **params.pop("Item")}} if operation == "PutItem" else {"Key": key}
    request = DynamoRequest(operation, {"TableName": TABLE, **where, **params})
    run(bucket.store._port.call(request))


@pytest.mark.parametrize(
    "left_over", [{"b_x_tk": {"N": "5000"}}, {"b_x_tc": {"N": "5"}, "ttl": {"N": "1"}}]
)
def test_a_half_written_item_is_healed(store: DynamoStore, left_over: dict[str, Any]) -> None:
    """An item without its epoch is a ghost: it blocks nobody and counts for nothing."""
    one = Bucket(store, PER_MINUTE)
    call(one, "PutItem", Item=left_over)
    one.adjust(x=-3)
    assert [one.take(x=1).allowed for _ in range(12)].count(True) == 10
    assert one.consumed() == 10_000


def test_an_item_nobody_can_read_is_said_to_be_damaged(store: DynamoStore) -> None:
    one = Bucket(store, PER_MINUTE)
    assert one.take(x=1).allowed
    values = {":g": {"N": "1"}}
    update = "REMOVE b_x_cp SET g = :g"
    call(one, "UpdateItem", UpdateExpression=update, ExpressionAttributeValues=values)
    with pytest.raises(Damaged, match="cannot be read"):
        one.take(x=1)


def test_a_lost_answer_only_under_admits_and_is_not_asked_for_again(store: DynamoStore) -> None:
    port = store._port

    def lose() -> None:
        raise Unreachable("the answer was lost")

    one = Bucket(store, PER_MINUTE)
    assert one.take(x=1).allowed
    port.after["UpdateItem"] = lose
    with pytest.raises(Unreachable):
        one.take(x=8)
    assert one.consumed() == 9000
    port.after["UpdateItem"] = lose
    with pytest.raises(Unreachable):
        one.adjust(x=-4)
    assert (one.level(), one.consumed()) == (5000, 5000)
    assert [one.take(x=1).allowed for _ in range(8)].count(True) == 5


def test_threads_and_clients_share_one_bucket(dynamo_endpoint: str) -> None:
    """Eight threads over two clients at one moment: exactly the capacity, each counted once."""
    name = fresh_table(dynamo_endpoint)
    stores: list[Any] = [
        opened(dynamo_endpoint, name=name, options="&usage=off").store for _ in range(2)
    ]
    first = Bucket(stores[0], [Limit.per_hour("x", 50)])
    buckets = [first, first.seen_by(stores[1])]
    admitted: list[bool] = []

    def work(bucket: Bucket) -> None:
        for _ in range(10):
            try:
                admitted.append(bucket.take(x=1).allowed)
            except Throttled:
                continue

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, buckets * 4))
    assert first.consumed() == sum(admitted) * 1000
    assert sum(admitted) <= 50
    while first.take(x=1).allowed:
        admitted.append(True)
    assert sum(admitted) in range(50 - 50 // 16 - 1, 51)
    for store in stores:
        run(store.close())


class Throttling(Watched):
    """Bears so many writes a second to each key, saved up for a second, and refuses what comes
    while nothing is left."""

    def __init__(self, port: Any) -> None:
        super().__init__(port)
        self.per_s_max = 1000
        self.clock = lambda: START_MS
        self.left: dict[str, tuple[float, int]] = {}

    async def call(self, request: DynamoRequest) -> dict[str, Any]:
        written = _written(request)
        for key in written:
            left, at_ms = self.left.get(key, (self.per_s_max, self.clock()))
            saved = left + (self.clock() - at_ms) * self.per_s_max / 1000
            if saved <= 0:
                raise Throttled(f"{key} is held back")
            left = min(self.per_s_max, saved) - len(written)  # a transaction costs twice
            self.left[key] = left, self.clock()
        return await super().call(request)


def _written(request: DynamoRequest) -> list[str]:
    if request.operation == "UpdateItem":
        return [request.params["Key"]["PK"]["S"]]
    bodies = [body for part in request.params.get("TransactItems", ()) for body in part.values()]
    return [body.get("Key", body.get("Item"))["PK"]["S"] for body in bodies]


def test_a_throttled_key_splits_and_is_never_let_through() -> None:
    port = Throttling(ModelPort(engine_with_table(), lambda: START_MS))
    port.per_s_max = 40
    store = store_on(port=port)
    one = Bucket(store, [Limit.per_hour("x", 1000)])
    port.clock = lambda: one.now_ms
    admitted, held_back = 0, 0
    for at in range(900):
        one.now_ms += at % 2
        try:
            admitted += one.take(x=1).allowed
        except Throttled:
            held_back += 1
    assert len(one.shards()) >= 8
    assert admitted + held_back == 900
    port.left.clear()
    port.per_s_max = 10**9
    assert one.consumed() == admitted * 1000
    one.terms = Terms((Limit.per_hour("x", 1).spec,), 2)
    run(store.forget([one.key]))
    assert one.take(x=1).allowed
    port.left.clear()
    port.per_s_max = 0
    with pytest.raises(Throttled, match="holds back"):
        one.take(x=0)


class HoldingBack(Watched):
    """Refuses the next so many credits, before they are done."""

    refuse = 0

    async def call_all(self, requests: Any) -> Any:
        outcomes: list[Any] = []
        for request in requests:
            if self.refuse and request.credit:
                self.refuse -= 1
                outcomes.append(Throttled("held back"))
            else:
                outcomes += await super().call_all([request])
        return outcomes


@pytest.mark.parametrize("times", [2, 11])
def test_an_undo_that_was_held_back_is_sent_again(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It certainly was not applied: a refused demand consumes nothing, also then. A key is held
    back for the rest of a second, which is how long the undo must be able to try."""
    port = HoldingBack(ModelPort(engine_with_table(), lambda: START_MS))
    store = store_on(port=port)
    paused: list[int] = []

    async def pause(attempt: int) -> None:
        paused.append(min(PAUSE_MS * 2**attempt, PAUSE_MS_MAX))

    monkeypatch.setattr(store._table, "pause", pause)
    wide, narrow = Bucket(store, PER_MINUTE), Bucket(store, [Limit.per_minute("x", 1)])
    both = [wide.demand(x=2), narrow.demand(x=1)]
    assert run(store.consume(both, START_MS)).allowed
    port.refuse = times
    assert not run(store.consume(both, START_MS)).allowed
    assert port.refuse == 0
    assert len(paused) == times
    assert times == 2 or sum(paused) > 4000  # of which half is waited on average
    assert (wide.level(), wide.consumed()) == (8000, 2000)


def test_a_newer_version_of_the_same_limits_is_heard_of_with_the_next_take(
    clients: Clients,
) -> None:
    """Something else may have changed with it, such as the entity's parent."""
    older = Bucket(clients[0], PER_MINUTE)
    newer = older.seen_by(clients[1])
    assert older.take(x=1).allowed
    assert not older.take(x=1).outdated
    newer.terms = Terms(newer.terms.specs, 2)
    assert newer.take(x=1).allowed
    told = older.take(x=1)
    assert told.allowed
    assert told.outdated
    assert not newer.take(x=1).outdated
