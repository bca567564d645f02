"""Tests of a catalog that every store's own test files run, with fixtures of their own.

`CatalogModel` compares random changes with the reference model; `CatalogRaces` lets one writer do
something between another one's read and commit.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from headgate.core.errors import (
    Contended,
    EntityExistsError,
    EntityNotFoundError,
    HeadgateError,
    NamespaceStateError,
    PlanInUseError,
    PlanNotFoundError,
    ValidationError,
    VersionMismatchError,
)
from headgate.core.levels import LINEAGE_MAX, Entity, Level, Mode, OnUnavailable
from headgate.core.limits import DEFAULT_RESOURCE, Limit
from headgate.core.runtime import run
from headgate.stores.catalog import Backend
from headgate.stores.records import ATTEMPTS_MAX

NOW_MS = 1_750_000_000_000
ENTITIES = ["a", "b", "c", "d", "a:b", "A"]
RESOURCES = ["x", "y", "x/y"]
LEVELS = [
    Level(),
    *(Level(None, resource) for resource in RESOURCES),
    *(Level(e, resource) for e in ENTITIES for resource in (*RESOURCES, DEFAULT_RESOURCE)),
]
PLANS = ["free", "pro", "a"]
Call = Callable[[Backend, str], Coroutine[Any, Any, Any]]


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
        verbs = (
            self.create, self.update, self.set, self.set, self.drop_level, self.delete,
            self.set_plan, self.drop_plan,
        )  # fmt: skip
        return self.dice.choice(verbs)()

    def create(self) -> Call:
        name = self.dice.choice((None, "Ünïcode \ud800", "'; DROP TABLE entities"))
        parent_id = self.dice.choice((None, *ENTITIES))
        entity = Entity(
            self.dice.choice(ENTITIES), name, parent_id, self.dice.random() < 0.6, {"k": [1, None]},
            plan=self.dice.choice((None, None, *PLANS)),
        )  # fmt: skip
        now_ms = self.now_ms
        return lambda b, ns: b.catalog.create_entity(ns, entity, "me\ud800", now_ms)

    def update(self) -> Call:
        entity_id = self.dice.choice(ENTITIES)
        changes: dict[str, Any] = self.dice.choice(
            (
                {"parent_id": self.dice.choice((None, *ENTITIES)), "cascade": True},
                {"mode": self.dice.choice(list(Mode))},
                {"name": "n", "metadata": {"deep": {"er": 1.5}}},
                {"plan": self.dice.choice((None, *PLANS))},
                {"plan": self.dice.choice(PLANS)},
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

    def set_plan(self) -> Call:
        name, resource = self.dice.choice(PLANS), self.dice.choice((None, *RESOURCES))
        limits = (Limit.per_minute("rpm", self.dice.randint(1, 9)),) * self.dice.randint(0, 1)
        now_ms = self.now_ms
        return lambda b, ns: b.catalog.set_plan(ns, name, resource, limits, "p", now_ms)

    def drop_plan(self) -> Call:
        name, unassign, now_ms = self.dice.choice(PLANS), self.dice.random() < 0.3, self.now_ms
        return lambda b, ns: b.catalog.delete_plan(ns, name, None, now_ms, unassign=unassign)

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
    for name in PLANS:
        plan = await catalog.get_plan(namespace, name)
        found += [plan, None if plan is None else plan.entities]
        found.append(await catalog.list_entities_on_plan(namespace, name, limit=2, cursor="a"))
    page = await catalog.list_plans(namespace, limit=2, cursor=None)
    found += [page, [plan.entities for plan in page.items]]
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
    subjects = [
        *ENTITIES, "$SYSTEM", *(f"$RESOURCE:{resource}" for resource in RESOURCES),
        *(f"$PLAN:{name}" for name in PLANS),
    ]  # fmt: skip
    return [
        replace(event, event_id="", details=without_id(event.details))
        for subject in subjects
        for event in await backend.ledger.audit(namespace, subject, limit=1000, before=None)
    ]


def without_id(details: Any) -> Any:
    after = details.get("after") or {}
    return {**details, "after": {k: v for k, v in after.items() if k != "id"}}


RPM = Limit.per_minute("rpm", 10)
LIMITS = {"limits": (RPM,)}


class Pair:
    """The reference model and a store, with a namespace in each."""

    def __init__(self, *backends: Backend) -> None:
        self.backends = backends
        self.ids = [run(b.catalog.register_namespace("team", "me", NOW_MS)).id for b in backends]
        self.backend, self.ns = backends[1], self.ids[1]
        self.catalog = self.backend.catalog

    def both(self, call: Call) -> Any:
        """What both say to a call; they say the same."""
        model, store = (outcome(call, *one) for one in zip(self.backends, self.ids, strict=True))
        assert model == store
        return model

    def create(self, name: str, parent_id: str | None = None) -> Any:
        entity = Entity(name, parent_id=parent_id, cascade=True)
        return self.both(lambda b, ns: b.catalog.create_entity(ns, entity, None, NOW_MS))


class CatalogModel:
    """Needs the fixture `pair`."""

    SEEDS = range(4)
    STEPS = 250
    LOOKS_EVERY = 10
    LARGEST = Limit.custom("ttl", 2**53 - 1, 2**53 - 2, 3600)

    def test_every_answer_equals_the_reference(self, pair: Pair) -> None:
        now_ms = NOW_MS
        for seed in self.SEEDS:
            changes = Changes(seed)
            changes.now_ms = now_ms  # no two events of one moment: their order would be chance
            for step in range(self.STEPS):
                pair.both(changes.next())
                if step % self.LOOKS_EVERY == 0:
                    pair.both(everything)
            now_ms = changes.now_ms
        pair.both(trail)
        for backend in pair.backends:
            run(backend.catalog.delete_namespace("team", None, now_ms))
        gone = pair.both(lambda b, ns: b.catalog.purge_namespace(ns, None, NOW_MS))
        assert gone > 50

    def test_lines_of_parents_end_where_the_reference_ends_them(self, pair: Pair) -> None:
        def move(name: str, parent_id: str) -> Any:
            change = {"parent_id": parent_id}
            return pair.both(lambda b, ns: b.catalog.update_entity(ns, name, change, None, NOW_MS))

        lines = [[f"{letter}{n}" for n in range(LINEAGE_MAX)] for letter in "ef"]
        for line in lines:
            for name, parent_id in zip(line, [None, *line], strict=False):
                assert isinstance(pair.create(name, parent_id), Entity)
        assert not isinstance(pair.create("g", lines[0][-1]), Entity)
        assert isinstance(move("f0", lines[0][-2]), Entity)  # some have twice as many above now
        names = [name for line in lines for name in line]
        assert not isinstance(move("f7", "f1"), Entity)  # f7's own line shows only f1's start
        for name in names:
            pair.both(lambda b, ns, e=name: b.catalog.lookup(ns, e, "r"))
        for name in reversed(names):
            for parent_id in names[::3]:
                move(name, parent_id)
            pair.both(lambda b, ns, e=name: b.catalog.lookup(ns, e, "r"))

    def test_what_is_too_much_for_one_commit_goes_in_steps(
        self, pair: Pair, small_steps: None
    ) -> None:
        catalog, ns = pair.catalog, pair.ns
        pair.create("p")
        for n in range(10):
            pair.create(f"c{n}", "p")
        for n in range(7):
            run(catalog.update_stored(ns, Level("p", f"r{n}"), LIMITS, None, NOW_MS))
        run(catalog.delete_entity(ns, "p", None, NOW_MS))
        left = run(catalog.list_entities(ns, parent_id=None, limit=99, cursor=None)).items
        assert [(child.id, child.parent_id, child.version) for child in left] == [
            (f"c{n}", None, 2) for n in range(10)
        ]
        assert run(catalog.list_resources(ns, of_entities=True)) == []
        with pytest.raises(EntityNotFoundError):
            run(catalog.delete_entity(ns, "p", None, NOW_MS))
        events = run(pair.backend.ledger.audit(ns, "p", limit=99, before=None))
        assert [event.action for event in events if event.action.startswith("entity")] == [
            "entity_deleted", "entity_created",
        ]  # fmt: skip

    def test_a_plan_of_too_many_for_one_commit_goes_in_steps(
        self, pair: Pair, small_steps: None
    ) -> None:
        catalog, ns = pair.catalog, pair.ns
        run(catalog.set_plan(ns, "pro", None, (RPM,), None, NOW_MS))
        for n in range(10):
            run(catalog.create_entity(ns, Entity(f"c{n}", plan="pro"), None, NOW_MS))
        with pytest.raises(PlanInUseError, match="that of 10 entities: c0, c1"):
            run(catalog.delete_plan(ns, "pro", None, NOW_MS))
        assert run(catalog.delete_plan(ns, "pro", None, NOW_MS, unassign=True)) == 10
        left = run(catalog.list_entities(ns, parent_id=None, limit=99, cursor=None)).items
        assert [(one.plan, one.version) for one in left] == [(None, 2)] * 10
        [deleted, _] = run(pair.backend.ledger.audit(ns, "$PLAN:pro", limit=9, before=None))
        assert deleted.details["unassigned"] == 10

    def test_names_that_look_like_keys_collide_with_nothing(self, pair: Pair) -> None:
        catalog, ns = pair.catalog, pair.ns
        names = ["x", "x:config", "x:", "x.x", "X", "META", "hg:e:x", "e", "c", "x-", "0"]
        resources = ["x", "x:config", "x/", "c", "x/SYSTEM", "_default_"]
        levels = [
            Level(),
            *(Level(None, resource) for resource in resources[:-1]),
            *(Level(name, resource) for name in names for resource in resources),
        ]
        for n, level in enumerate(levels):
            limits = {"limits": (Limit.per_minute("rpm", n + 1),)}
            run(catalog.update_stored(ns, level, limits, None, NOW_MS))
        for n, level in enumerate(levels):
            stored = run(catalog.get_stored(ns, level))
            assert stored.limits[0].capacity == n + 1
        for name in names:
            run(catalog.create_entity(ns, Entity(name, name), None, NOW_MS))
        run(catalog.delete_entity(ns, "x", None, NOW_MS))
        plans = [name for name in names if ":" not in name]
        for n, name in enumerate(plans):
            limits = (Limit.per_minute("rpm", n + 1),)
            run(catalog.set_plan(ns, name, None, limits, None, NOW_MS))
        for n, name in enumerate(plans):
            assert run(catalog.get_plan(ns, name)).limits[0].capacity == n + 1
        for level in levels:
            stored = run(catalog.get_stored(ns, level))
            assert (stored is None) == (level.entity_id == "x")
        for resource in resources:
            page = run(catalog.list_entities_with_limits(ns, resource, limit=99, cursor=None))
            assert page.items == tuple(sorted(names[1:]))
        assert run(catalog.list_resources(ns, of_entities=True)) == sorted(resources)
        assert run(catalog.list_resources(ns, of_entities=False)) == sorted(resources[:-1])

    @pytest.mark.parametrize("cursor", ["", "~~~", "\ud800", "é" * 2000, "#", "c1"])
    def test_any_cursor_is_survived(self, cursor: str, pair: Pair) -> None:
        pair.create("p")
        for name in ("c0", "c1", "c2"):
            pair.create(name, "p")
            level = Level(name, "r")
            pair.both(lambda b, ns, at=level: b.catalog.update_stored(ns, at, LIMITS, None, NOW_MS))
        for name in ("c0", "c1"):
            plan = name
            pair.both(lambda b, ns, of=plan: b.catalog.set_plan(ns, of, None, (), None, NOW_MS))
            pair.both(
                lambda b, ns, e=name: b.catalog.update_entity(ns, e, {"plan": "c0"}, None, NOW_MS)
            )
        pair.both(lambda b, ns: b.catalog.list_plans(ns, limit=9, cursor=cursor))
        pair.both(lambda b, ns: b.catalog.list_entities_on_plan(ns, "c0", limit=9, cursor=cursor))
        for parent_id in (None, "p"):
            pair.both(
                lambda b, ns, parent=parent_id: b.catalog.list_entities(
                    ns, parent_id=parent, limit=9, cursor=cursor
                )
            )
        pair.both(
            lambda b, ns: b.catalog.list_entities_with_limits(ns, "r", limit=9, cursor=cursor)
        )

    def test_everything_a_limit_says_comes_back(self, pair: Pair) -> None:
        limits = (
            self.LARGEST,
            Limit.custom("b_cp", 1, 0, 1, soft=True),
            Limit.custom("b", 2, 3, 4),
            Limit.custom("PK", 5, 6, 7),
        )
        for level in (Level(), Level(None, "r"), Level("e", "r")):
            change = pair.catalog.update_stored(pair.ns, level, {"limits": limits}, None, NOW_MS)
            made = run(change)
            assert made.limits == limits
            assert run(pair.catalog.get_stored(pair.ns, level)) == made


class Two:
    """A backend, and a second catalog whose commits can be held up by what the first one does.

    `watched` is the second one's port, which calls `before[name]` before a call of that name;
    `commit` is the name of a commit.
    """

    def __init__(self, backend: Backend, slow: Any, watched: Any, commit: str) -> None:
        self.backend, self.slow, self.watched, self.commit = backend, slow, watched, commit
        self.catalog = backend.catalog
        self.ns = run(self.catalog.register_namespace("team", "me", NOW_MS)).id

    def meanwhile(self, act: Callable[[], Any]) -> None:
        """Does something before the second one's next commit."""
        self.watched.before[self.commit] = act

    def create(self, entity_id: str, parent_id: str | None = None) -> None:
        entity = Entity(entity_id, parent_id=parent_id, cascade=True)
        run(self.catalog.create_entity(self.ns, entity, None, NOW_MS))

    def set_parent(self, entity_id: str, parent_id: str) -> None:
        change = {"parent_id": parent_id}
        run(self.catalog.update_entity(self.ns, entity_id, change, None, NOW_MS))

    def plan(self, name: str, *limits: Limit, resource: str | None = None) -> None:
        run(self.catalog.set_plan(self.ns, name, resource, limits, None, NOW_MS))

    def assign(self, entity_id: str, plan: str | None) -> None:
        run(self.catalog.update_entity(self.ns, entity_id, {"plan": plan}, None, NOW_MS))

    def plan_of(self, entity_id: str) -> str | None:
        found = run(self.catalog.get_entity(self.ns, entity_id))
        return found.plan

    def limit(self, level: Level) -> None:
        run(self.catalog.update_stored(self.ns, level, LIMITS, None, NOW_MS))

    def parent_of(self, entity_id: str) -> str | None:
        found = run(self.catalog.get_entity(self.ns, entity_id))
        return found.parent_id

    def version(self) -> int:
        return run(self.catalog.lookup(self.ns, "a", "r")).version


