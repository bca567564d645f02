"""Stored limits, hierarchy, cascade, switches: on every embedded store, async and blocking."""

from __future__ import annotations

from typing import Any

import pytest

from headgate import (
    DisabledError,
    EntityExistsError,
    EntityNotFoundError,
    Limit,
    NamespaceNotFoundError,
    NamespaceStateError,
    OnUnavailable,
    RateLimitExceeded,
    ValidationError,
    VersionMismatchError,
)
from tests.flows.conftest import World, spend


async def test_levels_override_limit_by_limit(world: World) -> None:
    limiter = world.limiter(limits=[Limit.per_day("rpd", 7)])
    await limiter.set_system_defaults([Limit.per_minute("rpm", 1), Limit.per_hour("rph", 2)])
    await limiter.set_resource_defaults("gpt-4", [Limit.per_minute("rpm", 3)])
    await limiter.set_limits("vip", [Limit.per_minute("tpm", 40)])
    await limiter.set_limits("vip", [Limit.per_minute("rpm", 50)], resource="gpt-4")
    assert await limiter.available("vip", "gpt-4") == {
        "rpm": 50, "tpm": 40, "rph": 2, "rpd": 7,
    }  # fmt: skip
    assert await limiter.available("joe", "gpt-4") == {"rpm": 3, "rph": 2, "rpd": 7}
    assert await limiter.available("joe", "other") == {"rpm": 1, "rph": 2, "rpd": 7}
    told = await limiter.explain("vip", "gpt-4")
    levels = {given.limit.name: given.level for given in told.limits}
    assert levels == {
        "rpm": "entity", "tpm": "entity_default", "rph": "system", "rpd": "limiter",
    }  # fmt: skip
    rpm = next(given for given in told.limits if given.limit.name == "rpm")
    assert rpm.overrides == ("resource gpt-4", "system defaults")
    assert "vip on gpt-4" in str(told)
    limits, rule, source = await world.repository.resolve_limits("vip", "gpt-4")
    assert (len(limits), rule, source) == (3, None, "entity")
    assert await world.repository.resolve_limits("joe", "x") == (
        [Limit.per_minute("rpm", 1), Limit.per_hour("rph", 2)], None, "system",
    )  # fmt: skip


async def test_stored_limits_are_read_back_listed_and_deleted(world: World) -> None:
    limiter = world.limiter()
    rpm = [Limit.per_minute("rpm", 5, burst=9)]
    await limiter.set_limits("a", rpm, resource="gpt-4")
    await limiter.set_limits("b", rpm, resource="gpt-4")
    await limiter.set_resource_defaults("gpt-4", rpm)
    await limiter.set_system_defaults(rpm, on_unavailable=OnUnavailable.ALLOW)
    assert await limiter.get_limits("a", "gpt-4") == rpm
    assert await limiter.get_limits("a") == []
    assert await limiter.get_resource_defaults("gpt-4") == rpm
    assert await limiter.get_system_defaults() == (rpm, OnUnavailable.ALLOW)
    assert await limiter.list_resources_with_defaults() == ["gpt-4"]
    assert await limiter.list_resources_with_entity_configs() == ["gpt-4"]
    assert await limiter.list_entities_with_custom_limits("gpt-4", limit=1) == (["a"], "a")
    assert await limiter.list_entities_with_custom_limits("gpt-4", cursor="a") == (["b"], None)
    await limiter.delete_limits("a", "gpt-4")
    await limiter.delete_resource_defaults("gpt-4")
    await limiter.delete_system_defaults()
    assert await limiter.get_limits("a", "gpt-4") == []
    assert await limiter.get_resource_defaults("gpt-4") == []
    assert await limiter.get_system_defaults() == ([], None)
    with pytest.raises(ValidationError, match="configured nowhere"):
        await spend(limiter, "a", "gpt-4", rpm=1)


