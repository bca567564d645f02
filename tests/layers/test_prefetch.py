"""Prefetch: far fewer calls, refusals still exact, and every token accounted for."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from headgate.core.decision import Demand
from headgate.core.limits import Limit
from headgate.core.record import cell_of, cells_of
from headgate.core.runtime import run
from headgate.layers.held_tokens import HOLD_MS
from headgate.layers.prefetch import SWEEP_MAX, Prefetch
from headgate.layers.stack import add_layers
from headgate.stores.memory.buckets import MemoryStore
from headgate.testing import FakeClock, FaultyStore, RecordingStore
from tests.layers.kit import DOWN, FAST, STILL, Buckets, Client, Held, World, turns


def test_a_thousand_acquires_a_second_are_twenty_times_fewer_calls(world: World) -> None:
    assert world.warm(calls=5000) == 5000
    assert len(world.store.calls) <= 5000 / 20
    assert len(world.store.calls) < 5000 / 60, "a chunk lasts some 80 ms once it has grown"


@pytest.mark.parametrize("per_second", [100, 1000, 10_000])
def test_a_chunk_lasts_50_to_100_ms_of_own_demand(world: World, per_second: int) -> None:
    wide = Buckets(Limit.per_second("rps", 1_000_000))
    for _ in range(1000):
        for _ in range(max(1, per_second // 1000)):
            world.client.take(wide.want(1))
        world.clock.advance(max(1, 1000 // per_second))
    fetched = [call[1][0][0].amounts[0] // 1000 for call in world.store.calls[-8:]]
    assert world.layer.served > 800
    assert all(per_second * 0.05 <= chunk <= per_second * 0.1 for chunk in fetched)


def test_a_key_that_is_used_now_and_then_fetches_nothing_ahead(world: World) -> None:
    for _ in range(30):
        assert world.client.take(FAST.want(1)).allowed
        assert world.held(FAST) == 0
        world.clock.advance(200)
    assert world.store.verbs == ["consume"] * 30


def test_what_is_held_stays_below_the_published_share(world: World) -> None:
    mixed = Buckets(Limit.per_second("rps", 10_000), Limit.per_minute("tpm", 40_000))
    rng = random.Random(5)
    most = 0
    for _ in range(3000):
        world.clock.advance(rng.choice((0, 0, 1)))
        world.client.take(mixed.want(1, rng.randint(1, 300)))
        for name, milli in world.layer.held_milli(mixed.key()).items():
            assert 0 <= milli <= {"rps": 500_000, "tpm": 2_000_000}[name]
            most = max(most, milli)
    assert most > 0
    assert world.layer.held_milli(mixed.key("nobody")) == {}


def test_a_demand_beyond_the_share_goes_straight_to_the_store(world: World) -> None:
    world.warm()
    held = world.held(FAST)
    assert world.client.take(FAST.want(501)).allowed
    assert world.store.calls[-1][1][0][0].amounts == (501_000,)
    assert world.held(FAST) == held
    small = Buckets(Limit.per_second("rps", 19))
    assert world.client.admitted(small.want(1, entity_id="small"), 50) == 19
    assert world.layer.held_milli(small.key("small")) == {"rps": 0}


def test_every_token_is_given_once_and_the_last_refusal_is_exact(world: World) -> None:
    assert world.client.admitted(STILL.want(1), 3000) == 1000
    assert (world.level(STILL), world.held(STILL)) == (0, 0)
    assert world.client.take(STILL.want(1)).retry_after_ms is None


@pytest.mark.parametrize("layers", ["prefetch", "all"])
@pytest.mark.parametrize("seed", range(2))
def test_a_lone_client_gets_the_same_verdicts_as_without_it(
    seed: int, layers: str, clock: FakeClock
) -> None:
    """Where no bucket runs over, store and pot together are the bucket: nothing is minted, nothing
    refused too early, and every wait is the same."""
    rng = random.Random(seed)
    prefetch = Prefetch(MemoryStore(clock), clock)
    store = add_layers(MemoryStore(clock), clock=clock, prefetch=True)
    ours = Client(prefetch if layers == "prefetch" else store, clock)
    plain = Client(MemoryStore(clock), clock)
    used = Buckets(Limit.custom("a", 2000, 900, 1), Limit.custom("b", 90_000, 50_000, 1))
    for client in (ours, plain):
        client.take(used.want(1900, 80_000))
    refused = 0
    for _ in range(3000):
        clock.advance(rng.choice((0, 1, 1, 2, 3)))
        demand = used.want(rng.randint(0, 3), rng.choice((None, 40, 160)))
        if rng.random() < 0.01:
            demand = used.want(rng.randint(0, 400), rng.randint(0, 9000))
        mine, theirs = ours.take(demand), plain.take(demand)
        assert mine.allowed == theirs.allowed
        assert mine.retry_after_ms == theirs.retry_after_ms
        refused += not mine.allowed
    assert 150 < refused < 2750
    assert ours.store.served > 50
    run(ours.store.detach())
    left, expected = ours.peek(used.key()).records[0], plain.peek(used.key()).records[0]
    for name in ("a", "b"):
        assert cell_of(left, name) == cell_of(expected, name), "level and consumption agree"


def test_a_served_verdict_looks_like_a_stores(world: World) -> None:
    world.client.admitted(STILL.want(1), 800)
    served = world.layer.served
    statuses = [world.client.take(STILL.want(1)).statuses[0] for _ in range(100)]
    assert world.layer.served > served + 90
    assert [status.available for status in statuses] == list(range(199, 99, -1))
    assert not any(status.exceeded for status in statuses)


def test_a_dry_bucket_is_asked_for_a_chunk_now_and_then_only(world: World) -> None:
    world.client.admitted(STILL.want(1), 1001)
    world.store.calls.clear()
    for _ in range(400):
        world.clock.advance(1)
        assert not world.client.take(STILL.want(1)).allowed
    assert 400 <= len(world.store.calls) <= 410


def test_several_buckets_are_served_only_if_all_are_at_hand(world: World) -> None:
    pair = (STILL.want(1, entity_id="a"), STILL.want(1, entity_id="b"))
    for name in ("a", "b"):
        world.client.admitted(STILL.want(1, entity_id=name), 12)
    held = [world.held(STILL, name) for name in ("a", "b")]
    assert min(held) > 1
    world.store.calls.clear()
    assert world.client.take(*pair).allowed
    assert world.store.calls == []
    assert [world.held(STILL, name) for name in ("a", "b")] == [held[0] - 1, held[1] - 1]
    assert world.client.take(*pair, STILL.want(1, entity_id="c")).allowed
    assert world.store.verbs == ["consume"]
    assert len(world.store.calls[0][1][0]) == 3
    assert [world.held(STILL, name) for name in ("a", "b")] == [held[0] - 1, held[1] - 1]


def test_what_cascades_is_never_served_from_what_was_fetched_for_the_entity_itself(
    world: World,
) -> None:
    """Held tokens are counted as asked for it already: usage would tell them at the wrong place."""
    own = STILL.want(1)
    world.client.admitted(own, 12)
    held = world.held(STILL, "key-1")
    assert held > 1
    child = Demand(own.key, own.terms, own.amounts, cascaded=own.amounts)
    world.store.calls.clear()
    for wanted in ((child,), (STILL.want(1, entity_id="b"), child)):
        assert world.client.take(*wanted).allowed
        assert world.store.calls[-1][1][0][-1].cascaded == own.amounts
    assert world.store.verbs == ["consume", "consume"]
    assert world.held(STILL, "key-1") == held


def test_a_refusal_over_several_buckets_counts_what_is_held_here(world: World) -> None:
    world.client.admitted(STILL.want(1), 12)
    held = world.held(STILL)
    assert held > 2
    world.other.take(STILL.want(world.level(STILL)))
    other = STILL.want(1, entity_id="other")
    assert world.client.take(STILL.want(held), other).allowed
    assert not world.client.take(STILL.want(1), other).allowed


def test_soft_limits_are_never_held(world: World) -> None:
    soft = Buckets(Limit.per_second("rps", 10_000, soft=True))
    assert world.warm(soft) == 50
    assert world.held(soft) == 0
    assert len(world.store.calls) == 50


def test_a_chunk_that_passes_a_soft_limit_is_returned_as_it_was_taken(world: World) -> None:
    """The bucket has come under newer limits, and its soft one has not got the whole chunk: what
    was counted ahead is counted no longer, and no token comes back that was not taken."""
    admitted = world.warm(STILL)
    newer = Buckets(Limit.custom("n", 1000, 0, 1, soft=True), version=2)
    others = (world.level(STILL) or 0) - 3
    assert not world.other.take(newer.want(others)).untaken
    untaken = 0
    for _ in range(60):
        world.clock.advance(1)
        verdict = world.client.take(STILL.want(1))
        assert verdict.allowed
        admitted += 1
        untaken += len(verdict.untaken)
    run(world.layer.close())
    assert untaken > 0
    (record,) = world.other.peek(STILL.key()).records
    (cell,) = cells_of(record)
    assert cell.consumed_milli == (others + admitted) * 1000
    assert world.level(STILL) == 1000 - others - (admitted - untaken)


def test_more_is_fetched_before_the_last_is_gone_and_others_are_served_meanwhile() -> None:
    """A store some milliseconds away: while one caller fetches, the rest of a chunk lasts."""

    async def story() -> int:
        clock = FakeClock()
        store = Held(MemoryStore(clock))
        layer = Prefetch(store, clock)

        async def ask() -> None:
            assert (await layer.consume([FAST.want(1)], clock())).allowed

        for _ in range(300):
            clock.advance(1)
            await ask()
        store.let_go.clear()
        store.calls.clear()
        asking = []
        while not store.calls:  # until somebody goes for more
            clock.advance(1)
            asking.append(asyncio.ensure_future(ask()))
            await turns()
        for _ in range(20):
            clock.advance(1)
            asking.append(asyncio.ensure_future(ask()))
        await turns()
        under_way = sum(not task.done() for task in asking)
        store.let_go.set()
        await asyncio.gather(*asking)
        assert len(store.calls) == 1
        return under_way

    assert asyncio.run(story()) == 1


def test_trouble_with_a_chunk_that_was_not_needed_yet_is_nobodys(clock: FakeClock) -> None:
    store = Held(MemoryStore(clock))
    client = Client(Prefetch(store, clock), clock)
    for _ in range(300):
        clock.advance(1)
        client.take(FAST.want(1))
    store.trouble = DOWN
    store.calls.clear()
    held = client.store.held_milli(FAST.key())["rps"] // 1000  # type: ignore[attr-defined]
    for _ in range(held):
        clock.advance(1)
        assert client.take(FAST.want(1)).allowed
    assert store.calls, "it went for more"
    with pytest.raises(type(DOWN)):
        client.take(FAST.want(1))


# What was not used comes back, whatever the end; what cannot is counted.


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


def test_a_pot_behind_many_idle_ones_comes_back_when_it_is_touched(world: World) -> None:
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


def test_other_terms_give_back_what_the_old_ones_held(world: World) -> None:
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


def test_a_lost_credit_is_counted_and_a_failed_chunk_holds_nothing(world: World) -> None:
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


def test_the_number_of_pots_is_bounded(clock: FakeClock) -> None:
    layer = Prefetch(MemoryStore(clock), clock, holdings_max=20)
    client = Client(layer, clock)
    for n in range(100):
        client.admitted(STILL.want(1, entity_id=f"e{n}"), 12)
    assert len(layer._holdings) == 20
    clock.advance(HOLD_MS)
    client.admitted(STILL.want(1, entity_id="new"), 12)
    assert layer.held_milli(STILL.key("new")) != {}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("?"), GeneratorExit()])
def test_a_credit_that_may_have_arrived_is_not_sent_again(
    world: World, error: BaseException
) -> None:
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


def test_a_credit_that_was_not_sent_is_sent_later(world: World) -> None:
    admitted = world.client.admitted(STILL.want(1), 12)

    async def cancelled(*args: Any, **options: Any) -> bool:
        raise asyncio.CancelledError

    world.store.adjust = cancelled  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        run(world.layer.detach())
    del world.store.adjust
    run(world.layer.detach())
    assert (world.level(STILL), world.layer.lost) == (1000 - admitted, 0)
