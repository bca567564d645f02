"""Prefetch: what was not used comes back, whatever the end; what cannot is counted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate.core.limits import Limit
from headgate.core.record import cell_of
from headgate.core.runtime import run
from headgate.layers.held_tokens import HOLD_MS
from headgate.layers.prefetch import SWEEP_MAX, Prefetch
from headgate.stores.memory.buckets import MemoryStore
from headgate.testing import FakeClock, FaultyStore, RecordingStore
from tests.layers.kit import DOWN, FAST, STILL, Buckets, Client, World


def test_unused_tokens_come_back_when_touched_swept_or_closed() -> None:
    def used() -> tuple[World, int]:
        world = World()
        admitted = world.client.admitted(STILL.want(1), 12)
        assert world.held(STILL) > 0
        assert world.level(STILL) == 1000 - admitted - world.held(STILL)
        return world, admitted

    world, admitted = used()
    world.clock.advance(HOLD_MS)
    world.client.take(FAST.want(1, entity_id="another"))
    assert world.level(STILL) == 1000 - admitted, "beside another call"
    world, admitted = used()
    world.clock.advance(HOLD_MS)
    assert world.client.take(STILL.want(1)).allowed
    assert world.level(STILL) == 1000 - admitted - 1, "when it is touched itself"
    world, admitted = used()
    world.clock.advance(HOLD_MS - 1)
    world.client.take(FAST.want(1, entity_id="another"))
    assert world.held(STILL) > 0, "not before its time"
    for end in (world.layer.close, world.layer.detach):
        world, admitted = used()
        run(type(world.layer).__dict__[end.__name__](world.layer))
        assert world.level(STILL) == 1000 - admitted, "at the end"
        assert world.other.peek(STILL.key()).records[0] is not None
        assert world.store.verbs.count("close") == (end.__name__ == "close")
    world, _ = used()
    run(world.layer.forget([STILL.key()]))
    assert world.level(STILL) is None
    assert world.store.verbs[-2:] == ["adjust", "forget"]
    assert world.client.admitted(STILL.want(1), 1100) == 1000


def test_a_pot_behind_many_idle_ones_comes_back_when_it_is_touched() -> None:
    world = World()
    names = [f"e{n}" for n in range(40)]
    for name in names:
        world.client.admitted(STILL.want(1, entity_id=name), 7)
        assert world.held(STILL, name) > 0
    world.clock.advance(HOLD_MS)
    assert world.client.take(STILL.want(1, entity_id=names[-1])).allowed
    assert world.level(STILL, names[-1]) == 1000 - 8
    assert sum(world.held(STILL, name) > 0 for name in names) == 40 - SWEEP_MAX - 1
    for _ in range(3):
        world.client.take(FAST.want(1))
    assert sum(world.held(STILL, name) for name in names) == 0, "a few with every store call"


def test_returned_tokens_are_not_consumption() -> None:
    world = World()
    admitted = world.warm()
    run(world.layer.close())
    record = world.other.peek(FAST.key()).records[0]
    assert record is not None
    cell = cell_of(record, "rps")
    assert cell is not None
    assert cell.consumed_milli == admitted * 1000


def test_other_terms_give_back_what_the_old_ones_held() -> None:
    world = World()
    admitted = world.client.admitted(STILL.want(1), 12)
    newer = Buckets(Limit.custom("n", 2000, 0, 1), version=2)
    assert world.client.take(newer.want(1)).allowed
    assert world.level(newer) == 1000 - admitted - 1
    stale = world.client.take(STILL.want(1))
    assert stale.allowed
    assert stale.outdated
    for _ in range(12):
        verdict = world.client.take(STILL.want(1))
        assert (verdict.allowed, verdict.outdated) == (True, True)
        admitted += 1
    run(world.layer.close())
    assert world.level(newer) == 1000 - admitted - 2


def test_a_lost_credit_is_counted_and_a_failed_chunk_holds_nothing() -> None:
    world = World()
    admitted = world.client.admitted(STILL.want(1), 12)
    held = world.held(STILL)
    world.layer.inner = FaultyStore(world.store, before=[DOWN])
    world.clock.advance(HOLD_MS)
    assert world.client.take(STILL.want(1)).allowed, "the trouble was not its own"
    assert world.layer.lost == 1
    assert world.level(STILL) == 1000 - admitted - held - 1
    faulty = FaultyStore(world.store, before=[DOWN] * 3)
    world.layer.inner = faulty
    for _ in range(3):
        with pytest.raises(type(DOWN)):
            world.client.take(STILL.want(1))
    assert world.held(STILL) == 0
    assert world.client.admitted(STILL.want(1), 12) == 12, "and it recovers"


def test_the_number_of_pots_is_bounded() -> None:
    clock = FakeClock()
    layer = Prefetch(MemoryStore(clock), clock, holdings_max=20)
    client = Client(layer, clock)
    for n in range(100):
        client.admitted(STILL.want(1, entity_id=f"e{n}"), 12)
    assert len(layer._holdings) == 20
    clock.advance(HOLD_MS)
    client.admitted(STILL.want(1, entity_id="new"), 12)
    assert layer.held_milli(STILL.key("new")) != {}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("?"), GeneratorExit()])
def test_a_credit_that_may_have_arrived_is_not_sent_again(error: BaseException) -> None:
    world = World()
    admitted = world.client.admitted(STILL.want(1), 12)
    assert world.held(STILL) > 0

    async def landed_and_raised(*args: Any, **options: Any) -> bool:
        await RecordingStore.adjust(world.store, *args, **options)
        raise error

    world.store.adjust = landed_and_raised  # type: ignore[method-assign]
    with pytest.raises(type(error)):
        run(world.layer.detach())
    del world.store.adjust
    run(world.layer.detach())
    assert world.level(STILL) == 1000 - admitted, "given back twice"
    assert world.layer.lost == 1


def test_a_credit_that_was_not_sent_is_sent_later() -> None:
    world = World()
    admitted = world.client.admitted(STILL.want(1), 12)

    async def cancelled(*args: Any, **options: Any) -> bool:
        raise asyncio.CancelledError

    world.store.adjust = cancelled  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        run(world.layer.detach())
    del world.store.adjust
    run(world.layer.detach())
    assert (world.level(STILL), world.layer.lost) == (1000 - admitted, 0)
