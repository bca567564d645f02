"""The service on a real Redis: one call for a batch, and what it says while the server is gone."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.core.limits import Limit
from headgate.declare.yaml_fields import DECIMALS_MAX, PERIOD_SECONDS_MAX
from headgate.repository import Repository
from headgate.service.decide.requests import CheckRequest
from headgate.service.decide.rules import NoPolicies, Rule
from headgate.service.decide.service import Service
from headgate.service.http.asgi import Rest
from headgate.service.policies.decode import TOKENS_MAX
from headgate.service.program import Options, Program
from tests.service.http.kit import PATHS, served, until
from tests.stores.redis import servers

POLICIES = """\
rate_limits:
  - {name: search, scope: user, resource: api.search, capacity: 1000000, refill_rate: 0}
runtime:
  circuit_breaker: {failure_threshold: 5, success_threshold: 1, timeout_seconds: 1,
                    max_timeout_seconds: 1, backoff_multiplier: 1}
"""
CLIENTS = 4


def scripts_run(url: str) -> int:
    told = str(servers.command(url, "INFO", "commandstats"))
    return sum(int(calls) for calls in re.findall(r"cmdstat_eval(?:sha)?:calls=(\d+)", told))


def test_a_hundred_checks_are_one_call(redis_url: str) -> None:
    from headgate.service.decide.requests import parse_batch

    items = [{"identifier": f"u{n % 60}", "resource": "api.search"} for n in range(100)]

    async def flow() -> None:
        still = Rule("still", [Limit("tokens", 1000, 0, 1)])
        service = Service(await Repository.open(redis_url), NoPolicies(still))
        request = parse_batch({"requests": items})
        first = await service.batch(request)
        assert all(one.allowed for one in first.results)  # type: ignore[union-attr]
        before = scripts_run(redis_url)
        again = await service.batch(request)
        assert scripts_run(redis_url) - before == 1
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


class Load:
    """Clients that ask without a pause, and what they were told."""

    def __init__(self, url: str) -> None:
        self.told: list[tuple[int, dict[str, Any]]] = []
        self._url = url
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(CLIENTS)]

    def _ask(self, number: int) -> None:
        body = {"identifier": f"user-{number}", "resource": "api.search"}
        with httpx.Client(base_url=self._url, trust_env=False, timeout=60) as client:
            while not self._ended.is_set():
                said = client.post(PATHS["check"], json=body)
                self.told.append((said.status_code, said.json()))

    def since(self, place: int) -> list[tuple[int, dict[str, Any]]]:
        return self.told[place:]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(90)
            assert not thread.is_alive(), "a request never came back"


@contextmanager
def service_on(url: str, folder: Path, *, fail_open: bool) -> Iterator[str]:
    file = folder / "policies.yaml"
    file.write_text(POLICIES)
    program = Program.build(
        Options(store=url, policies=str(file), fail_open=fail_open, deadline_ms=30_000)
    )
    with served(Rest(program), lifespan="on") as (address, _):
        yield address


def degraded(load: Load, place: int) -> Callable[[], bool]:
    return lambda: sum(body.get("degraded") is True for _, body in load.since(place)) > 20


def well(load: Load, place: int) -> Callable[[], bool]:
    return lambda: sum(body.get("degraded") is False for _, body in load.since(place)) > 20


@pytest.mark.parametrize("fail_open", [True, False])
def test_the_server_dies_and_hangs_under_load(fail_open: bool, tmp_path: Path) -> None:
    expected = 200 if fail_open else 503
    with servers.folder() as folder, servers.Server(folder) as redis:
        url = f"{redis.url}?timeout_ms=300"
        with service_on(url, tmp_path, fail_open=fail_open) as address, Load(address) as load:
            until(well(load, 0), steps=6000)
            place = len(load.told)
            redis.kill()
            until(degraded(load, place), steps=6000)
            place = len(load.told)
            redis.start()
            until(well(load, place), steps=6000)  # by itself, without a restart
            place = len(load.told)
            os.kill(redis.pid, signal.SIGSTOP)
            until(degraded(load, place), steps=6000)
            os.kill(redis.pid, signal.SIGCONT)
            place = len(load.told)
            until(well(load, place), steps=6000)
    statuses = {(status, body["degraded"]) for status, body in load.told}
    assert statuses == {(200, False), (expected, True)}, "an answer that nobody documented"
    for status, body in load.told:
        if body["degraded"]:
            assert body["degraded_reason"] in ("store_unreachable", "breaker_open")
            assert body["allowed"] is (status == 200)
