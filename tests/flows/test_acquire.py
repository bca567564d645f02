"""Acquire, check, wait, lease outcomes: on every embedded store, async and blocking."""

from __future__ import annotations

import gc
import traceback
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from headgate import (
    DemandTooLarge,
    LeaseExpiredError,
    Limit,
    RateLimiter,
    RateLimitExceeded,
    SyncRateLimiter,
    ValidationError,
)
from headgate.core.lease import GROWN_MAX_MILLI
from tests.flows.conftest import World, spend
from tests.python import run_python

_TOO_MUCH = ValidationError("rpm", 3, "is too much for this store")
RPM = Limit.per_minute("rpm", 10)
TPM = Limit.per_minute("tpm", 1000)


async def test_acquire_takes_at_once_and_leaving_keeps_it(world: World) -> None:
    limiter = world.limiter(limits=[RPM, TPM])
    async with limiter.acquire("key", "gpt-4", {"rpm": 1, "tpm": 500}) as lease:
        assert lease.consumed == {"rpm": 1, "tpm": 500}
        assert await limiter.available("key", "gpt-4") == {"rpm": 9, "tpm": 500}
    assert await limiter.available("key", "gpt-4") == {"rpm": 9, "tpm": 500}


async def test_refusal_names_the_limit_and_the_exact_wait(world: World) -> None:
    limiter = world.limiter(limits=[RPM, TPM])
    await spend(limiter, "key", "gpt-4", rpm=8, tpm=10)
    with pytest.raises(RateLimitExceeded) as caught:
        async with limiter.acquire("key", "gpt-4", {"rpm": 5, "tpm": 10}):
            raise AssertionError("must not be entered")
    error = caught.value
    assert [status.limit_name for status in error.violations] == ["rpm"]
    assert [status.limit_name for status in error.passed] == ["tpm"]
    assert error.primary_violation.deficit == 3
    assert error.retry_after_seconds == 18.0
    assert error.retry_after_header == "18"
    assert error.as_dict()["retry_after_ms"] == 18_000
    assert "retry after 18 s" in str(error)
    world.clock.advance(17_999)
    with pytest.raises(RateLimitExceeded):
        await spend(limiter, "key", "gpt-4", rpm=5)
    world.clock.advance(1)
    await spend(limiter, "key", "gpt-4", rpm=5)


async def test_an_exception_refunds(world: World) -> None:
    limiter = world.limiter(limits=[RPM, TPM])
    with pytest.raises(ZeroDivisionError):
        async with limiter.acquire("key", "gpt-4", {"rpm": 4, "tpm": 100}) as lease:
            await lease.adjust(tpm=50)
            raise ZeroDivisionError
    assert await limiter.available("key", "gpt-4") == {"rpm": 10, "tpm": 1000}


async def test_a_late_refund_makes_no_burst(world: World) -> None:
    limiter = world.limiter(limits=[RPM])
    with pytest.raises(ZeroDivisionError):
        async with limiter.acquire("key", "gpt-4", {"rpm": 4}):
            world.clock.advance(12_000)  # two of the four have been refilled meanwhile
            await spend(limiter, "key", "gpt-4", rpm=8)
            raise ZeroDivisionError
    assert await limiter.available("key", "gpt-4") == {"rpm": 2}


async def test_on_error_keep_keeps(world: World) -> None:
    limiter = world.limiter(limits=[RPM])
    with pytest.raises(ZeroDivisionError):
        async with limiter.acquire("key", "gpt-4", {"rpm": 4}, on_error="keep"):
            raise ZeroDivisionError
    assert await limiter.available("key", "gpt-4") == {"rpm": 6}
    with pytest.raises(ValidationError, match="on_error"):
        async with limiter.acquire("key", "gpt-4", {"rpm": 1}, on_error="maybe"):
            pass


async def test_adjust_may_go_into_debt_and_gives_back_no_more_than_was_taken(world: World) -> None:
    limiter = world.limiter(limits=[TPM])
    async with limiter.acquire("key", "gpt-4", {"tpm": 500}) as lease:
        await lease.adjust(tpm=1500)
        assert lease.consumed == {"tpm": 2000}
        assert await limiter.available("key", "gpt-4") == {"tpm": -1000}
        await lease.adjust(tpm=-5000)
        assert lease.consumed == {"tpm": 0}
    assert await limiter.available("key", "gpt-4") == {"tpm": 1000}


async def test_settle_is_absolute_and_idempotent_and_survives_an_exception(world: World) -> None:
    limiter = world.limiter(limits=[RPM, TPM])
    with pytest.raises(ZeroDivisionError):
        async with limiter.acquire("key", "gpt-4", {"rpm": 1, "tpm": 500}) as lease:
            await lease.settle(tpm=320)
            await lease.settle(tpm=320)
            assert lease.consumed == {"rpm": 1, "tpm": 320}
            raise ZeroDivisionError
    assert await limiter.available("key", "gpt-4") == {"rpm": 10, "tpm": 680}


