"""The breaker by itself: what moves it, for how long it is open, who probes."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headgate import Event, OnUnavailable, RateLimitExceeded, SyncRateLimiter
from headgate.core.errors import (
    Contended,
    EntityNotFoundError,
    StoreDenied,
    Throttled,
    Unreachable,
    ValidationError,
)
from headgate.core.limits import Limit
from headgate.core.runtime import run
from headgate.layers.breaker import (
    PROBE_MS_MAX,
    Breaker,
    BreakerConfig,
    BreakerOpen,
    BreakerState,
    Circuit,
)
from headgate.layers.stack import add_layers
from headgate.stores.memory.buckets import MemoryStore
from headgate.testing import FakeClock, FaultyStore
from tests.layers.kit import DOWN, Buckets, Client, Held, turns

BUCKETS = Buckets(Limit.per_second("rps", 1000))
ONE = BUCKETS.want(1)
HARMLESS = [
    Contended("busy"),
    Throttled("partition is hot"),
    StoreDenied("no dynamodb:UpdateItem on the table"),
    ValidationError("consume", {}, "asks for nothing"),
    EntityNotFoundError("x"),
    ZeroDivisionError(),
    KeyboardInterrupt(),
]


class World:
    def __init__(self, seed: int | None = None) -> None:
        self.clock = FakeClock()
        self.store = Held(MemoryStore(self.clock))
        self.changes: list[BreakerState] = []
        rng = NoJitter() if seed is None else random.Random(seed)
        self.circuit = Circuit(self.clock, rng=rng, on_change=self.changes.append)
        self.client = Client(Breaker(self.store, self.circuit), self.clock)

    def call(self, trouble: BaseException | None = None) -> BaseException | None:
        """One consume while the store is in that trouble; what it ended with."""
        self.store.trouble = trouble
        try:
            self.client.take(ONE)
        except BaseException as error:  # KeyboardInterrupt stands for cancellation here
            return error
        return None

    def open(self) -> None:
        for _ in range(5):
            self.call(DOWN)
        assert self.circuit.state is BreakerState.OPEN

    @property
    def state(self) -> BreakerState:
        return self.circuit.state

    def pause_ms(self) -> int:
        return self.circuit.open_until_ms - self.clock()


@pytest.fixture
def world() -> World:
    return World()


class NoJitter(random.Random):
    def random(self) -> float:
        return 0.0


def test_five_failures_in_a_row_open_it_and_the_store_is_left_alone(world: World) -> None:
    for failures in range(1, 5):
        assert world.call(DOWN) is DOWN
        assert (world.circuit.state, world.circuit.failures) == (BreakerState.CLOSED, failures)
    assert world.call(DOWN) is DOWN
    assert world.circuit.state is BreakerState.OPEN
    world.store.calls.clear()
    world.clock.advance(2500)
    refused = world.call()
    assert isinstance(refused, BreakerOpen)
    assert isinstance(refused, Unreachable), "the engine turns it into what was chosen for outages"
    assert refused.retry_in_ms == 7500
    assert "connection refused" in str(refused)
    assert "7.5 s" in str(refused)
    assert world.store.calls == []


def test_failures_must_be_in_a_row(world: World) -> None:
    for _ in range(50):
        for _ in range(4):
            world.call(DOWN)
        assert world.call() is None
        assert world.circuit.failures == 0
    assert world.changes == []


def test_calls_that_fail_together_count_once(world: World) -> None:
    circuit = world.circuit
    for failures in range(1, 5):
        together = [circuit.enter() for _ in range(100)]
        for turn in together:
            circuit.note_failure(turn, DOWN)
        assert (world.state, circuit.failures) == (BreakerState.CLOSED, failures)
    circuit.note_failure(circuit.enter(), DOWN)
    assert world.state is BreakerState.OPEN


def test_a_call_that_began_after_a_failure_and_succeeds_ends_the_row(world: World) -> None:
    circuit = world.circuit
    early, other = circuit.enter(), circuit.enter()
    circuit.note_failure(circuit.enter(), DOWN)
    later = circuit.enter()
    circuit.note_failure(circuit.enter(), DOWN)
    assert circuit.failures == 2
    circuit.note_success(early)
    assert circuit.failures == 2, "it was sent before the first failure and says nothing of after"
    circuit.note_success(later)
    assert circuit.failures == 0, "the store was there after the first failure"
    circuit.note_failure(other, DOWN)
    assert circuit.failures == 0, "one more of a wave that has been counted"
    circuit.note_failure(circuit.enter(), DOWN)
    assert circuit.failures == 1, "the next failure begins a row of its own"


def waves(
    callers: int, stall_ms: int, timeout_ms: int, spread_ms: int
) -> tuple[list[BreakerState], int | None]:
    """Callers that call again as soon as they are answered, 5 ms later, through one stall of the
    store. The changes of the breaker, and how long after the stall began it opened."""
    world = World()
    circuit = world.circuit
    begin_ms = world.clock()
    end_ms = begin_ms + stall_ms
    opened_ms: int | None = None
    line = [(begin_ms - 100 + spread_ms * n, n, None, False) for n in range(callers)]
    heapq.heapify(line)
    while line and line[0][0] < end_ms + 2 * timeout_ms:
        now_ms, caller, turn, note_failure = heapq.heappop(line)
        world.clock.now_ms = now_ms
        if turn is not None:
            circuit.note_failure(turn, DOWN) if note_failure else circuit.note_success(turn)
        if world.state is BreakerState.OPEN:
            opened_ms = opened_ms or now_ms - begin_ms
            continue
        answer_ms = (end_ms if begin_ms <= now_ms < end_ms else now_ms) + 5
        lost = answer_ms > now_ms + timeout_ms
        due_ms = now_ms + timeout_ms if lost else answer_ms
        heapq.heappush(line, (due_ms, caller, circuit.enter(), lost))
    return world.changes, opened_ms


@pytest.mark.parametrize("spread_ms", [0, 1, 7, 90])
@pytest.mark.parametrize("callers", [1, 10, 60])
def test_one_stall_is_not_an_outage_however_many_wait(callers: int, spread_ms: int) -> None:
    changes, _ = waves(callers, 1300, 1000, spread_ms)
    assert changes == []


@pytest.mark.parametrize("callers", [1, 10, 60])
def test_a_store_that_stays_away_is_given_up_after_five_timeouts(callers: int) -> None:
    changes, opened_ms = waves(callers, 60_000, 1000, 3)
    assert changes == [BreakerState.OPEN]
    assert 4000 <= opened_ms <= 5000


def test_every_verb_counts_and_is_stopped_but_close(world: World) -> None:
    breaker = world.client.store
    world.open()
    world.store.calls.clear()
    for flow in (
        breaker.consume([ONE], None),
        breaker.adjust([ONE], None),
        breaker.peek([BUCKETS.key()], None),
        breaker.forget([BUCKETS.key()]),
        breaker.find("ns", limit=1),
    ):
        with pytest.raises(BreakerOpen):
            run(flow)
    run(breaker.close())
    assert world.store.verbs == ["close"]


@pytest.mark.parametrize("trouble", HARMLESS, ids=lambda error: type(error).__name__)
def test_what_is_not_an_outage_moves_nothing(world: World, trouble: BaseException) -> None:
    for _ in range(20):
        assert world.call(trouble) is trouble
    assert (world.circuit.state, world.circuit.failures) == (BreakerState.CLOSED, 0)
    for _ in range(4):
        world.call(DOWN)
        world.call(trouble)
    assert world.circuit.failures == 4, "nor does it make failures be forgotten"
    world.call(DOWN)
    world.clock.advance(BreakerConfig().open_ms)
    for _ in range(5):
        assert world.call(trouble) is trouble, "a probe that ends so makes room for the next"
        assert world.circuit.state is BreakerState.HALF_OPEN
    world.call()
    world.call(trouble)
    world.call()
    assert world.circuit.state is BreakerState.CLOSED


def test_two_probes_close_it_one_failure_opens_it_again(world: World) -> None:
    world.open()
    world.clock.advance(BreakerConfig().open_ms - 1)
    assert isinstance(world.call(), BreakerOpen)
    world.clock.advance(1)
    assert world.call() is None
    assert world.state == "half-open"
    assert world.call(DOWN) is DOWN
    assert world.state == "open"
    world.clock.advance(2 * BreakerConfig().open_ms)
    assert world.call() is None
    assert world.call() is None
    assert (world.state, world.circuit.failures) == ("closed", 0)
    opened, half, closed = BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerState.CLOSED
    assert world.changes == [opened, half, opened, half, closed]


def test_the_pause_doubles_up_to_a_minute_and_starts_anew_once_closed(world: World) -> None:
    world.open()
    pauses = [world.pause_ms()]
    for _ in range(5):
        world.clock.advance(world.pause_ms())
        world.call(DOWN)
        pauses.append(world.pause_ms())
    assert pauses == [10_000, 20_000, 40_000, 60_000, 60_000, 60_000]
    world.clock.advance(world.pause_ms())
    world.call()
    world.call()
    world.open()
    assert world.pause_ms() == 10_000


def test_jitter_shortens_a_pause_by_at_most_a_fifth_and_spreads_processes() -> None:
    firsts = set()
    for seed in range(200):
        world = World(seed)
        world.open()
        firsts.add(world.pause_ms())
        for base_ms in (10_000, 20_000, 40_000, 60_000, 60_000):
            assert base_ms * 0.8 <= world.pause_ms() <= base_ms
            world.clock.advance(world.pause_ms())
            world.call(DOWN)
    assert len(firsts) > 150
    assert max(firsts) - min(firsts) > 1500


def test_a_probe_that_never_comes_back_blocks_for_a_bounded_time(world: World) -> None:
    world.open()
    world.clock.advance(BreakerConfig().open_ms)
    lost = world.circuit.enter()
    world.clock.advance(PROBE_MS_MAX - 1)
    with pytest.raises(BreakerOpen, match="a probe under way"):
        world.circuit.enter()
    world.clock.advance(1)
    world.circuit.enter()
    world.circuit.note_failure(lost, DOWN)
    assert world.circuit.state is BreakerState.HALF_OPEN, "the lost one says nothing any more"


def test_calls_sent_before_say_nothing_about_what_came_after(world: World) -> None:
    circuit = world.circuit
    early = [circuit.enter() for _ in range(20)]
    world.open()
    pause_ms = world.pause_ms()
    world.clock.advance(10)
    for turn in early[:10]:
        circuit.note_failure(turn, DOWN)
    assert world.pause_ms() == pause_ms - 10, "stragglers do not prolong the pause"
    world.clock.advance(BreakerConfig().open_ms)
    probe = circuit.enter()
    circuit.note_success(early[10])
    circuit.note_success(early[11])
    assert world.state == "half-open", "nor do they close it"
    circuit.note_failure(early[12], DOWN)
    circuit.note_unknown(early[13])
    with pytest.raises(BreakerOpen):
        circuit.enter()
    circuit.note_success(probe)
    circuit.note_success(circuit.enter())
    assert world.state == "closed"


def test_one_probe_among_threads(world: World) -> None:
    world.open()
    world.clock.advance(BreakerConfig().open_ms)
    start = threading.Barrier(8)
    entered: list[int] = []

    def enter() -> None:
        start.wait()
        for _ in range(50):
            with contextlib.suppress(BreakerOpen):
                entered.append(world.circuit.enter())

    with ThreadPoolExecutor(8) as pool:
        for _ in range(8):
            pool.submit(enter)
    assert len(entered) == 1


def test_patience_is_a_choice(clock: FakeClock) -> None:
    """Fewer failures, a shorter pause, another growth: as SERVICE's runtime section has them."""
    patience = BreakerConfig(2, 1, 1000, 2500, 2.0)
    circuit = Circuit(clock, patience=patience, rng=NoJitter())
    trouble = Unreachable("away")
    for _ in range(2):
        circuit.note_failure(circuit.enter(), trouble)
    assert circuit.state is BreakerState.OPEN
    pauses = []
    for _ in range(4):
        pauses.append(circuit.open_until_ms - clock.now_ms)
        clock.advance(pauses[-1])
        circuit.note_failure(circuit.enter(), trouble)
    assert pauses == [1000, 2000, 2500, 2500]
    clock.advance(2500)
    circuit.note_success(circuit.enter())
    assert circuit.state is BreakerState.CLOSED


