"""Rejections under driven time: spared calls, exact waits, nothing stale for more than a second."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from headgate import Limit
from headgate.core.decision import Demand, Verdict
from headgate.core.record import BucketKey, Record, Spec, Terms
from headgate.core.runtime import run
from headgate.layers.rejections import ROUNDING_MS, Rejections
from headgate.stores.dynamodb.sharding.pool import PooledVerdict, ShardPool
from headgate.stores.dynamodb.sharding.shares import share_of
from headgate.stores.memory.buckets import MemoryStore
from headgate.testing import FakeClock, FaultyStore, RecordingStore
from tests.layers.kit import DOWN, Buckets, Client, Held, World, turns

RPM = Buckets(Limit.per_minute("rpm", 10))


@pytest.fixture
def world() -> World:
    return World(Rejections)


def told(verdict: Verdict) -> list[tuple[object, ...]]:
    rows = verdict.statuses
    return [(s.limit_name, s.available, s.requested, s.exceeded, s.retry_after_ms) for s in rows]


def test_over_ten_seconds_the_store_is_asked_once_a_second(world: World) -> None:
    slow = Buckets(Limit.per_hour("rph", 1))
    assert world.client.take(slow.want(1)).allowed
    world.store.calls.clear()
    for _ in range(10_000):
        world.clock.advance(1)
        assert not world.client.take(slow.want(1)).allowed
    assert world.calls == 10


@pytest.mark.parametrize("seed", range(3))
def test_a_lone_client_is_told_exactly_what_the_store_would_tell(seed: int) -> None:
    """Random programs of one client: the layer is invisible but for the calls it spares."""
    rng = random.Random(seed)
    world, plain = World(Rejections), Client(MemoryStore(FakeClock()), FakeClock())
    plain.clock = world.clock
    kinds = [
        Buckets(Limit.per_second("a", 30), Limit.custom("b", 500, 1000, 60), version=2),
        Buckets(Limit.per_second("a", 50), Limit.custom("b", 100, 1000, 60), version=1),
        Buckets(Limit.custom("b", 90, 500, 60), Limit.per_second("a", 40, soft=True), own=True),
    ]
    for _ in range(1500):
        world.clock.advance(rng.choice((0, 0, 0, 1, 7, 60, 90, 400)))
        buckets = rng.choices(kinds, (20, 1, 1))[0]
        demands = [
            buckets.want(rng.choice((None, 1, 3, 12)), rng.randint(0, 90), entity_id=name)
            for name in rng.sample(("p", "q", "s"), rng.choice((1, 1, 2, 3)))
        ]
        if rng.random() < 0.9:
            ours, theirs = world.client.take(*demands), plain.take(*demands)
            assert (ours.allowed, ours.outdated) == (theirs.allowed, theirs.outdated)
            assert told(ours) == told(theirs)
            assert ours.retry_after_ms == theirs.retry_after_ms
        else:
            signed = [demand.inverse() if rng.random() < 0.5 else demand for demand in demands]
            world.client.adjust(*signed)
            plain.adjust(*signed)
    assert world.layer.refused > 150


@pytest.mark.parametrize("credit_after_ms", [0, 1, 500, 998, 999])
def test_a_credit_of_another_process_is_seen_within_a_second(
    world: World, credit_after_ms: int
) -> None:
    world.client.admitted(RPM.want(1), 11)
    refused_ms = world.clock()
    world.clock.advance(credit_after_ms)
    world.other.adjust(RPM.want(-5))
    while not world.client.take(RPM.want(1)).allowed:
        world.clock.advance(1)
        assert world.clock() - refused_ms <= 1000
    assert world.clock() - refused_ms == 1000


def test_own_credits_debits_and_forgetting_are_seen_at_once(world: World) -> None:
    world.client.admitted(RPM.want(1), 11)
    world.client.adjust(RPM.want(-1))
    assert world.client.take(RPM.want(1)).allowed
    assert not world.client.take(RPM.want(1)).allowed
    world.client.adjust(RPM.want(4))
    assert world.client.take(RPM.want(1)).retry_after_ms == 30_000
    run(world.layer.forget([RPM.key()]))
    assert world.client.admitted(RPM.want(1), 12) == 10
    world.other.adjust(RPM.want(-2))
    assert world.client.peek(RPM.key()).records[0] is not None
    assert world.client.admitted(RPM.want(1), 3) == 2, "what was just seen is not contradicted"


def test_a_credit_whose_answer_was_lost_is_reckoned_with(world: World) -> None:
    world.client.admitted(RPM.want(1), 11)
    faulty = FaultyStore(world.store, after=[DOWN])
    world.layer.inner = faulty
    with pytest.raises(type(DOWN)):
        world.client.adjust(RPM.want(-1))
    assert world.client.take(RPM.want(1)).allowed


async def test_an_answer_from_before_a_credit_is_not_kept(clock: FakeClock) -> None:
    store = Held(MemoryStore(clock))
    layer = Rejections(store, clock)
    for _ in range(10):
        await layer.consume([RPM.want(1)], clock())
    store.let_go.clear()
    late = asyncio.ensure_future(layer.consume([RPM.want(1)], clock()))
    await turns()
    await layer.adjust([RPM.want(-1)], clock())
    store.let_go.set()
    assert not (await late).allowed
    assert (await layer.consume([RPM.want(1)], clock())).allowed


def test_other_terms_are_the_stores_to_judge(world: World) -> None:
    world.client.admitted(RPM.want(1), 11)
    larger = Limit.per_minute("rpm", 100)
    older, newer = Buckets(larger, version=0), Buckets(larger, version=2)
    for buckets in (older, newer, Buckets(larger, own=True), Buckets(larger, version=3)):
        before = world.calls
        world.client.take(buckets.want(1))
        assert world.calls == before + 1
    equal = Buckets(larger, version=3)
    assert equal.terms is not Buckets(larger, version=3).terms
    assert not world.client.take(equal.want(1)).allowed
    assert world.calls == before + 1, "equal terms are the same terms"


def test_several_buckets_one_proof_is_enough_if_all_are_known(world: World) -> None:
    wide = Buckets(Limit.per_minute("rpm", 1000))
    both = (wide.want(1, entity_id="child"), RPM.want(1, entity_id="parent"))
    assert sum(world.client.take(*both).allowed for _ in range(12)) == 10
    calls = world.calls
    verdict = world.client.take(*both)
    assert world.calls == calls
    assert [row[1:4] for row in told(verdict)] == [(990, 1, False), (0, 1, True)]
    assert verdict.retry_after_ms == 6000
    stranger = wide.want(1, entity_id="stranger")
    assert not world.client.take(stranger, both[1]).allowed
    assert world.calls == calls + 1, "the state of one bucket is not known: the store answers"
    assert list(world.client.peek(stranger.key).records) == [None]


def test_it_is_bounded_and_keys_that_recover_leave() -> None:
    world = World(Rejections, entries_max=50)
    for n in range(200):
        world.client.admitted(RPM.want(10, entity_id=f"e{n}"), 2)
        world.client.adjust(RPM.want(1, entity_id=f"d{n}"))
    assert len(world.layer._seen) == 50
    assert len(world.layer._dropped) == 50
    world = World(Rejections)
    world.client.admitted(RPM.want(10), 2)
    world.clock.advance(60_000)
    assert world.client.take(RPM.want(1)).allowed
    assert len(world.layer._seen) == 0


def test_a_clock_that_steps_back_trusts_nothing(world: World) -> None:
    world.client.admitted(RPM.want(1), 11)
    world.clock.advance(-5000)
    calls = world.calls
    assert not world.client.take(RPM.want(1)).allowed
    assert world.calls == calls + 1


def test_a_bucket_in_parts_is_not_judged_by_the_sum_of_its_parts(clock: FakeClock) -> None:
    """One part is empty and one is full and gains nothing: the sum would tell half of the wait."""
    terms = Terms((Spec("rps", 100_000, 10_000, 1000, False),), 1)
    key = BucketKey("ns", "e", "r")

    class InParts(MemoryStore):
        calls = 0

        async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
            self.calls += 1
            at_ms, wanted = clock(), demands[0].amounts[0] or 0

            def part(place: int, milli: int) -> Record:
                return (share_of(terms, place, 1), at_ms // 3_600_000, 0, None, at_ms, milli, 0, 0)

            whole = ShardPool(terms, [part(0, 0), part(1, 50_000)])
            if wanted > 50_000:
                waits = {key.text: whole.waits_ms(demands[0], at_ms)}
                return PooledVerdict(waits, False, demands, [whole.record(at_ms)], at_ms)
            after = ShardPool(terms, [part(0, 0), part(1, 50_000 - wanted)]).record(at_ms)
            return Verdict(True, demands, [after], at_ms, [whole.record(at_ms)])

    store = InParts(clock)
    layer = Rejections(store, clock)
    waits = []
    for tokens in (60, 1, 60):
        verdict = run(layer.consume([Demand(key, terms, (tokens * 1000,))], None))
        waits.append(verdict.retry_after_ms)
        clock.advance(10)
    assert (waits, store.calls) == ([2000, 0, 2000], 3)


# Rejections by the store's own clock: what is known of it are bounds, and both are used safely.

RPS = Buckets(Limit.custom("rps", 5, 10, 1))


class Micros:
    """Real time in microseconds; clocks in whole milliseconds are read from it."""

    def __init__(self, offset_us: int, drift: float = 0.0) -> None:
        self.now_us = 1_700_000_000_000_000
        self.start_us = self.now_us
        self.offset_us = offset_us
        self.drift = drift

    def local_ms(self) -> int:
        return self.now_us // 1000

    def store_ms(self) -> int:
        drifted = int((self.now_us - self.start_us) * self.drift)
        return (self.now_us + self.offset_us + drifted) // 1000


class Far(RecordingStore):
    """A store at the end of a line whose ways there and back take what they take."""

    def __init__(self, time: Micros, rng: random.Random, way_us_max: int) -> None:
        super().__init__(MemoryStore(time.store_ms))
        self.time = time
        self.rng = rng
        self.way_us_max = way_us_max

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        self.time.now_us += self.rng.randint(0, self.way_us_max)
        verdict = await super().consume(demands, now_ms)
        self.time.now_us += self.rng.randint(0, self.way_us_max)
        return verdict


def test_local_refusals_are_true_and_waits_never_too_short() -> None:
    """Any offset, any way there and back, half a millisecond of drift in a second."""
    for seed in range(15):
        rng = random.Random(seed)
        time = Micros(rng.randint(-(10**9), 10**9), rng.choice((-5e-4, 0.0, 5e-4)))
        store = Far(time, rng, rng.choice((0, 300, 30_000)))
        layer = Rejections(store, time.local_ms)
        client = Client(layer, FakeClock(), drives_time=False)
        local = 0
        for _ in range(400):
            time.now_us += rng.choice((0, 100, 900, 20_000, 90_000))
            demand = RPS.want(rng.randint(1, 5))
            before = layer.refused
            verdict = client.take(demand)
            if layer.refused == before:
                continue
            local += 1
            true_ms = time.store_ms()
            truth = Verdict(False, [demand], verdict.records, true_ms)
            assert truth.violations, "it would have been admitted at the store's true time"
            wait_ms, true_wait_ms = verdict.retry_after_ms, truth.retry_after_ms
            assert wait_ms >= true_wait_ms
            assert wait_ms <= true_wait_ms + 2 * store.way_us_max // 1000 + 2 * ROUNDING_MS
        assert local > 20


def test_who_waits_as_told_gets_in() -> None:
    time = Micros(123_456_789)
    store = Far(time, random.Random(1), 5000)
    client = Client(Rejections(store, time.local_ms), FakeClock(), drives_time=False)
    client.admitted(RPS.want(1), 6)
    for _ in range(100):
        client.admitted(RPS.want(5), 3)
        verdict = client.take(RPS.want(5))
        time.now_us += (verdict.retry_after_ms or 0) * 1000
        assert client.take(RPS.want(5)).allowed


def test_a_thousand_refusals_by_the_stores_clock_are_two_calls_at_most() -> None:
    time = Micros(-5_000_000)
    store = Far(time, random.Random(1), 800)
    client = Client(Rejections(store, time.local_ms), FakeClock(), drives_time=False)
    slow = Buckets(Limit.per_hour("rph", 1))
    assert client.take(slow.want(1)).allowed
    store.calls.clear()
    for _ in range(1000):
        time.now_us += 900
        assert not client.take(slow.want(1)).allowed
    assert len(store.calls) <= 2
