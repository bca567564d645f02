"""Random changes of entities, limits and namespaces on Redis and on the reference model."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from headgate.core.decision import Demand
from headgate.core.errors import (
    IncompatibleSchemaError,
    NamespaceNotFoundError,
    NamespaceStateError,
    Unreachable,
)
from headgate.core.levels import Entity, Level
from headgate.core.limits import Limit
from headgate.core.record import BucketKey, Terms
from headgate.core.runtime import run
from headgate.stores.catalog import Backend
from headgate.stores.memory import open_memory
from headgate.stores.redis import keys, records
from headgate.stores.redis.records import RedisCatalog
from headgate.stores.redis.scripts import matching_keys
from tests.stores.catalog_suite import CatalogModel, CatalogRaces, Pair, Two
from tests.stores.redis import servers
from tests.stores.redis.catalog_kit import NOW_MS, Watched, opened, port_to, registered


class TestModel(CatalogModel):
    STEPS = 500
    LARGEST = Limit.custom("ttl", 10**12, 10**12, 3600)  # what its scripts count exactly

    @pytest.fixture
    def pair(self, redis_url: str) -> Iterator[Pair]:
        backend = opened(redis_url)
        yield Pair(open_memory(), backend)
        run(backend.store.close())

    @pytest.fixture
    def small_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(records, "CHILDREN_PER_BATCH", 3)
        monkeypatch.setattr(records, "ENTITIES_PER_STEP", 3)


# Writers that meet: whatever happens between a read and its commit, the rules hold.

COMMIT = "catalog_commit"


@pytest.fixture
def two(redis_url: str) -> Iterator[Two]:
    backend, port = opened(redis_url), Watched(port_to(redis_url))
    yield Two(backend, RedisCatalog(port), port, COMMIT)
    run(port.close())
    run(backend.store.close())


class TestRaces(CatalogRaces):
    WRITERS = 100

    @pytest.fixture
    def crowd(self, redis_url: str) -> Backend:
        return opened(redis_url, blocking=False)


def test_writers_apart_do_not_disturb_each_other(two: Two) -> None:
    two.meanwhile(lambda: two.create("b"))
    run(two.slow.create_entity(two.ns, Entity("a"), None, NOW_MS))
    assert two.watched.calls == ["catalog_kin", COMMIT]


# Namespace calls cut short between their steps, and data of newer headgates.

RPM = Limit.per_minute("rpm", 10)


class Cut(Watched):
    """A port that is cut after so many calls."""

    left = 10**9

    def _spend(self) -> None:
        if self.left == 0:
            raise Unreachable("cut")
        self.left -= 1

    async def script(self, script: Any, keys: Any, args: Any) -> Any:
        self._spend()
        return await super().script(script, keys, args)

    async def scripts(self, calls: Any) -> Any:
        self._spend()
        return await super().scripts(calls)

    async def command(self, *parts: Any) -> Any:
        self._spend()
        return await super().command(*parts)


class World:
    def __init__(self, url: str) -> None:
        self.url = url
        self.backend: Backend = opened(url)
        self.catalog = self.backend.catalog
        self.port = Cut(port_to(url))
        self.cut = RedisCatalog(self.port)

    def at_every_cut(self, verb: str, begin: Callable[[], Any] = lambda: None) -> Iterator[int]:
        """Begins anew and cuts the change after 0, 1, 2, … calls, until it comes through."""
        for left in range(100):
            servers.flush(self.url)
            begin()
            self.port.left = left
            what = self.ns if verb in ("recover_namespace", "purge_namespace") else "team"
            try:
                run(getattr(self.cut, verb)(what, None, NOW_MS))
            except Unreachable:
                self.port.left = 10**9
                yield left
            else:
                return
        raise AssertionError("it never came through")

    def filled(self) -> str:
        ns = registered(self.backend)
        run(self.catalog.create_entity(ns, Entity("a"), None, NOW_MS))
        run(self.catalog.update_stored(ns, Level(), {"limits": (RPM,)}, None, NOW_MS))
        demand = Demand(BucketKey(ns, "a", "r"), Terms((RPM.spec,)), (1000,))
        run(self.backend.store.consume([demand], NOW_MS))
        self.ns = ns
        return ns

    def deleted(self) -> None:
        self.filled()
        run(self.catalog.delete_namespace("team", None, NOW_MS))

    def actions(self) -> list[str]:
        events = run(self.backend.ledger.audit(self.ns, "$SYSTEM", limit=99, before=None))
        return [event.action for event in events if event.action.startswith("namespace")]


@pytest.fixture(params=["redis_url", "cluster_url"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.getfixturevalue(request.param))
    yield world
    run(world.port.close())
    run(world.backend.store.close())


def test_a_registration_cut_short_is_finished_by_the_next(world: World) -> None:
    cuts = 0
    for _ in world.at_every_cut("register_namespace"):
        cuts += 1
        seen = run(world.catalog.get_namespace("team"))
        assert seen is None or run(world.catalog.lookup(seen.id, "a", "r")).version == 0
        made = run(world.catalog.register_namespace("team", None, NOW_MS))
        assert run(world.catalog.lookup(made.id, "a", "r")).version == 0
        assert run(world.catalog.list_namespaces(state="active")) == [made]
    assert cuts


def test_a_deletion_cut_short_is_finished_by_the_next(world: World) -> None:
    for _ in world.at_every_cut("delete_namespace", world.filled):
        gone = run(world.catalog.delete_namespace("team", None, NOW_MS))
        assert (gone.id, gone.state, gone.deleted_ms) == (world.ns, "deleted", NOW_MS)
        assert run(world.catalog.get_namespace("team")) is None
        assert run(world.catalog.list_namespaces(state="deleted")) == [gone]
        assert world.actions() == ["namespace_deleted", "namespace_registered"]


def test_a_deletion_cut_short_can_be_taken_back(world: World) -> None:
    recovered = 0
    for _ in world.at_every_cut("delete_namespace", world.filled):
        try:
            back = run(world.catalog.recover_namespace(world.ns, None, NOW_MS))
        except NamespaceStateError:
            back = run(world.catalog.get_namespace("team"))
        else:
            recovered += 1
        assert run(world.catalog.get_namespace("team")) == back
        assert run(world.catalog.lookup(world.ns, "a", "r")).lineage[0].entity is not None
    assert recovered


@pytest.mark.parametrize("then", ["recover", "delete", "purge"])
def test_a_recovery_cut_short_is_finished_or_undone(then: str, world: World) -> None:
    half = 0
    for _ in world.at_every_cut("recover_namespace", world.deleted):
        claimed = run(world.catalog.get_namespace("team")) is not None
        half += claimed
        if then == "purge":
            run(world.catalog.purge_namespace(world.ns, None, NOW_MS))
            assert run(world.catalog.get_namespace("team")) is None
            continue
        if then == "delete" and claimed:
            assert run(world.catalog.delete_namespace("team", None, NOW_MS)).state == "deleted"
            assert run(world.catalog.get_namespace("team")) is None
        back = run(world.catalog.recover_namespace(world.ns, None, NOW_MS))
        assert run(world.catalog.get_namespace("team")) == back
        assert run(world.catalog.lookup(world.ns, "a", "r")).lineage[0].entity is not None
        assert world.actions()[0] == "namespace_recovered"
    assert half


def test_a_purge_cut_short_is_finished_by_the_next(world: World) -> None:
    half = 0
    for _ in world.at_every_cut("purge_namespace", world.deleted):
        listed = run(world.catalog.list_namespaces(state="deleted"))
        assert [one.id for one in listed] == [world.ns]
        if listed[0].state == "purging":
            half += 1
            with pytest.raises((NamespaceStateError, NamespaceNotFoundError)):
                run(world.catalog.recover_namespace(world.ns, None, NOW_MS))
        assert run(world.catalog.purge_namespace(world.ns, None, NOW_MS)) >= 1
        assert run(world.catalog.list_namespaces(state="deleted")) == []
        assert run(matching_keys(world.port, f"*{world.ns}*")) == []
        with pytest.raises(NamespaceNotFoundError):
            run(world.catalog.purge_namespace(world.ns, None, NOW_MS))
    assert half > 3


def test_a_slow_deletion_does_not_undo_a_recovery(world: World) -> None:
    ns = world.filled()
    world.port.before["catalog_commit"] = lambda: world.port.before.update(
        catalog_read=lambda: run(world.catalog.recover_namespace(ns, None, NOW_MS)) and None
    )
    run(world.cut.delete_namespace("team", None, NOW_MS))
    back = run(world.catalog.get_namespace("team"))
    assert back is not None
    assert run(world.catalog.lookup(ns, "a", "r")).version > 0
    assert run(world.catalog.list_namespaces(state="active")) == [back]


def test_neighbours_survive_a_purge(world: World) -> None:
    world.deleted()
    old = world.ns
    new = world.filled()
    run(world.catalog.purge_namespace(old, None, NOW_MS))
    looked = run(world.catalog.lookup(new, "a", "r"))
    assert looked.lineage[0].entity is not None
    assert run(world.backend.store.peek([BucketKey(new, "a", "r")], NOW_MS)).records[0] is not None


def test_a_newer_schema_is_not_touched(world: World) -> None:
    ns = world.filled()
    run(world.port.command("HSET", keys.META, "schema_version", 2))
    for call in (
        world.catalog.prepare(),
        world.catalog.get_namespace("team"),
        world.catalog.register_namespace("other", None, NOW_MS),
        world.catalog.list_namespaces(state="active"),
    ):
        with pytest.raises(IncompatibleSchemaError):
            run(call)
    assert run(world.catalog.get_version_record())["schema_version"] == 2
    run(world.port.command("HSET", keys.head(ns), "schema", 2))
    for call in (
        world.catalog.lookup(ns, "a", "r"),
        world.catalog.create_entity(ns, Entity("b"), None, NOW_MS),
    ):
        with pytest.raises(IncompatibleSchemaError):
            run(call)


def test_destroy_leaves_other_programs_alone(world: World) -> None:
    world.filled()
    run(world.port.command("SET", "hgx", "theirs"))
    run(world.catalog.destroy())
    assert run(matching_keys(world.port, "*")) == ["hgx"]


# How many calls each operation of the catalog costs when nobody is in its way.

LIMITS = {"limits": (Limit.per_minute("rpm", 10),)}
Call = Callable[[RedisCatalog, str], Coroutine[Any, Any, Any]]

CALLS: dict[str, tuple[int, Call]] = {
    "lookup": (1, lambda c, ns: c.lookup(ns, "key", "r")),
    "lookup of a plan": (1, lambda c, ns: c.lookup(ns, "rich", "r")),
    "get_plan": (1, lambda c, ns: c.get_plan(ns, "pro")),
    "list_plans": (1, lambda c, ns: c.list_plans(ns, limit=9, cursor=None)),
    "list_entities_on_plan": (
        1,
        lambda c, ns: c.list_entities_on_plan(ns, "pro", limit=9, cursor=None),
    ),
    "set_plan": (2, lambda c, ns: c.set_plan(ns, "pro", "r", (), None, NOW_MS)),
    "delete_plan": (3, lambda c, ns: c.delete_plan(ns, "pro", None, NOW_MS, unassign=True)),
    "create_entity on a plan": (
        2,
        lambda c, ns: c.create_entity(ns, Entity("new", plan="pro"), None, NOW_MS),
    ),
    "get_entity": (1, lambda c, ns: c.get_entity(ns, "key")),
    "get_stored": (1, lambda c, ns: c.get_stored(ns, Level())),
    "list_entities": (1, lambda c, ns: c.list_entities(ns, parent_id="org", limit=9, cursor=None)),
    "list_resources": (1, lambda c, ns: c.list_resources(ns, of_entities=True)),
    "list_entities_with_limits": (
        1,
        lambda c, ns: c.list_entities_with_limits(ns, "r", limit=9, cursor=None),
    ),
    "create_entity": (2, lambda c, ns: c.create_entity(ns, Entity("new"), None, NOW_MS)),
    "update_entity": (2, lambda c, ns: c.update_entity(ns, "key", {"name": "n"}, None, NOW_MS)),
    "update_stored": (2, lambda c, ns: c.update_stored(ns, Level(), LIMITS, None, NOW_MS)),
    "delete_stored": (2, lambda c, ns: c.delete_stored(ns, Level("key", "r"), None, NOW_MS)),
    "delete_entity without children": (2, lambda c, ns: c.delete_entity(ns, "key", None, NOW_MS)),
    "delete_entity with children": (3, lambda c, ns: c.delete_entity(ns, "org", None, NOW_MS)),
    "get_namespace": (1, lambda c, ns: c.get_namespace("team")),
    "list_namespaces": (1, lambda c, ns: c.list_namespaces(state="active")),
    "register_namespace again": (1, lambda c, ns: c.register_namespace("team", None, NOW_MS)),
    "register_namespace": (4, lambda c, ns: c.register_namespace("more", None, NOW_MS)),
    "delete_namespace": (6, lambda c, ns: c.delete_namespace("team", None, NOW_MS)),
    "get_version_record": (1, lambda c, ns: c.get_version_record()),
    "set_version_record": (1, lambda c, ns: c.set_version_record({"a": 1})),
    "prepare": (2, lambda c, ns: c.prepare()),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_per_operation(name: str, redis_url: str) -> None:
    backend = opened(redis_url)
    ns = registered(backend)
    run(backend.catalog.set_plan(ns, "pro", None, LIMITS["limits"], None, NOW_MS))
    key = Entity("key", parent_id="org", cascade=True)
    for entity in (Entity("org"), key, Entity("rich", plan="pro")):
        run(backend.catalog.create_entity(ns, entity, None, NOW_MS))
    run(backend.catalog.update_stored(ns, Level("key", "r"), LIMITS, None, NOW_MS))
    port = Watched(port_to(redis_url))
    count, call = CALLS[name]
    run(call(RedisCatalog(port), ns))
    assert len(port.calls) == count, port.calls
    run(port.close())
    run(backend.store.close())
