"""Several clients move one nearly full bucket: what that costs, and that nothing is lost by it.

A client predicts from the state it last saw whether a limit has run over. Where others took
meanwhile, the write fails, and its answer is the true state.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from headgate import Limit
from headgate.core.decision import Demand
from headgate.core.errors import Contended, Throttled
from headgate.core.record import BucketKey, Terms
from headgate.core.runtime import run
from headgate.stores.dynamodb.client.calls import DynamoRequest, Flow, TransactionCancelled
from headgate.stores.dynamodb.protocol.adjust import Adjuster
from headgate.stores.dynamodb.protocol.flow import ATTEMPTS_MAX
from headgate.stores.dynamodb.protocol.item import StateCache
from headgate.stores.dynamodb.protocol.limit_moves import band_milli
from headgate.stores.dynamodb.protocol.take import Landed
from headgate.stores.dynamodb.sharding.router import Taker
from proof.model.engine import ModelPort
from tests.stores.dynamodb.kit import START_MS, TABLE, Bucket, Watched, engine_with_table, store_on

MONTH_S = 30 * 86_400
DAY_MS = 86_400_000
MONTHLY = Limit.custom("x", 10_000, 10_000, MONTH_S)
WRITES = ("UpdateItem", "TransactWriteItems")


def clients_of(limits: list[Limit], count: int) -> list[Bucket]:
    """One bucket as that many processes see it, each with a cache of its own."""
    engine = engine_with_table()
    return [Bucket(store_on(engine), limits, "shared") for _ in range(count)]


def wait(clients: list[Bucket], elapsed_ms: int) -> None:
    for client in clients:
        client.now_ms += elapsed_ms


@pytest.mark.parametrize(
    ("limit", "band"),
    [
        (Limit.per_second("x", 160), 10_000),
        (Limit.custom("x", 16, 1, 1), 1000),  # exactly a sixteenth a second
        (Limit.custom("x", 17, 1, 1), 0),  # a little less than that
        (Limit.per_second("x", 10, burst=1000), 0),
        (Limit.per_minute("x", 600), 0),
        (MONTHLY, 0),
        (Limit.custom("x", 1000, 0, 1), 0),
    ],
    ids=str,
)
def test_only_a_limit_that_refills_a_sixteenth_within_a_second_gives_it_away(
    limit: Limit, band: int
) -> None:
    assert band_milli(*limit.spec.rate[:3]) == band


def test_an_allowance_beside_a_limit_that_others_move_loses_nothing() -> None:
    """The failed prediction is about x, which refills fast; y never gets anything back."""
    limits = [Limit.per_second("x", 10), Limit.custom("y", 1000, 0, 1)]
    clients = one, two = clients_of(limits, 2)
    assert one.take(x=1, y=1).allowed
    assert two.take(x=1, y=1).allowed
    wait(clients, 10_000)
    assert one.take(x=1, y=1).allowed
    assert two.take(x=1, y=1).allowed
    assert one.level("y") == 996_000


def test_a_monthly_limit_that_four_clients_move_loses_nothing() -> None:
    clients = clients_of([MONTHLY], 4)
    for _ in range(3):
        for client in clients:
            assert client.take(x=1).allowed
        assert clients[0].level() == 9_996_000
        wait(clients, DAY_MS)  # full again: each but the first then predicts wrongly, once
        assert clients[0].level() == 10_000_000


def test_a_limit_that_flips_between_attempts_is_taken_from_all_the_same() -> None:
    """Others take and give back around the brim, each time just before a write of this client."""
    clients = one, two = clients_of([Limit.per_minute("x", 600)], 2)
    assert one.take(x=1).allowed
    assert two.take(x=1).allowed
    wait(clients, 60_000)
    flips = iter([1, -2, 2, -3, 2, -3, 2, -3, 2])  # over, under, over … the brim

    port = one.store._port

    def flip() -> None:
        amount = next(flips, None)
        if amount is not None:
            two.adjust(x=amount)
            port.before["UpdateItem"] = flip

    port.before["UpdateItem"] = flip
    port.calls.clear()
    assert one.take(x=1).allowed
    assert next(flips, None) is None
    assert port.calls == ["UpdateItem"] * 10


def strict_take(one: Bucket, other: Bucket) -> object:
    return run(one.store.consume([one.demand(x=1), other.demand(x=1)], one.now_ms))


class Conflicting(Watched):
    """Answers every write with a conflict, once it is told to."""

    told = False

    async def call(self, request: DynamoRequest) -> dict[str, Any]:
        if not self.told or request.operation not in WRITES:
            return await super().call(request)
        self._note(request)
        if request.operation == "UpdateItem":
            raise Contended("a transaction is under way")
        parts = len(request.params["TransactItems"])
        raise TransactionCancelled([("TransactionConflict", None)] * parts)


@pytest.mark.parametrize(
    ("shards", "change", "calls"),
    [
        (1, lambda one, _: one.take(x=1), ATTEMPTS_MAX),
        (1, strict_take, 2 * ATTEMPTS_MAX),  # what is there is read before each
        (1, lambda one, _: one.adjust(x=1), ATTEMPTS_MAX),
        (4, lambda one, _: one.take(x=60), 2 * ATTEMPTS_MAX + 1),  # and a look at what to merge
        (4, lambda one, _: one.adjust(x=60), 2 * ATTEMPTS_MAX),
    ],
    ids=["take", "strict take", "adjust", "gather", "adjust of shards"],
)
def test_attempts_end_where_every_write_meets_another(
    shards: int, change: Callable[[Bucket, Bucket], object], calls: int
) -> None:
    port = Conflicting(ModelPort(engine_with_table(), lambda: START_MS))
    store = store_on(port=port, strict=True)
    one, other = (Bucket(store, [Limit.per_hour("x", 100)]) for _ in range(2))
    assert one.take(x=2).allowed
    assert other.take(x=2).allowed
    one.split_to(shards)
    port.told = True
    port.calls.clear()
    with pytest.raises(Throttled, match="12 attempts met another write; nothing was changed"):
        change(one, other)
    assert len([call for call in port.calls if call in WRITES]) == ATTEMPTS_MAX
    assert len(port.calls) <= calls
    port.told = False
    assert one.consumed() == other.consumed() == 2000
    change(one, other)


class Race:
    """Clients whose requests take a while to arrive and to be answered, on simulated time."""

    def __init__(self, limit: Limit, clients: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.key = BucketKey("n" * 11, "e", "r")
        self.terms = Terms((limit.spec,), 1)
        self.engine = engine_with_table()
        self.takers = [Taker(TABLE, StateCache(rng=self.rng)) for _ in range(clients)]
        self.attempts: list[int] = []  # requests of each take
        self.taken = 0
        self.end_ms = START_MS
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()

    def run(self, takes: int, per_s: float, *, refunds: bool) -> None:
        at_ms = 0.0
        for _ in range(takes):
            at_ms += self.rng.expovariate(per_s) * 1000
            self._plan(at_ms, lambda now, refunds=refunds: self._take(now, refunds))
        while self._events:
            at_ms, _, event = heapq.heappop(self._events)
            event(at_ms)
        self.end_ms = START_MS + int(at_ms)

    def demand(self, amount: int) -> Demand:
        return Demand(self.key, self.terms, (amount * 1000,))

    def _plan(self, at_ms: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (at_ms, next(self._order), event))

    def _take(self, at_ms: float, refund: bool) -> None:
        taker = self.rng.choice(self.takers)

        def done(at_ms: float, requests: int, result: Any) -> None:
            assert isinstance(result, Landed)
            self.attempts.append(requests)
            self.taken += 1
            if refund:
                self._plan(at_ms + self.rng.uniform(0, 5), give_back)

        def give_back(at_ms: float) -> None:
            self.taken -= 1
            now_ms = START_MS + int(at_ms)
            flow = Adjuster(taker.table, taker.cache).adjust(self.demand(-1), now_ms, metered=True)
            self._step(at_ms, flow, None, 0, lambda *_: None)

        flow = taker.take(self.demand(1), START_MS + int(at_ms))
        self._step(at_ms, flow, None, 0, done)

    def _step(
        self, at_ms: float, flow: Flow[Any], outcome: Any, requests: int, done: Callable[..., None]
    ) -> None:
        """Sends the flow's next request; a flow that gives up raises, which fails the test."""
        try:
            request = next(flow) if outcome is None else flow.send(outcome)
        except StopIteration as end:
            done(at_ms, requests, end.value)
            return
        one_way_ms = self.rng.uniform(1, 5)

        def arrive(at_ms: float) -> None:
            answer = self.engine.apply(request)
            self._plan(
                at_ms + one_way_ms, lambda now: self._step(now, flow, answer, requests + 1, done)
            )

        self._plan(at_ms + one_way_ms, arrive)


