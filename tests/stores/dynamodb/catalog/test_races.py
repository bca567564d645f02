"""Writers that meet: whatever happens between a read and its commit, the rules hold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from headgate.core.errors import (
    Contended,
    EntityExistsError,
    EntityNotFoundError,
    NamespaceStateError,
    Throttled,
    Unreachable,
    ValidationError,
    VersionMismatchError,
)
from headgate.core.levels import Entity, Level, Mode
from headgate.core.limits import Limit
from headgate.core.runtime import run
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.catalog import DynamoCatalog
from headgate.stores.dynamodb.client.port import DynamoRequest, TransactionCancelled
from headgate.stores.dynamodb.table import table
from headgate.stores.records import ATTEMPTS_MAX
from headgate.testing import ScriptedPort
from tests.stores.dynamodb.catalog.kit import (
    NOW_MS,
    Watched,
    opened,
    port_to,
    prepared,
    registered,
    table_at,
    table_of,
    watching,
)

RPM = Limit.per_minute("rpm", 10)
LIMITS = {"limits": (RPM,)}
COMMIT = "TransactWriteItems"


class Two:
    """A backend, and a second catalog whose calls can be held up by what the first one does."""

    def __init__(self, endpoint: str) -> None:
        self.backend = prepared(endpoint)
        self.catalog = self.backend.catalog
        self.watched, self.slow, _ = watching(self.backend, endpoint)
        self.ns = registered(self.backend)

    def create(self, entity_id: str, parent_id: str | None = None) -> None:
        entity = Entity(entity_id, parent_id=parent_id, cascade=True)
        run(self.catalog.create_entity(self.ns, entity, None, NOW_MS))

    def set_parent(self, entity_id: str, parent_id: str) -> None:
        change = {"parent_id": parent_id}
        run(self.catalog.update_entity(self.ns, entity_id, change, None, NOW_MS))

    def limit(self, level: Level) -> None:
        run(self.catalog.update_stored(self.ns, level, LIMITS, None, NOW_MS))

    def version(self) -> int:
        return run(self.catalog.lookup(self.ns, "a", "r")).version


@pytest.fixture
def two(dynamo_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Two]:
    monkeypatch.setattr(table, "PAUSE_MS_MAX", 1)
    two = Two(dynamo_endpoint)
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


@pytest.mark.parametrize("when", ["Query", COMMIT])
def test_a_child_that_comes_before_the_deletion_is_freed_too(two: Two, when: str) -> None:
    two.create("p")
    two.create("one", "p")
    two.watched.before[when] = lambda: two.create("two", "p")
    run(two.slow.delete_entity(two.ns, "p", None, NOW_MS))
    for child in ("one", "two"):
        assert run(two.catalog.get_entity(two.ns, child)).parent_id is None


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


@pytest.mark.parametrize("before", [[], ["r"]])
def test_a_level_that_comes_before_the_deletion_goes_along(two: Two, before: list[str]) -> None:
    two.create("p")
    for resource in before:
        two.limit(Level("p", resource))

    def exchange() -> None:
        two.limit(Level("p", "s"))
        for resource in before:
            run(two.catalog.delete_stored(two.ns, Level("p", resource), None, NOW_MS))

    two.watched.before[COMMIT] = exchange
    run(two.slow.delete_entity(two.ns, "p", None, NOW_MS))
    assert run(two.catalog.get_stored(two.ns, Level("p", "s"))) is None
    assert run(two.catalog.list_resources(two.ns, of_entities=True)) == []


def test_an_entity_made_anew_meanwhile_is_not_taken_for_the_old(two: Two) -> None:
    two.create("a")

    def again() -> None:
        run(two.catalog.delete_entity(two.ns, "a", None, NOW_MS))
        run(two.catalog.create_entity(two.ns, Entity("a", "new"), None, NOW_MS))

    two.watched.before[COMMIT] = again
    after = run(two.slow.update_entity(two.ns, "a", {"mode": Mode.BYPASS}, None, NOW_MS, version=1))
    assert (after.name, after.mode, after.version) == ("new", Mode.BYPASS, 2)


def test_two_creations_are_one(two: Two) -> None:
    two.watched.before[COMMIT] = lambda: two.create("a")
    with pytest.raises(EntityExistsError):
        run(two.slow.create_entity(two.ns, Entity("a", "other"), None, NOW_MS))


def test_a_guarded_update_loses_to_a_faster_one(two: Two) -> None:
    two.create("a")
    two.watched.before[COMMIT] = lambda: run(
        two.catalog.update_entity(two.ns, "a", {"name": "fast"}, None, NOW_MS)
    )
    with pytest.raises(VersionMismatchError):
        run(two.slow.update_entity(two.ns, "a", {"name": "slow"}, None, NOW_MS, version=1))


@pytest.mark.parametrize("level", [Level(), Level(None, "r"), Level("e", "r")])
def test_two_halves_of_a_level_changed_at_once_are_both_kept(two: Two, level: Level) -> None:
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


def test_a_name_taken_before_the_recovery_stays_taken(two: Two) -> None:
    run(two.catalog.delete_namespace("team", None, NOW_MS))
    two.watched.before[COMMIT] = lambda: registered(two.backend)
    with pytest.raises(NamespaceStateError, match="registered again"):
        run(two.slow.recover_namespace(two.ns, None, NOW_MS))


def test_a_recovery_before_the_purge_saves_the_data(two: Two) -> None:
    two.create("a")
    run(two.catalog.delete_namespace("team", None, NOW_MS))
    two.watched.before[COMMIT] = lambda: run(two.catalog.recover_namespace(two.ns, None, NOW_MS))
    with pytest.raises(NamespaceStateError):
        run(two.slow.purge_namespace(two.ns, None, NOW_MS))
    assert run(two.catalog.get_entity(two.ns, "a")) is not None


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
    change: str, system_first: bool, two: Two, dynamo_endpoint: str
) -> None:
    level = Level("a", "r")
    if change != "set anew":
        two.limit(level)
    port = Torn(port_to(dynamo_endpoint))
    port.system_first = system_first
    name = table_of(two.backend).name
    catalog = DynamoCatalog(table_at(dynamo_endpoint, name=name, port=port))
    larger = {"limits": (Limit.per_minute("rpm", 99),)}
    acts = {
        "set": lambda: run(two.catalog.update_stored(two.ns, level, larger, None, NOW_MS)),
        "set anew": lambda: run(two.catalog.update_stored(two.ns, level, larger, None, NOW_MS)),
        "delete": lambda: run(two.catalog.delete_stored(two.ns, level, None, NOW_MS)),
        "entity": lambda: two.create("a"),
        "other": lambda: two.limit(Level("b", "r")),
    }
    port.before["torn"] = lambda: acts[change]()  # type: ignore[assignment]
    seen = run(catalog.lookup(two.ns, "a", "r"))
    now = run(two.catalog.lookup(two.ns, "a", "r"))
    assert seen == now or seen.version < now.version
    if not system_first:
        assert seen == now
    run(port.close())


@pytest.mark.parametrize("change", ["entity", "level", "child", "parent goes", "deleted"])
def test_a_torn_read_never_leads_to_a_commit(change: str, two: Two, dynamo_endpoint: str) -> None:
    """Everything but the system item is read, somebody changes it, the system item is read."""
    two.create("p")
    two.create("a")
    two.limit(Level("a", "r"))
    port = Torn(port_to(dynamo_endpoint))
    slow = DynamoCatalog(table_at(dynamo_endpoint, name=table_of(two.backend).name, port=port))
    fast, ns = two.catalog, two.ns
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
    run(port.close())


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


def test_fifty_writers_at_once_all_come_through(dynamo_endpoint: str) -> None:
    backend = opened(dynamo_endpoint, blocking=False)

    async def flow() -> None:
        await backend.catalog.prepare()
        made = await backend.catalog.register_namespace("team", None, NOW_MS)
        await backend.catalog.create_entity(made.id, Entity("p"), None, NOW_MS)
        creates = [
            backend.catalog.create_entity(made.id, Entity(f"e{n}", parent_id="p"), None, NOW_MS)
            for n in range(25)
        ]
        levels = [
            backend.catalog.update_stored(made.id, Level(f"e{n}", "r"), LIMITS, None, NOW_MS)
            for n in range(25)
        ]
        await asyncio.gather(*creates, *levels)
        assert (await backend.catalog.lookup(made.id, "p", "r")).version == 51
        await backend.store.close()

    asyncio.run(flow())


def test_a_name_registered_by_many_at_once_is_one_namespace(dynamo_endpoint: str) -> None:
    backend = opened(dynamo_endpoint, blocking=False)

    async def flow() -> None:
        await backend.catalog.prepare()
        calls = [backend.catalog.register_namespace("team", None, NOW_MS) for _ in range(30)]
        assert len({made.id for made in await asyncio.gather(*calls)}) == 1
        assert len(await backend.catalog.list_namespaces(state="active")) == 1
        await backend.store.close()

    asyncio.run(flow())