class CatalogRaces:
    """Needs the fixtures `two` and `crowd`: an async backend."""

    WRITERS = 25

    def test_two_writers_of_parents_make_no_ring(self, two: Two) -> None:
        two.create("a")
        two.create("b")
        two.meanwhile(lambda: two.set_parent("b", "a"))
        with pytest.raises(ValidationError, match="descends from a"):
            run(two.slow.update_entity(two.ns, "a", {"parent_id": "b"}, None, NOW_MS))
        assert two.parent_of("a") is None

    def test_a_ring_over_ancestors_is_seen_too(self, two: Two) -> None:
        for name, parent_id in (("top", None), ("mid", "top"), ("low", "mid"), ("x", None)):
            two.create(name, parent_id)
        two.meanwhile(lambda: two.set_parent("top", "x"))
        with pytest.raises(ValidationError, match="descends from x"):
            run(two.slow.update_entity(two.ns, "x", {"parent_id": "low"}, None, NOW_MS))

    def test_a_parent_that_goes_before_the_commit_is_missed(self, two: Two) -> None:
        two.create("p")
        two.meanwhile(lambda: run(two.catalog.delete_entity(two.ns, "p", None, NOW_MS)))
        with pytest.raises(EntityNotFoundError):
            run(two.slow.create_entity(two.ns, Entity("c", parent_id="p"), None, NOW_MS))
        assert run(two.catalog.get_entity(two.ns, "c")) is None

    def test_a_child_that_comes_before_the_deletion_is_freed_too(self, two: Two) -> None:
        two.create("p")
        two.create("one", "p")
        two.meanwhile(lambda: two.create("two", "p"))
        run(two.slow.delete_entity(two.ns, "p", None, NOW_MS))
        assert [two.parent_of(child) for child in ("one", "two")] == [None, None]

    def test_one_child_for_another_is_noticed(self, two: Two) -> None:
        for name, parent_id in (("p", None), ("q", None), ("one", "p"), ("two", "q")):
            two.create(name, parent_id)

        def exchange() -> None:
            two.set_parent("one", "q")
            two.set_parent("two", "p")

        two.meanwhile(exchange)
        run(two.slow.delete_entity(two.ns, "p", None, NOW_MS))
        assert [two.parent_of(child) for child in ("one", "two")] == ["q", None]

    @pytest.mark.parametrize("before", [[], ["r"]])
    def test_a_level_that_comes_before_the_deletion_goes_along(
        self, two: Two, before: list[str]
    ) -> None:
        two.create("p")
        for resource in before:
            two.limit(Level("p", resource))

        def exchange() -> None:
            two.limit(Level("p", "s"))
            for resource in before:
                run(two.catalog.delete_stored(two.ns, Level("p", resource), None, NOW_MS))

        two.meanwhile(exchange)
        run(two.slow.delete_entity(two.ns, "p", None, NOW_MS))
        assert run(two.catalog.get_stored(two.ns, Level("p", "s"))) is None
        assert run(two.catalog.list_resources(two.ns, of_entities=True)) == []

    @pytest.mark.parametrize("exists", [False, True])
    def test_a_plan_that_goes_before_the_commit_is_missed(self, two: Two, exists: bool) -> None:
        two.plan("pro", RPM)
        if exists:
            two.create("e")
        two.meanwhile(lambda: run(two.catalog.delete_plan(two.ns, "pro", None, NOW_MS)))
        with pytest.raises(PlanNotFoundError):
            if exists:
                run(two.slow.update_entity(two.ns, "e", {"plan": "pro"}, None, NOW_MS))
            else:
                run(two.slow.create_entity(two.ns, Entity("e", plan="pro"), None, NOW_MS))
        assert run(two.catalog.get_plan(two.ns, "pro")) is None

    def test_whoever_comes_to_a_plan_before_its_deletion_keeps_it(self, two: Two) -> None:
        two.plan("pro", RPM)
        two.create("e")
        two.meanwhile(lambda: two.assign("e", "pro"))
        with pytest.raises(PlanInUseError, match="that of 1 entity: e;"):
            run(two.slow.delete_plan(two.ns, "pro", None, NOW_MS))
        assert two.plan_of("e") == "pro"

    def test_whoever_changes_places_before_the_deletion_is_seen(self, two: Two) -> None:
        for name in ("pro", "free"):
            two.plan(name, RPM)
        for name, plan in (("one", "pro"), ("two", "free")):
            two.create(name)
            two.assign(name, plan)

        def exchange() -> None:
            two.assign("one", "free")
            two.assign("two", "pro")

        two.meanwhile(exchange)
        assert run(two.slow.delete_plan(two.ns, "pro", None, NOW_MS, unassign=True)) == 1
        assert [two.plan_of(name) for name in ("one", "two")] == ["free", None]
        assert run(two.catalog.get_plan(two.ns, "free")).entities == 1

    def test_two_resources_of_a_plan_set_at_once_are_both_kept(self, two: Two) -> None:
        two.plan("pro", RPM)
        two.meanwhile(lambda: two.plan("pro", RPM, resource="a"))
        after = run(two.slow.set_plan(two.ns, "pro", "b", (RPM,), None, NOW_MS))
        assert (after.resources, after.version) == ({"a": (RPM,), "b": (RPM,)}, 3)
        assert run(two.catalog.get_plan(two.ns, "pro")) == after

    def test_an_entity_that_goes_before_it_is_assigned_is_missed(self, two: Two) -> None:
        two.plan("pro", RPM)
        two.create("e")
        two.meanwhile(lambda: run(two.catalog.delete_entity(two.ns, "e", None, NOW_MS)))
        with pytest.raises(EntityNotFoundError):
            run(two.slow.update_entity(two.ns, "e", {"plan": "pro"}, None, NOW_MS))
        assert run(two.catalog.get_plan(two.ns, "pro")).entities == 0

    def test_an_entity_made_anew_meanwhile_is_not_taken_for_the_old(self, two: Two) -> None:
        two.create("a")

        def again() -> None:
            run(two.catalog.delete_entity(two.ns, "a", None, NOW_MS))
            run(two.catalog.create_entity(two.ns, Entity("a", "new"), None, NOW_MS))

        two.meanwhile(again)
        change = {"mode": Mode.BYPASS}
        after = run(two.slow.update_entity(two.ns, "a", change, None, NOW_MS, version=1))
        assert (after.name, after.mode, after.version) == ("new", Mode.BYPASS, 2)

    def test_two_creations_are_one(self, two: Two) -> None:
        two.meanwhile(lambda: two.create("a"))
        with pytest.raises(EntityExistsError):
            run(two.slow.create_entity(two.ns, Entity("a", "other"), None, NOW_MS))

    def test_a_guarded_update_loses_to_a_faster_one(self, two: Two) -> None:
        two.create("a")
        fast = {"name": "fast"}
        two.meanwhile(lambda: run(two.catalog.update_entity(two.ns, "a", fast, None, NOW_MS)))
        with pytest.raises(VersionMismatchError):
            run(two.slow.update_entity(two.ns, "a", {"name": "slow"}, None, NOW_MS, version=1))

    @pytest.mark.parametrize("level", [Level(), Level(None, "r"), Level("e", "r")])
    def test_two_halves_of_a_level_changed_at_once_are_both_kept(
        self, two: Two, level: Level
    ) -> None:
        bypass = {"mode": Mode.BYPASS}
        two.meanwhile(lambda: run(two.catalog.update_stored(two.ns, level, bypass, None, NOW_MS)))
        after = run(two.slow.update_stored(two.ns, level, LIMITS, None, NOW_MS))
        assert (after.limits, after.mode, after.version) == ((RPM,), Mode.BYPASS, 2)
        assert run(two.catalog.get_stored(two.ns, level)) == after

    def test_a_namespace_deleted_before_the_commit_takes_no_writes(self, two: Two) -> None:
        two.meanwhile(lambda: run(two.catalog.delete_namespace("team", None, NOW_MS)))
        with pytest.raises(NamespaceStateError):
            run(two.slow.create_entity(two.ns, Entity("a"), None, NOW_MS))

    def test_a_name_taken_before_the_recovery_stays_taken(self, two: Two) -> None:
        run(two.catalog.delete_namespace("team", None, NOW_MS))
        two.meanwhile(lambda: run(two.catalog.register_namespace("team", None, NOW_MS)))
        with pytest.raises(NamespaceStateError, match="registered again"):
            run(two.slow.recover_namespace(two.ns, None, NOW_MS))

    def test_a_recovery_before_the_purge_saves_the_data(self, two: Two) -> None:
        two.create("a")
        run(two.catalog.delete_namespace("team", None, NOW_MS))
        two.meanwhile(lambda: run(two.catalog.recover_namespace(two.ns, None, NOW_MS)))
        with pytest.raises(NamespaceStateError):
            run(two.slow.purge_namespace(two.ns, None, NOW_MS))
        assert run(two.catalog.get_entity(two.ns, "a")) is not None

    def test_retries_are_bounded_and_then_nothing_was_written(self, two: Two) -> None:
        two.create("a")
        turns = iter(range(1000))

        def again() -> None:
            change = {"name": f"n{next(turns)}"}
            run(two.catalog.update_entity(two.ns, "a", change, None, NOW_MS))
            two.meanwhile(again)

        two.meanwhile(again)
        with pytest.raises(Contended, match="nothing was written"):
            run(two.slow.update_entity(two.ns, "a", {"mode": Mode.BYPASS}, None, NOW_MS))
        assert two.watched.calls.count(two.commit) == ATTEMPTS_MAX
        found = run(two.catalog.get_entity(two.ns, "a"))
        assert (found.mode, found.version) == (Mode.NORMAL, ATTEMPTS_MAX + 1)

    def test_version_and_audit_come_with_the_change_or_not_at_all(self, two: Two) -> None:
        def state() -> tuple[int, int]:
            events = run(two.backend.ledger.audit(two.ns, "a", limit=99, before=None))
            return two.version(), len(events)

        assert state() == (0, 0)
        two.create("a")
        assert state() == (1, 1)
        with pytest.raises(EntityNotFoundError):
            run(two.catalog.update_entity(two.ns, "a", {"parent_id": "no"}, None, NOW_MS))
        assert state() == (1, 1)
        seen: list[tuple[int, int]] = []
        two.meanwhile(lambda: seen.append(state()))
        stored = run(two.slow.update_stored(two.ns, Level("a", "r"), LIMITS, None, NOW_MS))
        assert seen == [(1, 1)]
        assert state() == (2, 2)
        event = run(two.backend.ledger.audit(two.ns, "a", limit=1, before=None))[0]
        assert stored.version == event.details["after"]["version"] == 2

    def test_many_writers_at_once_all_come_through(self, crowd: Backend) -> None:
        async def flow() -> None:
            catalog = crowd.catalog
            await catalog.prepare()
            made = await catalog.register_namespace("team", None, NOW_MS)
            await catalog.create_entity(made.id, Entity("p"), None, NOW_MS)
            creates = [
                catalog.create_entity(made.id, Entity(f"e{n}", parent_id="p"), None, NOW_MS)
                for n in range(self.WRITERS)
            ]
            levels = [
                catalog.update_stored(made.id, Level(f"e{n}", "r"), LIMITS, None, NOW_MS)
                for n in range(self.WRITERS)
            ]
            await asyncio.gather(*creates, *levels)
            assert (await catalog.lookup(made.id, "p", "r")).version == 2 * self.WRITERS + 1
            await crowd.store.close()

        asyncio.run(flow())

    def test_a_name_registered_by_many_at_once_is_one_namespace(self, crowd: Backend) -> None:
        async def flow() -> None:
            await crowd.catalog.prepare()
            calls = [crowd.catalog.register_namespace("team", None, NOW_MS) for _ in range(30)]
            assert len({made.id for made in await asyncio.gather(*calls)}) == 1
            assert len(await crowd.catalog.list_namespaces(state="active")) == 1
            await crowd.store.close()

        asyncio.run(flow())
