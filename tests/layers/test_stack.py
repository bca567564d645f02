"""Layers together: why they stand in their order, what passes through them; and shadow mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from headgate.core.decision import Demand, Verdict
from headgate.core.errors import Contended, StoreTrouble, Throttled
from headgate.core.limits import Limit
from headgate.core.record import CELLS, TOKENS
from headgate.core.runtime import run
from headgate.core.store import Outcome, Store, consume_each
from headgate.layers.breaker import Breaker, BreakerConfig, BreakerOpen, BreakerState, Circuit
from headgate.layers.layer import Layer, Shadow, ShadowVerdict
from headgate.layers.prefetch import Prefetch
from headgate.layers.rejections import Rejections
from headgate.layers.stack import add_layers
from headgate.repository import open_backend
from headgate.stores.memory.buckets import MemoryStore
from headgate.testing import Case, FakeClock, FaultyStore, RecordingStore, cases, run_case
from headgate.transport.gates import steady_clock
from tests.layers.kit import DOWN, STILL, Buckets, Client, Held, recorded

FEW = Buckets(Limit.per_minute("rpm", 3))


def test_what_is_held_is_served_although_the_store_is_known_to_be_empty(clock: FakeClock) -> None:
    """With rejections in front of prefetch, the tokens at hand would be refused."""
    store = recorded(clock)
    layer = add_layers(store, clock=clock, prefetch=True)
    client = Client(layer, clock)
    client.admitted(STILL.want(1), 12)
    held = layer.held_milli(STILL.key())["n"] // 1000
    assert held > 0
    record = Client(store, clock).peek(STILL.key()).records[0]
    behind = Client(layer.inner, clock)
    left = record[CELLS + TOKENS] // 1000
    assert behind.take(STILL.want(left)).allowed
    assert not behind.take(STILL.want(1)).allowed
    store.calls.clear()
    assert client.admitted(STILL.want(1), held) == held
    assert store.calls == []


def test_a_proven_refusal_stays_one_while_the_store_is_away(clock: FakeClock) -> None:
    store = Held(MemoryStore(clock))
    client = Client(add_layers(store, clock=clock), clock)
    assert client.admitted(FEW.want(1), 5) == 3
    store.trouble = DOWN
    for _ in range(6):
        with pytest.raises(type(DOWN)):
            client.take(FEW.want(1, entity_id="another"))
    with pytest.raises(BreakerOpen):
        client.take(FEW.want(1, entity_id="another"))
    assert client.take(FEW.want(1)).retry_after_ms == 20_000
    clock.advance(1000)
    with pytest.raises(BreakerOpen):
        client.take(FEW.want(1))
    store.trouble = None
    clock.advance(BreakerConfig().open_ms)
    assert not client.take(FEW.want(1)).allowed


def test_every_verb_passes_through_all_of_them(clock: FakeClock) -> None:
    store = recorded(clock)
    layer = add_layers(store, clock=clock, prefetch=True, shadow=True)
    assert run(layer.consume([FEW.want(1)], clock())).allowed
    assert run(layer.adjust([FEW.want(-1)], clock(), metered=False, once="k")) is True
    assert run(layer.adjust([FEW.want(-1)], clock(), metered=False, once="k")) is False
    assert run(layer.find("ns", entity_id="key-1", limit=5)).items == (FEW.key(),)
    assert run(layer.peek([FEW.key()], clock())).records[0] is not None
    run(layer.forget([FEW.key()]))
    run(layer.close())
    assert store.calls[1][1][2:] == (False, "k")
    assert store.verbs == ["consume", "adjust", "adjust", "find", "peek", "forget", "close"]


# Shadow: every refusal passes and is seen, nothing changes by it, outages stay outages.


def test_it_never_refuses_and_changes_nothing(clock: FakeClock) -> None:
    store = recorded(clock)
    seen: list[Verdict] = []
    shadow = Shadow(store, on_refusal=seen.append)
    client, plain = Client(shadow, clock), Client(MemoryStore(clock), clock)
    for n in range(200):
        clock.advance(n * 37 % 900)
        ours, theirs = client.take(FEW.want(1 + n % 3)), plain.take(FEW.want(1 + n % 3))
        assert ours.allowed
        assert isinstance(ours, ShadowVerdict) is not theirs.allowed
        assert client.peek(FEW.key()) == plain.peek(FEW.key())
    assert shadow.would_refuse == len(seen) > 50
    assert not any(verdict.allowed for verdict in seen)


def test_a_shadowed_verdict_holds_nothing_and_knows_what_it_would_have_been(
    clock: FakeClock,
) -> None:
    client = Client(Shadow(MemoryStore(clock)), clock)
    client.take(FEW.want(3))
    verdict = client.take(FEW.want(1))
    assert isinstance(verdict, ShadowVerdict)
    assert (verdict.allowed, list(verdict.demands), verdict.retry_after_ms) == (True, [], 0)
    assert verdict.violations == []
    assert verdict.statuses[0].retry_after_ms == 20_000
    assert verdict.refusal.retry_after_ms == 20_000
    older = Buckets(Limit.per_minute("rpm", 3), version=0).want(1)
    assert client.take(older).outdated


@pytest.mark.parametrize("trouble", [DOWN, Contended("busy"), Throttled("hot")])
def test_trouble_is_raised_as_it_is(trouble: StoreTrouble, clock: FakeClock) -> None:
    shadow = Shadow(FaultyStore(MemoryStore(clock), before=[trouble]))
    with pytest.raises(StoreTrouble) as caught:
        Client(shadow, clock).take(FEW.want(1))
    assert caught.value is trouble
    assert shadow.would_refuse == 0


def test_it_also_sees_refusals_of_the_layers_inside(clock: FakeClock) -> None:
    store = recorded(clock)
    seen: list[Verdict] = []
    client = Client(add_layers(store, clock=clock, shadow=True, on_refusal=seen.append), clock)
    assert client.admitted(FEW.want(1), 100) == 100
    assert len(seen) == 97
    assert len(store.calls) == 4


# Several decisions in one call, through each layer: one call stays one call, and counts once.


def each(store: Store, clock: FakeClock, *demands: Demand) -> list[Outcome]:
    return run(consume_each(store, [[demand] for demand in demands], clock()))


def allowed(outcomes: Sequence[Outcome]) -> list[bool]:
    return [isinstance(one, Verdict) and one.allowed for one in outcomes]


def test_the_usual_layers_pass_a_batch_on_as_one_call(clock: FakeClock) -> None:
    store = RecordingStore(MemoryStore(clock))
    full = add_layers(store, clock=clock, shadow=True)
    outcomes = each(full, clock, *[FEW.want(1)] * 5)
    assert allowed(outcomes) == [True] * 5
    assert [isinstance(one, ShadowVerdict) for one in outcomes] == [False] * 3 + [True] * 2
    assert store.verbs == ["consume_each"]


def test_a_failed_batch_is_one_failure_of_the_breaker(clock: FakeClock) -> None:
    store = FaultyStore(MemoryStore(clock), before=[DOWN] * 5)
    circuit = Circuit(clock)
    breaker = Breaker(store, circuit)
    for number in range(5):
        assert circuit.failures == number
        assert each(breaker, clock, *[FEW.want(1)] * 10) == [DOWN] * 10
    assert circuit.state is BreakerState.OPEN
    refused = each(breaker, clock, *[FEW.want(1)] * 3)
    assert [type(one) for one in refused] == [BreakerOpen] * 3
    clock.advance(BreakerConfig().open_ms)
    for _ in range(BreakerConfig().successes_to_close):
        assert allowed(each(breaker, clock, FEW.want(0), FEW.want(1)))[0]
    assert circuit.state is BreakerState.CLOSED


@pytest.mark.parametrize("trouble", [Contended("busy"), Throttled("hot")])
def test_trouble_of_one_is_its_own_and_says_nothing_about_the_store(
    trouble: StoreTrouble, clock: FakeClock
) -> None:
    class OneInTrouble(RecordingStore):
        async def consume_each(self, groups: Any, now_ms: int | None) -> list[Outcome]:
            return [trouble, *(await super().consume_each(groups[1:], now_ms))]

    circuit = Circuit(clock)
    breaker = Breaker(OneInTrouble(MemoryStore(clock)), circuit)
    for _ in range(6):
        outcomes = each(breaker, clock, FEW.want(1), FEW.want(0, entity_id="other"))
        assert outcomes[0] is trouble
        assert allowed(outcomes) == [False, True]
    assert (circuit.state, circuit.failures) == (BreakerState.CLOSED, 0)


def test_proven_refusals_are_spared_the_store(clock: FakeClock) -> None:
    store = RecordingStore(MemoryStore(clock))
    layer = Rejections(store, clock)
    assert allowed(each(layer, clock, FEW.want(3), FEW.want(1))) == [True, False]
    store.calls.clear()
    other = FEW.want(1, entity_id="other")
    outcomes = each(layer, clock, FEW.want(1), other, FEW.want(2))
    assert allowed(outcomes) == [False, True, False]
    [(verb, (groups, _))] = store.calls
    assert verb == "consume_each"
    assert [group[0].key.entity_id for group in groups] == ["other"]
    assert layer.refused == 2
    waits = [one.retry_after_ms for one in outcomes if isinstance(one, Verdict)]
    assert waits == [20_000, 0, 40_000]


def test_a_layer_that_knows_nothing_of_batches_sees_every_decision(clock: FakeClock) -> None:
    class Counting(Layer):
        seen = 0

        async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
            self.seen += 1
            return await super().consume(demands, now_ms)

    layer = Counting(MemoryStore(clock))
    assert allowed(each(layer, clock, *[FEW.want(1)] * 5)) == [True] * 3 + [False] * 2
    assert layer.seen == 5


def test_prefetched_tokens_serve_a_batch_without_the_store(clock: FakeClock) -> None:
    store = RecordingStore(MemoryStore(clock))
    many = Buckets(Limit.per_second("rps", 100_000))
    layer = add_layers(store, clock=clock, breaker=False, rejections=False, prefetch=True)
    for _ in range(20):
        clock.advance(10)
        assert all(allowed(each(layer, clock, *[many.want(1)] * 10)))
    assert len(store.calls) < 100


def test_a_store_without_the_verb_is_asked_one_by_one(clock: FakeClock) -> None:
    class Plain:
        def __init__(self, inner: MemoryStore) -> None:
            self.consume = inner.consume

    plain: Any = Plain(MemoryStore(clock))
    assert allowed(each(plain, clock, *[FEW.want(2)] * 2)) == [True, False]


def test_shadow_leaves_trouble_as_it_is(clock: FakeClock) -> None:
    shadow = Shadow(FaultyStore(MemoryStore(clock), before=[DOWN]))
    assert each(shadow, clock, FEW.want(1)) == [DOWN]


def test_trouble_that_a_store_raises_is_of_every_group_and_counts(clock: FakeClock) -> None:
    class Raises(RecordingStore):
        async def consume_each(
            self, groups: Sequence[Sequence[Demand]], now_ms: int | None
        ) -> list[Outcome]:
            raise DOWN

    circuit = Circuit(clock)
    store = add_layers(Raises(MemoryStore(clock)), clock=clock, breaker=False)
    assert each(Breaker(store, circuit), clock, FEW.want(1), FEW.want(1)) == [DOWN, DOWN]
    assert circuit.failures == 1


# The contract suite with every layer, and all of them, around the memory store.

LAYERS: dict[str, Callable[[Store], Store]] = {
    "rejections": lambda store: Rejections(store, steady_clock()),
    "prefetch": lambda store: Prefetch(store, steady_clock()),
    "default": lambda store: add_layers(store, clock=steady_clock()),
    "all": lambda store: add_layers(store, clock=steady_clock(), prefetch=True),
}


# Layers await nothing of their own, so that one stack in an event loop stands for the others.
@pytest.mark.parametrize(
    ("layer", "blocking"), [*((layer, True) for layer in LAYERS), ("all", False)]
)
@pytest.mark.parametrize("case", cases(), ids=str)
def test_contract(case: Case, layer: str, blocking: bool) -> None:
    backend = open_backend("memory://", blocking=blocking)
    run_case(case, replace(backend, store=LAYERS[layer](backend.store)), blocking=blocking)


def test_the_suite_does_reach_what_the_layers_do_themselves() -> None:
    """No case had to be left out for any layer; so make sure that they are not just passed by."""
    served = refused = 0
    for case in cases():
        backend = open_backend("memory://", blocking=True)
        rejections = Rejections(backend.store, steady_clock())
        prefetch = Prefetch(rejections, steady_clock())
        run_case(case, replace(backend, store=prefetch), blocking=True)
        served += prefetch.served
        refused += rejections.refused
    assert served > 500
    assert refused > 500