async def test_two_limiters_with_different_caches_converge(world: World) -> None:
    one = world.limiter()
    two = world.limiter(namespace="default")  # the same store, a cache of its own
    await one.set_resource_defaults("api", [Limit.per_minute("rpm", 100)])
    await spend(one, "a", "api", rpm=1)
    await spend(two, "a", "api", rpm=1)
    await one.set_resource_defaults("api", [Limit.per_minute("rpm", 10)])
    await spend(one, "a", "api", rpm=4)
    # two still holds the old plan, but the bucket knows better, and two learns from it
    with pytest.raises(RateLimitExceeded):
        await spend(two, "a", "api", rpm=8)
    assert await two.available("a", "api") == {"rpm": 6}
    with pytest.raises(Exception, match="never holds more than 10"):
        await spend(two, "a", "api", rpm=60)


async def test_cascade_takes_from_every_generation_or_none(world: World) -> None:
    limiter = world.limiter()
    await limiter.create_entity("org")
    await limiter.create_entity("team", parent_id="org", cascade=True)
    await limiter.create_entity("key", parent_id="team", cascade=True)
    await limiter.create_entity("loner", parent_id="team")
    await limiter.set_resource_defaults("api", [Limit.per_minute("rpm", 100)])
    await limiter.set_limits("team", [Limit.per_minute("rpm", 5)], resource="api")
    await spend(limiter, "key", "api", rpm=3)
    await spend(limiter, "loner", "api", rpm=30)
    assert await limiter.available("org", "api") == {"rpm": 97}
    assert await limiter.available("team", "api") == {"rpm": 2}
    assert await limiter.available("key", "api") == {"rpm": 2}  # its team has no more
    assert await limiter.available("loner", "api") == {"rpm": 70}
    with pytest.raises(RateLimitExceeded) as caught:
        await spend(limiter, "key", "api", rpm=3)
    assert caught.value.primary_violation.entity_id == "team"
    assert await limiter.available("org", "api") == {"rpm": 97}
    assert await limiter.time_until_available("key", "api", {"rpm": 3}) == 12.0
    assert not (await limiter.check("key", "api", {"rpm": 3})).allowed
    told = await limiter.explain("key", "api")
    assert [parent.entity_id for parent in told.parents] == ["team", "org"]
    with pytest.raises(ZeroDivisionError):
        async with limiter.acquire("key", "api", {"rpm": 1}) as lease:
            await lease.adjust(rpm=1)
            raise ZeroDivisionError
    assert await limiter.available("org", "api") == {"rpm": 97}
    assert await limiter.available("team", "api") == {"rpm": 2}


async def test_an_entity_that_was_never_registered_can_be_deleted(world: World) -> None:
    """It may have limits, buckets, or both; where there is nothing of it, that is an error."""
    limiter = world.limiter()
    await limiter.set_resource_defaults("api", [Limit.per_minute("rpm", 5)])
    await limiter.set_limits("limits", [Limit.per_minute("rpm", 3)], resource="api")
    await limiter.set_limits("both", [Limit.per_minute("rpm", 3)], resource="api")
    for entity_id in ("both", "bucket"):
        await spend(limiter, entity_id, "api", rpm=2)
    for entity_id in ("limits", "both", "bucket"):
        await limiter.delete_entity(entity_id, principal="ada")
        assert await limiter.available(entity_id, "api") == {"rpm": 5}
        assert await limiter.get_buckets(entity_id) == []
        event = (await limiter.get_audit_events(entity_id))[0]
        assert (event.action, event.principal) == ("entity_deleted", "ada")
        with pytest.raises(EntityNotFoundError):
            await limiter.delete_entity(entity_id)


