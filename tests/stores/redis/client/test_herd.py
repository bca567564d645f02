"""Many callers at once on a limiter that has no connection yet: a healthy server serves them all.

The tests at the port hold the loop up on purpose, so that they say the same on any machine.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterable

import pytest

from headgate import Limit, RateLimiter, SyncRateLimiter, SyncRepository
from headgate.core.errors import Unreachable
from headgate.core.runtime import run
from headgate.stores.redis.client.calls import RedisPort, open_port
from headgate.stores.redis.client.connection import CALLS_MAX
from tests.stores.redis import servers
from tests.stores.redis.client.kit import INCR, in_threads

TASKS = 5000  # ten thousand are promised, and take long on a busy machine
THREADS = 100
BUSY_S = 1.2
TIMEOUT_MS = 500
LIMITS = [Limit.per_minute("rpm", 10_000_000)]

EVERYWHERE = pytest.mark.parametrize("server", ["redis_url", "sentinel_url", "cluster_url"])


@pytest.mark.parametrize("wait", [None, 30], ids=["at once", "waiting"])
def test_thousands_of_tasks_on_a_cold_limiter_all_get_a_decision(
    redis_url: str, wait: float | None
) -> None:
    servers.flush(redis_url)
    url = f"{redis_url}?timeout_ms=1000"
    with SyncRepository(url) as repository:
        repository.register_namespace("default")

    async def acquire(limiter: RateLimiter, place: int) -> str:
        name = f"entity-{place % 50}"
        try:
            async with limiter.acquire(name, "r", {"rpm": 1}, limits=LIMITS, wait=wait):
                return "admitted"
        except Exception as error:
            return f"{type(error).__name__}: {error}".replace(name, "…")

    async def main() -> Counter[str]:
        async with RateLimiter(url) as limiter:
            return Counter(await asyncio.gather(*(acquire(limiter, n) for n in range(TASKS))))

    assert asyncio.run(main()) == {"admitted": TASKS}
    assert CALLS_MAX >= 10_000


def test_a_hundred_threads_on_a_cold_limiter_all_get_a_decision(redis_url: str) -> None:
    servers.flush(redis_url)
    outcomes: list[str] = []
    together = threading.Barrier(THREADS)

    def acquire(limiter: SyncRateLimiter, place: int) -> None:
        together.wait()
        try:
            with limiter.acquire(f"entity-{place % 50}", "r", {"rpm": 1}, limits=LIMITS):
                outcomes.append("admitted")
        except Exception as error:
            outcomes.append(f"{type(error).__name__}: {error}")

    with SyncRateLimiter(redis_url) as limiter:
        threads = [
            threading.Thread(target=acquire, args=(limiter, place)) for place in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert Counter(outcomes) == {"admitted": THREADS}


def outcomes_of(
    url: str, calls: int, busy: Iterable[float] = (), timeout_ms: int = TIMEOUT_MS
) -> Counter[str]:
    """How so many calls end that begin in one turn of a loop, which is held up in the next ones."""

    async def count(port: RedisPort) -> str:
        try:
            await port.script(INCR, [f"counter-{id(port)}"], [])
        except Unreachable as error:
            return str(error)
        return "counted"

    async def main() -> Counter[str]:
        port = open_port(url, blocking=False, timeout_ms=timeout_ms)
        tasks = [asyncio.create_task(count(port)) for _ in range(calls)]
        for pause_s in busy:
            await asyncio.sleep(0)
            time.sleep(pause_s)
        ended = Counter(await asyncio.gather(*tasks))
        await port.close()
        return ended

    return asyncio.run(main())


@EVERYWHERE
def test_a_loop_that_is_busy_before_it_dials_does_not_blame_the_server(
    request: pytest.FixtureRequest, server: str
) -> None:
    url = request.getfixturevalue(server)
    assert outcomes_of(url, 100, [BUSY_S]) == {"counted": 100}


@EVERYWHERE
def test_a_loop_that_is_busy_while_it_dials_does_not_blame_the_server(
    request: pytest.FixtureRequest, server: str
) -> None:
    url = request.getfixturevalue(server)
    assert outcomes_of(url, 100, [0.0, 0.0] + [BUSY_S] * 2) == {"counted": 100}


@EVERYWHERE
@pytest.mark.parametrize("blocking", [False, True], ids=["tasks", "threads"])
def test_a_script_that_everybody_misses_is_sent_a_few_times_at_most(
    request: pytest.FixtureRequest, server: str, blocking: bool
) -> None:
    url = request.getfixturevalue(server)
    servers.everywhere(url, "SCRIPT", "FLUSH")
    servers.everywhere(url, "CONFIG", "RESETSTAT")
    calls = 1000
    if blocking:
        port = open_port(url, blocking=True)
        in_threads(32, lambda: run(port.script(INCR, ["missed"], [])))
        run(port.close())
    else:
        assert outcomes_of(url, calls, timeout_ms=servers.PATIENCE_MS) == {"counted": calls}
    stats = " ".join(map(str, servers.everywhere(url, "INFO", "commandstats")))
    whole = int(stats.partition("cmdstat_eval:calls=")[2].partition(",")[0])
    assert 1 <= whole <= 8  # one by the shared connection, at most one per pooled one
