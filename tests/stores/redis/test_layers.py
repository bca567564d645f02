"""A limiter with its layers on Redis: lost refunds, refusals without a call, short walks."""

from __future__ import annotations

import asyncio

import pytest

from headgate import Limit, RateLimitExceeded, SyncRateLimiter
from tests.stores.redis import servers
from tests.walks import has_short_answer, warm_acquire, warm_checks


def test_a_refund_is_sent_once_also_if_its_answer_is_lost(own_server: servers.Server) -> None:
    events = []
    limits = [Limit.per_day("x", 100)]
    with servers.FaultProxy(own_server.port) as proxy:
        url = f"{proxy.url}?timeout_ms=500"
        with SyncRateLimiter(url, limits=limits, observer=events.append) as limiter:
            with limiter.acquire("a", "api", {"x": 40}) as lease:
                lease.adjust(x=10)  # so that the server knows the script
            with pytest.raises(ZeroDivisionError):
                with limiter.acquire("a", "api", {"x": 10}):
                    proxy.mode = "cut_after"
                    raise ZeroDivisionError
            proxy.mode = "pass"
            assert limiter.available("a", "api")["x"] in (49, 50)  # once; not lost, not twice
    assert [event.kind for event in events] == ["admitted", "admitted", "credit_lost"]


def test_refusals_are_answered_locally_and_a_credit_is_seen(redis_url: str) -> None:
    servers.flush(redis_url)
    limits = [Limit.per_day("x", 10)]
    with SyncRateLimiter(redis_url, limits=limits) as limiter:
        with limiter.acquire("a", "api", {"x": 10}):
            pass
        servers.command(redis_url, "CONFIG", "RESETSTAT")
        for _ in range(1000):
            with pytest.raises(Exception, match="retry after"):
                with limiter.acquire("a", "api", {"x": 1}):
                    pass
        assert servers.called(redis_url)["evalsha"] <= 20
        with SyncRateLimiter(redis_url, limits=limits) as other:
            other.top_up("a", "api", {"x": 5})
        servers.until(lambda: _admitted(limiter), "seeing somebody else's credit")


def _admitted(limiter: SyncRateLimiter) -> bool:
    try:
        with limiter.acquire("a", "api", {"x": 1}):
            return True
    except RateLimitExceeded:
        return False


def test_a_warm_acquire_is_a_short_walk(redis_url: str) -> None:
    walk = asyncio.run(warm_acquire(redis_url))
    assert walk.is_within(calls=28, modules=14), walk  # to become 28 and 10


def test_a_warm_check_has_a_short_answer(redis_url: str) -> None:
    """Also as part of a batch: an admission is plain whatever type the store tells it with."""
    walks = asyncio.run(warm_checks(redis_url))
    assert all(map(has_short_answer, walks)), walks