async def test_everybody_is_told_whose_limit_is_the_nearest(world: World) -> None:
    """A parent without limits of its own has the resource's default, which caps a higher child."""
    limiter = world.limiter()
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    await limiter.set_resource_defaults("api", [Limit.per_minute("rpm", 60)])
    await limiter.set_limits("key", [Limit.per_minute("rpm", 1000)], resource="api")
    told = await limiter.explain("key", "api")
    assert [(one.given.limit.name, one.entity_id) for one in told.nearest] == [("rpm", "org")]
    [warning] = told.warnings
    assert warning.startswith("org has rpm: 60/60s by default, from resource api, which caps key's")
    assert str(told).endswith(f"nearest: rpm of org\nwarning: {warning}")
    nearest = (await limiter.check("key", "api", {"rpm": 1})).nearest
    assert nearest is not None
    assert (nearest.entity_id, nearest.source, nearest.available) == ("org", "resource", 60)
    async with limiter.acquire("key", "api", {"rpm": 60}) as lease:
        assert lease.nearest is not None
        assert (lease.nearest.entity_id, lease.nearest.available) == ("org", 0)
    with pytest.raises(
        RateLimitExceeded, match="key's parent org on api: rpm has 0 of 60"
    ) as caught:
        await spend(limiter, "key", "api", rpm=1)
    assert caught.value.nearest == caught.value.primary_violation
    assert caught.value.as_dict()["nearest"]["entity_id"] == "org"
    refused = (await limiter.check("key", "api", {"rpm": 1})).nearest
    assert refused is not None
    assert (refused.entity_id, refused.exceeded) == ("org", True)

    await limiter.set_limits("org", [Limit.per_minute("rpm", 5000)], resource="api")
    told = await limiter.explain("key", "api")
    assert (told.warnings, told.nearest[0].entity_id) == ((), "key")
    await limiter.set_limits("org", [Limit.per_minute("rpm", 5)], resource="api")
    told = await limiter.explain("key", "api")
    assert told.warnings == (), "that is what somebody wanted"
    assert told.nearest[0].entity_id == "org"


async def test_a_refusal_of_several_who_asked_has_no_parent(world: World) -> None:
    limiter = world.limiter(limits=[Limit.per_minute("rpm", 5)])
    await spend(limiter, "ip", "api", rpm=5)
    with pytest.raises(RateLimitExceeded, match=r"^ip on api: rpm has 0 of 5"):
        async with limiter.acquire_many([("user", "api", {"rpm": 1}), ("ip", "api", {"rpm": 1})]):
            pass
    soft = world.limiter(limits=[Limit.per_minute("a", 5), Limit.per_minute("b", 1, soft=True)])
    nearest = (await soft.check("user", "else", {"a": 1, "b": 1})).nearest
    assert nearest is not None
    assert nearest.limit_name == "a", "a soft limit stands in nobody's way"


async def test_an_override_serves_parents_that_have_no_limits(world: World) -> None:
    limiter = world.limiter()
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    limits = [Limit.per_minute("rpm", 5)]
    async with limiter.acquire("key", "api", {"rpm": 4}, limits=limits):
        pass
    assert await limiter.available("org", "api", limits=limits) == {"rpm": 1}


async def test_entities_are_created_changed_and_deleted(world: World) -> None:
    limiter = world.limiter(limits=[Limit.per_minute("rpm", 5)])
    made = await limiter.create_entity("org", name="Acme", metadata={"plan": "gold"})
    assert (made.name, made.metadata, made.version) == ("Acme", {"plan": "gold"}, 1)
    with pytest.raises(EntityExistsError):
        await limiter.create_entity("org")
    with pytest.raises(EntityNotFoundError):
        await limiter.create_entity("x", parent_id="nobody")
    await limiter.create_entity("key")
    moved = await limiter.set_parent("key", "org", cascade=True, version=1)
    assert (moved.parent_id, moved.cascade, moved.version) == ("org", True, 2)
    with pytest.raises(VersionMismatchError):
        await limiter.set_parent("key", None, version=1)
    assert [child.id for child in await limiter.get_children("org")] == ["key"]
    assert ([e.id for e in (await limiter.list_entities())[0]]) == ["key", "org"]
    await spend(limiter, "key", "api", rpm=5)
    await limiter.delete_entity("key")
    assert await limiter.get_entity("key") is None
    assert await limiter.available("key", "api") == {"rpm": 5}
    with pytest.raises(EntityNotFoundError):
        await limiter.delete_entity("key")


