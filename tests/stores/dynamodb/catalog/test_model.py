"""Random changes of entities, limits and namespaces on the table and on the reference model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headgate.core.errors import EntityNotFoundError
from headgate.core.levels import LINEAGE_MAX, Entity, Level
from headgate.core.limits import Limit
from headgate.core.runtime import run
from headgate.core.store import Backend
from headgate.stores.dynamodb.catalog import records
from headgate.stores.dynamodb.catalog.items import CHILDREN, entity_key, number_of
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.memory import open_memory
from tests.stores.dynamodb.catalog.kit import NOW_MS, prepared, registered, table_of
from tests.stores.sqlite.test_catalog import Call, Changes, everything, outcome, trail

Pair = tuple[list[Backend], list[str]]
LIMITS = {"limits": (Limit.per_minute("rpm", 10),)}


@pytest.fixture
def pair(dynamo_endpoint: str) -> Iterator[Pair]:
    backends = [open_memory(), prepared(dynamo_endpoint)]
    yield backends, [registered(backend) for backend in backends]
    run(backends[1].store.close())


@pytest.mark.parametrize(("seed", "steps"), [(1, 1000), (2, 300), (3, 300)])
def test_every_answer_equals_the_reference(seed: int, steps: int, pair: Pair) -> None:
    backends, ids = pair
    changes = Changes(seed)
    for step in range(steps):
        call = changes.next()
        answers = [outcome(call, b, ns) for b, ns in zip(backends, ids, strict=True)]
        assert answers[0] == answers[1], step
        if step % 50 == 0:
            seen = [run(everything(b, ns)) for b, ns in zip(backends, ids, strict=True)]
            assert seen[0] == seen[1], step
    trails = [run(trail(b, ns)) for b, ns in zip(backends, ids, strict=True)]
    assert trails[0] == trails[1]
    counts = []
    for backend, namespace in zip(backends, ids, strict=True):
        run(backend.catalog.delete_namespace("team", None, changes.now_ms))
        counts.append(run(backend.catalog.purge_namespace(namespace, None, changes.now_ms)))
    assert counts[0] == counts[1] > 50
    assert left_of(backends[1], ids[1]) == []


def left_of(backend: Backend, namespace: str) -> list[Any]:
    table = table_of(backend)
    reply = run(table.call("Scan", ConsistentRead=True))
    return [item for item in reply["Items"] if namespace in str(item)]


def test_lines_of_parents_end_where_the_reference_ends_them(pair: Pair) -> None:
    backends, ids = pair

    def both(call: Call) -> Any:
        answers = [outcome(call, b, ns) for b, ns in zip(backends, ids, strict=True)]
        assert answers[0] == answers[1]
        return answers[0]

    def create(name: str, parent_id: str | None) -> Any:
        entity = Entity(name, parent_id=parent_id, cascade=True)
        return both(lambda b, ns: b.catalog.create_entity(ns, entity, None, NOW_MS))

    def move(name: str, parent_id: str) -> Any:
        change = {"parent_id": parent_id}
        return both(lambda b, ns: b.catalog.update_entity(ns, name, change, None, NOW_MS))

    lines = [[f"{letter}{n}" for n in range(LINEAGE_MAX)] for letter in "ef"]
    for line in lines:
        for name, parent_id in zip(line, [None, *line], strict=False):
            assert isinstance(create(name, parent_id), Entity)
    assert not isinstance(create("g", lines[0][-1]), Entity)
    assert isinstance(move("f0", lines[0][-2]), Entity)
    assert not isinstance(move("f7", "f1"), Entity)
    names = [name for line in lines for name in line]
    for name in names:
        both(lambda b, ns, e=name: b.catalog.lookup(ns, e, "r"))
    for name in reversed(names):
        for parent_id in names[::3]:
            move(name, parent_id)
        both(lambda b, ns, e=name: b.catalog.lookup(ns, e, "r"))


def test_what_is_too_much_for_one_transaction_goes_in_steps(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "CHILDREN_PER_BATCH", 3)
    monkeypatch.setattr(records, "LEVELS_PER_BATCH", 2)
    catalog, namespace = pair[0][1].catalog, pair[1][1]
    run(catalog.create_entity(namespace, Entity("p"), None, NOW_MS))
    for n in range(10):
        child = Entity(f"c{n}", parent_id="p", cascade=True)
        run(catalog.create_entity(namespace, child, None, NOW_MS))
    for n in range(7):
        run(catalog.update_stored(namespace, Level("p", f"r{n}"), LIMITS, None, NOW_MS))
    run(catalog.delete_entity(namespace, "p", None, NOW_MS))
    left = run(catalog.list_entities(namespace, parent_id=None, limit=99, cursor=None)).items
    assert [(child.id, child.parent_id, child.version) for child in left] == [
        (f"c{n}", None, 2) for n in range(10)
    ]
    assert run(catalog.list_resources(namespace, of_entities=True)) == []
    with pytest.raises(EntityNotFoundError):
        run(catalog.delete_entity(namespace, "p", None, NOW_MS))
    events = run(pair[0][1].ledger.audit(namespace, "p", limit=99, before=None))
    assert [event.action for event in events if event.action.startswith("entity")] == [
        "entity_deleted", "entity_created",
    ]  # fmt: skip


def test_a_parent_with_more_than_one_transaction_of_children(pair: Pair) -> None:
    catalog, namespace = pair[0][1].catalog, pair[1][1]
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
    backend, namespace = pair[0][1], pair[1][1]
    changes = Changes(77)
    for _ in range(300):
        outcome(changes.next(), backend, namespace)
    table = table_of(backend)
    page = run(backend.catalog.list_entities(namespace, parent_id=None, limit=99, cursor=None))
    for entity in page.items:
        item = run(table.get(entity_key(namespace, entity.id)))
        children = [other.id for other in page.items if other.parent_id == entity.id]
        assert number_of(item, CHILDREN) == len(children)


def test_names_that_look_like_keys_collide_with_nothing(pair: Pair) -> None:
    catalog, namespace = pair[0][1].catalog, pair[1][1]
    names = ["x", "x:config", "x:", "x.x", "X", "META", "e", "x-", "0"]
    resources = ["x", "x:config", "x/", "c", "x/SYSTEM", "_default_"]
    levels = [
        Level(),
        *(Level(None, resource) for resource in resources[:-1]),
        *(Level(name, resource) for name in names for resource in resources),
    ]
    for n, level in enumerate(levels):
        limits = {"limits": (Limit.per_minute("rpm", n + 1),)}
        run(catalog.update_stored(namespace, level, limits, None, NOW_MS))
    for n, level in enumerate(levels):
        stored = run(catalog.get_stored(namespace, level))
        assert stored is not None
        assert stored.limits[0].capacity == n + 1
    for name in names:
        run(catalog.create_entity(namespace, Entity(name, name), None, NOW_MS))
    run(catalog.delete_entity(namespace, "x", None, NOW_MS))
    for level in levels:
        stored = run(catalog.get_stored(namespace, level))
        assert (stored is None) == (level.entity_id == "x")
    for resource in resources:
        page = run(catalog.list_entities_with_limits(namespace, resource, limit=99, cursor=None))
        assert page.items == tuple(sorted(names[1:]))
    assert run(catalog.list_resources(namespace, of_entities=True)) == sorted(resources)
    assert run(catalog.list_resources(namespace, of_entities=False)) == sorted(resources[:-1])


@pytest.mark.parametrize("cursor", ["", "~~~", "\ud800", "é" * 2000, "#", "c1"])
def test_any_cursor_is_survived(cursor: str, pair: Pair) -> None:
    backends, ids = pair
    found = []
    for backend, ns in zip(backends, ids, strict=True):
        catalog = backend.catalog
        run(catalog.create_entity(ns, Entity("p"), None, NOW_MS))
        for name in ("c0", "c1", "c2"):
            run(catalog.create_entity(ns, Entity(name, parent_id="p"), None, NOW_MS))
            run(catalog.update_stored(ns, Level(name, "r"), LIMITS, None, NOW_MS))
        pages = [
            run(catalog.list_entities(ns, parent_id=None, limit=9, cursor=cursor)),
            run(catalog.list_entities(ns, parent_id="p", limit=9, cursor=cursor)),
            run(catalog.list_entities_with_limits(ns, "r", limit=9, cursor=cursor)),
        ]
        events = run(backend.ledger.audit(ns, "c0", limit=9, before=cursor))
        found.append((pages, len(events)))
    assert found[0] == found[1]


def test_everything_a_limit_says_comes_back(pair: Pair) -> None:
    catalog, namespace = pair[0][1].catalog, pair[1][1]
    limits = (
        Limit.custom("ttl", 2**53 - 1, 2**53 - 2, 3600),
        Limit.custom("b_cp", 1, 0, 1, soft=True),
        Limit.custom("b", 2, 3, 4),
        Limit.custom("PK", 5, 6, 7),
    )
    for level in (Level(), Level(None, "r"), Level("e", "r")):
        made = run(catalog.update_stored(namespace, level, {"limits": limits}, None, NOW_MS))
        assert made.limits == limits
        assert run(catalog.get_stored(namespace, level)) == made


def test_a_damaged_item_is_said_to_be_so(pair: Pair) -> None:
    backend, namespace = pair[0][1], pair[1][1]
    run(backend.catalog.create_entity(namespace, Entity("a"), None, NOW_MS))
    broken = ask.update(entity_key(namespace, "a"), sets={"mode": {"S": "odd"}})
    run(table_of(backend).write(broken))
    found = outcome(lambda b, ns: b.catalog.get_entity(ns, "a"), backend, namespace)
    assert found[0].__name__ == "Damaged"
    assert "ENTITY#a" in found[1]
