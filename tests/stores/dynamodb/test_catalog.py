"""Random changes of entities, limits and namespaces on the table and on the reference model."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from headgate.core.errors import (
    EntityNotFoundError,
    NamespaceNotFoundError,
    NamespaceStateError,
    Throttled,
    Unreachable,
)
from headgate.core.history import WindowUsage
from headgate.core.levels import Entity, Level, Mode
from headgate.core.limits import Limit
from headgate.core.runtime import run
from headgate.stores.catalog import Backend
from headgate.stores.dynamodb import over_port, schema
from headgate.stores.dynamodb.catalog import records
from headgate.stores.dynamodb.catalog.catalog import DynamoCatalog
from headgate.stores.dynamodb.catalog.items import CHILDREN, entity_key, number_of, system_key
from headgate.stores.dynamodb.catalog.registry import id_key, name_key
from headgate.stores.dynamodb.client.calls import DynamoRequest, NotApplied, TransactionCancelled
from headgate.stores.dynamodb.ledger import DynamoLedger
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table import table
from headgate.stores.dynamodb.table import table as table_module
from headgate.stores.memory import open_memory
from headgate.testing import ScriptedPort
from proof.model.engine import Engine
from tests.stores.catalog_suite import (
    LIMITS,
    CatalogModel,
    CatalogRaces,
    Changes,
    Pair,
    Two,
    outcome,
)
from tests.stores.dynamodb.kit import (
    NOW_MS,
    TABLE,
    Watched,
    YieldingPort,
    items_of,
    model_port,
    prepared,
    registered,
    table_at,
    table_of,
)


@pytest.fixture
def pair() -> Pair:
    return Pair(open_memory(), prepared())


class TestModel(CatalogModel):
    SEEDS = range(1, 4)
    LOOKS_EVERY = 25

    @pytest.fixture
    def small_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(records, "CHILDREN_PER_BATCH", 3)
        monkeypatch.setattr(records, "LEVELS_PER_BATCH", 2)

    def test_every_answer_equals_the_reference(self, pair: Pair) -> None:
        super().test_every_answer_equals_the_reference(pair)
        assert items_of(pair.backend, pair.ns) == []


def test_a_parent_with_more_than_one_transaction_of_children(pair: Pair) -> None:
    catalog, namespace = pair.catalog, pair.ns
    run(catalog.create_entity(namespace, Entity("p"), None, NOW_MS))
    for n in range(records.CHILDREN_PER_BATCH + 5):
        run(catalog.create_entity(namespace, Entity(f"c{n}", parent_id="p"), None, NOW_MS))
    for n in range(records.LEVELS_PER_BATCH + 5):
        run(catalog.update_stored(namespace, Level("p", f"r{n}"), LIMITS, None, NOW_MS))
    run(catalog.delete_entity(namespace, "p", None, NOW_MS))
    page = run(catalog.list_entities(namespace, parent_id=None, limit=999, cursor=None))
    assert len(page.items) == records.CHILDREN_PER_BATCH + 5
    assert all(entity.parent_id is None for entity in page.items)


def test_children_are_counted_whatever_happens(pair: Pair) -> None:
    backend, namespace = pair.backend, pair.ns
    changes = Changes(77)
    for _ in range(150):
        outcome(changes.next(), backend, namespace)
    table = table_of(backend)
    page = run(backend.catalog.list_entities(namespace, parent_id=None, limit=99, cursor=None))
    for entity in page.items:
        item = run(table.get(entity_key(namespace, entity.id)))
        children = [other.id for other in page.items if other.parent_id == entity.id]
        assert number_of(item, CHILDREN) == len(children)


def test_a_damaged_item_is_said_to_be_so(pair: Pair) -> None:
    backend, namespace = pair.backend, pair.ns
    run(backend.catalog.create_entity(namespace, Entity("a"), None, NOW_MS))
    broken = ask.update(entity_key(namespace, "a"), sets={"mode": {"S": "odd"}})
    run(table_of(backend).write(broken))
    found = outcome(lambda b, ns: b.catalog.get_entity(ns, "a"), backend, namespace)
    assert found[0].__name__ == "Damaged"
    assert "ENTITY#a" in found[1]


# Writers that meet: whatever happens between a read and its commit, the rules hold.

COMMIT = "TransactWriteItems"


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Two:
    monkeypatch.setattr(table, "PAUSE_MS_MAX", 1)
    backend = prepared()
    watched = Watched(model_port(backend))
    return Two(backend, catalog_over(watched), watched, COMMIT)


def catalog_over(port: Watched) -> DynamoCatalog:
    """Another client's catalog on the same table."""
    return DynamoCatalog(table_at("", name=TABLE, port=port))