async def test_switches_turn_entities_and_resources_off_and_free(world: World) -> None:
    limiter = world.limiter(limits=[Limit.per_minute("rpm", 2)])
    await limiter.disable("bad-key", principal="oncall")
    with pytest.raises(DisabledError, match="disabled by an operator"):
        await spend(limiter, "bad-key", "api", rpm=1)
    await limiter.enable("bad-key")
    await spend(limiter, "bad-key", "api", rpm=1)
    await limiter.bypass("vip")
    for _ in range(5):
        async with limiter.acquire("vip", "api", {"rpm": 2}) as lease:
            assert lease.consumed == {}
            await lease.adjust(rpm=100)
    await limiter.disable(resource="api")
    with pytest.raises(DisabledError):
        await spend(limiter, "joe", "api", rpm=1)
    with pytest.raises(DisabledError):
        await spend(limiter, "vip", "api", rpm=1)
    await spend(limiter, "joe", "other", rpm=1)
    await limiter.enable(resource="api")
    await spend(limiter, "joe", "api", rpm=1)
    with pytest.raises(ValidationError, match="exactly one"):
        await limiter.disable("a", resource="b")


async def test_namespaces_are_tenants(world: World) -> None:
    limiter = world.limiter(limits=[Limit.per_minute("rpm", 2)])
    await spend(limiter, "a", "api", rpm=2)
    repository = world.repository
    with pytest.raises(NamespaceNotFoundError):
        await spend(world.limiter(namespace="eu", limits=[Limit.per_minute("rpm", 2)]),
                     "a", "api", rpm=1)  # fmt: skip
    ids = await repository.register_namespaces(["eu", "us"])
    assert len(set(ids.values())) == 2
    eu = world.limiter(namespace="eu", limits=[Limit.per_minute("rpm", 2)])
    await spend(eu, "a", "api", rpm=2)
    assert [one.name for one in await repository.list_namespaces()] == ["default", "eu", "us"]
    await repository.delete_namespace("eu")
    fresh = world.limiter(namespace="eu", limits=[Limit.per_minute("rpm", 2)])
    with pytest.raises(NamespaceNotFoundError):
        await spend(fresh, "a", "api", rpm=1)
    world.clock.advance(61_000)  # the cache of the running limiter runs out
    with pytest.raises(NamespaceStateError, match="recover_namespace"):
        await spend(eu, "a", "api", rpm=1)
    assert [one.id for one in await repository.list_orphan_namespaces()] == [ids["eu"]]
    await repository.recover_namespace(ids["eu"])
    await spend(eu, "a", "api", rpm=1)
    await repository.delete_namespace("us")
    assert await repository.purge_namespace(ids["us"], principal="eve") >= 1
    purged = (await repository.get_audit_events("$SYSTEM", 1))[0]  # its own audit is gone
    assert (purged.action, purged.principal) == ("namespace_purged", "eve")
    assert (purged.details["before"]["name"], purged.details["after"]) == ("us", None)
    assert purged.details["before"]["id"] == ids["us"]


async def test_the_cache_counts_expires_and_is_invalidated(world: World) -> None:
    limiter = world.limiter(limits=[Limit.per_minute("rpm", 1000)])
    repository = world.repository
    for _ in range(5):
        await spend(limiter, "a", "api", rpm=1)
    stats = await _value(repository.get_cache_stats())
    assert (stats.size, stats.ttl_seconds) == (1, 60.0)
    assert stats.hits >= 4
    misses = stats.misses
    world.clock.advance(60_000)
    await spend(limiter, "a", "api", rpm=1)
    assert (await _value(repository.get_cache_stats())).misses > misses
    await _value(repository.invalidate_config_cache())
    assert (await _value(repository.get_cache_stats())).size == 0


async def _value(maybe: Any) -> Any:
    return await maybe if hasattr(maybe, "__await__") else maybe


async def test_a_quota_is_compared_by_its_average_pace(world: World) -> None:
    """A parent's rate of 60 a minute caps a child's budget of two a month in nothing."""
    limiter = world.limiter()
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    month, year = (Limit.quota("n", 100, every=every) for every in ("month", "year"))
    for default, own, warned in (
        (Limit.per_minute("n", 100), month, False),
        (month, month, False),
        (month, Limit.per_minute("n", 100), True),
        (year, month, True),
        (month, year, False),
    ):
        await limiter.set_resource_defaults("api", [default])
        await limiter.set_limits("key", [own], resource="api")
        told = await limiter.explain("key", "api")
        assert bool(told.warnings) == warned, (default, own)
        assert [one.given.limit for one in told.nearest] == [default if warned else own]
