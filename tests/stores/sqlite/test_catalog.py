"""Random changes of entities, limits and namespaces on SQLite and on the reference model."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headgate.core.decision import Demand
from headgate.core.errors import HeadgateError, NamespaceNotFoundError, NamespaceStateError
from headgate.core.levels import Entity, Level, Mode, OnUnavailable
from headgate.core.limits import DEFAULT_RESOURCE, Limit
from headgate.core.record import BucketKey, Terms
from headgate.core.runtime import run
from headgate.core.store import Backend
from headgate.stores.memory import open_memory
from headgate.stores.sqlite import open_sqlite
from headgate.stores.sqlite.port import BlockingSqlitePort
from headgate.stores.sqlite.records import SqliteCatalog, SqliteRecords

NOW_MS = 1_750_000_000_000
ENTITIES = ["a", "b", "c", "d", "a:b", "A"]
RESOURCES = ["x", "y", "x/y"]
LEVELS = [
    Level(),
    *(Level(None, resource) for resource in RESOURCES),
    *(Level(e, resource) for e in ENTITIES for resource in (*RESOURCES, DEFAULT_RESOURCE)),
]
Call = Callable[[Backend, str], Coroutine[Any, Any, Any]]


def opened(folder: Path) -> Backend:
    path = str(folder / "catalog.db")
    return open_sqlite(path, clock=None, blocking=True, timeout_ms=5000, synchronous="off")


def outcome(call: Call, backend: Backend, namespace: str) -> Any:
    try:
        return run(call(backend, namespace))
    except HeadgateError as error:
        return type(error), str(error).replace(namespace, "…")


class Changes:
    """Random calls on a catalog."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now_ms = NOW_MS

    def next(self) -> Call:
        self.now_ms += 1
        verbs = (self.create, self.update, self.set, self.set, self.drop_level, self.delete)
        return self.dice.choice(verbs)()

    def create(self) -> Call:
        name = self.dice.choice((None, "Ünïcode \ud800", "'; DROP TABLE entities"))
        parent_id = self.dice.choice((None, *ENTITIES))
        entity = Entity(
            self.dice.choice(ENTITIES), name, parent_id, self.dice.random() < 0.6, {"k": [1, None]}
        )
        now_ms = self.now_ms
        return lambda b, ns: b.catalog.create_entity(ns, entity, "me\ud800", now_ms)

    def update(self) -> Call:
        entity_id = self.dice.choice(ENTITIES)
        changes: dict[str, Any] = self.dice.choice(
            (
                {"parent_id": self.dice.choice((None, *ENTITIES)), "cascade": True},
                {"mode": self.dice.choice(list(Mode))},
                {"name": "n", "metadata": {"deep": {"er": 1.5}}},
            )
        )
        version, now_ms = self.dice.choice((None, None, 1, 2)), self.now_ms
        return lambda b, ns: b.catalog.update_entity(
            ns, entity_id, changes, None, now_ms, version=version
        )

    def set(self) -> Call:
        level, now_ms = self.dice.choice(LEVELS), self.now_ms
        limits = (Limit.per_minute("rpm", self.dice.randint(1, 9)), Limit.custom("s", 2, 0, 1))
        changes: dict[str, Any] = self.dice.choice(
            (
                {"limits": limits},
                {"limits": ()},
                {"on_unavailable": OnUnavailable.BLOCK},
                {"mode": self.dice.choice(list(Mode))},
            )
        )
        return lambda b, ns: b.catalog.update_stored(ns, level, changes, "p", now_ms)

    def drop_level(self) -> Call:
        level, now_ms = self.dice.choice(LEVELS), self.now_ms
        return lambda b, ns: b.catalog.delete_stored(ns, level, None, now_ms)

    def delete(self) -> Call:
        entity_id, now_ms = self.dice.choice(ENTITIES), self.now_ms
        return lambda b, ns: b.catalog.delete_entity(ns, entity_id, None, now_ms)