class TestRaces(CatalogRaces):
    WRITERS = 10  # they all move one system item on

    @pytest.fixture
    def crowd(self) -> Backend:
        return over_port(YieldingPort(Engine(), lambda: NOW_MS), TABLE, blocking=False)


def test_a_child_that_comes_while_the_others_are_listed_is_freed_too(two: Two) -> None:
    two.create("p")
    two.create("one", "p")
    two.watched.before["Query"] = lambda: two.create("two", "p")
    run(two.slow.delete_entity(two.ns, "p", None, NOW_MS))
    assert [two.parent_of(child) for child in ("one", "two")] == [None, None]


def test_a_child_the_index_does_not_know_yet_is_waited_for(two: Two) -> None:
    two.create("p")
    two.create("late", "p")
    answers: list[int] = []
    honest = two.watched.call

    async def behind(request: DynamoRequest) -> dict[str, object]:
        reply = await honest(request)
        if request.params.get("IndexName") == schema.GSI1 and len(answers) < 3:
            answers.append(len(reply["Items"]))
            return {"Items": []}
        return reply

    two.watched.call = behind  # type: ignore[method-assign,assignment]
    run(two.slow.delete_entity(two.ns, "p", None, NOW_MS))
    assert answers == [1, 1, 1]
    assert two.version() == 3  # it waited without writing
    assert run(two.catalog.get_entity(two.ns, "late")).parent_id is None


class Torn(Watched):
    """Reads all of a batch but the system item, lets something happen, then reads that."""

    system_first = False

    async def call(self, request: DynamoRequest) -> dict[str, object]:
        act = self.before.pop("torn", None) if request.operation == "BatchGetItem" else None
        if act is None:
            return await super().call(request)
        [(name, wanted)] = request.params["RequestItems"].items()
        halves = [
            [key for key in wanted["Keys"] if ("SYSTEM#" in key["PK"]["S"]) is is_system]
            for is_system in (self.system_first, not self.system_first)
        ]
        items = []
        for keys in halves:
            part = {"RequestItems": {name: {**wanted, "Keys": keys}}}
            reply = await super().call(DynamoRequest("BatchGetItem", part))
            items += reply["Responses"][name]
            if act is not None:
                act()
                act = None
        return {"Responses": {name: items}, "UnprocessedKeys": {}}


@pytest.mark.parametrize("system_first", [False, True])
@pytest.mark.parametrize("change", ["set", "set anew", "delete", "entity", "other"])
def test_a_lookup_never_has_old_limits_at_a_new_version(
    change: str, system_first: bool, two: Two
) -> None:
    level = Level("a", "r")
    if change != "set anew":
        two.limit(level)
    port = Torn(model_port(two.backend))
    port.system_first = system_first
    catalog = catalog_over(port)
    larger = {"limits": (Limit.per_minute("rpm", 99),)}
    acts = {
        "set": lambda: run(two.catalog.update_stored(two.ns, level, larger, None, NOW_MS)),
        "set anew": lambda: run(two.catalog.update_stored(two.ns, level, larger, None, NOW_MS)),
        "delete": lambda: run(two.catalog.delete_stored(two.ns, level, None, NOW_MS)),
        "entity": lambda: two.create("a"),
        "other": lambda: two.limit(Level("b", "r")),
    }
    port.before["torn"] = acts[change]
    seen = run(catalog.lookup(two.ns, "a", "r"))
    now = run(two.catalog.lookup(two.ns, "a", "r"))
    assert seen == now or seen.version < now.version
    if not system_first:
        assert seen == now


