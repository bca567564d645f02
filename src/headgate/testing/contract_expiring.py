"""Contract cases of expiring records: small texts that only one caller at a time can change."""

from __future__ import annotations

from headgate.core.store import ExpiringRecord, ExpiringRecords
from headgate.testing.arena import Arena


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


CASES = (
    a_text_is_kept_as_it_is,
    only_the_newest_version_can_be_changed,
    a_text_is_dropped_once,
    what_is_due_comes_in_its_order,
    a_purged_namespace_leaves_no_texts,
)