async def test_consume_more_may_be_refused_and_release_gives_back(world: World) -> None:
    limiter = world.limiter(limits=[RPM])
    async with limiter.acquire("key", "gpt-4", {"rpm": 4}) as lease:
        await lease.consume(rpm=5)
        with pytest.raises(RateLimitExceeded):
            await lease.consume(rpm=2)
        with pytest.raises(DemandTooLarge):
            await lease.consume(rpm=11)
        assert lease.consumed == {"rpm": 9}
        await lease.release(rpm=6)
        assert lease.consumed == {"rpm": 3}
        with pytest.raises(ValidationError, match="more than the lease holds"):
            await lease.release(rpm=4)
    assert await limiter.available("key", "gpt-4") == {"rpm": 7}


async def test_what_a_store_refuses_to_give_back_stays_on_the_books() -> None:
    async with RateLimiter(limits=[RPM]) as limiter:
        async with limiter.acquire("key", "gpt-4", {"rpm": 4}) as lease:
            real, lease.store = lease.store, Mock(adjust=AsyncMock(side_effect=_TOO_MUCH))
            for give_back in (lease.settle(rpm=1), lease.release(rpm=2), lease.adjust(rpm=-3)):
                with pytest.raises(ValidationError, match="too much"):
                    await give_back
                assert lease.consumed == {"rpm": 4}
            lease.store = real
            await lease.settle(rpm=1)
        assert await limiter.available("key", "gpt-4") == {"rpm": 9}


async def test_a_lease_holds_no_more_than_can_be_given_back_at_once(world: World) -> None:
    limiter = world.limiter(limits=[RPM])
    most = GROWN_MAX_MILLI // 1000
    async with limiter.acquire("key", "gpt-4", {"rpm": 4}) as lease:
        for grow, amount in ((lease.adjust, most - 3), (lease.settle, most + 1)):
            with pytest.raises(ValidationError, match="hold more than"):
                await grow(rpm=amount)
        assert lease.consumed == {"rpm": 4}
        await lease.settle(rpm=most)
        await lease.release(rpm=most - 1)
    assert await limiter.available("key", "gpt-4") == {"rpm": 9}


async def test_a_lease_ends_with_its_block(world: World) -> None:
    limiter = world.limiter(limits=[RPM])
    async with limiter.acquire("key", "gpt-4", {"rpm": 1}) as lease:
        pass
    for verb in (lease.adjust, lease.consume, lease.release, lease.settle):
        with pytest.raises(LeaseExpiredError):
            await verb(rpm=1)
    assert await limiter.available("key", "gpt-4") == {"rpm": 9}


async def test_check_consumes_nothing_and_tells_the_same(world: World) -> None:
    limiter = world.limiter(limits=[RPM, TPM])
    for _ in range(30):
        verdict = await limiter.check("key", "gpt-4", {"rpm": 1, "tpm": 1000})
        assert verdict.allowed
        assert [status.available for status in verdict.statuses] == [10, 1000]
        assert [status.source for status in verdict.statuses] == ["limiter", "limiter"]
    await spend(limiter, "key", "gpt-4", tpm=400)
    verdict = await limiter.check("key", "gpt-4", {"tpm": 1000})
    assert not verdict.allowed
    assert verdict.retry_after_ms == 24_000
    assert await limiter.time_until_available("key", "gpt-4", {"tpm": 1000}) == 24.0
    assert await limiter.time_until_available("key", "gpt-4", {"tpm": 600}) == 0.0


async def test_limits_of_the_call_win_also_on_a_warm_path(world: World) -> None:
    limiter = world.limiter(limits=[RPM])
    await spend(limiter, "key", "gpt-4", rpm=1)
    small = [Limit.per_minute("rpm", 3)]
    for _ in range(3):
        async with limiter.acquire("key", "gpt-4", {"rpm": 1}, limits=small):
            pass
    with pytest.raises(RateLimitExceeded):
        async with limiter.acquire("key", "gpt-4", {"rpm": 1}, limits=small):
            pass


async def test_acquire_many_is_all_or_none(world: World) -> None:
    limiter = world.limiter(limits=[RPM])
    tight = [Limit.per_minute("rpm", 2)]
    asked = [
        ("user:1", "api", {"rpm": 1}),
        ("ip:1.2.3.4", "api", {"rpm": 1}, tight),
        ("global", "api", {"rpm": 1}),
    ]
    for _ in range(2):
        async with limiter.acquire_many(asked):
            pass
    with pytest.raises(RateLimitExceeded) as caught:
        async with limiter.acquire_many(asked):
            pass
    assert caught.value.primary_violation.entity_id == "ip:1.2.3.4"
    assert await limiter.available("user:1", "api") == {"rpm": 8}
    assert await limiter.available("global", "api") == {"rpm": 8}
    assert not (await limiter.check_many(asked)).allowed
    # the same bucket twice is one demand for the sum
    async with limiter.acquire_many([("a", "api", {"rpm": 4}), ("a", "api", {"rpm": 5})]):
        assert await limiter.available("a", "api") == {"rpm": 1}
    with pytest.raises(DemandTooLarge):
        async with limiter.acquire_many([("b", "api", {"rpm": 6}), ("b", "api", {"rpm": 5})]):
            pass
    with pytest.raises(ZeroDivisionError):
        async with limiter.acquire_many([("x", "api", {"rpm": 4}), ("y", "api", {"rpm": 5})]):
            raise ZeroDivisionError
    assert await limiter.available("x", "api") == {"rpm": 10}
    assert await limiter.available("y", "api") == {"rpm": 10}


