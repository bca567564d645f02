"""Contract cases of plans: named sets of limits that entities refer to."""

from __future__ import annotations

from dataclasses import replace

from headgate.core.decision import Demand
from headgate.core.errors import (
    NamespaceNotFoundError,
    PlanInUseError,
    PlanNotFoundError,
    ValidationError,
)
from headgate.core.levels import CommonLevels, Entity, Level, Lookup, Plan, resolve
from headgate.core.limits import Limit
from headgate.core.record import Terms
from headgate.core.refill.bucket import MILLI
from headgate.stores.plans import PLAN_LIMITS_MAX
from headgate.testing.contract import Arena, catch, every_page
from headgate.testing.contract_catalog import RPM, TPM

HOURLY = Limit.per_hour("rph", 50)
MONTH = Limit.quota("month", 900, every="month", tz="Europe/Berlin")


async def _set(
    arena: Arena, name: str, *limits: Limit, resource: str | None = None, now_ms: int = 1
) -> Plan:
    catalog = arena.backend.catalog
    return await catalog.set_plan(arena.namespace, name, resource, limits, "ada", now_ms)


async def _assign(arena: Arena, entity_id: str, plan: str | None) -> Entity:
    catalog = arena.backend.catalog
    return await catalog.update_entity(arena.namespace, entity_id, {"plan": plan}, None, 2)


async def plans_are_kept_as_they_were_set(arena: Arena) -> None:
    """What is set for one resource leaves the others alone; setting none takes them away."""
    catalog, ns = arena.backend.catalog, arena.namespace
    assert await catalog.get_plan(ns, "pro") is None
    largest = Limit.custom("b_cp", 10**12, 10**12 - 1, 3600, soft=True)
    first = await _set(arena, "pro", RPM, largest, MONTH)
    assert first == await catalog.get_plan(ns, "pro")
    assert (first.limits, first.resources) == ((RPM, largest, MONTH), {})
    await _set(arena, "pro", TPM, resource="gpt-4")
    await _set(arena, "pro", HOURLY, RPM, resource="a/b:c")
    both = await _set(arena, "pro", TPM, resource="a/b:c")
    assert both.resources == {"gpt-4": (TPM,), "a/b:c": (TPM,)}
    assert both.limits == (RPM, largest, MONTH)
    assert both.version == (await catalog.lookup(ns, "e", "r")).version
    left = await _set(arena, "pro", resource="gpt-4")
    assert left.resources == {"a/b:c": (TPM,)}
    assert left == await catalog.get_plan(ns, "pro")
    emptied = await _set(arena, "pro")
    assert (emptied.limits, emptied.resources) == ((), {"a/b:c": (TPM,)})
    assert await catalog.get_plan(ns, "Pro") is None


async def plans_are_listed_with_how_many_are_on_them(arena: Arena) -> None:
    """By name and in pages; and the entities of each by id, in pages."""
    catalog, ns = arena.backend.catalog, arena.namespace
    for name in ("pro", "free", "team.v2", "9"):
        await _set(arena, name, RPM)
    for n in range(5):
        await catalog.create_entity(ns, Entity(f"e{n}", plan="pro"), None, 1)
    await catalog.create_entity(ns, Entity("other", plan="free"), None, 1)
    await catalog.create_entity(ns, Entity("none"), None, 1)
    assert (await _assign(arena, "e4", "free")).plan == "free"
    await catalog.delete_entity(ns, "e3", None, 1)
    first = await catalog.list_plans(ns, limit=3, cursor=None)
    rest = await catalog.list_plans(ns, limit=3, cursor=first.cursor)
    listed = [(plan.name, plan.entities) for plan in (*first.items, *rest.items)]
    assert listed == [("9", 0), ("free", 2), ("pro", 3), ("team.v2", 0)]
    assert rest.cursor is None
    found = await catalog.get_plan(ns, "pro")
    assert found is not None
    assert found.entities == 3
    ids = await every_page(
        lambda cursor: catalog.list_entities_on_plan(ns, "pro", limit=2, cursor=cursor)
    )
    assert ids == ["e0", "e1", "e2"]
    assert (await catalog.list_entities_on_plan(ns, "pr", limit=2, cursor=None)).items == ()


