"""Rejections by the store's own clock: what is known of it are bounds, and both are used safely."""

from __future__ import annotations

import random
from collections.abc import Sequence

from headgate.core.decision import Demand, Verdict
from headgate.core.limits import Limit
from headgate.layers.rejections import ROUNDING_MS, Rejections
from headgate.stores.memory.buckets import MemoryStore
from headgate.testing import FakeClock, RecordingStore
from tests.layers.kit import Buckets, Client

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
            assert wait_ms is not None
            assert true_wait_ms is not None
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
