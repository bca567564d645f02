"""Batches: one store call for all of it, and for each what it would have been told alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headgate.core.errors import Throttled
from headgate.core.limits import Limit
from headgate.service.decide.answers import Admission, CheckResult
from headgate.service.decide.problems import Code, ServiceError
from headgate.service.decide.requests import CheckRequest, parse_batch
from headgate.service.http.messages import batch_content
from headgate.service.program import Options, Program
from headgate.service.settings import OnUnknown
from tests.service.decide.kit import World
from tests.stores.redis import servers

HUNDRED = [{"identifier": f"user-{n}", "resource": "api.search"} for n in range(100)]


async def batch(world: World, items: list[dict[str, Any]]) -> list[Any]:
    return list(await world.ask("batch", {"requests": items}))


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_a_hundred_checks_are_one_store_call(store: str, tmp_path: Path) -> None:
    world = World(url="memory://" if store == "memory" else f"sqlite:///{tmp_path}/limits.db")
    await world.repository.create_table()
    for _ in range(2):  # cold, and then with every plan at hand
        world.store.calls.clear()
        results = await batch(world, HUNDRED)
        assert [one.allowed for one in results] == [True] * 100
        assert world.store.verbs == ["consume_each"]
    await world.service.close()


ANN = {"identifier": "ann", "resource": "tiny"}


async def with_tiny_limit(world: World, tokens: int) -> None:
    ns = await world.service.namespace("default")
    await ns.set_limits("user:ann", [Limit.per_minute("tokens", tokens)], "tiny")


async def test_the_order_of_a_batch_is_the_order_of_its_decisions(world: World) -> None:
    """A dry run sees what those before it took."""
    await with_tiny_limit(world, 3)
    results = await batch(world, [{**ANN, "tokens": n} for n in (2, 2, 1, 1)])
    assert [one.allowed for one in results] == [True, False, True, False]
    assert [one.tokens_remaining for one in results] == [1, 1, 0, 0]
    assert world.store.verbs.count("consume_each") == 1
    world.clock.advance(40_000)  # two come back
    dry = {**ANN, "dry_run": True}
    results = await batch(world, [dry, ANN, ANN, dry])
    assert [one.allowed for one in results] == [True, True, True, False]


@pytest.mark.parametrize("fail_open", [True, False])
async def test_an_outage_is_told_to_each_of_them(fail_open: bool) -> None:
    """Also where it meets a cold lookup."""
    world = World(fail_open=fail_open)
    await batch(world, HUNDRED[:3])
    world.goes_down()
    for one in await batch(world, HUNDRED[:6]):
        assert (one.allowed, one.degraded) == (fail_open, True)
        assert one.degraded_reason == "store_unreachable"
        assert one.code is (None if fail_open else Code.STORAGE_UNAVAILABLE)
    world.comes_back()
    assert [one.degraded for one in await batch(world, HUNDRED[:3])] == [False] * 3


async def test_a_throttled_key_is_refused_and_the_others_are_not() -> None:
    world = World(fail_open=True)
    await batch(world, HUNDRED[:2])
    consume_each = world.store.consume_each

    async def throttling(groups: Any, now_ms: Any) -> Any:
        found = await consume_each(groups, now_ms)
        return [Throttled("slow down"), *found[1:]]

    world.store.consume_each = throttling  # type: ignore[method-assign]
    first, second = await batch(world, HUNDRED[:2])
    assert (first.code, second.allowed) == (Code.RATE_LIMIT_EXCEEDED, True)


async def test_who_may_not_enter_is_denied_alone() -> None:
    world = World(unknown=OnUnknown.DENY)
    await with_tiny_limit(world, 2)
    first, second = await batch(world, [ANN, {**ANN, "identifier": "bob"}])
    assert isinstance(first, CheckResult)
    assert second.code is Code.ENTITY_NOT_FOUND


@pytest.mark.parametrize("is_watched", [True, False])
async def test_each_is_told_and_counted_as_it_would_be_alone(is_watched: bool) -> None:
    """Where nobody watches, plain yeses go the shortest way through every part."""
    items = [
        {"identifier": "ann", "resource": "api.search"},
        {"identifier": "bob", "resource": "api.search", "tokens": 3},
        {"identifier": "ann", "resource": "other"},
        {"identifier": "10.0.0.1", "resource": "other", "scope": "ip", "tokens": 2},
        {"identifier": "ann", "resource": "api.search", "tokens": 100_000},  # can never be
        {"identifier": "bob", "resource": "api.search", "scope": "nobody_knows"},
        {**ANN, "tokens": 2},
        {**ANN, "tokens": 2},  # there is one left
        {"identifier": "bob", "resource": "api.search"},
    ]
    together, apart = World(), World()
    for world in (together, apart):
        world.service.observe(world.events.append if is_watched else None)
        await with_tiny_limit(world, 3)
    for _ in range(2):  # cold, and then with every plan at hand
        request = parse_batch({"requests": items})
        if is_watched:
            results: list[Any] = list(await together.service.batch(request))
            alone = [await apart.ask("check", item) for item in items]
        else:
            results = list(await together.service.decide_batch(request))
            alone = [await _brief(apart, one) for one in request.requests]
        assert batch_content(results) == batch_content(alone)
        assert list(map(_kind, results)) == list(map(_kind, alone))
    assert _sums(together) == _sums(apart)
    assert together.answers == apart.answers
    if not is_watched:
        assert Admission in {type(one) for one in results}
        assert len(together.yeses) < len(apart.yeses)


def _kind(result: Any) -> object:
    return result if isinstance(result, CheckResult) else type(result)


async def _brief(world: World, check: CheckRequest) -> Admission | CheckResult | ServiceError:
    try:
        return await world.service.decide(check)
    except ServiceError as problem:
        return problem


def _sums(world: World) -> Counter[tuple[str, str, str]]:
    found: Counter[tuple[str, str, str]] = Counter()
    for scope, resource, tokens, checks, _ in world.yeses:
        found[scope, resource, "tokens"] += tokens
        found[scope, resource, "checks"] += checks
    return found


def test_a_hundred_checks_on_redis_are_one_script_call() -> None:
    """Counted by the server. Whoever is not known yet is looked up before, once."""
    with servers.folder() as folder, servers.Server(folder) as server:
        found = asyncio.run(scripts_called(server.url))
    assert found == [1, 1 + 50, 1]


async def scripts_called(url: str) -> list[int]:
    """How many scripts Redis ran for each of three batches, once a hundred identifiers are known:
    of the same hundred, of half of them with fifty others, and of these again."""
    program = Program.build(Options(store=url))
    await program.start()
    found = []
    try:
        for first in (0, 0, 50, 50):
            items = [{"identifier": f"user-{first + n}", "resource": "api"} for n in range(100)]
            await asyncio.to_thread(servers.command, url, "CONFIG", "RESETSTAT")
            results = await program.service.decide_batch(parse_batch({"requests": items}))
            assert all(isinstance(one, Admission) for one in results)
            calls = await asyncio.to_thread(servers.called, url)
            found.append(calls["eval"] + calls["evalsha"] + calls["fcall"])
    finally:
        await program.close()
    return found[1:]