async def a_lookup_sees_the_plan_of_each_entity(arena: Arena) -> None:
    """Of the entity and of the parents it cascades to, which may be on other plans."""
    catalog, ns = arena.backend.catalog, arena.namespace
    pro = await _set(arena, "pro", RPM)
    pro = await _set(arena, "pro", HOURLY, resource="gpt-4")
    team = await _set(arena, "team", TPM)
    await catalog.create_entity(ns, Entity("org", plan="team"), None, 1)
    key = Entity("key", parent_id="org", cascade=True, plan="pro")
    assert (await catalog.create_entity(ns, key, None, 1)).plan == "pro"
    lookup = await catalog.lookup(ns, "key", "gpt-4")
    assert [standing.plan for standing in lookup.lineage] == [pro, team]
    given = resolve(lookup.lineage[0], "gpt-4").given
    assert [(one.limit, one.level, one.source) for one in given] == [
        (HOURLY, "plan_resource", "plan pro for gpt-4"),
        (RPM, "plan", "plan pro for every resource"),
    ]
    await _assign(arena, "key", None)
    assert (await catalog.lookup(ns, "key", "gpt-4")).lineage[0].plan is None
    assert await catalog.get_entity(ns, "key") == replace(key, plan=None, version=2, created_ms=1)


async def what_is_known_of_plans_need_not_be_read(arena: Arena) -> None:
    """Under known plans a lookup is of their version, or all of it is read."""
    catalog, ns = arena.backend.catalog, arena.namespace
    pro = await _set(arena, "pro", RPM)
    for name in ("one", "two"):
        await catalog.create_entity(ns, Entity(name, plan="pro"), None, 1)
    whole = await catalog.lookup(ns, "one", "r")
    for is_whole in (True, False):
        for plans in ({"pro": pro}, {}):
            known = CommonLevels(whole.version, None, None, plans, is_whole)
            assert await catalog.lookup(ns, "one", "r", known) == whole
    known = CommonLevels(whole.version, None, None, {"pro": pro})
    changed = await _set(arena, "pro", TPM)

    def is_true(found: Lookup) -> bool:
        of_plan = pro if found.version == whole.version else changed
        return found.lineage[0].plan == of_plan

    assert is_true(await catalog.lookup(ns, "two", "r", known))
    assert is_true(await catalog.lookup(ns, "two", "r", replace(known, is_whole=False)))
    free = await _set(arena, "free", HOURLY)
    await _assign(arena, "two", "free")
    now = await catalog.lookup(ns, "two", "r", known)
    assert (now, now.lineage[0].plan) == (await catalog.lookup(ns, "two", "r"), free)


async def a_plan_that_entities_refer_to_is_not_deleted(arena: Arena) -> None:
    """The error says how many and which; told to, the deletion takes them off it."""
    catalog, ns = arena.backend.catalog, arena.namespace
    await _set(arena, "pro", RPM)
    await _set(arena, "free", TPM)
    for n in range(7):
        await catalog.create_entity(ns, Entity(f"e{n}", plan="pro"), None, 1)
    await catalog.create_entity(ns, Entity("other", plan="free"), None, 1)
    in_use: PlanInUseError | None = None
    try:
        await catalog.delete_plan(ns, "pro", None, 2)
    except PlanInUseError as error:
        in_use = error
    assert in_use is not None
    assert (in_use.plan, in_use.entities) == ("pro", 7)
    assert in_use.first == ("e0", "e1", "e2", "e3", "e4")
    assert "and 2 more" in str(in_use)
    assert await catalog.get_plan(ns, "pro") is not None
    assert await catalog.delete_plan(ns, "pro", "ada", 3, unassign=True) == 7
    assert await catalog.get_plan(ns, "pro") is None
    for n in range(7):
        entity = await catalog.get_entity(ns, f"e{n}")
        assert entity is not None
        assert (entity.plan, entity.version) == (None, 2)
    other = await catalog.get_entity(ns, "other")
    assert other is not None
    assert other.plan == "free"
    assert await catch(catalog.delete_plan(ns, "pro", None, 4), PlanNotFoundError)
    assert (await _set(arena, "pro", TPM)).entities == 0
    assert (await catalog.lookup(ns, "e0", "r")).lineage[0].plan is None
    assert await catalog.delete_plan(ns, "pro", None, 5) == 0
    assert [plan.name for plan in (await catalog.list_plans(ns, limit=9, cursor=None)).items] == [
        "free"
    ]


