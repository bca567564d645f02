"""Leases over the wire: taken, changed, ended, expired; and the shelf they stand on."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock

import pytest

from headgate.service.decide.answers import LeaseState, acquire_body, lease_body
from headgate.service.decide.problems import Code, ServiceError
from tests.service.decide.cases import ask
from tests.service.decide.kit import World


async def left(world: World, **more: Any) -> int:
    answer = await world.ask("check", ask(dry_run=True, **more))
    found: int = answer.tokens_remaining
    return found


async def held(world: World, tokens: int = 4, **more: Any) -> str:
    answer = await world.ask("acquire", ask(tokens=tokens, **more))
    lease_id: str = answer.lease.lease_id
    return lease_id


async def test_an_acquire_takes_and_gives_an_id_and_a_refused_one_has_none(world: World) -> None:
    answer = await world.ask("acquire", ask(tokens=9, ttl_seconds=60))
    assert (answer.check.tokens_remaining, answer.lease.held) == (1, {"tokens": 9})
    body = acquire_body(answer)
    assert (body["allowed"], body["state"], body["held"]) == (True, "open", {"tokens": 9})
    assert body["expires_at"] == "2023-11-14T22:14:20.000Z"
    again = await world.service.leases.read(answer.lease.lease_id, "default")
    assert lease_body(again) == lease_body(answer.lease)
    refused = await world.ask("acquire", ask(tokens=4))
    assert (refused.lease, refused.check.code) == (None, Code.RATE_LIMIT_EXCEEDED)
    assert acquire_body(refused)["status"] == 429
    assert (await world.ask("acquire", ask(tokens=11))).code is Code.DEMAND_TOO_LARGE
    assert len(world.service.leases.store) == 1


async def test_adjust_settle_and_their_repetition(world: World) -> None:
    lease_id = await held(world)
    more = await world.ask("adjust", {"tokens": 3}, lease_id)
    assert (more.held, await left(world)) == ({"tokens": 7}, 3)
    less = await world.ask("adjust", {"amounts": {"tokens": -2}}, lease_id)
    assert (less.held, await left(world)) == ({"tokens": 5}, 5)
    for _ in range(2):
        done = await world.ask("settle", {"amounts": {"tokens": 1}}, lease_id)
        assert (done.state, done.held, await left(world)) == (
            LeaseState.SETTLED, {"tokens": 1}, 9,
        )  # fmt: skip
    for verb, values in (
        ("settle", {"tokens": 2}), ("adjust", {"tokens": 1}), ("release", {}),
    ):  # fmt: skip
        assert (await world.ask(verb, values, lease_id)).code is Code.CONFLICT
    assert await left(world) == 9


async def test_settling_keeps_what_is_held_and_may_go_into_debt(world: World) -> None:
    done = await world.ask("settle", None, await held(world))
    assert (done.state, done.held, await left(world)) == (LeaseState.SETTLED, {"tokens": 4}, 6)
    await world.ask("settle", {"tokens": 26}, await held(world))
    answer = await world.ask("check", ask())
    assert (answer.tokens_remaining, answer.retry_after_ms) == (-20, 10_500)


async def test_release_gives_back_part_then_everything_once(world: World) -> None:
    lease_id = await held(world)
    part = await world.ask("release", {"tokens": 1}, lease_id)
    assert (part.state, part.held, await left(world)) == (LeaseState.OPEN, {"tokens": 3}, 7)
    too_much = await world.ask("release", {"tokens": 9}, lease_id)
    assert (too_much.code, too_much.field) == (Code.INVALID_REQUEST, "amounts.tokens")
    for _ in range(2):
        done = await world.ask("release", None, lease_id)
        assert (done.state, done.held, await left(world)) == (
            LeaseState.RELEASED, {"tokens": 0}, 10,
        )  # fmt: skip


async def test_while_one_call_changes_a_lease_others_are_told_to_come_back(world: World) -> None:
    lease_id = await held(world)
    store = world.service.leases.store
    lease = await store.get(lease_id)
    assert lease is not None
    await store.claim(lease)  # as a call does that now waits for the store
    for verb, values in (("settle", {"tokens": 2}), ("adjust", {"tokens": 1}), ("release", None)):
        found = await world.ask(verb, values, lease_id)
        assert (found.code, found.retry_after_ms) == (Code.CONFLICT, 100)
    await store.put(lease)
    assert (await world.ask("settle", {"tokens": 2}, lease_id)).state is LeaseState.SETTLED
    assert await left(world) == 8


@pytest.mark.parametrize(
    ("on_expiry", "settled", "back"), [("refund", None, 3), ("keep", None, 0), ("refund", 2, 1)]
)
async def test_expiry_has_the_outcome_that_was_chosen(
    on_expiry: str, settled: int | None, back: int, world: World
) -> None:
    """`once` never refills, so that what comes back is seen. What was settled has no effect."""
    lease_id = await held(world, 3, resource="once", ttl_seconds=5, on_expiry=on_expiry)
    if settled is not None:
        await world.ask("settle", {"tokens": settled}, lease_id)
    world.clock.advance(4_999)
    await world.service.tick()
    assert await left(world, resource="once") == (0 if settled is None else back)
    world.clock.advance(1)
    assert (await world.ask("settle", {}, lease_id)).code is Code.LEASE_NOT_FOUND
    assert await left(world, resource="once") == back
    assert len(world.service.leases.store) == 0


async def test_the_shelf_is_bounded_and_says_so_before_taking() -> None:
    world = World(leases_max=2)
    for _ in range(2):
        await held(world, 1, ttl_seconds=5)
    world.store.calls.clear()
    error = await world.ask("acquire", ask(tokens=1))
    assert world.store.verbs == []
    assert (error.code, error.code.http_status) == (Code.TOO_MANY_LEASES, 503)
    assert await left(world) == 8
    world.clock.advance(5_000)
    assert (await world.ask("acquire", ask(tokens=1))).lease is not None


async def test_what_cannot_be_kept_goes_back(world: World) -> None:
    error = ServiceError(Code.TOO_MANY_LEASES, "the shelf broke")
    world.service.leases.store.put = AsyncMock(side_effect=error)  # type: ignore[method-assign]
    assert (await world.ask("acquire", ask(tokens=4, on_expiry="keep"))).code is error.code
    assert await left(world) == 10
    world.goes_down()  # a service that fails closed does not even take
    answer = await world.ask("acquire", ask())
    assert (answer.lease, answer.check.code) == (None, Code.STORAGE_UNAVAILABLE)


async def test_a_sweep_ends_so_many_and_no_more(world: World) -> None:
    for _ in range(5):
        await held(world, 1, ttl_seconds=1)
    world.clock.advance(1_000)
    assert await world.service.leases.sweep(2) == 2
    assert await world.service.leases.sweep() == 3


async def test_a_lease_is_its_namespaces_only(world: World) -> None:
    await world.repository.register_namespace("eu")
    lease_id = await held(world)
    for request in ({"namespace": "eu"}, {"namespace": "missing"}):
        error = await world.ask("release", request, lease_id)
        assert error.code is Code.LEASE_NOT_FOUND
    assert (await world.ask("release", {}, "no such lease")).code is Code.LEASE_NOT_FOUND
    assert await left(world) == 6


async def test_amounts_by_limit_name(world: World) -> None:
    both = ask(resource="both", amounts={"tokens": 3, "hourly": 1})
    answer = await world.ask("acquire", both)
    assert answer.lease.held == {"tokens": 3, "hourly": 1}
    lease_id = answer.lease.lease_id
    error = await world.ask("adjust", {"amounts": {"nothing": 1}}, lease_id)
    assert (error.code, error.field) == (Code.INVALID_REQUEST, "amounts")
    assert "hourly, tokens" in error.detail
    after = await world.ask("adjust", {"amounts": {"hourly": 2}}, lease_id)
    assert after.held == {"tokens": 3, "hourly": 3}
    unknown = await world.ask("acquire", ask(amounts={"nothing": 1}))
    assert unknown.code is Code.INVALID_REQUEST


@pytest.mark.parametrize(
    ("verb", "values"),
    [
        *[("adjust", {"tokens": tokens}) for tokens in (True, 1.5)],
        *[("adjust", {"amounts": amounts}) for amounts in ({}, {"tokens": "1"}, {7: 1})],
        ("adjust", {}),
        *[("settle", one) for one in ({"tokens": -1}, {"amounts": {"tokens": 1}, "tokens": 1})],
        *[("release", one) for one in ({"tokens": 2**53}, {"anything": 1}, [])],
    ],
)
async def test_bad_changes_change_nothing(verb: str, values: Any, world: World) -> None:
    lease_id = await held(world)
    error = await world.ask(verb, values, lease_id)
    assert isinstance(error, ServiceError)
    assert error.code is Code.INVALID_REQUEST
    assert (await world.service.leases.read(lease_id, "default")).state is LeaseState.OPEN
    assert await left(world) == 6


@pytest.mark.parametrize("by_name", [False, True])
async def test_what_a_lease_grows_by_at_once_is_bounded_as_a_take_is(by_name: bool) -> None:
    """One change takes no more than one request may ask; what is held in all may be more."""
    world = World(amount_max=5)
    field = "amounts.tokens" if by_name else "tokens"

    def much(tokens: int) -> dict[str, Any]:
        return {"amounts": {"tokens": tokens}} if by_name else {"tokens": tokens}

    lease_id = await held(world, 4)
    for verb, tokens, bounds in (("adjust", 6, "-5 to 5"), ("adjust", -6, "-5 to 5"),
                                 ("settle", 10, "0 to 9")):  # fmt: skip
        error = await world.ask(verb, much(tokens), lease_id)
        assert (error.code, error.field) == (Code.INVALID_REQUEST, field)
        assert f"must be a whole number from {bounds}" in error.detail
        assert await left(world) == 6
    for held_then in (9, 14):
        assert (await world.ask("adjust", much(5), lease_id)).held == {"tokens": held_then}
    assert (await world.ask("release", much(8), lease_id)).held == {"tokens": 6}
    assert (await world.ask("settle", much(11), lease_id)).held == {"tokens": 11}
    assert (await world.ask("settle", much(11), lease_id)).held == {"tokens": 11}
    other = await held(world, 1, identifier="ann")
    assert (await world.ask("settle", much(6), other)).state is LeaseState.SETTLED


async def test_what_an_endpoint_costs_is_the_operators_word() -> None:
    """The bound is for what callers say; a policy file may say more."""
    world = World(amount_max=2)
    priced = ask(endpoint="/api/ml/predict")
    assert (await world.ask("check", priced)).tokens_remaining == 6
    assert (await world.ask("charge", priced)).answer.tokens_remaining == 2
    batch = await world.ask("batch", {"requests": [ask(endpoint="/"), priced]})
    assert [one.http_status for one in batch] == [200, 429]
    world.clock.advance(5_000)
    both = {**priced, "descriptors": [{"scope": "user", "resource": "api.search"}]}
    del both["resource"], both["scope"]
    assert (await world.ask("check_all", both)).results[0].tokens_remaining == 6
    assert (await world.ask("acquire", priced)).lease.held == {"tokens": 4}


async def test_a_lease_taken_while_the_store_was_away_is_labelled_and_ends_locally() -> None:
    world = World(fail_open=True)
    world.goes_down()
    answer = await world.ask("acquire", ask(tokens=4))
    assert answer.lease.degraded
    assert answer.check.degraded_reason == "store_unreachable"
    world.comes_back()
    world.store.calls.clear()
    await world.ask("release", {}, answer.lease.lease_id)
    assert world.store.verbs == [], "the store must not be credited for what it never gave"


async def test_releasing_gives_back_also_what_expiry_would_keep(world: World) -> None:
    lease_id = await held(world, 3, resource="once", on_expiry="keep")
    await world.ask("release", {}, lease_id)
    assert await left(world, resource="once") == 3
    assert (await world.ask("settle", {}, lease_id)).code is Code.CONFLICT
    late = await held(world, 10)
    world.clock.advance(3_000)  # 6 of 10 have been refilled
    await world.ask("check", ask(tokens=6))
    await world.ask("release", {}, late)
    assert await left(world) == 4, "a late refund makes no burst"
