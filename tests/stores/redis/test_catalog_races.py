"""Writers that meet: whatever happens between a read and its commit, the rules hold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from headgate.core.errors import (
    Contended,
    EntityExistsError,
    EntityNotFoundError,
    NamespaceStateError,
    ValidationError,
    VersionMismatchError,
)
from headgate.core.levels import Entity, Level, Mode
from headgate.core.limits import Limit
from headgate.core.runtime import run
from headgate.core.store import Backend
from headgate.stores.records import ATTEMPTS_MAX
from headgate.stores.redis.records import RedisCatalog
from tests.stores.redis.catalog_kit import NOW_MS, Watched, opened, port_to, registered

RPM = Limit.per_minute("rpm", 10)
LIMITS = {"limits": (RPM,)}
COMMIT = "catalog_commit"


class Two:
    """A backend, and a second catalog whose commits can be held up by what the first one does."""

    def __init__(self, url: str) -> None:
        self.backend: Backend = opened(url)
        self.catalog = self.backend.catalog
        self.watched = Watched(port_to(url))
        self.slow = RedisCatalog(self.watched)
        self.ns = registered(self.backend)

    def create(self, entity_id: str, parent_id: str | None = None) -> None:
        entity = Entity(entity_id, parent_id=parent_id, cascade=True)
        run(self.catalog.create_entity(self.ns, entity, None, NOW_MS))

    def set_parent(self, entity_id: str, parent_id: str) -> None:
        change = {"parent_id": parent_id}
        run(self.catalog.update_entity(self.ns, entity_id, change, None, NOW_MS))

    def version(self) -> int:
        return run(self.catalog.lookup(self.ns, "a", "r")).version


@pytest.fixture
def two(redis_url: str) -> Iterator[Two]:
    two = Two(redis_url)
    yield two
    run(two.watched.close())
    run(two.backend.store.close())


def test_two_writers_of_parents_make_no_ring(two: Two) -> None:
    two.create("a")
    two.create("b")
    two.watched.before[COMMIT] = lambda: two.set_parent("b", "a")
    with pytest.raises(ValidationError, match="descends from a"):
        run(two.slow.update_entity(two.ns, "a", {"parent_id": "b"}, None, NOW_MS))
    assert run(two.catalog.get_entity(two.ns, "a")).parent_id is None


def test_a_ring_over_ancestors_is_seen_too(two: Two) -> None:
    for name, parent_id in (("top", None), ("mid", "top"), ("low", "mid"), ("x", None)):
        two.create(name, parent_id)
    two.watched.before[COMMIT] = lambda: two.set_parent("top", "x")
    with pytest.raises(ValidationError, match="descends from x"):
        run(two.slow.update_entity(two.ns, "x", {"parent_id": "low"}, None, NOW_MS))


def test_a_parent_that_goes_before_the_commit_is_missed(two: Two) -> None:
    two.create("p")
    two.watched.before[COMMIT] = lambda: run(two.catalog.delete_entity(two.ns, "p", None, NOW_MS))
    with pytest.raises(EntityNotFoundError):
        run(two.slow.create_entity(two.ns, Entity("c", parent_id="p"), None, NOW_MS))
    assert run(two.catalog.get_entity(two.ns, "c")) is None


def test_a_child_that_comes_before_the_deletion_is_freed_too(two: Two) -> None:
    two.create("p")
    two.create("one", "p")
    two.watched.before[COMMIT] = lambda: two.create("two", "p")
    run(two.slow.delete_entity(two.ns, "p", None, NOW_MS))
    for child in ("one", "two"):
        assert run(two.catalog.get_entity(two.ns, child)).parent_id is None


@pytest.mark.parametrize("before", [[], ["r"]])
def test_a_level_that_comes_before_the_deletion_goes_along(two: Two, before: list[str]) -> None:
    two.create("p")
    for resource in before:
        run(two.catalog.update_stored(two.ns, Level("p", resource), LIMITS, None, NOW_MS))

    def exchange() -> None:
        run(two.catalog.update_stored(two.ns, Level("p", "s"), LIMITS, None, NOW_MS))
        for resource in before:
            run(two.catalog.delete_stored(two.ns, Level("p", resource), None, NOW_MS))

    two.watched.before[COMMIT] = exchange
    run(two.slow.delete_entity(two.ns, "p", None, NOW_MS))
    assert run(two.catalog.get_stored(two.ns, Level("p", "s"))) is None
    assert run(two.catalog.list_resources(two.ns, of_entities=True)) == []


def test_one_child_for_another_is_noticed(two: Two) -> None:
    two.create("p")
    two.create("q")
    two.create("one", "p")
    two.create("two", "q")

    def exchange() -> None:
        two.set_parent("one", "q")
        two.set_parent("two", "p")

    two.watched.before[COMMIT] = exchange
    run(two.slow.delete_entity(two.ns, "p", None, NOW_MS))
    assert run(two.catalog.get_entity(two.ns, "one")).parent_id == "q"
    assert run(two.catalog.get_entity(two.ns, "two")).parent_id is None


def test_the_same_entity_is_created_once(two: Two) -> None:
    two.watched.before[COMMIT] = lambda: two.create("a")
    with pytest.raises(EntityExistsError):
        run(two.slow.create_entity(two.ns, Entity("a"), None, NOW_MS))


def test_a_guarded_write_loses_to_what_came_between(two: Two) -> None:
    two.create("a")
    two.watched.before[COMMIT] = lambda: run(
        two.catalog.update_entity(two.ns, "a", {"name": "x"}, None, NOW_MS)
    )
    with pytest.raises(VersionMismatchError):
        run(two.slow.update_entity(two.ns, "a", {"name": "y"}, None, NOW_MS, version=1))


def test_parts_of_a_level_changed_at_once_are_both_kept(two: Two) -> None:
    level = Level(None, "r")
    two.watched.before[COMMIT] = lambda: run(
        two.catalog.update_stored(two.ns, level, {"mode": Mode.BYPASS}, None, NOW_MS)
    )
    after = run(two.slow.update_stored(two.ns, level, LIMITS, None, NOW_MS))
    assert (after.limits, after.mode, after.version) == ((RPM,), Mode.BYPASS, 2)
    assert run(two.catalog.get_stored(two.ns, level)) == after


def test_a_namespace_deleted_before_the_commit_takes_no_writes(two: Two) -> None:
    two.watched.before[COMMIT] = lambda: run(two.catalog.delete_namespace("team", None, NOW_MS))
    with pytest.raises(NamespaceStateError):
        run(two.slow.create_entity(two.ns, Entity("a"), None, NOW_MS))


def test_writers_apart_do_not_disturb_each_other(two: Two) -> None:
    two.watched.before[COMMIT] = lambda: two.create("b")
    run(two.slow.create_entity(two.ns, Entity("a"), None, NOW_MS))
    assert two.watched.calls == ["catalog_kin", COMMIT]


def test_retries_are_bounded_and_then_nothing_was_written(two: Two) -> None:
    two.create("a")
    turns = iter(range(1000))

    def again() -> None:
        change = {"name": f"n{next(turns)}"}
        run(two.catalog.update_entity(two.ns, "a", change, None, NOW_MS))
        two.watched.before[COMMIT] = again

    two.watched.before[COMMIT] = again
    with pytest.raises(Contended, match="nothing was written"):
        run(two.slow.update_entity(two.ns, "a", {"mode": Mode.BYPASS}, None, NOW_MS))
    assert two.watched.calls.count(COMMIT) == ATTEMPTS_MAX
    found = run(two.catalog.get_entity(two.ns, "a"))
    assert (found.mode, found.version) == (Mode.NORMAL, ATTEMPTS_MAX + 1)


def test_version_and_audit_come_with_the_change_or_not_at_all(two: Two) -> None:
    def state() -> tuple[int, int]:
        events = run(two.backend.ledger.audit(two.ns, "a", limit=99, before=None))
        return two.version(), len(events)

    assert state() == (0, 0)
    two.create("a")
    assert state() == (1, 1)
    with pytest.raises(EntityNotFoundError):
        run(two.catalog.update_entity(two.ns, "a", {"parent_id": "no"}, None, NOW_MS))
    assert state() == (1, 1)
    seen = []
    two.watched.before[COMMIT] = lambda: seen.append(state())
    stored = run(two.slow.update_stored(two.ns, Level("a", "r"), LIMITS, None, NOW_MS))
    assert seen == [(1, 1)]
    assert state() == (2, 2)
    event = run(two.backend.ledger.audit(two.ns, "a", limit=1, before=None))[0]
    assert stored.version == event.details["after"]["version"] == 2


def test_a_hundred_writers_at_once_all_come_through(redis_url: str) -> None:
    backend = opened(redis_url, blocking=False)

    async def flow() -> None:
        made = await backend.catalog.register_namespace("team", None, NOW_MS)
        await backend.catalog.create_entity(made.id, Entity("p"), None, NOW_MS)
        creates = [
            backend.catalog.create_entity(made.id, Entity(f"e{n}", parent_id="p"), None, NOW_MS)
            for n in range(100)
        ]
        levels = [
            backend.catalog.update_stored(made.id, Level(f"e{n}", "r"), LIMITS, None, NOW_MS)
            for n in range(100)
        ]
        await asyncio.gather(*creates, *levels)
        assert (await backend.catalog.lookup(made.id, "p", "r")).version == 201
        await backend.store.close()

    asyncio.run(flow())


def test_a_name_registered_by_many_at_once_is_one_namespace(redis_url: str) -> None:
    backend = opened(redis_url, blocking=False)

    async def flow() -> None:
        calls = [backend.catalog.register_namespace("team", None, NOW_MS) for _ in range(30)]
        assert len({made.id for made in await asyncio.gather(*calls)}) == 1
        assert len(await backend.catalog.list_namespaces(state="active")) == 1
        await backend.store.close()

    asyncio.run(flow())
