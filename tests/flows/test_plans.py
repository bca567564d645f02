"""Plans: named sets of limits that entities refer to, on every embedded store, both faces."""

from __future__ import annotations

from typing import Any

import pytest

from headgate import (
    EntityNotFoundError,
    InvalidNameError,
    Limit,
    Plan,
    PlanInUseError,
    PlanNotFoundError,
    RateLimitExceeded,
    ValidationError,
    VersionMismatchError,
)
from tests.flows.conftest import World, spend

RPM = Limit.per_minute("rpm", 10)
TPM = Limit.per_minute("tpm", 1000)


async def test_plans_lie_between_an_entity_s_own_limits_and_the_defaults(world: World) -> None:
    limiter = world.limiter(limits=[Limit.per_day("rpd", 7)])
    await limiter.set_system_defaults([Limit.per_minute("rpm", 1), Limit.per_hour("rph", 2)])
    await limiter.set_resource_defaults("gpt-4", [Limit.per_minute("rpm", 3)])
    await limiter.set_plan("pro", [Limit.per_minute("rpm", 50), TPM])
    await limiter.set_plan("pro", [Limit.per_minute("rpm", 60)], resource="gpt-4")
    await limiter.create_entity("ann", plan="pro")
    await limiter.create_entity("vip", plan="pro")
    await limiter.set_limits("vip", [Limit.per_minute("rpm", 90)], resource="gpt-4")
    assert await limiter.available("ann", "gpt-4") == {
        "rpm": 60, "tpm": 1000, "rph": 2, "rpd": 7,
    }  # fmt: skip
    assert await limiter.available("ann", "other") == {"rpm": 50, "tpm": 1000, "rph": 2, "rpd": 7}
    assert await limiter.available("vip", "gpt-4") == {
        "rpm": 90, "tpm": 1000, "rph": 2, "rpd": 7,
    }  # fmt: skip
    assert await limiter.available("joe", "gpt-4") == {"rpm": 3, "rph": 2, "rpd": 7}
    told = await limiter.explain("ann", "gpt-4")
    assert told.plan == "pro"
    assert {one.limit.name: one.source for one in told.limits} == {
        "rpm": "plan pro for gpt-4", "tpm": "plan pro for every resource",
        "rph": "system defaults", "rpd": "the limiter's own defaults",
    }  # fmt: skip
    assert "ann on gpt-4 (plan pro)" in str(told)
    limits, _, source = await world.repository.resolve_limits("ann", "gpt-4")
    assert (len(limits), source) == (3, "plan_resource")
    assert (await world.repository.resolve_limits("ann", "x"))[2] == "plan"


async def test_a_plan_s_change_counts_for_all_who_are_on_it_and_levels_go_along(
    world: World,
) -> None:
    limiter = world.limiter()
    await limiter.set_plan("free", [RPM])
    await limiter.set_plan("pro", [Limit.per_minute("rpm", 100)])
    for name in ("a", "b"):
        await limiter.create_entity(name, plan="free")
        await spend(limiter, name, "api", rpm=8)
    await limiter.set_plan("free", [Limit.per_minute("rpm", 5)])
    assert await limiter.available("a", "api") == {"rpm": 2}
    moved = await limiter.assign_plan("b", "pro", principal="ada")
    assert (moved.plan, moved.version) == ("pro", 2)
    assert await limiter.available("b", "api") == {"rpm": 2}, "no full bucket is handed out"
    with pytest.raises(RateLimitExceeded) as caught:
        await spend(limiter, "b", "api", rpm=50)
    [status] = caught.value.statuses
    assert (status.source, status.limit.capacity) == ("plan", 100)
    await limiter.assign_plan("b", None)
    with pytest.raises(ValidationError, match="configured nowhere"):
        await spend(limiter, "b", "api", rpm=1)


async def test_another_process_learns_of_a_plan_within_the_ttl(world: World) -> None:
    one, two = world.limiter(), world.limiter(namespace="default")
    await one.set_plan("pro", [Limit.per_minute("rpm", 100)])
    for name in ("a", "b"):
        await one.create_entity(name, plan="pro")
        assert await two.available(name, "api") == {"rpm": 100}
    await one.set_plan("pro", [RPM])
    assert await two.available("a", "api") == {"rpm": 100}, "within the TTL"
    world.clock.advance(60_000)
    for name in ("a", "b"):
        assert await two.available(name, "api") == {"rpm": 10}
    await one.assign_plan("a", None)
    await one.set_resource_defaults("api", [Limit.per_minute("rpm", 3)])
    world.clock.advance(60_000)
    assert [await two.available(name, "api") for name in ("a", "b")] == [{"rpm": 3}, {"rpm": 10}]


