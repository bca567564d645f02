"""Contract cases of refunds: whatever is given back, settled or undone, a bucket gains nothing."""

from __future__ import annotations

import random

from headgate.core.decision import credits_of
from headgate.core.history import UsageQuery
from headgate.core.lease import LeaseAccount, Settlements
from headgate.core.limits import Limit
from headgate.core.store import ExpiringRecord, ExpiringRecords
from headgate.core.wait_queue import WaitQueues
from headgate.testing.contract import Arena
from headgate.transport.gates import BlockingGateFactory

SOFT = [Limit.per_minute("x", 3, soft=True), Limit.per_minute("y", 100)]
STATES = [Limit.per_hour("x", 60, soft=True), Limit.per_day("y", 500), Limit.custom("z", 9, 0, 1)]


async def _take_lease(arena: Arena, *wanted: tuple[str, dict[str, int]]) -> LeaseAccount:
    """A lease on soft limits of these entities."""
    demands = [arena.demand(SOFT, amounts, entity_id=entity) for entity, amounts in wanted]
    verdict = await arena.take(*demands)
    assert verdict.allowed
    flows = Settlements(
        lambda: arena.now_ms, WaitQueues(BlockingGateFactory()), lambda *_: None, drives_time=True
    )
    return LeaseAccount(
        flows, arena.backend.store, verdict.demands, arena.now_ms, False, untaken=verdict.untaken
    ).split_halves()


