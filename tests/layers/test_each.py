"""Several decisions in one call, through each layer: one call stays one call, and counts once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from headgate.core.decision import Demand, Verdict
from headgate.core.errors import Contended, StoreTrouble, Throttled
from headgate.core.limits import Limit
from headgate.core.runtime import run
from headgate.core.store import Outcome, Store, consume_each
from headgate.layers.breaker import Breaker, BreakerConfig, BreakerOpen, BreakerState, Circuit
from headgate.layers.layer import Layer, Shadow, ShadowVerdict
from headgate.layers.rejections import Rejections
from headgate.layers.stack import add_layers
from headgate.stores.memory.buckets import MemoryStore
from headgate.testing import FakeClock, FaultyStore, RecordingStore
from tests.layers.kit import DOWN, Buckets

RPM = Buckets(Limit.per_minute("rpm", 3))


def each(store: Store, clock: FakeClock, *demands: Demand) -> list[Outcome]:
    return run(consume_each(store, [[demand] for demand in demands], clock()))


def allowed(outcomes: Sequence[Outcome]) -> list[bool]:
    return [isinstance(one, Verdict) and one.allowed for one in outcomes]


def test_the_usual_layers_pass_a_batch_on_as_one_call() -> None:
    clock = FakeClock()
    store = RecordingStore(MemoryStore(clock))
    full = add_layers(store, clock=clock, shadow=True)
    outcomes = each(full, clock, *[RPM.want(1)] * 5)
    assert allowed(outcomes) == [True] * 5
    assert [isinstance(one, ShadowVerdict) for one in outcomes] == [False] * 3 + [True] * 2
    assert store.verbs == ["consume_each"]


def test_a_failed_batch_is_one_failure_of_the_breaker() -> None:
    clock = FakeClock()
    store = FaultyStore(MemoryStore(clock), before=[DOWN] * 5)
    circuit = Circuit(clock)
    breaker = Breaker(store, circuit)
    for number in range(5):
        assert circuit.failures == number
        assert each(breaker, clock, *[RPM.want(1)] * 10) == [DOWN] * 10
    assert circuit.state is BreakerState.OPEN
    refused = each(breaker, clock, *[RPM.want(1)] * 3)
    assert [type(one) for one in refused] == [BreakerOpen] * 3
    clock.advance(BreakerConfig().open_ms)
    for _ in range(BreakerConfig().successes_to_close):
        assert allowed(each(breaker, clock, RPM.want(0), RPM.want(1)))[0]
    assert circuit.state is BreakerState.CLOSED


@pytest.mark.parametrize("trouble", [Contended("busy"), Throttled("hot")])
def test_trouble_of_one_is_its_own_and_says_nothing_about_the_store(trouble: StoreTrouble) -> None:
    class OneInTrouble(RecordingStore):
        async def consume_each(self, groups: Any, now_ms: int | None) -> list[Outcome]:
            return [trouble, *(await super().consume_each(groups[1:], now_ms))]

    clock = FakeClock()
    circuit = Circuit(clock)
    breaker = Breaker(OneInTrouble(MemoryStore(clock)), circuit)
    for _ in range(6):
        outcomes = each(breaker, clock, RPM.want(1), RPM.want(0, entity_id="other"))
        assert outcomes[0] is trouble
        assert allowed(outcomes) == [False, True]
    assert (circuit.state, circuit.failures) == (BreakerState.CLOSED, 0)


def test_proven_refusals_are_spared_the_store() -> None:
    clock = FakeClock()
    store = RecordingStore(MemoryStore(clock))
    layer = Rejections(store, clock)
    assert allowed(each(layer, clock, RPM.want(3), RPM.want(1))) == [True, False]
    store.calls.clear()
    other = RPM.want(1, entity_id="other")
    outcomes = each(layer, clock, RPM.want(1), other, RPM.want(2))
    assert allowed(outcomes) == [False, True, False]
    [(verb, (groups, _))] = store.calls
    assert verb == "consume_each"
    assert [group[0].key.entity_id for group in groups] == ["other"]
    assert layer.refused == 2
    waits = [one.retry_after_ms for one in outcomes if isinstance(one, Verdict)]
    assert waits == [20_000, 0, 40_000]


def test_a_layer_that_knows_nothing_of_batches_sees_every_decision() -> None:
    class Counting(Layer):
        seen = 0

        async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
            self.seen += 1
            return await super().consume(demands, now_ms)

    clock = FakeClock()
    layer = Counting(MemoryStore(clock))
    assert allowed(each(layer, clock, *[RPM.want(1)] * 5)) == [True] * 3 + [False] * 2
    assert layer.seen == 5


def test_prefetched_tokens_serve_a_batch_without_the_store() -> None:
    clock = FakeClock()
    store = RecordingStore(MemoryStore(clock))
    many = Buckets(Limit.per_second("rps", 100_000))
    layer = add_layers(store, clock=clock, breaker=False, rejections=False, prefetch=True)
    for _ in range(20):
        clock.advance(10)
        assert all(allowed(each(layer, clock, *[many.want(1)] * 10)))
    assert len(store.calls) < 100


def test_a_store_without_the_verb_is_asked_one_by_one() -> None:
    class Plain:
        def __init__(self, inner: MemoryStore) -> None:
            self.consume = inner.consume

    clock = FakeClock()
    plain: Any = Plain(MemoryStore(clock))
    assert allowed(each(plain, clock, *[RPM.want(2)] * 2)) == [True, False]


def test_shadow_leaves_trouble_as_it_is() -> None:
    clock = FakeClock()
    shadow = Shadow(FaultyStore(MemoryStore(clock), before=[DOWN]))
    assert each(shadow, clock, RPM.want(1)) == [DOWN]


def test_trouble_that_a_store_raises_is_of_every_group_and_counts() -> None:
    class Raises(RecordingStore):
        async def consume_each(
            self, groups: Sequence[Sequence[Demand]], now_ms: int | None
        ) -> list[Outcome]:
            raise DOWN

    clock = FakeClock()
    circuit = Circuit(clock)
    store = add_layers(Raises(MemoryStore(clock)), clock=clock, breaker=False)
    assert each(Breaker(store, circuit), clock, RPM.want(1), RPM.want(1)) == [DOWN, DOWN]
    assert circuit.failures == 1