@pytest.mark.parametrize("refunds", [False, True], ids=["takes", "takes and refunds"])
@pytest.mark.parametrize("clients", [2, 4])
def test_what_a_take_costs_where_clients_share_a_monthly_limit(clients: int, refunds: bool) -> None:
    """A failed conditional write is billed like a write, so there must be few of them."""
    race = Race(MONTHLY, clients, seed=clients)
    race.run(1000, per_s=20, refunds=refunds)
    assert len(race.attempts) == 1000
    assert max(race.attempts) <= (4 if refunds else 2)
    assert sum(race.attempts) <= (1400 if refunds else 1010)
    bucket = Bucket(store_on(race.engine), [MONTHLY], "e")
    bucket.now_ms = race.end_ms
    assert bucket.consumed() == race.taken * 1000
    assert 0 <= bucket.level() - (10_000 - race.taken) * 1000 < 1000  # what came in meanwhile


def test_nobody_is_turned_away_where_many_clients_take_and_give_back() -> None:
    """64 clients keep a limit per minute around its brim; a flow that gives up raises."""
    race = Race(Limit.per_minute("x", 600), 64, seed=1)
    race.run(1000, per_s=300, refunds=True)
    assert len(race.attempts) == 1000
    assert sum(race.attempts) <= 2000
