"""A limiter that was closed says so, whatever it is asked and whichever store it had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate import (
    Limit,
    OnUnavailable,
    RateLimiter,
    RateLimiterClosed,
    RateLimiterUnavailable,
    Repository,
    SyncRateLimiter,
)
from tests.flows.conftest import Blocking

RPM = Limit.per_minute("rpm", 10)
AMOUNTS = {"rpm": 1}

# No server is needed: nothing is sent.
URLS = [
    "memory://",
    "sqlite:///{folder}/closed.db",
    "redis://127.0.0.1:1",
    "dynamodb://limits?region=eu-west-1&endpoint=http://127.0.0.1:1",
]
ASKED: dict[str, Any] = {
    "check": ("k", "api", AMOUNTS),
    "check_many": ([("k", "api", AMOUNTS)],),
    "explain": ("k", "api"),
    "available": ("k", "api"),
    "time_until_available": ("k", "api", AMOUNTS),
    "create_entity": ("k",),
    "get_entity": ("k",),
    "set_limits": ("k", [RPM]),
    "get_system_defaults": (),
    "reset_bucket": ("k", "api"),
    "top_up": ("k", "api", AMOUNTS),
    "get_usage_summary": ("k",),
    "get_audit_events": ("k",),
}


def limiters(folder: Path, url: str) -> list[Any]:
    where = url.format(folder=folder)
    options: Any = {"limits": [RPM], "on_unavailable": OnUnavailable.ALLOW}
    return [RateLimiter(where, **options), Blocking(SyncRateLimiter(where, **options))]


@pytest.mark.parametrize("url", URLS, ids=lambda url: url.split(":")[0])
async def test_a_closed_limiter_says_so(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    for limiter in limiters(tmp_path, url):
        await limiter.close()
        told = []
        for name, given in ASKED.items():
            with pytest.raises(RateLimiterClosed, match="this limiter is closed") as caught:
                await getattr(limiter, name)(*given)
            told.append(caught.value)
        for options in ({}, {"wait": 5}, {"limits": [RPM]}):
            with pytest.raises(RateLimiterClosed):
                async with limiter.acquire("k", "api", AMOUNTS, **options):
                    pass
        assert await limiter.is_available() is False
        await limiter.close()  # twice is once
        assert {str(error) for error in told} == {str(told[0])}
        assert "make a new one" in str(told[0])
        assert isinstance(told[0], RateLimiterUnavailable)  # so apps that catch this one answer 503


async def test_a_repository_goes_on_without_the_limiter_that_was_closed() -> None:
    repository = Repository("memory://")
    async with RateLimiter(repository, limits=[RPM]) as first:
        pass
    second = RateLimiter(repository, limits=[RPM])
    async with second.acquire("k", "api", AMOUNTS):
        pass
    await repository.create_entity("k")
    with pytest.raises(RateLimiterClosed):
        await first.get_entity("k")
    assert await second.get_entity("k") is not None


def test_a_lease_that_is_out_can_still_be_settled() -> None:
    limiter = SyncRateLimiter("memory://", limits=[RPM])
    with limiter.acquire("k", "api", {"rpm": 5}) as lease:
        limiter.close()
        lease.settle(rpm=2)
    assert lease.consumed == {"rpm": 2}
