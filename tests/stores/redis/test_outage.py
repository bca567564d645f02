"""A Redis that is killed or stands still: what was chosen for outages, within the deadline, whether
the limits were known, known long ago, or not at all."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from headgate import (
    Limit,
    NamespaceNotFoundError,
    OnUnavailable,
    RateLimiterUnavailable,
    RateLimitExceeded,
    SyncRateLimiter,
    SyncRepository,
)
from tests.stores.redis import servers

Opener = Callable[..., SyncRateLimiter]

LIMITS = [Limit.per_day("x", 3)]
TIMEOUT_MS = 300
HANG_S = 30.0  # far above anything a busy machine adds; without a deadline it would be for ever


@pytest.fixture
def opened() -> Iterator[Opener]:
    """A limiter whose plans are past their time at once; closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *told, **options: _opened(stack, *told, **options)


def _opened(
    stack: contextlib.ExitStack, server: servers.Server, rule: OnUnavailable, **options: bool
) -> SyncRateLimiter:
    repository = SyncRepository(f"{server.url}?timeout_ms={TIMEOUT_MS}", config_cache_ttl=0.001)
    stack.callback(repository.close)
    return SyncRateLimiter(repository, limits=LIMITS, on_unavailable=rule, **options)


def take(limiter: SyncRateLimiter, entity_id: str) -> str:
    start_s = time.monotonic()
    try:
        with limiter.acquire(entity_id, "api", {"x": 1}) as lease:
            return "degraded" if lease.degraded else "admitted"
    except RateLimitExceeded:
        return "refused"
    except RateLimiterUnavailable:
        return "unavailable"
    finally:
        assert time.monotonic() - start_s < HANG_S


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_the_rule_for_outages_holds_warm_and_cold(
    own_server: servers.Server, opened: Opener, how: str
) -> None:
    allows, blocks = (
        opened(own_server, rule) for rule in (OnUnavailable.ALLOW, OnUnavailable.BLOCK)
    )
    servers.until(lambda: take(allows, "warm") == take(blocks, "warm") == "admitted", "first calls")
    if how == "killed":
        own_server.kill()
    else:
        os.kill(own_server.pid, signal.SIGSTOP)
    try:
        for entity_id in ("warm", "cold"):  # its plan is past its time; there never was one
            told = [take(allows, entity_id) for _ in range(5)]
            assert told == ["degraded"] * 3 + ["refused"] * 2
            assert [take(blocks, entity_id) for _ in range(5)] == ["unavailable"] * 5
    finally:
        if how == "stopped":
            os.kill(own_server.pid, signal.SIGCONT)


def test_a_server_that_lost_everything_is_used_again(
    own_server: servers.Server, opened: Opener
) -> None:
    limiter = opened(own_server, OnUnavailable.BLOCK, breaker=False)
    servers.until(lambda: take(limiter, "a") == "admitted", "the first call")
    own_server.kill()
    assert {take(limiter, name) for name in ("a", "cold")} == {"unavailable"}
    own_server.start()  # empty: also the namespace has another id now
    servers.until(lambda: take(limiter, "cold") == "admitted", "coming back")
    assert take(limiter, "a") == "admitted"


def test_a_lost_namespace_is_named_and_found_again(own_server: servers.Server) -> None:
    url = own_server.url
    with SyncRepository(url, config_cache_ttl=0) as home:
        home.register_namespace("eu")
        limiter = SyncRateLimiter(home.namespace("eu"), limits=LIMITS)
        with limiter.acquire("a", "api", {"x": 3}):
            pass
        servers.flush(url)
        with pytest.raises(NamespaceNotFoundError, match="'eu'"):
            limiter.available("a", "api")
        home.register_namespace("eu")
        assert limiter.available("a", "api") == {"x": 3}


def test_a_stored_rule_outlives_the_store(own_server: servers.Server, opened: Opener) -> None:
    limiter = opened(own_server, OnUnavailable.BLOCK)
    servers.until(limiter.is_available, "answering")
    limiter.set_system_defaults(LIMITS, on_unavailable=OnUnavailable.ALLOW)
    servers.until(lambda: take(limiter, "warm") == "admitted", "the first call")
    own_server.kill()
    assert take(limiter, "warm") == "degraded"
    assert take(limiter, "cold") == "unavailable", "what was never read cannot be known"