async def test_plans_are_kept_listed_and_deleted(world: World) -> None:
    limiter = world.limiter()
    made = await limiter.set_plan("pro", [RPM])
    assert (made.name, made.limits, made.resources) == ("pro", (RPM,), {})
    await limiter.set_plan("pro", [TPM], resource="gpt-4")
    await limiter.set_plan("empty", [])
    for n in range(7):
        await limiter.create_entity(f"e{n}", plan="pro")
    found = await limiter.get_plan("pro")
    assert (found.limits, found.resources, found.entities) == ((RPM,), {"gpt-4": (TPM,)}, 7)
    assert isinstance(found, Plan)
    assert await limiter.get_plan("gold") is None
    plans, cursor = await limiter.list_plans(limit=1)
    assert ([plan.name for plan in plans], cursor) == (["empty"], "empty")
    [plan], cursor = await limiter.list_plans(cursor=cursor)
    assert (plan, plan.entities, cursor) == (found, 7, None)
    assert await limiter.list_entities_on_plan("pro", limit=2, cursor="e4") == (["e5", "e6"], None)
    with pytest.raises(PlanInUseError, match=r"that of 7 entities: e0, e1, e2, e3, e4 and 2 more"):
        await limiter.delete_plan("pro")
    assert await limiter.delete_plan("pro", unassign=True, principal="ada") == 7
    assert (await limiter.get_entity("e6")).plan is None
    assert await limiter.delete_plan("empty") == 0
    with pytest.raises(PlanNotFoundError, match="set_plan makes it"):
        await limiter.delete_plan("empty")
    [event] = await limiter.get_audit_events("$PLAN:pro", action="plan_deleted")
    assert (event.principal, event.details["unassigned"]) == ("ada", 7)
    assert event.details["before"]["resources"] == {"gpt-4": [TPM.to_dict()]}


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "a#b", "a:b", "pro\n", "$x", "é", 7, None])
async def test_bad_names_of_plans_are_refused_before_any_call(world: World, name: Any) -> None:
    limiter = world.limiter()
    calls = [
        lambda: limiter.set_plan(name, [RPM]), lambda: limiter.get_plan(name),
        lambda: limiter.delete_plan(name), lambda: limiter.list_entities_on_plan(name),
    ]  # fmt: skip
    if name is not None:
        calls.append(lambda: limiter.create_entity("e", plan=name))
        calls.append(lambda: limiter.assign_plan("e", name))
    for call in calls:
        with pytest.raises(InvalidNameError, match="plan="):
            await call()
    assert await limiter.list_entities() == ([], None)


async def test_bad_input_changes_nothing(world: World) -> None:
    limiter = world.limiter()
    for limits in ("rpm:1/s", RPM, [RPM, RPM], [1], None, {"rpm": 1}, [RPM] * 17):
        with pytest.raises(ValidationError, match="limits="):
            await limiter.set_plan("pro", limits)
    for resource in ("", "_default_", "a b", 3):
        with pytest.raises(ValidationError, match="resource="):
            await limiter.set_plan("pro", [RPM], resource=resource)
    for principal in ("", "x" * 300, 1):
        with pytest.raises(ValidationError, match="principal="):
            await limiter.set_plan("pro", [RPM], principal=principal)
    with pytest.raises(PlanNotFoundError, match="'pro'"):
        await limiter.set_plan("pro", [], resource="api")
    assert await limiter.list_plans() == ([], None)
    await limiter.set_plan("pro", [RPM])
    with pytest.raises(ValidationError, match="unassign="):
        await limiter.delete_plan("pro", unassign="yes")
    for limit in (0, 1001, "9", True):
        with pytest.raises(ValidationError, match="limit="):
            await limiter.list_plans(limit=limit)
    with pytest.raises(PlanNotFoundError):
        await limiter.create_entity("e", plan="gold")
    with pytest.raises(EntityNotFoundError):
        await limiter.assign_plan("nobody", "pro")
    await limiter.create_entity("e")
    with pytest.raises(VersionMismatchError):
        await limiter.assign_plan("e", "pro", version=7)
    assert (await limiter.get_entity("e")).plan is None
