"""take: a decision without a lease and without an exception, on every embedded store."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headgate import (
    DemandTooLarge,
    DisabledError,
    Limit,
    OnUnavailable,
    RateLimiter,
    RateLimiterClosed,
    RateLimiterUnavailable,
    RateLimitExceeded,
    SyncRateLimiter,
    ValidationError,
)
from headgate.core import decision
from headgate.core.decision import build_limit_status
from headgate.core.errors import Throttled, Unreachable
from headgate.core.runtime import Event
from headgate.testing import FakeClock, FaultyStore
from tests.flows.conftest import World
from tests.walks import walked

RPM = Limit.per_minute("rpm", 10)
TPM = Limit.per_minute("tpm", 1000)


async def test_a_take_is_true_or_false_and_takes_all_or_nothing(world: World) -> None:
    limiter = world.limiter(limits=[RPM, TPM])
    assert await limiter.take("key", "gpt-4", {"rpm": 8, "tpm": 500})
    refused = await limiter.take("key", "gpt-4", {"rpm": 5, "tpm": 10})
    assert not refused
    assert [status.limit_name for status in refused.violations] == ["rpm"]
    assert refused.retry_after_seconds == 18.0
    assert await limiter.available("key", "gpt-4") == {"rpm": 2, "tpm": 500}
    world.clock.advance(17_999)
    assert not await limiter.take("key", "gpt-4", {"rpm": 5})
    world.clock.advance(1)
    assert await limiter.take("key", "gpt-4", {"rpm": 5})


async def test_a_take_of_a_child_takes_from_its_parent_or_from_neither(world: World) -> None:
    limiter = world.limiter(limits=[RPM])
    await limiter.create_entity("team")
    await limiter.create_entity("key", parent_id="team", cascade=True)
    assert await limiter.take("team", "api", {"rpm": 7})
    for _ in range(2):  # cold, then warm
        refused = await limiter.take("key", "api", {"rpm": 4})
        assert not refused
        assert refused.nearest.entity_id == "team"
    assert await limiter.take("key", "api", {"rpm": 3})
    assert not await limiter.take("key", "api", {"rpm": 1})


async def test_a_take_with_limits_of_its_own(world: World) -> None:
    limiter = world.limiter(limits=[RPM])
    own = [Limit.per_minute("rpm", 2)]
    assert await limiter.take(
        "key", "api", {"rpm": 1}
    )  # the plan without them is known from now on
    for _ in range(2):
        assert await limiter.take("key", "api", {"rpm": 1}, own)
    assert not await limiter.take("key", "api", {"rpm": 1}, own)


async def test_a_take_that_waits(world: World) -> None:
    limiter = world.limiter(limits=[RPM])
    assert await limiter.take("key", "api", {"rpm": 10}, wait=5)
    start_ms = world.clock()
    taking = limiter.take("key", "api", {"rpm": 1}, wait=60)
    if world.blocking:
        assert await taking
        assert world.clock() == start_ms + 6000
        return
    task = asyncio.create_task(taking)
    await world.clock.run_for(5999)
    assert not task.done()
    await world.clock.run_for(1)
    assert await task


async def test_what_the_caller_did_wrong_is_an_error_and_takes_nothing(world: World) -> None:
    limiter = world.limiter(limits=[RPM])
    for _ in range(2):  # cold, then warm
        with pytest.raises(DemandTooLarge):
            await limiter.take("key", "api", {"rpm": 11})
        with pytest.raises(ValidationError, match="is not a limit of"):
            await limiter.take("key", "api", {"tpm": 1})
        with pytest.raises(ValidationError, match="asks for nothing"):
            await limiter.take("key", "api", {})
        with pytest.raises(ValidationError):
            await limiter.take("key", "api", {"rpm": True})
        with pytest.raises(ValidationError):
            await limiter.take(["key"], "api", {"rpm": 1})
        with pytest.raises(ValidationError, match="on_unavailable"):
            await limiter.take("key", "api", {"rpm": 1}, None, "allow")
        assert await limiter.available("key", "api") == {"rpm": 10}
        await limiter.check("key", "api", {"rpm": 1})


async def test_new_limits_count_from_the_next_take(world: World) -> None:
    limiter = world.limiter(limits=[RPM])
    assert await limiter.take("key", "api", {"rpm": 6})
    await limiter.set_limits("key", [Limit.per_minute("rpm", 5)], resource="api")
    refused = await limiter.take("key", "api", {"rpm": 5})
    assert not refused
    assert refused.statuses[0].limit.capacity == 5


async def test_what_an_operator_lets_pass_or_switches_off(world: World) -> None:
    limiter = world.limiter(limits=[RPM])
    assert await limiter.take("key", "api", {"rpm": 10})
    await limiter.bypass("key")
    assert await limiter.take("key", "api", {"rpm": 10})
    await limiter.disable("key")
    with pytest.raises(DisabledError):
        await limiter.take("key", "api", {"rpm": 1})


def test_a_limiter_that_is_closed_takes_nothing() -> None:
    limiter = SyncRateLimiter("memory://", limits=[RPM])
    assert limiter.take("key", "api", {"rpm": 1})
    limiter.close()
    with pytest.raises(RateLimiterClosed):
        limiter.take("key", "api", {"rpm": 1})


def test_a_store_that_is_away_is_an_error_or_decided_here_as_chosen() -> None:
    limiter = SyncRateLimiter("memory://", limits=[RPM], clock=FakeClock())
    assert limiter.take("key", "api", {"rpm": 1})
    limiter.engine.use(FaultyStore(limiter.engine.store, before=(Unreachable("cut"),) * 9))
    with pytest.raises(RateLimiterUnavailable):
        limiter.take("key", "api", {"rpm": 1})
    allow = OnUnavailable.ALLOW
    assert limiter.take("key", "api", {"rpm": 10}, on_unavailable=allow)
    assert not limiter.take("key", "api", {"rpm": 1}, on_unavailable=allow), "within one capacity"


def test_a_key_that_the_store_throttles_is_refused() -> None:
    limiter = SyncRateLimiter("memory://", limits=[RPM, TPM], clock=FakeClock())
    assert limiter.take("key", "api", {"rpm": 1})
    limiter.engine.use(FaultyStore(limiter.engine.store, before=(Throttled("hot", 700),)))
    refused = limiter.take("key", "api", {"rpm": 1, "tpm": 5})
    assert not refused
    assert refused.retry_after_ms == 700
    assert [one.limit_name for one in refused.violations] == ["rpm", "tpm"]


def test_a_store_at_its_bound_says_so() -> None:
    limiter = SyncRateLimiter("memory://?buckets_max=1", limits=[RPM], clock=FakeClock())
    assert limiter.take("one", "api", {"rpm": 1})
    with pytest.raises(RateLimiterUnavailable, match="at its bound"):
        limiter.take("other", "api", {"rpm": 1})
    assert limiter.check("other", "api", {"rpm": 1})
    with pytest.raises(RateLimiterUnavailable, match="at its bound"):
        limiter.take("other", "api", {"rpm": 1})  # also where its plan is known


def test_the_observer_hears_of_takes() -> None:
    heard: list[Event] = []
    limiter = SyncRateLimiter("memory://", limits=[RPM], clock=FakeClock(), observer=heard.append)
    for amount in (9, 1, 1):
        limiter.take("key", "api", {"rpm": amount})
    assert [event.kind for event in heard] == ["admitted", "admitted", "refused"]
    assert heard[-1].verdict is not None
    assert heard[-1].verdict.violations[0].requested == 1


def test_threads_take_no_more_than_there_is() -> None:
    clock = FakeClock()
    limiter = SyncRateLimiter("memory://", limits=[Limit.per_minute("rpm", 500)], clock=clock)
    with ThreadPoolExecutor(4) as pool:
        taken = pool.map(lambda _: bool(limiter.take("key", "api", {"rpm": 1})), range(1000))
        assert sum(taken) == 500


# --------------------------------------------------------------------------------------------------
# What a refusal costs: nothing is made of it until somebody reads it.


@pytest.mark.parametrize("store", ["memory", "sqlite", "sqlite without rejections"])
def test_nothing_is_made_of_a_refusal_until_it_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: str
) -> None:
    made: list[object] = []

    def count(*args: object) -> Any:
        made.append(args)
        return build_limit_status(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(decision, "build_limit_status", count)
    heard: list[Event] = []
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/limits.db"
    remembers = store == "sqlite"
    limiter = SyncRateLimiter(
        url, limits=[RPM], clock=FakeClock(), observer=heard.append, rejections=remembers
    )
    limiter.take("key", "api", {"rpm": 10})
    refused = limiter.take("key", "api", {"rpm": 1})
    with pytest.raises(RateLimitExceeded) as caught, limiter.acquire("key", "api", {"rpm": 1}):
        pass
    if remembers:
        with walked() as repeated:
            assert not limiter.take("key", "api", {"rpm": 1})
        assert not [step for step in repeated.steps if step[0].startswith("stores.")]
        heard.pop()
    assert [event.kind for event in heard] == ["admitted", "refused", "refused"]
    assert not made
    assert refused.retry_after_ms == caught.value.retry_after_ms == 6000
    assert heard[-1].verdict is not None
    assert heard[-1].verdict.retry_after_ms == 6000
    assert made
    limiter.close()


def test_an_acquire_that_is_refused_passes_few_functions_more_than_a_take() -> None:
    limiter = SyncRateLimiter("memory://", limits=[RPM], clock=FakeClock())
    assert limiter.take("key", "api", {"rpm": 10})
    assert limiter.take("other", "api", {"rpm": 1})
    with walked() as taking:
        assert not limiter.take("key", "api", {"rpm": 1})
    with walked() as acquiring, contextlib.suppress(RateLimitExceeded):
        limiter.acquire("key", "api", {"rpm": 1}).__enter__()
    with walked() as admitted, limiter.acquire("other", "api", {"rpm": 1}):
        pass
    assert acquiring.calls <= taking.calls + 6, (taking, acquiring)
    assert acquiring.calls <= admitted.calls + 1, (admitted, acquiring)


@pytest.mark.parametrize("limits", [[RPM], [RPM, TPM]])
def test_a_warm_take_passes_few_functions(limits: list[Limit]) -> None:
    """Two limits cost two calls more than one: each gives for itself."""
    limiter = SyncRateLimiter("memory://", limits=limits, clock=FakeClock())
    amounts = {limit.name: 1 for limit in limits}
    assert limiter.take("key", "api", amounts)
    with walked() as walk:
        assert limiter.take("key", "api", amounts)
    assert walk.calls <= 8 + 2 * len(limits), walk
    with walked() as leased, limiter.acquire("key", "api", amounts):
        pass
    assert leased.calls <= walk.calls + 5, leased


async def test_both_faces_refuse_after_the_same_walk() -> None:
    """A warm refused take passes no more functions than an admitted one."""
    limiter = RateLimiter("memory://", limits=[RPM], clock=FakeClock())
    await limiter.take("key", "api", {"rpm": 8})
    with walked() as admitted:
        assert await limiter.take("key", "api", {"rpm": 2})
    with walked() as refused:
        assert not await limiter.take("key", "api", {"rpm": 2})
    assert refused.calls <= admitted.calls <= 11, (refused, admitted)


# --------------------------------------------------------------------------------------------------
# Limits that became smaller behind a process's back.


def test_what_newer_limits_can_never_hold_is_told_as_that(tmp_path: Path) -> None:
    url, clock = f"sqlite:///{tmp_path}/limits.db", FakeClock()
    with SyncRateLimiter(url, clock=clock) as late, SyncRateLimiter(url, clock=clock) as other:
        other.set_limits("key", [RPM], resource="api")
        assert late.take("key", "api", {"rpm": 1})
        other.set_limits("key", [Limit.per_minute("rpm", 3)], resource="api")
        assert other.take("key", "api", {"rpm": 1})
        with pytest.raises(DemandTooLarge, match="never holds more than 3"):
            late.acquire("key", "api", {"rpm": 5}).__enter__()
        with pytest.raises(DemandTooLarge, match="never holds more than 3"):
            late.take("key", "api", {"rpm": 5})  # it knows the new limits by now
        other.set_limits("key", [Limit.per_minute("rpm", 2)], resource="api")
        assert other.take("key", "api", {"rpm": 1})
        clock.advance(1001)  # what was seen of the bucket is trusted for a second
        refused = late.take("key", "api", {"rpm": 3})
        assert not refused
        assert refused.retry_after_ms is None
