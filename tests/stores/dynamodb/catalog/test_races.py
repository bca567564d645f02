"""Writers that meet: whatever happens between a read and its commit, the rules hold."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.core.errors import EntityNotFoundError, Throttled, Unreachable
from headgate.core.levels import Entity, Level, Mode
from headgate.core.limits import Limit
from headgate.core.runtime import run
from headgate.stores.catalog import Backend
from headgate.stores.dynamodb import over_port, schema
from headgate.stores.dynamodb.catalog.catalog import DynamoCatalog
from headgate.stores.dynamodb.client.calls import DynamoRequest, TransactionCancelled
from headgate.stores.dynamodb.table import table
from headgate.testing import ScriptedPort
from proof.model.engine import Engine
from tests.stores.catalog_suite import CatalogRaces, Two
from tests.stores.dynamodb.catalog.kit import (
    NOW_MS,
    TABLE,
    Watched,
    YieldingPort,
    model_port,
    prepared,
    table_at,
)

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
