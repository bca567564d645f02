"""Layers together: why they stand in their order, what passes through them; and shadow mode."""

from __future__ import annotations

import pytest

from headgate.core.decision import Verdict
from headgate.core.errors import Contended, StoreTrouble, Throttled
from headgate.core.limits import Limit
from headgate.core.record import CELLS, TOKENS
from headgate.core.runtime import run
from headgate.layers.breaker import BreakerConfig, BreakerOpen
from headgate.layers.layer import Shadow, ShadowVerdict
from headgate.layers.prefetch import Prefetch
from headgate.layers.stack import add_layers
from headgate.stores.memory.buckets import MemoryStore
from headgate.testing import FakeClock, FaultyStore
from tests.layers.kit import DOWN, Buckets, Client, Switch, recorded

STILL = Buckets(Limit.custom("n", 1000, 0, 1))
FEW = Buckets(Limit.per_minute("rpm", 3))


def test_what_is_held_is_served_although_the_store_is_known_to_be_empty() -> None:
    """With rejections in front of prefetch, the tokens at hand would be refused."""
    clock = FakeClock()
    store = recorded(clock)
    layer = add_layers(store, clock=clock, prefetch=True)
    client = Client(layer, clock)
    client.admitted(STILL.want(1), 12)
    assert isinstance(layer, Prefetch)
    held = layer.held_milli(STILL.key())["n"] // 1000
    assert held > 0
    record = Client(store, clock).peek(STILL.key()).records[0]
    assert record is not None
    behind = Client(layer.inner, clock)
    left = record[CELLS + TOKENS] // 1000
    assert behind.take(STILL.want(left)).allowed
    assert not behind.take(STILL.want(1)).allowed
    store.calls.clear()
    assert client.admitted(STILL.want(1), held) == held
    assert store.calls == []


def test_a_proven_refusal_stays_one_while_the_store_is_away() -> None:
    clock = FakeClock()
    store = Switch(MemoryStore(clock))
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


def test_every_verb_passes_through_all_of_them() -> None:
    clock = FakeClock()
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


# --------------------------------------------------------------------------------------------------
# Shadow: every refusal passes and is seen, nothing changes by it, outages stay outages.


def test_it_never_refuses_and_changes_nothing() -> None:
    clock = FakeClock()
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


def test_a_shadowed_verdict_holds_nothing_and_knows_what_it_would_have_been() -> None:
    clock = FakeClock()
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
def test_trouble_is_raised_as_it_is(trouble: StoreTrouble) -> None:
    clock = FakeClock()
    shadow = Shadow(FaultyStore(MemoryStore(clock), before=[trouble]))
    with pytest.raises(StoreTrouble) as caught:
        Client(shadow, clock).take(FEW.want(1))
    assert caught.value is trouble
    assert shadow.would_refuse == 0


def test_it_also_sees_refusals_of_the_layers_inside() -> None:
    clock = FakeClock()
    store = recorded(clock)
    seen: list[Verdict] = []
    client = Client(add_layers(store, clock=clock, shadow=True, on_refusal=seen.append), clock)
    assert client.admitted(FEW.want(1), 100) == 100
    assert len(seen) == 97
    assert len(store.calls) == 4
