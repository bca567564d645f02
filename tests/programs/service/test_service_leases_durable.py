"""Leases that stand in the store: any process can change them, and end them for one that died."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headgate import Limit, Repository
from headgate.errors import Unreachable
from headgate.service.answers import AcquireAnswer, LeaseState
from headgate.service.problems import Code, ServiceError
from headgate.service.requests import (
    parse_acquire,
    parse_adjust,
    parse_release,
    parse_settle,
)
from headgate.service.rules import NoPolicies, Rule
from headgate.service.service import Service
from headgate.service.settings import DEFAULT_SETTINGS
from headgate.testing import FakeClock

RULES = NoPolicies(Rule("hourly", [Limit.per_hour("tokens", 100)]))
ASK = {"identifier": "u1", "resource": "api", "tokens": 40, "scope": "user"}

Play = Callable[[Service, Service, FakeClock], Awaitable[None]]


def between_two(folder: Path, play: Play) -> None:
    """Two processes' services on one file."""

    async def flow() -> None:
        clock = FakeClock()
        url = f"sqlite:///{folder}/leases.db"
        one, two = [
            Service(await Repository.open(url, clock=clock), RULES, DEFAULT_SETTINGS)
            for _ in range(2)
        ]
        try:
            await play(one, two, clock)
        finally:
            await one.close()
            await two.close()

    asyncio.run(flow())


async def opened(service: Service, **more: Any) -> str:
    answer: AcquireAnswer = await service.acquire(parse_acquire({**ASK, **more}, service.settings))
    assert answer.lease is not None
    return answer.lease.lease_id


async def left(service: Service) -> int:
    room = await service.room("default")
    shown = await room.get_buckets(entity_id="user:u1")
    return min(state.tokens_milli for state in shown) // 1000


def test_another_process_settles_a_lease(tmp_path: Path) -> None:
    async def play(one: Service, two: Service, clock: FakeClock) -> None:
        lease_id = await opened(one)
        assert (await two.lease(lease_id, "default")).state is LeaseState.OPEN
        await two.adjust(parse_adjust(lease_id, {"tokens": 5}))
        answer = await one.settle(parse_settle(lease_id, {"tokens": 12}))
        assert answer.state is LeaseState.SETTLED
        assert await left(two) == 88
        again = await two.settle(parse_settle(lease_id, {"tokens": 12}))
        assert again.state is LeaseState.SETTLED
        assert await left(two) == 88
        with pytest.raises(ServiceError) as caught:
            await two.release(parse_release(lease_id, None))
        assert caught.value.code is Code.CONFLICT

    between_two(tmp_path, play)


def test_a_lease_of_a_dead_process_ends_as_it_was_told(tmp_path: Path) -> None:
    async def play(one: Service, two: Service, clock: FakeClock) -> None:
        refunded = await opened(one, ttl_seconds=30)
        await opened(one, ttl_seconds=30, on_expiry="keep", tokens=7)
        assert await left(two) == 53
        await one.repository.close()  # it is gone without a word
        clock.advance(29_000)
        await two.tick()
        assert await left(two) == 53
        clock.advance(2000)
        await two.tick()
        assert 90 <= await left(two) <= 93  # 40 less what was refilled meanwhile, and it was
        with pytest.raises(ServiceError) as caught:
            await two.lease(refunded, "default")
        assert caught.value.code is Code.LEASE_NOT_FOUND

    between_two(tmp_path, play)


def test_of_two_that_change_a_lease_at_once_one_is_told_to_try_again(tmp_path: Path) -> None:
    async def play(one: Service, two: Service, clock: FakeClock) -> None:
        lease_id = await opened(one)
        seen = await two.leases.shelf.get(lease_id)
        assert seen is not None
        await two.leases.shelf.claim(seen)
        with pytest.raises(ServiceError) as caught:
            await one.release(parse_release(lease_id, None))
        assert caught.value.code is Code.CONFLICT
        clock.advance(5001)  # whoever claimed it has died
        assert (await one.release(parse_release(lease_id, None))).state is LeaseState.RELEASED
        assert await left(one) >= 99  # a late refund is less what was refilled meanwhile
        with pytest.raises(ServiceError):
            await two.leases.shelf.put(seen)

    between_two(tmp_path, play)


def test_leases_outlive_a_restart(tmp_path: Path) -> None:
    ids: list[str] = []

    async def before(one: Service, two: Service, clock: FakeClock) -> None:
        ids.append(await opened(one))

    async def after(one: Service, two: Service, clock: FakeClock) -> None:
        await one.release(parse_release(ids[0], None))
        assert await left(two) == 100

    between_two(tmp_path, before)
    between_two(tmp_path, after)


def test_a_sweep_that_cannot_reach_the_store_harms_nobody(tmp_path: Path) -> None:
    async def play(one: Service, two: Service, clock: FakeClock) -> None:
        await opened(one)

        async def away(*arguments: object) -> Any:
            raise Unreachable("away")

        one.repository.backend.drawer.due = away  # type: ignore[method-assign,union-attr]
        await one.tick()
        await opened(one, tokens=1)

    between_two(tmp_path, play)
