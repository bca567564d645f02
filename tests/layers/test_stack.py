"""The order of the layers, why it is that order, and how they are chosen."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.core.errors import ValidationError
from headgate.core.limits import Limit
from headgate.core.record import CELLS, TOKENS
from headgate.core.runtime import run
from headgate.core.store import Store
from headgate.layers.breaker import Breaker, BreakerConfig, BreakerOpen
from headgate.layers.layer import Layer, Shadow
from headgate.layers.prefetch import Prefetch
from headgate.layers.rejections import Rejections
from headgate.layers.stack import Layering, add_layers, detach, split_options
from headgate.stores.memory.buckets import MemoryStore
from headgate.testing import FakeClock
from tests.layers.kit import DOWN, Buckets, Client, Switch, recorded

STILL = Buckets(Limit.custom("n", 1000, 0, 1))
FEW = Buckets(Limit.per_minute("rpm", 3))


def kinds(store: Store) -> list[type]:
    found: list[type] = []
    while isinstance(store, Layer):
        found.append(type(store))
        store = store.inner
    return [*found, type(store)]


def test_the_order_is_the_documented_one() -> None:
    clock = FakeClock()
    everything = add_layers(MemoryStore(clock), clock=clock, prefetch=True, shadow=True)
    assert kinds(everything) == [Shadow, Prefetch, Rejections, Breaker, MemoryStore]
    assert kinds(add_layers(MemoryStore(clock), clock=clock)) == [Rejections, Breaker, MemoryStore]
    bare = MemoryStore(clock)
    assert add_layers(bare, clock=clock, breaker=False, rejections=False) is bare


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


def test_detach_gives_back_and_leaves_the_store_open() -> None:
    clock = FakeClock()
    store = recorded(clock)
    layer = add_layers(store, clock=clock, prefetch=True, shadow=True)
    Client(layer, clock).admitted(STILL.want(1), 12)
    run(detach(layer))
    assert store.verbs[-1] == "adjust"
    assert Client(store, clock).admitted(STILL.want(1), 2000) == 988
    run(detach(store))
    run(layer.close())
    assert store.verbs[-1] == "close"


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


def test_a_url_chooses_layers_and_leaves_the_rest_to_the_store() -> None:
    given = {"breaker": "off", "prefetch": "ON", "timeout_ms": "50"}
    switches, rest = split_options("sqlite:///x", given)
    assert (switches, rest) == ({"breaker": False, "prefetch": True}, {"timeout_ms": "50"})
    chosen = Layering(shadow=True).override(switches)
    assert chosen == Layering(breaker=False, rejections=True, prefetch=True, shadow=True)
    with pytest.raises(ValidationError, match="must be on or off"):
        split_options("sqlite:///x", {"shadow": "maybe"})


@pytest.mark.parametrize("value", [None, 1, "on"])
def test_options_are_true_or_false(value: Any) -> None:
    with pytest.raises(ValidationError, match="must be True or False"):
        Layering(prefetch=value)
