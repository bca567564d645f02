"""Leases that stand in the store: any process can change them, and end them for one that died."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest

from headgate import Limit, Repository
from headgate.core.errors import Contended, Unreachable
from headgate.service.decide.answers import AcquireResult, LeaseState
from headgate.service.decide.problems import Code, ServiceError
from headgate.service.decide.requests import (
    parse_acquire,
    parse_adjust,
    parse_release,
    parse_settle,
)
from headgate.service.decide.rules import Rule, Rules
from headgate.service.decide.service import Service
from headgate.service.leases.store import QUIET_MS, StoredDemand
from headgate.testing import FakeClock

RULES = Rules(Rule("hourly", [Limit.per_hour("tokens", 100)]))
ASK = {"identifier": "u1", "resource": "api", "tokens": 40, "scope": "user"}

SOFT_RULES = Rules(
    Rule("soft", [Limit.per_hour("tokens", 100), Limit.per_hour("trial", 10, soft=True)])
)


@contextlib.asynccontextmanager
async def two_services(
    folder: Path, rules: Rules = RULES
) -> AsyncIterator[tuple[Service, Service, FakeClock]]:
    """The services of two processes on one file."""
    clock = FakeClock()
    url = f"sqlite:///{folder}/leases.db"
    one, two = [Service(await Repository.open(url, clock=clock), rules) for _ in range(2)]
    try:
        yield one, two, clock
    finally:
        await one.close()
        await two.close()


async def opened(service: Service, **more: Any) -> str:
    answer: AcquireResult = await service.acquire(parse_acquire({**ASK, **more}))
    assert answer.lease is not None
    return answer.lease.lease_id


async def left(service: Service) -> int:
    return min(tokens for tokens, _ in (await counted(service)).values())


async def test_another_process_settles_a_lease(tmp_path: Path) -> None:
    async with two_services(tmp_path) as (one, two, _clock):
        lease_id = await opened(one)
        assert (await two.leases.read(lease_id, "default")).state is LeaseState.OPEN
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


async def test_another_process_settles_what_cascaded_as_such(tmp_path: Path) -> None:
    """The text of a lease keeps who was asked for; one of before has no such word."""
    async with two_services(tmp_path) as (one, two, _clock):
        ns = await one.namespace("default")
        await ns.create_entity("team")
        await ns.create_entity("user:u1", parent_id="team", cascade=True)
        lease_id = await opened(one)
        await two.settle(parse_settle(lease_id, {"tokens": 12}))
        assert (await ns.get_usage_summary()).total == {"tokens": 12}
        team = await ns.get_usage_summary("team")
        assert (team.total, team.from_children) == ({}, {"tokens": 12})


async def test_the_store_is_not_asked_at_every_acquire_whose_time_is_over(tmp_path: Path) -> None:
    async with two_services(tmp_path) as (one, two, clock):
        await opened(one, ttl_seconds=1)
        records: Any = two.leases.store._records  # type: ignore[attr-defined]
        asked = []
        due = records.due

        async def counted_due(*given: Any) -> Any:
            asked.append(given)
            return await due(*given)

        records.due = counted_due
        for _ in range(4):
            await opened(two, tokens=1)
        assert len(asked) == 1
        clock.advance(QUIET_MS)
        await opened(two, tokens=1)
        assert len(asked) == 2
        clock.advance(-1000)  # a clock that was set back silences nobody
        await opened(two, tokens=1)
        assert len(asked) == 3
        clock.advance(2000)
        await two.tick()
        assert await left(two) == 94


def test_a_lease_of_before_was_asked_for_itself() -> None:
    old = {
        "key": "ns#e#r", "specs": [["x", 1000, 1000, 1000, False]], "version": 1, "own": False,
        "sources": ["entity"], "amounts": [1000], "parts": None,
    }  # fmt: skip
    assert msgspec.convert(old, StoredDemand).demand().cascaded is None


async def test_another_process_refunds_a_session_in_its_window_alone(tmp_path: Path) -> None:
    """The window began with the first lease, forty minutes before the second."""
    rules = Rules(Rule("session", [Limit.quota("tokens", 100, reset_after=3600)]))
    async with two_services(tmp_path, rules) as (one, two, clock):
        early = await opened(one, tokens=10, ttl_seconds=3600)
        clock.advance(2_400_000)
        first, second = [await opened(one, tokens=40, ttl_seconds=3600) for _ in range(2)]
        await two.release(parse_release(first, None))
        assert await left(two) == 50
        clock.advance(1_199_999)
        await two.release(parse_release(early, None))
        assert await left(two) == 60
        clock.advance(1)
        third = await opened(one, tokens=70)
        await two.release(parse_release(second, None))
        assert await left(two) == 30
        await two.release(parse_release(third, None))
        assert await left(two) == 100


async def test_a_lease_of_a_dead_process_ends_as_it_was_told(tmp_path: Path) -> None:
    async with two_services(tmp_path) as (one, two, clock):
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
            await two.leases.read(refunded, "default")
        assert caught.value.code is Code.LEASE_NOT_FOUND


async def test_of_two_that_change_a_lease_at_once_one_is_told_to_try_again(tmp_path: Path) -> None:
    async with two_services(tmp_path) as (one, two, clock):
        lease_id = await opened(one)
        seen = await two.leases.store.get(lease_id)
        assert seen is not None
        await two.leases.store.claim(seen)
        with pytest.raises(ServiceError) as caught:
            await one.release(parse_release(lease_id, None))
        assert caught.value.code is Code.CONFLICT
        clock.advance(5001)  # whoever claimed it has died
        assert (await one.release(parse_release(lease_id, None))).state is LeaseState.RELEASED
        assert await left(one) >= 99  # a late refund is less what was refilled meanwhile
        with pytest.raises(ServiceError):
            await two.leases.store.put(seen)


async def test_a_sweep_that_cannot_reach_the_store_harms_nobody(tmp_path: Path) -> None:
    async with two_services(tmp_path) as (one, _two, _clock):
        await opened(one)
        expiring: Any = one.repository.backend.expiring
        expiring.due = AsyncMock(side_effect=Unreachable("away"))
        await one.tick()
        await opened(one, tokens=1)


def failing(service: Service, verb: str, number: int, *, sent: bool) -> None:
    """The so-manyth call of that verb of the expiring records gets no answer, sent or not."""
    expiring = service.repository.backend.expiring
    real = getattr(expiring, verb)
    calls = itertools.count(1)

    async def call(*args: Any, **options: Any) -> Any:
        fails = next(calls) == number
        result = await real(*args, **options) if sent or not fails else None
        if fails:
            raise Unreachable("no answer")
        return result

    setattr(expiring, verb, call)


@pytest.mark.parametrize("sent", [True, False], ids=["answer lost", "never sent"])
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("verb", ["release", "settle", "part"])
async def test_what_was_given_back_is_not_given_back_again(
    tmp_path: Path, verb: str, number: int, sent: bool
) -> None:
    """Whichever write of the lease fails: who tries again, or the end of its time, gives nothing
    that was given before."""

    async def change(service: Service, lease_id: str) -> None:
        if verb == "settle":
            await service.settle(parse_settle(lease_id, {"tokens": 0}))
        else:
            told = None if verb == "release" else {"tokens": 40}
            await service.release(parse_release(lease_id, told))

    async with two_services(tmp_path) as (one, two, clock):
        lease_id = await opened(one, ttl_seconds=30)
        await opened(two, tokens=60, on_expiry="keep")
        assert await left(two) == 0
        failing(one, "put", number, sent=sent)
        failed = False
        try:
            await change(one, lease_id)
        except ServiceError as error:
            failed = True
            done = Code.DEADLINE_EXCEEDED, Code.CONFLICT
            assert error.code in (done if number == 3 else (Code.STORAGE_UNAVAILABLE, *done))
        clock.advance(5001)
        with contextlib.suppress(ServiceError):
            await change(two, lease_id)
        again = await left(two)
        assert again <= 40
        if not sent:
            assert again >= 39, "nothing was lost that is known not to have been sent"
        assert failed or number == 3
        clock.advance(30_000)
        await two.tick()
        assert await left(two) <= again + 1, "that much was refilled"


async def test_a_debit_the_store_did_not_take_is_owed_by_whoever_ends_the_lease(
    tmp_path: Path,
) -> None:
    """So another process must not give it back."""
    async with two_services(tmp_path) as (one, two, _clock):
        ids = [await opened(one, tokens=20) for _ in range(3)]
        store: Any = one.repository.backend.store
        store.adjust, taken = AsyncMock(side_effect=Contended("busy")), store.adjust
        for lease_id in ids[:2]:
            answer = await one.adjust(parse_adjust(lease_id, {"tokens": 30}))
            assert answer.held == {"tokens": 50}
        store.adjust = AsyncMock(side_effect=Unreachable("away"))
        answer = await one.adjust(parse_adjust(ids[2], {"tokens": 30}))
        assert answer.state is LeaseState.OPEN
        store.adjust = taken
        assert await left(two) == 40
        await two.release(parse_release(ids[0], None))
        assert await left(two) == 60, "it gives back what was taken, and no more"
        await two.settle(parse_settle(ids[1], {"tokens": 50}))
        assert await left(two) == 30
        await two.adjust(parse_adjust(ids[2], {"tokens": -15}))
        assert await left(two) == 30, "it was only owed"
        await two.settle(parse_settle(ids[2], {"tokens": 25}))
        assert await left(two) == 25


@pytest.mark.parametrize("sent", [True, False], ids=["answer lost", "never sent"])
async def test_a_lease_that_may_not_have_been_kept_is_refunded_once(
    tmp_path: Path, sent: bool
) -> None:
    async with two_services(tmp_path) as (one, two, clock):
        failing(one, "put", 1, sent=sent)
        with pytest.raises(Unreachable):
            await opened(one, ttl_seconds=1)
        assert await left(two) == 100, "it is not in the store for certain"
        failing(one, "put", 1, sent=sent)
        failing(one, "drop", 1, sent=False)
        with pytest.raises(ServiceError) as caught:
            await opened(one, ttl_seconds=1)
        assert caught.value.code is Code.DEADLINE_EXCEEDED, "nobody knows: it is not said again"
        await opened(two, tokens=60, on_expiry="keep")
        assert await left(two) == 0
        clock.advance(1001)
        await two.tick()
        assert await left(two) in ((39, 40) if sent else (0,))


async def test_a_lease_that_cannot_be_read_keeps_no_other_from_ending(tmp_path: Path) -> None:
    async with two_services(tmp_path) as (one, two, clock):
        bad = await opened(one, ttl_seconds=1, tokens=5)
        await opened(one, ttl_seconds=2, tokens=95)
        assert await left(two) == 0
        expiring = two.repository.backend.expiring
        assert expiring is not None
        namespace_id, _, name = bad.partition("~")
        kept = await expiring.get(namespace_id, name)
        assert kept is not None
        await expiring.put(namespace_id, name, '{"format":2}', kept.until_ms, seen=kept.version)
        clock.advance(2000)
        await two.tick()
        assert 94 <= await left(two) <= 95
        assert await expiring.get(namespace_id, name) is not None, "a newer headgate may read it"
        clock.advance(60_000)
        await two.tick()
        assert await expiring.get(namespace_id, name) is None


async def counted(service: Service) -> dict[str, tuple[int, int]]:
    """Tokens and consumption by limit, as the store has them."""
    ns = await service.namespace("default")
    shown = await ns.get_buckets(entity_id="user:u1")
    return {
        one.limit_name: (one.tokens_milli // 1000, one.total_consumed_milli // 1000)
        for one in shown
    }


@pytest.mark.parametrize("end", ["settle", "release", "expire"])
async def test_what_a_soft_limit_only_counted_is_kept_with_the_lease(
    tmp_path: Path, end: str
) -> None:
    async with two_services(tmp_path, SOFT_RULES) as (one, two, clock):
        lease_id = await opened(one, ttl_seconds=30)
        assert await counted(two) == {"tokens": (60, 40), "trial": (10, 40)}
        await two.adjust(parse_adjust(lease_id, {"amounts": {"trial": -15}}))
        assert await counted(one) == {"tokens": (60, 40), "trial": (10, 25)}
        if end == "settle":
            await two.settle(parse_settle(lease_id, {"amounts": {"trial": 3, "tokens": 1}}))
            assert await counted(one) == {"tokens": (99, 1), "trial": (10, 3)}
        elif end == "release":
            await two.release(parse_release(lease_id, None))
            assert await counted(one) == {"tokens": (100, 0), "trial": (10, 0)}
        else:
            clock.advance(31_000)
            await two.tick()
            assert (await counted(one))["trial"] == (10, 0)