async def _state(arena: Arena, entity_id: str = "e") -> tuple[int | None, int, int | None, int]:
    """Level and consumption of both limits, in whole tokens."""
    found: list[int | None] = []
    for name in ("x", "y"):
        level = await arena.level_milli(name, entity_id)
        consumed = await arena.consumed_milli(name, entity_id)
        found += (None if level is None else level // 1000, consumed // 1000)
    return tuple(found)  # type: ignore[return-value]


async def a_refund_of_a_passed_soft_limit_gives_nothing_back(arena: Arena) -> None:
    """S4: it took nothing, so a failed block corrects the consumption and credits no token."""
    await arena.take(arena.demand(SOFT, {"x": 2, "y": 1}))
    book = await _take_lease(arena, ("e", {"x": 2, "y": 5}))
    assert await _state(arena) == (1, 4, 94, 6)
    await book.settlements.leave(book, True)
    assert await _state(arena) == (1, 2, 99, 1)


async def a_passed_soft_limit_is_settled_lower_and_higher(arena: Arena) -> None:
    """S4: lower gives back no token that was not taken; higher takes what is beyond; back again
    returns that and no more."""
    await arena.take(arena.demand(SOFT, {"x": 2}))
    book = await _take_lease(arena, ("e", {"x": 30}))
    for actual, level, consumed in ((10, 1, 12), (0, 1, 2), (4, -3, 6), (1, 0, 3), (1, 0, 3)):
        await book.settlements.settle(book, {"x": actual})
        assert await _state(arena) == (level, consumed, 100, 0)
    assert book.consumed == {"x": 1}
    await book.settlements.leave(book, True)
    assert await _state(arena) == (0, 3, 100, 0)


async def a_lease_gives_back_tokens_only_of_what_it_took(arena: Arena) -> None:
    """S4: adjust and release undo the newest first, whether it took tokens or was counted only."""
    book = await _take_lease(arena, ("e", {"x": 3, "y": 1}))
    await book.settlements.consume(book, {"x": 7})
    assert await _state(arena) == (0, 10, 99, 1)
    await book.settlements.release(book, {"x": 5})
    assert await _state(arena) == (0, 5, 99, 1)
    await book.settlements.adjust(book, {"x": -3, "y": 4})
    assert await _state(arena) == (1, 2, 95, 5)
    await book.settlements.adjust(book, {"x": -30, "y": -30})
    assert await _state(arena) == (3, 0, 100, 0)
    assert book.consumed == {"x": 0, "y": 0}


async def an_undone_take_gives_back_only_what_it_took(arena: Arena) -> None:
    """S6: where one bucket refuses, the others are as they were, passed soft limits included."""
    await arena.take(arena.demand(SOFT, {"x": 2, "y": 1}, entity_id="child"))
    wanted = arena.demand(SOFT, {"x": 2, "y": 1}, entity_id="child")
    full = arena.demand([Limit.per_minute("x", 5)], {"x": 5}, entity_id="parent")
    assert (await arena.take(full)).allowed
    for _ in range(3):
        assert not (await arena.take(wanted, full)).allowed
        assert await _state(arena, "child") == (1, 2, 99, 1)


async def buckets_asked_different_amounts_are_settled_each_by_its_own(arena: Arena) -> None:
    """S4: one actual amount for all; none gets back more than it gave, also where it was passed."""
    book = await _take_lease(arena, ("a", {"y": 4}), ("b", {"y": 9}), ("c", {"x": 50, "y": 4}))
    await book.settlements.settle(book, {"y": 6})
    for entity_id in ("a", "b", "c"):
        assert (await _state(arena, entity_id))[2:] == (94, 6)
    await book.settlements.adjust(book, {"y": -5})
    assert (await _state(arena, "b"))[2:] == (99, 1)
    await book.settlements.settle(book, {"x": 1})
    assert await _state(arena, "c") == (3, 1, 99, 1)


async def what_is_taken_and_undone_leaves_no_trace(arena: Arena) -> None:
    """S4: any take, undone at once by what its verdict says, leaves level and consumption as they
    were; limits that changed meanwhile make no difference."""
    rng = random.Random(12)
    for step in range(150):
        arena.now_ms += rng.choice((0, 1, 900, 60_000, 3_600_000))
        names = rng.sample(("p", "q", "s"), rng.randint(1, 3))
        wanted = {limit.name: rng.randint(0, limit.capacity * 2 // 3) for limit in STATES}
        wanted["x"] *= rng.choice((1, 1, 3))
        kept = dict(rng.sample(sorted(wanted.items()), rng.randint(1, 3)))
        own = step % 7 == 0
        demands = [arena.demand(STATES, kept, entity_id=name, own=own) for name in names]
        before = await _levels(arena, names)
        verdict = await arena.take(*demands)
        if verdict.allowed and step % 3:
            await arena.adjust(*credits_of(verdict))
        if step % 3 or not verdict.allowed:
            after = await _levels(arena, names)
            for was, now in zip(before, after, strict=True):
                assert was[1] == now[1]
                assert now[0] - 1 <= was[0] <= now[0] + 1  # one epoch for all limits of a bucket


async def _levels(arena: Arena, names: list[str]) -> list[tuple[int, int]]:
    found = []
    for name in names:
        for limit in STATES:
            level = await arena.level_milli(limit.name, name)
            full = limit.capacity * 1000
            found.append(
                (full if level is None else level, await arena.consumed_milli(limit.name, name))
            )
    return found


async def usage_knows_what_a_refund_corrected(arena: Arena) -> None:
    """Usage counts a passed soft limit, and no longer once it is undone."""
    book = await _take_lease(arena, ("e", {"x": 50, "y": 2}))
    await book.settlements.settle(book, {"x": 20})
    query = UsageQuery(window_type="hourly")
    (shot,) = (await arena.backend.ledger.usage(arena.namespace, query, arena.now_ms)).items
    assert dict(shot.counters) == {"x": 20, "y": 2}
    assert shot.total_events == 1


# --------------------------------------------------------------------------------------------------
# Expiring records: small texts that only one caller at a time can change.


def _expiring(arena: Arena) -> ExpiringRecords:
    expiring = arena.backend.expiring
    assert expiring is not None, "a backend without expiring records leaves these cases out"
    return expiring


async def a_text_is_kept_as_it_is(arena: Arena) -> None:
    """Any text under any name comes back; a namespace sees its own."""
    expiring, ns = _expiring(arena), arena.namespace
    for name, text in (
        ("a", "plain"),
        ("b", ""),
        ("c", "two words\nand ümläut 🦀 {}"),
        ("d-_9", " 1 "),
    ):
        assert await expiring.put(ns, name, text, 5000, seen=None) == 1
        assert await expiring.get(ns, name) == ExpiringRecord(text, 5000, 1)
        assert await expiring.get("another____", name) is None
    assert await expiring.get(ns, "nothing") is None


async def only_the_newest_version_can_be_changed(arena: Arena) -> None:
    """Whoever saw an older one, or none, changes nothing and is told so."""
    expiring, ns = _expiring(arena), arena.namespace
    assert await expiring.put(ns, "x", "one", 100, seen=7) is None
    assert await expiring.put(ns, "x", "one", 100, seen=None) == 1
    assert await expiring.put(ns, "x", "other", 100, seen=None) is None
    assert await expiring.put(ns, "x", "two", 200, seen=1) == 2
    assert await expiring.put(ns, "x", "late", 300, seen=1) is None
    assert await expiring.get(ns, "x") == ExpiringRecord("two", 200, 2)


async def a_text_is_dropped_once(arena: Arena) -> None:
    """Of all who try, one is told that it did it."""
    expiring, ns = _expiring(arena), arena.namespace
    assert not await expiring.drop(ns, "x", seen=1)
    await expiring.put(ns, "x", "one", 100, seen=None)
    assert not await expiring.drop(ns, "x", seen=2)
    assert await expiring.drop(ns, "x", seen=1)
    assert not await expiring.drop(ns, "x", seen=1)
    assert await expiring.put(ns, "x", "again", 100, seen=None) == 1


async def what_is_due_comes_in_its_order(arena: Arena) -> None:
    """By its end, the earliest first, at most so many, as it stands now."""
    expiring, ns = _expiring(arena), arena.namespace
    for name, until_ms in (("late", 900), ("b", 200), ("a", 200), ("soon", 100)):
        await expiring.put(ns, name, name.upper(), until_ms, seen=None)
    await expiring.put(ns, "b", "moved", 800, seen=1)
    due = await expiring.due(ns, 801, 10)
    assert [name for name, _ in due] == ["soon", "a", "b"]
    assert due[2][1] == ExpiringRecord("moved", 800, 2)
    assert [name for name, _ in await expiring.due(ns, 801, 1)] == ["soon"]
    assert await expiring.due(ns, 100, 10) == []
    await expiring.drop(ns, "soon", seen=1)
    assert [name for name, _ in await expiring.due(ns, 201, 10)] == ["a"]


async def a_purged_namespace_leaves_no_texts(arena: Arena) -> None:
    """They go with everything else."""
    expiring, catalog, ns = _expiring(arena), arena.backend.catalog, arena.namespace
    await expiring.put(ns, "x", "one", 100, seen=None)
    await catalog.delete_namespace("arena", None, 1000)
    await catalog.purge_namespace(ns, None, 2000)
    assert await expiring.get(ns, "x") is None
    assert await expiring.due(ns, 10**12, 10) == []