async def nobody_is_put_on_a_plan_that_is_not_there(arena: Arena) -> None:
    """Neither a new entity nor one that exists; nothing is written, and plans are bounded."""
    catalog, ns = arena.backend.catalog, arena.namespace
    lost = Entity("a", plan="gold")
    assert await catch(catalog.create_entity(ns, lost, None, 1), PlanNotFoundError)
    assert await catalog.get_entity(ns, "a") is None
    await catalog.create_entity(ns, Entity("a"), None, 1)
    assert await catch(_assign(arena, "a", "gold"), PlanNotFoundError)
    assert await catalog.get_entity(ns, "a") == Entity("a", created_ms=1)
    many = [Limit.per_minute(f"limit-{n}", 9) for n in range(16)]
    for n in range(PLAN_LIMITS_MAX // len(many)):
        await _set(arena, "wide", *many, resource=f"r{n}")
    assert await catch(_set(arena, "wide", RPM, resource="more"), ValidationError)
    assert await catch(_set(arena, "wide", RPM), ValidationError)
    assert (await _set(arena, "wide", TPM, resource="r0")).resources["r0"] == (TPM,)
    one = Plan("wide", (RPM,), {"api": (TPM,)})
    made = await catalog.replace_plan(ns, one, None, 3)
    assert made == replace(one, version=made.version) == await catalog.get_plan(ns, "wide")


async def changes_of_plans_move_the_version_on_and_are_told(arena: Arena) -> None:
    """S9: every change is a later configuration; the audit has what was before and after."""
    catalog, ns = arena.backend.catalog, arena.namespace
    versions = [await catalog.version(ns)]
    await _set(arena, "pro", RPM, now_ms=10)
    versions.append(await catalog.version(ns))
    await _set(arena, "pro", TPM, resource="gpt-4", now_ms=20)
    versions.append(await catalog.version(ns))
    await catalog.create_entity(ns, Entity("e", plan="pro"), None, 30)
    versions.append(await catalog.version(ns))
    await catalog.delete_plan(ns, "pro", "bob", 40, unassign=True)
    versions.append(await catalog.version(ns))
    assert versions == sorted(set(versions))
    events = await arena.backend.ledger.audit(ns, "$PLAN:pro", limit=9, before=None)
    told = [(event.action, event.principal, event.resource) for event in events]
    assert told == [
        ("plan_deleted", "bob", None), ("plan_set", "ada", "gpt-4"), ("plan_set", "ada", None),
    ]  # fmt: skip
    gone, changed, made = (event.details for event in events)
    assert (gone["after"], gone["unassigned"], gone["before"]) == (None, 1, changed["after"])
    assert (made["before"], changed["before"]) == (None, made["after"])
    assert changed["after"] == {
        "name": "pro", "limits": [RPM.to_dict()], "resources": {"gpt-4": [TPM.to_dict()]},
        "version": versions[2],
    }  # fmt: skip
    [created] = await arena.backend.ledger.audit(ns, "e", limit=9, before=None)
    assert created.details["after"]["plan"] == "pro"


async def moving_to_another_plan_carries_the_level_over(arena: Arena) -> None:
    """S9: the same bucket; a limit both plans name keeps what it holds, cut at the new brim."""
    catalog, ns = arena.backend.catalog, arena.namespace
    await _set(arena, "free", Limit.per_minute("x", 10), Limit.per_hour("y", 5))
    await _set(arena, "pro", Limit.per_minute("x", 100))
    await catalog.create_entity(ns, Entity("e", plan="free"), None, 1)

    async def demand(amounts: dict[str, int]) -> Demand:
        lookup = await catalog.lookup(ns, "e", "r")
        given = resolve(lookup.lineage[0], "r").given
        terms = Terms(
            tuple(one.limit.spec for one in given), lookup.version,
            sources=tuple(one.level for one in given),
        )  # fmt: skip
        line = tuple(
            amounts[spec.name] * MILLI if spec.name in amounts else None for spec in terms.specs
        )
        return Demand(arena.key("e", "r"), terms, line)

    assert (await arena.take(await demand({"x": 8, "y": 5}))).allowed
    await _assign(arena, "e", "pro")
    assert not (await arena.take(await demand({"x": 3}))).allowed
    assert (await arena.take(await demand({"x": 2}))).allowed
    statuses = (await arena.take(await demand({"x": 0}))).statuses
    assert [(one.limit_name, one.source) for one in statuses] == [("x", "plan")]
    await _assign(arena, "e", "free")
    assert not (await arena.take(await demand({"y": 1}))).allowed


async def plans_of_namespaces_are_apart_and_go_with_them(arena: Arena) -> None:
    """S10: a name means another plan elsewhere; a purge leaves none."""
    catalog = arena.backend.catalog
    other = await catalog.register_namespace("other", None, 1)
    await _set(arena, "pro", RPM)
    assert await catalog.get_plan(other.id, "pro") is None
    assert await catch(
        catalog.create_entity(other.id, Entity("e", plan="pro"), None, 1), PlanNotFoundError
    )
    theirs = await catalog.set_plan(other.id, "pro", None, (TPM,), None, 1)
    await catalog.create_entity(other.id, Entity("e", plan="pro"), None, 1)
    await catalog.update_stored(other.id, Level(), {"limits": (RPM,)}, None, 1)
    mine = await catalog.get_plan(arena.namespace, "pro")
    assert mine is not None
    assert (mine.limits, mine.entities, theirs.limits) == ((RPM,), 0, (TPM,))
    await catalog.delete_namespace("other", None, 2)
    assert await catalog.purge_namespace(other.id, None, 3) >= 4
    assert await catch(catalog.get_plan(other.id, "pro"), NamespaceNotFoundError)
    assert await catalog.get_plan(arena.namespace, "pro") == mine