@pytest.mark.parametrize(
    "wrong",
    [{"failures_to_open": 0}, {"open_ms": True}, {"growth": 0.5}, {"open_ms": 5, "open_ms_max": 4}],
)
def test_impossible_patience_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        BreakerConfig(**wrong)


# The breaker among many callers, and under a limiter.


async def half_open() -> tuple[Breaker, Held]:
    """A breaker whose pause is over, around a store that answers when it is let go."""
    clock = FakeClock()
    store = Held(MemoryStore(clock))
    layer = Breaker(store, Circuit(clock))
    store.trouble = DOWN
    for _ in range(5):
        with pytest.raises(type(DOWN)):
            await layer.consume([ONE], None)
    clock.advance(BreakerConfig().open_ms)
    store.let_go.clear()
    store.calls.clear()
    return layer, store


async def test_one_probe_among_a_hundred_callers() -> None:
    layer, store = await half_open()
    tasks = [asyncio.ensure_future(layer.consume([ONE], None)) for _ in range(100)]
    await turns()
    assert len(store.calls) == 1
    store.let_go.set()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(end, BreakerOpen) for end in ends) == 99
    assert (layer.circuit.state, layer.circuit.failures) == (BreakerState.OPEN, 6)


async def test_a_hundred_callers_close_it_with_two_probes() -> None:
    layer, store = await half_open()
    store.trouble = None
    for probe in (1, 2):
        store.let_go.clear()
        tasks = [asyncio.ensure_future(layer.consume([ONE], None)) for _ in range(100)]
        await turns()
        assert len(store.calls) == probe
        store.let_go.set()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert layer.circuit.state is BreakerState.CLOSED
    verdicts = await asyncio.gather(*(layer.consume([ONE], None) for _ in range(100)))
    assert all(verdict.allowed for verdict in verdicts)


