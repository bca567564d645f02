"""Random changes of entities, limits and namespaces on Redis and on the reference model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headgate.core.errors import EntityNotFoundError
from headgate.core.levels import LINEAGE_MAX, Entity, Level
from headgate.core.limits import Limit
from headgate.core.runtime import run
from headgate.core.store import Backend
from headgate.stores.memory import open_memory
from headgate.stores.redis import records
from tests.stores.redis.catalog_kit import NOW_MS, opened, registered
from tests.stores.sqlite.test_catalog import Call, Changes, everything, outcome, trail

RPM = Limit.per_minute("rpm", 10)
Pair = tuple[list[Backend], list[str]]


@pytest.fixture
def pair(redis_url: str) -> Iterator[Pair]:
    backends = [open_memory(), opened(redis_url)]
    yield backends, [registered(backend) for backend in backends]
    run(backends[1].store.close())


@pytest.mark.parametrize("seed", range(4))
def test_every_answer_equals_the_reference(seed: int, pair: Pair) -> None:
    backends, ids = pair
    changes = Changes(seed)
    for step in range(500):
        call = changes.next()
        answers = [outcome(call, b, ns) for b, ns in zip(backends, ids, strict=True)]
        assert answers[0] == answers[1], step
        if step % 10 == 0:
            seen = [run(everything(b, ns)) for b, ns in zip(backends, ids, strict=True)]
            assert seen[0] == seen[1], step
    trails = [run(trail(b, ns)) for b, ns in zip(backends, ids, strict=True)]
    assert trails[0] == trails[1]
    counts = []
    for backend, namespace in zip(backends, ids, strict=True):
        run(backend.catalog.delete_namespace("team", None, changes.now_ms))
        counts.append(run(backend.catalog.purge_namespace(namespace, None, changes.now_ms)))
    assert counts[0] == counts[1] > 50


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
    assert isinstance(move("f0", lines[0][-2]), Entity)  # now some have twice as many above them
    names = [name for line in lines for name in line]
    assert not isinstance(move("f7", "f1"), Entity)  # of f1's line, f7's own shows only the start
    for name in names:
        both(lambda b, ns, e=name: b.catalog.lookup(ns, e, "r"))
    for name in reversed(names):
        for parent_id in names:
            move(name, parent_id)
        both(lambda b, ns, e=name: b.catalog.lookup(ns, e, "r"))


def test_a_large_family_is_freed_in_steps(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "CHILDREN_PER_BATCH", 3)
    catalog, namespace = pair[0][1].catalog, pair[1][1]
    run(catalog.create_entity(namespace, Entity("p"), None, NOW_MS))
    for n in range(10):
        child = Entity(f"c{n}", parent_id="p", cascade=True)
        run(catalog.create_entity(namespace, child, None, NOW_MS))
    run(catalog.delete_entity(namespace, "p", None, NOW_MS))
    left = run(catalog.list_entities(namespace, parent_id=None, limit=99, cursor=None)).items
    assert [(child.id, child.parent_id, child.version) for child in left] == [
        (f"c{n}", None, 2) for n in range(10)
    ]
    with pytest.raises(EntityNotFoundError):
        run(catalog.delete_entity(namespace, "p", None, NOW_MS))
    events = run(pair[0][1].ledger.audit(namespace, "p", limit=9, before=None))
    assert [event.action for event in events] == ["entity_deleted", "entity_created"]


def test_names_that_look_like_keys_collide_with_nothing(pair: Pair) -> None:
    catalog, namespace = pair[0][1].catalog, pair[1][1]
    names = ["x", "x:config", "x:", "x.x", "X", "hg:e:x", "e", "c", "x-", "0"]
    resources = ["x", "x:config", "x/", "c", "_default_"]
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
