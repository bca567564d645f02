"""Clients that know only what they last saw, items in odd states, answers that get lost."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headgate import Limit
from headgate.core.errors import Damaged, StoreTrouble, Throttled, Unreachable
from headgate.core.record import Terms
from headgate.core.runtime import run
from headgate.stores.dynamodb import over_port
from headgate.stores.dynamodb.client.calls import DynamoRequest
from headgate.stores.dynamodb.protocol.item import bucket_key
from headgate.stores.dynamodb.store import DynamoStore
from headgate.stores.dynamodb.table.table import PAUSE_MS, PAUSE_MS_MAX
from tests.stores.dynamodb.catalog.kit import Watched, port_to
from tests.stores.dynamodb.kit import fresh_table
from tests.stores.dynamodb.sharding.kit import START_MS, Bucket

PER_MINUTE = [Limit.per_minute("x", 10)]


class Client:
    """A process of its own: its port, its cache."""

    def __init__(self, endpoint: str, table: str) -> None:
        self.port = Watched(port_to(endpoint))
        store = over_port(self.port, table, blocking=True, usage="off").store
        assert isinstance(store, DynamoStore)
        self.store = store
        self.table = table

    def sees(self, other: Bucket) -> Bucket:
        """The same bucket, as this client knows it."""
        twin = Bucket(self.store, [], other.key.entity_id)
        twin.terms, twin.now_ms = other.terms, other.now_ms
        return twin


@pytest.fixture(scope="module")
def table(dynamo_endpoint: str) -> str:
    return fresh_table(dynamo_endpoint)


@pytest.fixture
def pair(dynamo_endpoint: str, table: str) -> Iterator[tuple[Client, Client]]:
    clients = Client(dynamo_endpoint, table), Client(dynamo_endpoint, table)
    yield clients
    for client in clients:
        run(client.store.close())


Pair = tuple[Client, Client]


def spent(client: Client) -> int:
    count, client.port.calls = len(client.port.calls), []
    return count


@pytest.mark.parametrize("state", ["full", "empty", "in debt", "half full"])
def test_two_clients_in_turns(pair: Pair, state: str) -> None:
    """Whatever the other did meanwhile, a client is told the truth, at the cost of one failure."""
    one = Bucket(pair[0].store, PER_MINUTE)
    two = pair[1].sees(one)
    assert one.take(x=1).allowed
    assert two.take(x=1).allowed
    if state == "empty":
        assert one.take(x=8).allowed
    elif state == "in debt":
        one.adjust(x=20)
    elif state == "half full":
        assert one.take(x=4).allowed
    else:
        one.now_ms = two.now_ms = one.now_ms + 60_000
    left = {"full": 10, "empty": 0, "in debt": -12, "half full": 4}[state]
    spent(pair[1])
    verdict = two.take(x=1)
    assert verdict.allowed == (left > 0)
    assert spent(pair[1]) <= 2
    assert one.level() == (left - 1 if left > 0 else left) * 1000
    if left <= 0:
        assert verdict.retry_after_ms == (1 - left) * 6000
        assert verdict.statuses[0].available == left


def test_clients_that_keep_a_bucket_near_full_seldom_fail(pair: Pair) -> None:
    """Predictions about a bucket that others move too use a band below the brim."""
    one = Bucket(pair[0].store, [Limit.per_second("x", 160)])
    two = pair[1].sees(one)
    rng = random.Random(1)
    admitted, writes = 0, 0
    for _ in range(300):
        one.now_ms = two.now_ms = one.now_ms + rng.randint(2, 14)
        admitted += rng.choice((one, two)).take(x=1).allowed
    writes = spent(pair[0]) + spent(pair[1])
    assert admitted == 300
    assert writes <= 330
    assert one.level() >= 160_000 - 160_000 // 16 - 5000


def test_strict_gives_no_burst_away(dynamo_endpoint: str, table: str) -> None:
    ports = [Watched(port_to(dynamo_endpoint)) for _ in range(2)]
    stores = [
        over_port(port, table, blocking=True, strict=True, usage="off").store for port in ports
    ]
    buckets = [Bucket(store, PER_MINUTE, "strictly") for store in stores]  # type: ignore[arg-type]
    rng = random.Random(2)
    for _ in range(60):
        now_ms = buckets[0].now_ms + 60_000
        for bucket in buckets:
            bucket.now_ms = now_ms
        taken = 0
        while rng.choice(buckets).take(x=1).allowed:
            taken += 1
        assert taken == 10
    for store in stores:
        run(store.close())


def test_a_stale_cache_costs_one_failed_write(pair: Pair) -> None:
    one = Bucket(pair[0].store, PER_MINUTE)
    two = pair[1].sees(one)
    assert two.take(x=1).allowed
    one.terms = Terms((Limit.per_minute("x", 100).spec, Limit.per_hour("y", 50).spec), 7)
    assert one.take(x=2, y=1).allowed
    spent(pair[1])
    verdict = two.take(x=7)
    assert verdict.allowed
    assert verdict.outdated
    assert spent(pair[1]) == 2
    assert two.level() == 0


@pytest.mark.parametrize("way", ["credit", "forget"])
@pytest.mark.parametrize("options", [{}, {"strict": True}], ids=["apart", "strict"])
def test_a_client_that_was_refused_asks_again(
    dynamo_endpoint: str, table: str, way: str, options: dict[str, Any]
) -> None:
    """Others may have given back meanwhile: what was seen before this call refuses nothing."""
    ports = [Watched(port_to(dynamo_endpoint)) for _ in range(2)]
    stores = [over_port(port, table, blocking=True, usage="off", **options).store for port in ports]
    never = [Limit.custom("x", 3, 0, 1)]
    one, two = (Bucket(store, never, f"asks-{way}-{len(options)}") for store in stores)  # type: ignore[arg-type]
    other = Bucket(stores[0], never, "beside")  # type: ignore[arg-type]
    assert one.take(x=3).allowed
    assert not one.take(x=1).allowed
    if way == "credit":
        two.adjust(x=-2)
    else:
        run(stores[1].forget([two.key]))
    both = [one.demand(x=1), other.demand(x=0)]
    assert run(stores[0].consume(both, one.now_ms)).allowed
    assert one.take(x=1).allowed
    for store in stores:
        run(store.close())


def test_an_item_that_expired_and_is_still_there_is_full(pair: Pair) -> None:
    one = Bucket(pair[0].store, PER_MINUTE)
    assert one.take(x=10).allowed
    one.now_ms += 30 * 86_400_000
    [seen] = one.shards()
    assert seen.ttl_s is not None
    assert seen.ttl_s * 1000 < one.now_ms
    assert [one.take(x=1).allowed for _ in range(12)] == [True] * 10 + [False] * 2
    [seen] = one.shards()
    assert seen.ttl_s is not None
    assert seen.ttl_s * 1000 > one.now_ms + 60_000


def test_an_item_that_expired_under_a_warm_client_is_made_again(pair: Pair) -> None:
    one = Bucket(pair[0].store, PER_MINUTE)
    two = pair[1].sees(one)
    assert one.take(x=10).allowed
    assert not two.take(x=1).allowed
    one.now_ms = two.now_ms = one.now_ms + 200_000
    _delete(pair[0], one)
    assert two.take(x=10).allowed
    assert not one.take(x=1).allowed


@pytest.mark.parametrize(
    "left_over", [{"b_x_tk": {"N": "5000"}}, {"b_x_tc": {"N": "5"}, "ttl": {"N": "1"}}]
)
def test_a_half_written_item_is_healed(pair: Pair, left_over: dict[str, Any]) -> None:
    """An item without its epoch is a ghost: it blocks nobody and counts for nothing."""
    one = Bucket(pair[0].store, PER_MINUTE)
    pk, sk = bucket_key(one.key)
    item = {"PK": {"S": pk}, "SK": {"S": sk}, **left_over}
    run(pair[0].port.call(DynamoRequest("PutItem", {"TableName": pair[0].table, "Item": item})))
    one.adjust(x=-3)
    assert [one.take(x=1).allowed for _ in range(12)].count(True) == 10
    assert one.consumed() == 10_000


def test_an_item_nobody_can_read_is_said_to_be_damaged(pair: Pair) -> None:
    one = Bucket(pair[0].store, PER_MINUTE)
    assert one.take(x=1).allowed
    pk, sk = bucket_key(one.key)
    broken = {
        "TableName": pair[0].table,
        "Key": {"PK": {"S": pk}, "SK": {"S": sk}},
        "UpdateExpression": "REMOVE b_x_cp SET g = :g",
        "ExpressionAttributeValues": {":g": {"N": "1"}},
    }
    run(pair[0].port.call(DynamoRequest("UpdateItem", broken)))
    with pytest.raises(Damaged, match="cannot be read"):
        one.take(x=1)


class Lossy(Watched):
    """Loses the answer to the next so many writes, after they were done."""

    def __init__(self, port: Any) -> None:
        super().__init__(port)
        self.lose = 0

    async def call(self, request: DynamoRequest) -> dict[str, Any]:
        reply = await super().call(request)
        if self.lose and request.operation == "UpdateItem":
            self.lose -= 1
            raise Unreachable("the answer was lost")
        return reply


@pytest.fixture
def lossy(dynamo_endpoint: str, table: str) -> Iterator[Lossy]:
    port = Lossy(port_to(dynamo_endpoint))
    yield port
    run(port.close())


def test_a_lost_answer_to_a_debit_only_under_admits(lossy: Lossy, table: str) -> None:
    store = over_port(lossy, table, blocking=True, usage="off").store
    assert isinstance(store, DynamoStore)
    one = Bucket(store, PER_MINUTE)
    assert one.take(x=1).allowed
    lossy.lose = 1
    with pytest.raises(Unreachable):
        one.take(x=4)
    assert one.consumed() == 5000
    assert [one.take(x=1).allowed for _ in range(8)].count(True) == 5


def test_a_lost_answer_to_a_credit_is_not_sent_again(lossy: Lossy, table: str) -> None:
    store = over_port(lossy, table, blocking=True, usage="off").store
    assert isinstance(store, DynamoStore)
    one = Bucket(store, PER_MINUTE)
    assert one.take(x=9).allowed
    lossy.lose = 1
    with pytest.raises(Unreachable):
        one.adjust(x=-4)
    assert one.level() == 5000
    assert one.consumed() == 5000


@pytest.mark.parametrize("skew_ms", [-10_000, 10_000])
def test_a_clock_ten_seconds_off_shifts_by_its_skew_and_no_more(pair: Pair, skew_ms: int) -> None:
    limit = Limit.per_second("x", 5)
    one = Bucket(pair[0].store, [limit])
    two = pair[1].sees(one)
    rng = random.Random(skew_ms)
    admitted, start_ms = 0, one.now_ms
    for _ in range(150):
        one.now_ms += rng.choice((0, 20, 150))
        two.now_ms = one.now_ms + skew_ms
        admitted += rng.choice((one, two)).take(x=1).allowed
    slack = 5 + 5 * abs(skew_ms) // 1000
    assert admitted <= 5 + 5 * (one.now_ms - start_ms) // 1000 + slack
    [seen] = one.shards()
    assert START_MS + min(0, skew_ms) <= seen.epoch_ms <= one.now_ms + max(0, skew_ms)


def test_threads_and_clients_share_one_bucket(dynamo_endpoint: str, table: str) -> None:
    """Eight threads over two clients at one moment: exactly the capacity, each counted once."""
    clients = [Client(dynamo_endpoint, table) for _ in range(2)]
    first = Bucket(clients[0].store, [Limit.per_hour("x", 100)])
    buckets = [first, clients[1].sees(first)]
    admitted: list[int] = []

    def work(bucket: Bucket) -> None:
        count = 0
        for _ in range(25):
            try:
                count += bucket.take(x=1).allowed
            except Throttled:
                continue
        admitted.append(count)

    threads = [threading.Thread(target=work, args=(buckets[n % 2],)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert first.consumed() == sum(admitted) * 1000
    assert sum(admitted) <= 100
    while first.take(x=1).allowed:
        admitted.append(1)
    assert sum(admitted) in range(100 - 100 // 16 - 1, 101)
    for client in clients:
        run(client.store.close())


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
    if request.operation != "TransactWriteItems":
        return []
    found = []
    for part in request.params["TransactItems"]:
        [body] = part.values()
        found.append(body.get("Key", body.get("Item"))["PK"]["S"])
    return found


def test_a_throttled_key_splits_and_is_never_let_through(dynamo_endpoint: str, table: str) -> None:
    port = Throttling(port_to(dynamo_endpoint))
    port.per_s_max = 40
    store = over_port(port, table, blocking=True, usage="off").store
    assert isinstance(store, DynamoStore)
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
    run(store.close())


def _delete(client: Client, bucket: Bucket) -> None:
    pk, sk = bucket_key(bucket.key)
    key = {"PK": {"S": pk}, "SK": {"S": sk}}
    run(client.port.call(DynamoRequest("DeleteItem", {"TableName": client.table, "Key": key})))


def test_trouble_is_raised_as_it_is(pair: Pair) -> None:
    run(pair[0].port.inner.close())
    with pytest.raises(StoreTrouble):
        Bucket(pair[0].store, PER_MINUTE).take(x=1)


class HoldingBack(Watched):
    """Refuses the next so many credits, before they are done."""

    def __init__(self, port: Any) -> None:
        super().__init__(port)
        self.refuse = 0

    async def call_all(self, requests: Any) -> Any:
        outcomes = []
        for request in requests:
            if self.refuse and request.credit:
                self.refuse -= 1
                outcomes.append(Throttled("held back"))
            else:
                outcomes += await super().call_all([request])
        return outcomes


@pytest.mark.parametrize("times", [2, 11])
def test_an_undo_that_was_held_back_is_sent_again(
    dynamo_endpoint: str, table: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It certainly was not applied: a refused demand consumes nothing, also then. A key is held
    back for the rest of a second, which is how long the undo must be able to try."""
    port = HoldingBack(port_to(dynamo_endpoint))
    store = over_port(port, table, blocking=True, usage="off").store
    assert isinstance(store, DynamoStore)
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
    assert wide.level() == 8000
    assert wide.consumed() == 2000
    run(store.close())


def test_a_newer_version_of_the_same_limits_is_heard_of_with_the_next_take(
    clients: list[DynamoStore],
) -> None:
    """Something else may have changed with it, such as the entity's parent."""
    older, newer = (Bucket(store, PER_MINUTE, "versioned") for store in clients)
    assert older.take(x=1).allowed
    assert not older.take(x=1).outdated
    newer.terms = Terms(newer.terms.specs, 2)
    assert newer.take(x=1).allowed
    told = older.take(x=1)
    assert told.allowed
    assert told.outdated
    assert not newer.take(x=1).outdated
