"""Namespaces: their calls cut short, their two records and the system item of one mind."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from headgate.core.errors import NamespaceNotFoundError, NamespaceStateError, Unreachable
from headgate.core.history import WindowUsage
from headgate.core.levels import Entity, Level
from headgate.core.limits import Limit
from headgate.core.runtime import run
from headgate.stores.dynamodb.catalog.catalog import DynamoCatalog
from headgate.stores.dynamodb.catalog.items import system_key
from headgate.stores.dynamodb.catalog.registry import id_key, name_key
from headgate.stores.dynamodb.client.calls import DynamoRequest, NotApplied
from headgate.stores.dynamodb.ledger import DynamoLedger
from headgate.stores.dynamodb.table import table as table_module
from tests.stores.dynamodb.catalog.kit import (
    NOW_MS,
    TABLE,
    Watched,
    items_of,
    model_port,
    prepared,
    registered,
    table_at,
    table_of,
)

LIMITS = {"limits": (Limit.per_minute("rpm", 10),)}


class Cut(Watched):
    """A port that is cut after so many calls."""

    left = 10**9

    async def call(self, request: DynamoRequest) -> dict[str, Any]:
        self._spend()
        return await super().call(request)

    async def call_all(self, requests: Any) -> Any:
        self._spend()
        return await super().call_all(requests)

    def _spend(self) -> None:
        if self.left == 0:
            raise NotApplied("cut")
        self.left -= 1


class World:
    def __init__(self) -> None:
        self.backend = prepared()
        self.catalog = self.backend.catalog
        self.port = Cut(model_port(self.backend))
        self.cut = DynamoCatalog(table_at("", name=TABLE, port=self.port))

    def filled(self, name: str) -> str:
        ns = registered(self.backend, name)
        run(self.catalog.create_entity(ns, Entity("a"), None, NOW_MS))
        for level in (Level(), Level("a", "r")):
            run(self.catalog.update_stored(ns, level, LIMITS, None, NOW_MS))
        ledger = DynamoLedger(table_of(self.backend))
        for n in range(60):
            row = WindowUsage("hourly", n * 3_600_000, {"rpm": 1}, 1)
            run(ledger.add_usage(ns, "a", "r", [row]))
        return ns

    def at_every_cut(
        self, begin: Callable[[str], str], call: Callable[[str, str], Coroutine[Any, Any, Any]]
    ) -> Iterator[tuple[str, str]]:
        """Begins anew and cuts the call after 0, 1, 2, … calls, until it comes through."""
        for left in range(40):
            name = f"team{left}"
            ns = begin(name)
            self.port.left = left
            try:
                run(call(name, ns))
            except Unreachable:
                self.port.left = 10**9
                yield name, ns
            else:
                assert left > 1
                return
        raise AssertionError("it never came through")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(table_module, "PAUSE_MS_MAX", 1)
    return World()


def test_a_registration_cut_short_has_done_nothing(world: World) -> None:
    cuts = world.at_every_cut(
        lambda name: "", lambda name, _: world.cut.register_namespace(name, None, NOW_MS)
    )
    for name, _ in cuts:
        assert run(world.catalog.get_namespace(name)) is None
        made = run(world.catalog.register_namespace(name, None, NOW_MS))
        assert run(world.catalog.lookup(made.id, "a", "r")).version == 0


def test_a_deletion_cut_short_has_done_nothing(world: World) -> None:
    cuts = world.at_every_cut(
        lambda name: registered(world.backend, name),
        lambda name, _: world.cut.delete_namespace(name, None, NOW_MS),
    )
    for name, ns in cuts:
        found = run(world.catalog.get_namespace(name))
        assert found is not None
        assert found.id == ns
        run(world.catalog.lookup(ns, "a", "r"))


def test_a_purge_cut_short_is_finished_by_the_next_and_by_nothing_else(world: World) -> None:
    def deleted(name: str) -> str:
        ns = world.filled(name)
        run(world.catalog.delete_namespace(name, None, NOW_MS))
        return ns

    cuts = world.at_every_cut(deleted, lambda _, ns: world.cut.purge_namespace(ns, None, NOW_MS))
    begun = 0
    for name, ns in cuts:
        [found] = [one for one in run(world.catalog.list_namespaces(state="deleted"))
                   if one.id == ns]  # fmt: skip
        if found.state == "purging":
            begun += 1
            with pytest.raises(NamespaceStateError, match="purge it again"):
                run(world.catalog.recover_namespace(ns, None, NOW_MS))
        with pytest.raises(NamespaceStateError):
            run(world.catalog.lookup(ns, "a", "r"))
        assert run(world.catalog.register_namespace(name, None, NOW_MS)).id != ns
        run(world.catalog.purge_namespace(ns, None, NOW_MS))
        assert items_of(world.backend, ns) == []
        with pytest.raises(NamespaceNotFoundError):
            run(world.catalog.purge_namespace(ns, None, NOW_MS))
    assert begun > 2


def test_a_purge_tells_how_much_there_was(world: World) -> None:
    ns = world.filled("team")
    run(world.catalog.delete_namespace("team", None, NOW_MS))
    events = 5  # registered, created, two levels, deleted
    assert run(world.catalog.purge_namespace(ns, None, NOW_MS)) == 1 + 1 + 2 + 60 + events


def test_coming_back_moves_the_version_on(world: World) -> None:
    ns = world.filled("team")
    before = run(world.catalog.lookup(ns, "a", "r"))
    run(world.catalog.delete_namespace("team", None, NOW_MS))
    back = run(world.catalog.recover_namespace(ns, None, NOW_MS))
    after = run(world.catalog.lookup(ns, "a", "r"))
    assert (after.version, after.lineage) == (before.version + 1, before.lineage)
    assert back == run(world.catalog.get_namespace("team"))
    assert back in run(world.catalog.list_namespaces(state="active"))
    with pytest.raises(NamespaceStateError, match="nothing to recover"):
        run(world.catalog.recover_namespace(ns, None, NOW_MS))


def test_the_records_of_a_namespace_say_the_same(world: World) -> None:
    table = table_of(world.backend)

    def states(ns: str) -> list[str | None]:
        keys = (name_key("team"), id_key(ns), system_key(ns))
        items = [run(table.get(key)) for key in keys]
        return [None if item is None else item["state"]["S"] for item in items]

    ns = registered(world.backend)
    assert states(ns) == ["active", "active", "active"]
    run(world.catalog.delete_namespace("team", None, NOW_MS))
    assert states(ns) == [None, "deleted", "deleted"]
    run(world.catalog.recover_namespace(ns, None, NOW_MS))
    assert states(ns) == ["active", "active", "active"]
    run(world.catalog.delete_namespace("team", None, NOW_MS))
    run(world.cut.begin_purge(ns))
    assert states(ns) == [None, "purging", "purging"]
    run(world.catalog.purge_namespace(ns, None, NOW_MS))
    assert states(ns) == [None, None, None]


def test_an_index_that_is_late_is_asked_again(world: World) -> None:
    ns = world.filled("team")
    run(world.catalog.delete_namespace("team", None, NOW_MS))
    honest = world.port.call
    hidden = iter(range(10))

    async def behind(request: DynamoRequest) -> dict[str, Any]:
        reply = await honest(request)
        if request.params.get("IndexName") == "GSI4" and next(hidden, 99) < 1:
            return {"Items": reply["Items"][:7]}
        return reply

    world.port.call = behind  # type: ignore[method-assign]
    run(world.cut.purge_namespace(ns, None, NOW_MS))
    assert items_of(world.backend, ns) == []
