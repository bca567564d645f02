"""Batches: one store call for all of it, and for each what it would have been told alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headgate.core.errors import Throttled, Unreachable
from headgate.core.limits import Limit
from headgate.service.decide.answers import Admission, CheckResult
from headgate.service.decide.problems import Code, ServiceError
from headgate.service.decide.requests import CheckRequest, parse_batch
from headgate.service.http.write import batch_content
from tests.service.decide.kit import World

HUNDRED = [{"identifier": f"user-{n}", "resource": "api.search"} for n in range(100)]


def url_of(store: str, folder: Path) -> str:
    return "memory://" if store == "memory" else f"sqlite:///{folder}/limits.db"


async def batch(world: World, items: list[dict[str, Any]]) -> list[CheckResult | ServiceError]:
    answer = await world.ask("batch", {"requests": items})
    return list(answer.results)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_a_hundred_checks_are_one_store_call(store: str, tmp_path: Path) -> None:
    world = World(url=url_of(store, tmp_path))
    await world.repository.create_table()
    for _ in range(2):  # cold, and then with every plan at hand
        world.store.calls.clear()
        results = await batch(world, HUNDRED)
        assert [one.allowed for one in results] == [True] * 100  # type: ignore[union-attr]
        assert world.store.verbs == ["consume_each"]
    await world.service.close()


async def test_the_order_of_a_batch_is_the_order_of_its_decisions(world: World) -> None:
    ann = {"identifier": "ann", "resource": "tiny", "scope": "user"}
    ns = await world.service.namespace("default")
    await ns.set_limits("user:ann", [Limit.per_minute("tokens", 3)], "tiny")
    results = await batch(world, [{**ann, "tokens": n} for n in (2, 2, 1, 1)])
    assert [one.allowed for one in results] == [True, False, True, False]  # type: ignore[union-attr]
    left = [one.tokens_remaining for one in results]  # type: ignore[union-attr]
    assert left == [1, 1, 0, 0]
    assert world.store.verbs.count("consume_each") == 1


async def test_each_is_told_what_it_would_be_told_alone() -> None:
    items = [
        {"identifier": "ann", "resource": "api.search"},
        {"identifier": "ann", "resource": "api.search", "tokens": 100_000},  # can never be
        {"identifier": "bob", "resource": "api.search", "scope": "nobody_knows"},
        {"identifier": "cyd", "resource": "api.search", "tokens": 3},
        {"identifier": "ann", "resource": "api.search", "tokens": 2},
    ]
    together, apart = World(), World()
    results = await batch(together, items)
    alone = [await apart.ask("check", item) for item in items]
    assert [_told(one) for one in results] == [_told(one) for one in alone]


@pytest.mark.parametrize("fail_open", [True, False])
async def test_an_outage_is_told_to_each_of_them(fail_open: bool) -> None:
    world = World(fail_open=fail_open)
    await batch(world, HUNDRED[:3])
    world.goes_down()
    for one in await batch(world, HUNDRED[:3]):
        assert isinstance(one, CheckResult)
        assert (one.allowed, one.degraded) == (fail_open, True)
        assert one.degraded_reason == "store_unreachable"
    world.comes_back()
    again = await batch(world, HUNDRED[:3])
    assert [one.degraded for one in again] == [False] * 3  # type: ignore[union-attr]


async def test_a_throttled_key_is_refused_and_the_others_are_not() -> None:
    world = World(fail_open=True)
    await batch(world, HUNDRED[:2])
    consume_each = world.store.consume_each

    async def throttling(groups: Any, now_ms: Any) -> Any:
        found = await consume_each(groups, now_ms)
        return [Throttled("slow down"), *found[1:]]

    world.store.consume_each = throttling  # type: ignore[method-assign]
    first, second = await batch(world, HUNDRED[:2])
    assert isinstance(first, CheckResult)
    assert first.code is Code.RATE_LIMIT_EXCEEDED
    assert isinstance(second, CheckResult)
    assert second.allowed


async def test_a_dry_run_sees_what_those_before_it_took(world: World) -> None:
    ns = await world.service.namespace("default")
    await ns.set_limits("user:ann", [Limit.per_minute("tokens", 2)], "tiny")
    ann = {"identifier": "ann", "resource": "tiny"}
    dry = {**ann, "dry_run": True}
    results = await batch(world, [dry, ann, ann, dry])
    assert [one.allowed for one in results] == [True, True, True, False]  # type: ignore[union-attr]


async def test_who_may_not_enter_is_denied_alone() -> None:
    from headgate.service.settings import OnUnknown

    world = World(unknown=OnUnknown.DENY)
    ns = await world.service.namespace("default")
    await ns.set_limits("user:ann", [Limit.per_minute("tokens", 2)], "tiny")
    ann, bob = ({"identifier": name, "resource": "tiny"} for name in ("ann", "bob"))
    first, second = await batch(world, [ann, bob])
    assert isinstance(first, CheckResult)
    assert isinstance(second, ServiceError)
    assert second.code is Code.ENTITY_NOT_FOUND


async def test_trouble_of_a_cold_lookup_means_what_was_chosen() -> None:
    world = World(fail_open=False)
    await world.service.namespace("default")
    world.goes_down(Unreachable("gone"))
    for one in await batch(world, HUNDRED[:2]):
        assert isinstance(one, CheckResult)
        assert one.code is Code.STORAGE_UNAVAILABLE


def _told(result: Any) -> object:
    return (result.code, result.field) if isinstance(result, ServiceError) else result


async def test_briefly_it_says_and_counts_what_each_would_alone() -> None:
    """Nobody watches, so plain yeses go the shortest way through every part."""
    items = [
        {"identifier": "ann", "resource": "api.search"},
        {"identifier": "bob", "resource": "api.search", "tokens": 3},
        {"identifier": "ann", "resource": "other"},
        {"identifier": "10.0.0.1", "resource": "other", "scope": "ip", "tokens": 2},
        {"identifier": "ann", "resource": "api.search", "tokens": 100_000},  # can never be
        {"identifier": "bob", "resource": "api.search", "scope": "nobody_knows"},
        {"identifier": "ann", "resource": "tiny", "tokens": 2},
        {"identifier": "ann", "resource": "tiny", "tokens": 2},  # there is one left
        {"identifier": "bob", "resource": "api.search"},
    ]
    together, apart = World(), World()
    for world in (together, apart):
        world.service.observe(None)
        ns = await world.service.namespace("default")
        await ns.set_limits("user:ann", [Limit.per_minute("tokens", 3)], "tiny")
    for _ in range(2):  # cold, and then with every plan at hand
        request = parse_batch({"requests": items})
        results = await together.service.decide_batch(request)
        alone = [await _brief(apart, one) for one in request.requests]
        assert batch_content(results) == batch_content(alone)
        assert [type(one) for one in results] == [type(one) for one in alone]
    assert Admission in {type(one) for one in results}
    assert _sums(together) == _sums(apart)
    assert len(together.yeses) < len(apart.yeses)
    assert together.answers == apart.answers


async def _brief(world: World, check: CheckRequest) -> Admission | CheckResult | ServiceError:
    try:
        return await world.service.decide(check)
    except ServiceError as problem:
        return problem


def _sums(world: World) -> Counter[tuple[str, str, str]]:
    found: Counter[tuple[str, str, str]] = Counter()
    for scope, resource, tokens, checks in world.yeses:
        found[scope, resource, "tokens"] += tokens
        found[scope, resource, "checks"] += checks
    return found