async def test_a_cancelled_probe_makes_room_for_the_next() -> None:
    layer, store = await half_open()
    store.trouble = None
    for probe in range(1, 6):
        task = asyncio.ensure_future(layer.consume([ONE], None))
        await turns()
        assert len(store.calls) == probe
        with pytest.raises(BreakerOpen):
            await layer.consume([ONE], None)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert layer.circuit.state is BreakerState.HALF_OPEN
    store.let_go.set()
    await layer.consume([ONE], None)
    await layer.consume([ONE], None)
    assert layer.circuit.state is BreakerState.CLOSED


async def test_an_abandoned_probe_makes_room_too() -> None:
    layer, store = await half_open()
    probe = layer.consume([ONE], None)
    probe.send(None)
    probe.close()
    again = asyncio.ensure_future(layer.consume([ONE], None))
    await turns()
    assert len(store.calls) == 2
    again.cancel()


def test_while_open_admissions_are_labelled_bounded_and_cost_the_store_nothing(
    clock: FakeClock,
) -> None:
    events: list[Event] = []
    limiter = SyncRateLimiter(
        "memory://",
        limits=[Limit.per_hour("rph", 20)],
        clock=clock,
        observer=events.append,
        on_unavailable=OnUnavailable.ALLOW,
    )
    store = FaultyStore(limiter.engine.store, before=[DOWN] * 5)
    limiter.engine.use(add_layers(store, clock=clock))
    admitted = 0
    for _ in range(200):
        try:
            with limiter.acquire("a", "api", {"rph": 1}) as lease:
                assert lease.degraded
                admitted += 1
        except RateLimitExceeded:
            pass
    assert admitted == 20, "a local bucket of the same limits bounds what passes"
    assert store.calls == []
    assert len(store.before) == 0, "five callers met the outage, the others were told at once"
    assert {event.kind for event in events} == {"degraded"}
    clock.advance(BreakerConfig().open_ms)
    for _ in range(3):
        with limiter.acquire("b", "api", {"rph": 1}) as lease:
            assert not lease.degraded
    assert store.verbs == ["consume"] * 3
