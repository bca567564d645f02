"""Shadow: every refusal passes and is seen, nothing changes by it, outages stay outages."""

from __future__ import annotations

import pytest

from headgate.core.decision import Verdict
from headgate.core.errors import Contended, StoreTrouble, Throttled
from headgate.core.limits import Limit
from headgate.layers.layer import Shadow, ShadowVerdict
from headgate.layers.stack import add_layers
from headgate.stores.memory.buckets import MemoryStore
from headgate.testing import FakeClock, FaultyStore
from tests.layers.kit import DOWN, Buckets, Client, recorded

RPM = Buckets(Limit.per_minute("rpm", 3))


def test_it_never_refuses_and_changes_nothing() -> None:
    clock = FakeClock()
    store = recorded(clock)
    seen: list[Verdict] = []
    shadow = Shadow(store, on_refusal=seen.append)
    client, plain = Client(shadow, clock), Client(MemoryStore(clock), clock)
    for n in range(200):
        clock.advance(n * 37 % 900)
        ours, theirs = client.take(RPM.want(1 + n % 3)), plain.take(RPM.want(1 + n % 3))
        assert ours.allowed
        assert isinstance(ours, ShadowVerdict) is not theirs.allowed
        assert client.peek(RPM.key()) == plain.peek(RPM.key())
    assert shadow.would_refuse == len(seen) > 50
    assert not any(verdict.allowed for verdict in seen)


def test_a_shadowed_verdict_holds_nothing_and_knows_what_it_would_have_been() -> None:
    clock = FakeClock()
    client = Client(Shadow(MemoryStore(clock)), clock)
    client.take(RPM.want(3))
    verdict = client.take(RPM.want(1))
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
        Client(shadow, clock).take(RPM.want(1))
    assert caught.value is trouble
    assert shadow.would_refuse == 0


def test_it_also_sees_refusals_of_the_layers_inside() -> None:
    clock = FakeClock()
    store = recorded(clock)
    seen: list[Verdict] = []
    client = Client(add_layers(store, clock=clock, shadow=True, on_refusal=seen.append), clock)
    assert client.admitted(RPM.want(1), 100) == 100
    assert len(seen) == 97
    assert len(store.calls) == 4
