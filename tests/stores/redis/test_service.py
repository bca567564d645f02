"""The service on a real Redis: one call for a batch, and what it says while the server is gone."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.core.limits import Limit
from headgate.declare.yaml_fields import DECIMALS_MAX, PERIOD_SECONDS_MAX
from headgate.repository import Repository
from headgate.service.decide.requests import CheckRequest, parse_batch
from headgate.service.decide.rules import NoPolicies, Rule
from headgate.service.decide.service import Service
from headgate.service.http.asgi import Rest
from headgate.service.policies.decode import TOKENS_MAX
from headgate.service.program import Options, Program
from tests.service.http.kit import PATHS, served
from tests.stores.redis import servers

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
        service = Service(await Repository.open(redis_url), NoPolicies(still))
        request = parse_batch({"requests": items})
        first = await service.batch(request)
        assert all(one.allowed for one in first.results)  # type: ignore[union-attr]
        servers.command(redis_url, "CONFIG", "RESETSTAT")
        again = await service.batch(request)
        counted = servers.called(redis_url)
        assert counted["eval"] + counted["evalsha"] == 1
        left = [one.tokens_remaining for one in again.results]  # type: ignore[union-attr]
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