async def everything(backend: Backend, namespace: str) -> list[Any]:
    """All that can be read of a namespace."""
    catalog = backend.catalog
    found: list[Any] = [await catalog.get_stored(namespace, level) for level in LEVELS]
    for entity_id in ENTITIES:
        found.append(await catalog.lookup(namespace, entity_id, "x"))
        found.append(await catalog.get_entity(namespace, entity_id))
    for parent_id in (None, *ENTITIES):
        cursor: str | None = None
        for _ in ENTITIES:
            page = await catalog.list_entities(
                namespace, parent_id=parent_id, limit=2, cursor=cursor
            )
            found.append(page)
            if (cursor := page.cursor) is None:
                break
    found += [await catalog.list_resources(namespace, of_entities=flag) for flag in (False, True)]
    found += [
        await catalog.list_entities_with_limits(namespace, resource, limit=2, cursor=after)
        for resource in (*RESOURCES, DEFAULT_RESOURCE)
        for after in (None, "a")
    ]
    return found


async def trail(backend: Backend, namespace: str) -> list[Any]:
    """The audit of everybody, without the ids that chance makes."""
    subjects = [*ENTITIES, "$SYSTEM", *(f"$RESOURCE:{resource}" for resource in RESOURCES)]
    return [
        replace(event, event_id="", details=without_id(event.details))
        for subject in subjects
        for event in await backend.ledger.audit(namespace, subject, limit=1000, before=None)
    ]


def without_id(details: Any) -> Any:
    after = details.get("after") or {}
    return {**details, "after": {k: v for k, v in after.items() if k != "id"}}


@pytest.mark.parametrize("seed", range(4))
def test_every_answer_equals_the_reference(seed: int, tmp_path: Path) -> None:
    backends = [open_memory(), opened(tmp_path)]
    ids = [run(b.catalog.register_namespace("team", "me", NOW_MS)).id for b in backends]
    changes = Changes(seed)
    for step in range(250):
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
    run(backends[1].store.close())


def test_a_purge_that_was_cut_short_is_finished_by_the_next(tmp_path: Path) -> None:
    backend = opened(tmp_path)
    namespace = run(backend.catalog.register_namespace("team", None, NOW_MS)).id
    terms = Terms((Limit.per_minute("rpm", 10).spec,))
    for n in range(20):
        key = BucketKey(namespace, f"e{n}", "x")
        run(backend.store.consume([Demand(key, terms, (1000,))], NOW_MS))
    run(backend.catalog.delete_namespace("team", None, NOW_MS))
    port = BlockingSqlitePort(str(tmp_path / "catalog.db"), 5000, "off")
    run(SqliteCatalog(port).begin_purge(namespace))
    gone, done = run(SqliteRecords(port).purge_some(namespace, 8))
    assert (gone, done) == (10, False)  # eight buckets and both audit events
    with pytest.raises(NamespaceStateError, match="purge it again"):
        run(backend.catalog.recover_namespace(namespace, None, NOW_MS))
    assert [n.id for n in run(backend.catalog.list_namespaces(state="deleted"))] == [namespace]
    assert run(backend.catalog.purge_namespace(namespace, None, NOW_MS)) == 13
    with pytest.raises(NamespaceNotFoundError):
        run(backend.catalog.purge_namespace(namespace, None, NOW_MS))
    run(port.close())
    run(backend.store.close())


def test_a_change_that_fails_leaves_no_audit_and_no_version(tmp_path: Path) -> None:
    backend = opened(tmp_path)
    namespace = run(backend.catalog.register_namespace("team", None, NOW_MS)).id
    before = run(backend.catalog.lookup(namespace, "a", "x")).version
    orphan = Entity("a", parent_id="nobody")
    with pytest.raises(HeadgateError):
        run(backend.catalog.create_entity(namespace, orphan, None, NOW_MS))
    assert run(backend.catalog.lookup(namespace, "a", "x")).version == before
    assert run(backend.ledger.audit(namespace, "a", limit=9, before=None)) == []
    run(backend.store.close())
