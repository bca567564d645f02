"""A Redis that is killed or stands still: what was chosen for outages, within the deadline, whether
the limits were known, known long ago, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
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
from headgate.declare.yaml_fields import DECIMALS_MAX, PERIOD_SECONDS_MAX
from headgate.repository import Repository
from headgate.service.decide.requests import CheckRequest, parse_batch
from headgate.service.decide.rules import Rule, Rules
from headgate.service.decide.service import Service
from headgate.service.http.asgi import Rest
from headgate.service.policies.decode import TOKENS_MAX
from headgate.service.program import Options, Program
from tests.service.http.kit import PATHS, served
from tests.stores.redis import servers
from tests.walks import has_short_answer, warm_acquire, warm_checks

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


# A limiter with its layers on Redis: lost refunds, refusals without a call, short walks.


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


def test_a_warm_acquire_is_a_short_walk(redis_url: str) -> None:
    walk = asyncio.run(warm_acquire(redis_url))
    # 26, and two more where the connection's clock ticks meanwhile.
    assert walk.is_within(calls=26, modules=10), walk


def test_a_warm_check_has_a_short_answer(redis_url: str) -> None:
    """Also as part of a batch: an admission is plain whatever type the store tells it with."""
    walks = asyncio.run(warm_checks(redis_url))
    assert all(map(has_short_answer, walks)), walks


# The service on a real Redis: one call for a batch, and what it says while the server is gone.

POLICIES = """\
rate_limits:
  - {name: search, scope: user, resource: api.search, capacity: 1000000, refill_rate: 0}
runtime:
  circuit_breaker: {failure_threshold: 5, success_threshold: 1, timeout_seconds: 1,
                    max_timeout_seconds: 1, backoff_multiplier: 1}
"""


def test_a_hundred_checks_are_one_call(redis_url: str) -> None:
    items = [{"identifier": f"u{n % 60}", "resource": "api.search"} for n in range(100)]

    async def flow() -> None:
        still = Rule("still", [Limit("tokens", 1000, 0, 1)])
        service = Service(await Repository.open(redis_url), Rules(still))
        request = parse_batch({"requests": items})
        first = await service.batch(request)
        assert all(one.allowed for one in first)  # type: ignore[union-attr]
        servers.command(redis_url, "CONFIG", "RESETSTAT")
        again = await service.batch(request)
        counted = servers.called(redis_url)
        assert counted["eval"] + counted["evalsha"] == 1
        left = [one.tokens_remaining for one in again]  # type: ignore[union-attr]
        # who is named twice was there four times by now, who is named once twice
        assert (left[0], left[60], left[59]) == (997, 996, 998)
        await service.close()

    servers.flush(redis_url)
    asyncio.run(flow())


EXTREME_RATES = [
    f"1/{PERIOD_SECONDS_MAX}", f"{TOKENS_MAX - 1}/{PERIOD_SECONDS_MAX - 1}",
    "0." + "0" * (DECIMALS_MAX - 1) + "1", "12345." + "1" * DECIMALS_MAX, f"{TOKENS_MAX}/7",
]  # fmt: skip


def test_every_limit_that_a_policy_file_can_have_is_decided(redis_url: str, tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(
        "rate_limits:\n"
        + "".join(
            f"  - {{name: l{n}, scope: user, resource: r{n}, capacity: {TOKENS_MAX}, "
            f"refill_rate: {rate}}}\n"
            for n, rate in enumerate(EXTREME_RATES)
        )
    )

    async def flow() -> None:
        program = Program.build(Options(policies=str(file), store=redis_url), clock=lambda: 1)
        await program.start()
        for n in range(len(EXTREME_RATES)):
            request = CheckRequest("user", "ann", f"r{n}", 7)
            answer = await program.service.check(request)
            assert answer.allowed, EXTREME_RATES[n]
            assert answer.tokens_remaining == TOKENS_MAX - 7
        await program.close()

    servers.flush(redis_url)
    asyncio.run(flow())


@pytest.mark.parametrize("fail_open", [True, False])
def test_the_server_dies_and_hangs_and_comes_back(fail_open: bool, tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(POLICIES)
    told: list[tuple[int, dict[str, Any]]] = []

    def is_degraded() -> bool:
        said = client.post(PATHS["check"], json={"identifier": "ann", "resource": "api.search"})
        told.append((said.status_code, said.json()))
        return bool(told[-1][1]["degraded"])

    with servers.folder() as folder, servers.Server(folder) as redis:
        options = Options(
            store=f"{redis.url}?timeout_ms=300",
            policies=str(file),
            fail_open=fail_open,
            deadline_ms=30_000,
        )
        with served(Rest(Program.build(options)), lifespan="on") as (address, _):
            with httpx.Client(base_url=address, trust_env=False, timeout=60) as client:
                servers.until(lambda: not is_degraded(), "the first answer")
                redis.kill()
                servers.until(lambda: all(is_degraded() for _ in range(10)), "noticing its death")
                redis.start()
                servers.until(lambda: not is_degraded(), "coming back")  # without a restart
                os.kill(redis.pid, signal.SIGSTOP)
                servers.until(is_degraded, "noticing that it hangs")
                os.kill(redis.pid, signal.SIGCONT)
                servers.until(lambda: not is_degraded(), "going on")
    statuses = {(status, body["degraded"]) for status, body in told}
    assert statuses == {(200, False), (200 if fail_open else 503, True)}
    for status, body in told:
        if body["degraded"]:
            assert body["degraded_reason"] in ("store_unreachable", "breaker_open")
            assert body["allowed"] is (status == 200)