async def test_also_takes_from_more_resources(world: World) -> None:
    limiter = world.limiter(limits=[RPM])
    also = {"images": {"rpm": 6}}
    async with limiter.acquire("key", "chat", {"rpm": 1}, also=also):
        pass
    with pytest.raises(RateLimitExceeded):
        async with limiter.acquire("key", "chat", {"rpm": 1}, also=also):
            pass
    assert await limiter.available("key", "chat") == {"rpm": 9}
    assert await limiter.available("key", "images") == {"rpm": 4}


async def test_a_soft_limit_gives_back_only_what_it_gave(world: World) -> None:
    """A lease knows what its take passed; what it may do with that is in the contract of stores."""
    limiter = world.limiter(limits=[RPM, Limit.per_minute("tpm", 5, soft=True)])
    await spend(limiter, "key", "gpt-4", rpm=1, tpm=4)
    with pytest.raises(ZeroDivisionError):
        async with limiter.acquire("key", "gpt-4", {"rpm": 1, "tpm": 400}) as lease:
            assert lease.consumed == {"rpm": 1, "tpm": 400}
            raise ZeroDivisionError
    assert await limiter.available("key", "gpt-4") == {"rpm": 9, "tpm": 1}


def drop(limiter: Any) -> None:
    """An acquire that nobody enters: as if `with` had been forgotten."""
    limiter.acquire("key", "gpt-4", {"rpm": 1})
    gc.collect()


@pytest.mark.parametrize("kind", [RateLimiter, SyncRateLimiter])
def test_an_acquire_that_is_never_entered_warns(kind: Any) -> None:
    limiter = kind("memory://", limits=[RPM])
    with pytest.warns(ResourceWarning, match=r"acquire\('key' on 'gpt-4'\) was never entered"):
        drop(limiter)
    with pytest.warns(ResourceWarning, match="'a' on 'x', 'b' on 'y'"):
        limiter.acquire_many([("a", "x", {"rpm": 1}), ("b", "y", {"rpm": 1})])


async def test_an_acquire_that_is_entered_does_not_warn(
    world: World, recwarn: pytest.WarningsRecorder
) -> None:
    """Nor does one that is refused, or is entered twice."""
    limiter = world.limiter(limits=[RPM])
    call = limiter.acquire("key", "gpt-4", {"rpm": 10})
    async with call:
        pass
    with pytest.raises(ValidationError, match="entered before"):
        async with call:
            pass
    with pytest.raises(RateLimitExceeded):
        await spend(limiter, "key", "gpt-4", rpm=1)
    with pytest.raises(ValidationError):
        await spend(limiter, "key", "gpt-4", nothing=1)
    del call
    gc.collect()
    assert not recwarn.list


@pytest.mark.parametrize("entered", [True, False])
def test_the_end_of_the_interpreter_is_quiet(entered: bool, tmp_path: Path) -> None:
    code = (
        "from headgate import Limit, RateLimiter, SyncRateLimiter\n"
        "limits = [Limit.per_minute('rpm', 5)]\n"
        "limiter, other = SyncRateLimiter('memory://', limits=limits), RateLimiter('memory://')\n"
        "left = [limiter.acquire('k', 'api', {'rpm': 1}), other.acquire('k', 'api', {'rpm': 1})]\n"
        "left.append(left)  # so that only the end collects it\n"
    )
    if entered:
        code = code.replace(
            "left = [", "with limiter.acquire('k', 'api', {'rpm': 1}): pass\nleft = ["
        )
        code = code.replace(", other.acquire('k', 'api', {'rpm': 1})]", "]\nleft[0].__enter__()")
    done = run_python("-X", "dev", "-c", code, cwd=tmp_path)
    assert done.returncode == 0
    assert "Error" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert not entered or not done.stderr


def test_a_refusal_that_names_no_limit_can_be_shown() -> None:
    error = RateLimitExceeded([])
    told = "refused, and no limit is named that refused"
    assert str(error) == told
    assert repr(error) == f"RateLimitExceeded({told!r})"
    assert error.as_dict()["limits"] == []
    assert "".join(traceback.format_exception(error)).strip().endswith(told)
    with pytest.raises(LookupError, match="no limit is named"):
        error.primary_violation  # noqa: B018
