"""Prefetch when many come at once: one call at a time for a bucket, and everybody is answered."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.decision import Demand, Verdict
from headgate.core.errors import Contended, StoreDenied, StoreTrouble, Throttled, Unreachable
from headgate.core.limits import Limit
from headgate.core.record import cell_of
from headgate.layers.held_tokens import SHARE
from headgate.layers.prefetch import TURNS_MAX, WAIT_MS, Prefetch
from headgate.layers.stack import add_layers
from headgate.stores.memory.buckets import MemoryStore
from headgate.testing import FakeClock, RecordingStore
from headgate.transport.gates import BlockingGateFactory, WaitGate
from tests.flows.conftest import SlowStore
from tests.layers.kit import FAST, HERD, STILL, Buckets, Client, Herd, admitted, turns


async def test_a_herd_makes_two_calls(herd: Herd) -> None:
    assert admitted(await herd.come(FAST.want(1))) == HERD
    assert (len(herd.store.calls), herd.store.most) == (2, 1)
    assert herd.store.asked[0] == 1, "nothing is known of the first"
    assert HERD - 1 <= herd.store.asked[1] <= 3 * HERD, "the second is for all who wait"
    assert admitted(await herd.come(FAST.want(1))) == HERD
    assert len(herd.store.calls) <= 3
    assert herd.store.most == 1


def test_a_herd_of_threads_makes_two_calls() -> None:
    class Counted(BlockingGateFactory):
        def __init__(self) -> None:
            self.made = threading.Semaphore(0)

        def gate(self) -> WaitGate:
            self.made.release()
            return super().gate()

    class Slow(RecordingStore):
        async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
            verdict = await super().consume(demands, now_ms)
            if len(self.calls) == 1:
                for _ in range(HERD - 1):
                    assert pace.made.acquire(timeout=60), "all others wait"
            return verdict

    clock, pace = FakeClock(), Counted()
    store = Slow(MemoryStore(clock))
    layer = Prefetch(store, clock, pace)
    with ThreadPoolExecutor(HERD) as pool:
        calls = [pool.submit(Client(layer, clock).take, FAST.want(1)) for _ in range(HERD)]
    assert all(call.result().allowed for call in calls)
    assert len(store.calls) == 2


def test_one_caller_at_a_time_makes_the_same_calls_as_without_waiting(clock: FakeClock) -> None:
    rng = random.Random(4)
    stores = [RecordingStore(MemoryStore(clock)) for _ in range(2)]
    paces = (None, clock.pace(blocking=True))
    clients = [
        Client(Prefetch(store, clock, pace), clock)
        for store, pace in zip(stores, paces, strict=True)
    ]
    mixed = Buckets(Limit.custom("a", 2000, 900, 1), Limit.custom("b", 90_000, 50_000, 1))
    began_ms = clock()
    steps_ms = 0
    for _ in range(1500):
        step_ms = rng.choice((0, 1, 1, 2, 3))
        clock.advance(step_ms)
        steps_ms += step_ms
        demand = mixed.want(rng.randint(0, 3), rng.choice((None, 40, 160)))
        with_pace, without = (client.take(demand) for client in clients)
        assert with_pace.allowed == without.allowed
    asked = [
        [(call[0], call[1][0][0].amounts, call[1][1]) for call in store.calls] for store in stores
    ]
    assert asked[0] == asked[1]
    assert clock() == began_ms + steps_ms, "nobody waited"


@pytest.mark.parametrize(
    "trouble",
    [Throttled("too fast", 250), Unreachable("no answer"), StoreDenied("no right")],
    ids=["throttled", "away", "denied"],
)
async def test_trouble_is_everybodys_who_waited_for_the_call(
    herd: Herd, trouble: StoreTrouble
) -> None:
    herd.store.troubles = [trouble]
    told = await herd.come(STILL.want(1))
    assert len(herd.store.calls) == 1
    assert [type(error) for error in told] == [type(trouble)] * HERD
    assert {str(error) for error in told} == {str(trouble)}
    assert {getattr(error, "wait_ms", None) for error in told} == {
        getattr(trouble, "wait_ms", None)
    }
    assert len({id(error) for error in told}) == HERD, "each has a traceback of its own"
    assert admitted(await herd.come(STILL.want(1), 20)) == 20
    assert (len(herd.store.calls), herd.store.most) == (2, 1)
    assert await herd.left(STILL) == 1000 - 20


async def test_what_one_call_met_alone_is_not_the_others_trouble(herd: Herd) -> None:
    herd.store.troubles = [Contended("lost a race"), Contended("lost another")]
    told = await herd.come(STILL.want(1), 20)
    assert admitted(told) == 18
    assert (len(herd.store.calls), herd.store.most) == (3, 1)
    assert await herd.left(STILL) == 1000 - 18


async def test_trouble_leaves_those_alone_who_find_enough_at_hand(herd: Herd) -> None:
    """Somebody fetches more in vain; who wants more than is left shares that, others do not."""

    await herd.come(STILL.want(1), 12)
    held = herd.layer.held_milli(STILL.key())["n"] // 1000
    assert 2 < held < 25
    herd.store.let_go.clear()
    herd.store.troubles = [Throttled("too fast")]
    large = [herd.ask(STILL.want(25)) for _ in range(3)]
    await turns()
    small = [herd.ask(STILL.want(1)) for _ in range(held)]
    await turns()
    assert all(task.done() for task in small)
    herd.store.let_go.set()
    told = await asyncio.gather(*large, return_exceptions=True)
    assert [type(error) for error in told] == [Throttled] * 3


@pytest.mark.parametrize("rejections", [True, False])
async def test_a_bucket_with_less_than_the_herd_wants_gives_all_it_has(rejections: bool) -> None:
    herd = Herd(rejections=rejections)
    assert herd.other.take(STILL.want(979)).allowed
    told = await herd.come(STILL.want(1))
    assert admitted(told) == 21
    assert all(isinstance(verdict, Verdict) for verdict in told)
    assert herd.store.asked[2] == 20, "what is there, for as many as it lasts"
    if rejections:
        assert (len(herd.store.calls), herd.store.most) == (3, 1)
    assert herd.layer.held_milli(STILL.key()) == {"n": 0}


async def test_a_smaller_demand_may_fit_where_another_was_refused(herd: Herd) -> None:
    assert herd.other.take(STILL.want(995)).allowed
    wants = [25, 4, 25, 1, 1]
    tasks = [herd.ask(STILL.want(tokens)) for tokens in wants]
    told = await asyncio.gather(*tasks)
    assert [verdict.allowed for verdict in told] == [False, True, False, True, False]
    assert herd.store.most == 1, "one at a time"


async def test_a_dry_bucket_is_nothing_to_wait_for(herd: Herd) -> None:
    herd.other.take(STILL.want(1000))
    assert not (await herd.ask(STILL.want(1))).allowed
    herd.store.calls.clear()
    assert admitted(await herd.come(STILL.want(1), 20)) == 0
    assert (len(herd.store.calls), herd.store.most) == (20, 20)


async def test_who_cannot_be_served_by_a_chunk_does_not_wait_for_one(herd: Herd) -> None:
    """A demand beyond the share, soft limits, other terms, several buckets."""
    soft = Buckets(Limit.per_second("rps", 10_000, soft=True))
    newer = Buckets(Limit.per_second("rps", 10_000), version=2)

    herd = Herd()
    herd.store.let_go.clear()
    tasks = [herd.ask(FAST.want(1)) for _ in range(3)]
    tasks += [herd.ask(FAST.want(300)) for _ in range(3)]
    tasks += [herd.ask(newer.want(1)) for _ in range(3)]
    tasks += [herd.ask(soft.want(1, entity_id="soft")) for _ in range(3)]
    pair = [FAST.want(1), FAST.want(1, entity_id="b")]
    tasks += [asyncio.ensure_future(herd.layer.consume(pair, herd.clock()))]  # type: ignore[arg-type]
    await turns()
    assert herd.store.under_way == 1 + 3 + 3 + 3 + 1
    herd.store.let_go.set()
    assert admitted(await asyncio.gather(*tasks)) == len(tasks)


@settings(max_examples=40)
@given(
    capacity=st.sampled_from([40, 100, 1000]),
    herds=st.lists(
        st.tuples(
            st.lists(st.integers(1, 30), min_size=1, max_size=12),
            st.integers(0, 12),
            st.sampled_from([0, 1, 90, 1000]),
        ),
        max_size=6,
    ),
    troubled=st.booleans(),
)
def test_never_above_the_share_and_every_token_accounted_for(
    capacity: int, herds: list[tuple[list[int], int, int]], troubled: bool
) -> None:
    """Whatever comes together, whoever gives up, and also where the store is in trouble."""
    bucket = Buckets(Limit.custom("n", capacity, 0, 1))
    share = capacity // SHARE

    async def story() -> None:
        herd = Herd()
        total = 0
        for wants, quitter, step_ms in herds:
            if troubled:
                herd.store.troubles = [Throttled("too fast")]
            tasks = [herd.ask(bucket.want(tokens)) for tokens in wants]
            for turn in range(12):
                await turns(1)
                assert herd.layer.held_milli(bucket.key()).get("n", 0) <= share * 1000
                if turn == quitter:
                    tasks[quitter % len(tasks)].cancel()
            told = await asyncio.gather(*tasks, return_exceptions=True)
            assert herd.layer.held_milli(bucket.key()).get("n", 0) <= share * 1000
            taken = zip(wants, told, strict=True)
            total += sum(tokens for tokens, verdict in taken if admitted([verdict]))
            assert all(pot.turns.is_idle for pot in herd.layer._holdings.values())
            herd.clock.advance(step_ms)
        largest = max((max(wants) for wants, _, _ in herds), default=0)
        assert all(tokens <= max(share, largest) for tokens in herd.store.asked)
        assert await herd.left(bucket) == capacity - total

    asyncio.run(story())


# Whoever gives up, is cancelled or runs out of patience stops nobody else.


async def test_a_cancelled_filler_is_followed_by_one_who_waited(herd: Herd) -> None:
    herd.store.let_go.clear()
    tasks = [herd.ask(STILL.want(1)) for _ in range(20)]
    await turns()
    assert herd.store.under_way == 1
    tasks[0].cancel()
    await turns()
    assert herd.store.under_way == 1, "the next goes on"
    assert 19 <= herd.store.asked[1] <= 2 * 19, "for all who are left"
    herd.store.let_go.set()
    told = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(told[0], asyncio.CancelledError)
    assert admitted(told) == 19
    assert await herd.left(STILL) == 1000 - 19


async def test_a_cancelled_waiter_takes_nothing_and_leaves_nothing(herd: Herd) -> None:
    herd.store.let_go.clear()
    tasks = [herd.ask(STILL.want(1)) for _ in range(3)]
    gone = [herd.ask(STILL.want(1)) for _ in range(20)]
    await turns()
    for task in gone:
        task.cancel()
    await turns()
    herd.clock.advance(500)  # so long that nothing is fetched but what is waited for
    herd.store.let_go.set()
    assert admitted(await asyncio.gather(*tasks)) == 3
    assert herd.store.asked == [1, 2]
    assert all(task.cancelled() for task in gone)
    assert all(pot.turns.is_idle for pot in herd.layer._holdings.values())
    assert await herd.left(STILL) == 1000 - 3


@pytest.mark.parametrize("victims", [[0], [3], [0, 1, 2], [5, 1]])
async def test_a_cancel_at_any_turn_loses_no_token_and_stops_nobody_else(
    victims: tuple[int],
) -> None:
    for moment in range(40):
        herd = Herd()
        counted: list[int] = []

        async def caller(herd: Herd = herd, counted: list[int] = counted) -> int:
            for _ in range(5):
                verdict = await herd.layer.consume([STILL.want(3)], herd.clock())
                counted.append(3 if verdict.allowed else 0)
            return 5

        tasks = [asyncio.ensure_future(caller()) for _ in range(8)]
        await turns(moment)
        for victim in victims:
            tasks[victim].cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert ends.count(5) >= 8 - len(victims)
        assert herd.store.most == 1
        assert await herd.left(STILL) == 1000 - sum(counted), moment


async def test_patience_ends_when_a_call_takes_too_long(herd: Herd) -> None:
    herd.store.let_go.clear()
    tasks = [herd.ask(FAST.want(1)) for _ in range(10)]
    await herd.clock.run_for(WAIT_MS - 1)
    assert herd.store.under_way == 1
    await herd.clock.run_for(1)
    assert herd.store.under_way == 10
    herd.store.let_go.set()
    assert admitted(await asyncio.gather(*tasks)) == 10


async def test_patience_ends_after_so_many_calls_of_others(herd: Herd) -> None:
    """Chunks of two demands only: the rest of a herd goes to the store itself at last."""

    assert admitted(await herd.come(STILL.want(25), 40)) == 40
    assert 1 < herd.store.most <= 40 - TURNS_MAX
    assert len(herd.store.calls) <= 40
    assert await herd.left(STILL) == 0


async def test_the_time_of_a_caller_goes_on_while_it_waits(herd: Herd) -> None:
    herd.store.let_go.clear()
    tasks = [herd.ask(FAST.want(1)) for _ in range(3)]
    await turns()
    herd.clock.advance(70)
    herd.store.let_go.set()
    await asyncio.gather(*tasks)
    times = [call[1][1] for call in herd.store.calls]
    assert times == [herd.clock() - 70, herd.clock()]


async def test_the_end_of_the_layer_leaves_nobody_waiting(herd: Herd) -> None:
    await herd.come(STILL.want(1), 12)
    herd.store.let_go.clear()
    herd.clock.advance(1)
    tasks = [herd.ask(STILL.want(25)) for _ in range(6)]
    await turns()
    await herd.layer.detach()
    herd.store.let_go.set()
    assert admitted(await asyncio.gather(*tasks)) == 6
    assert await herd.left(STILL) == 1000 - 12 - 6 * 25


# Prefetch among several clients and tasks: the slack it adds, measured against its bound.

CLIENTS = 4


def test_S1_with_the_published_slack_over_four_clients() -> None:
    """In every interval: admitted <= capacity + rate * length + what clients may hold."""
    for seed in range(2):
        rng = random.Random(seed)
        clock = FakeClock()
        store = MemoryStore(clock)
        capacity, rate = 400, 1000
        shared = Buckets(Limit.per_second("rps", rate, burst=capacity))
        clients = [
            Client(add_layers(store, clock=clock, prefetch=True), clock) for _ in range(CLIENTS)
        ]
        slack = CLIENTS * capacity // 20
        admitted: list[tuple[int, int]] = []
        excess = 0.0
        for _ in range(3000):
            clock.advance(rng.choice((0, 0, 0, 1, 1, 2)))
            if rng.random() < 0.001:
                clock.advance(1500)
            amount = rng.randint(1, 3)
            if rng.choice(clients).take(shared.want(amount)).allowed:
                admitted.append((clock(), amount))
        for first in range(0, len(admitted), 23):
            total = 0
            for end_ms, amount in admitted[first : first + 1500]:
                total += amount
                allowed = capacity + rate * (end_ms - admitted[first][0]) / 1000
                excess = max(excess, total - allowed)
        assert excess <= slack, "the published bound"


def test_four_clients_mint_nothing_and_everything_comes_back(clock: FakeClock) -> None:
    rng = random.Random(3)
    store = MemoryStore(clock)
    layers = [Prefetch(store, clock) for _ in range(CLIENTS)]
    clients = [Client(layer, clock) for layer in layers]
    admitted = 0
    for _ in range(900):
        clock.advance(rng.choice((0, 0, 1, 300)))
        admitted += rng.choice(clients).take(STILL.want(1)).allowed
        held = sum(layer.held_milli(STILL.key()).get("n", 0) for layer in layers)
        assert held <= CLIENTS * 50_000
        record = clients[0].peek(STILL.key()).records[0]
        cell = cell_of(record, "n")
        assert cell.tokens_milli + held + admitted * 1000 == 1_000_000

    async def close() -> None:
        for layer in layers:
            await layer.close()

    asyncio.run(close())
    admitted += Client(store, clock).admitted(STILL.want(1), 2000)
    assert admitted == 1000


def test_a_killed_client_loses_what_it_held_and_no_more(clock: FakeClock) -> None:
    store = MemoryStore(clock)
    layer = Prefetch(store, clock)
    admitted = Client(layer, clock).admitted(STILL.want(1), 12)
    held = layer.held_milli(STILL.key())["n"] // 1000
    assert 0 < held <= 50
    del layer
    assert Client(store, clock).admitted(STILL.want(1), 2000) == 1000 - admitted - held


async def test_a_cancel_at_any_turn_loses_no_token() -> None:
    hits = 0
    for moment in range(90):
        clock = FakeClock()
        store = SlowStore(MemoryStore(clock), queues=True)
        layer = Prefetch(store, clock)
        admitted: list[int] = []

        async def caller(
            layer: Prefetch = layer, clock: FakeClock = clock, admitted: list[int] = admitted
        ) -> None:
            for n in range(14):
                if n == 7:
                    clock.advance(1000)
                verdict = await layer.consume([STILL.want(1)], clock())
                if verdict.allowed:
                    admitted.append(1)
                await asyncio.sleep(0)

        task = asyncio.ensure_future(caller())
        for _ in range(moment):
            await asyncio.sleep(0)
        hits += not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await layer.close()
        left = Client(store.store, clock).admitted(STILL.want(1), 2000)
        assert left + len(admitted) == 1000, moment
    assert hits > 20


def test_threads_on_all_layers_admit_exactly_what_there_is(clock: FakeClock) -> None:
    store = add_layers(MemoryStore(clock), clock=clock, prefetch=True)
    with ThreadPoolExecutor(8) as pool:
        callers = [pool.submit(Client(store, clock).admitted, STILL.want(1), 400) for _ in range(8)]
    assert sum(caller.result() for caller in callers) == 1000