@pytest.mark.parametrize("change", ["entity", "level", "child", "parent goes", "deleted"])
def test_a_torn_read_never_leads_to_a_commit(change: str, two: Two) -> None:
    """Everything but the system item is read, somebody changes it, the system item is read."""
    two.create("p")
    two.create("a")
    two.limit(Level("a", "r"))
    port = Torn(model_port(two.backend))
    slow, fast, ns = catalog_over(port), two.catalog, two.ns
    bypass = {"mode": Mode.BYPASS}

    def meanwhile(flow: Any) -> None:
        port.before["torn"] = lambda: run(flow)

    if change == "entity":
        meanwhile(fast.update_entity(ns, "a", bypass, None, NOW_MS))
        run(slow.update_entity(ns, "a", {"name": "n"}, None, NOW_MS))
        found = run(fast.get_entity(ns, "a"))
        assert (found.name, found.mode, found.version) == ("n", Mode.BYPASS, 3)
    elif change == "level":
        meanwhile(fast.update_stored(ns, Level("a", "r"), bypass, None, NOW_MS))
        after = run(slow.update_stored(ns, Level("a", "r"), {"limits": ()}, None, NOW_MS))
        assert (after.limits, after.mode) == ((), Mode.BYPASS)
    elif change == "child":
        meanwhile(fast.create_entity(ns, Entity("c", parent_id="a"), None, NOW_MS))
        run(slow.delete_entity(ns, "a", None, NOW_MS))
        assert run(fast.get_entity(ns, "c")).parent_id is None
    elif change == "parent goes":
        meanwhile(fast.delete_entity(ns, "p", None, NOW_MS))
        with pytest.raises(EntityNotFoundError):
            run(slow.create_entity(ns, Entity("c", parent_id="p"), None, NOW_MS))
    else:
        meanwhile(fast.delete_entity(ns, "a", None, NOW_MS))
        with pytest.raises(EntityNotFoundError):
            run(slow.update_entity(ns, "a", {"name": "n"}, None, NOW_MS))


def test_a_change_between_generations_is_noticed(two: Two) -> None:
    two.create("p")
    two.create("a", "p")
    two.limit(Level("a", "r"))
    larger = {"limits": (Limit.per_minute("rpm", 99),)}
    two.watched.after["BatchGetItem"] = lambda: run(
        two.catalog.update_stored(two.ns, Level("a", "r"), larger, None, NOW_MS)
    )
    seen = run(two.slow.lookup(two.ns, "a", "r"))
    assert seen == run(two.catalog.lookup(two.ns, "a", "r"))
    assert two.watched.calls == ["BatchGetItem"] * 4


def test_a_lost_answer_is_asked_for_again_and_the_change_happens_once(two: Two) -> None:
    lost = iter([True])
    honest = two.watched.call

    async def losing(request: DynamoRequest) -> dict[str, object]:
        reply = await honest(request)
        if request.operation == COMMIT and next(lost, False):
            raise Unreachable("the answer was lost")
        return reply

    two.watched.call = losing  # type: ignore[method-assign,assignment]
    made = run(two.slow.create_entity(two.ns, Entity("a"), None, NOW_MS))
    assert run(two.catalog.get_entity(two.ns, "a")) == made
    assert two.version() == 1
    assert two.watched.calls.count(COMMIT) == 2


@pytest.mark.parametrize(
    ("reasons", "raised"),
    [
        (["None", "ThrottlingError"], Throttled),
        (["None", "ValidationError"], TransactionCancelled),
        ([], TransactionCancelled),
        (["None", "TransactionConflict"], table.ItemsChanged),
        (["ConditionalCheckFailed"], table.ItemsChanged),
    ],
)
def test_only_what_others_did_is_tried_again(reasons: list[str], raised: type[Exception]) -> None:
    error = TransactionCancelled([(reason, None) for reason in reasons], "cancelled")
    found = table_at("", port=ScriptedPort([error]))
    with pytest.raises(raised):
        run(found.transact([{"Delete": {}}]))


# Namespaces: their calls cut short, their two records and the system item of one mind.


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
