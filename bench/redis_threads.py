"""Decisions of threads on one Redis: headgate blocking, and its peers on redis-py blocking."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from bench import peers
from bench.redis_jobs import KEYS, RESOURCE, ask
from bench.redis_ours import NAMES, PLENTY, limits
from bench.redis_peers import FIXED, MOVING, POOL_MAX
from bench.table import show
from headgate import SyncRateLimiter

THREADS = (1, 8, 32)
PATIENCE_S = 60
OURS = "headgate acquire + lease"

Decide = Callable[[str], Any]
Opened = Callable[[str], AbstractContextManager[Decide]]


@contextmanager
def headgate(options: str, url: str) -> Iterator[Decide]:
    amounts = {NAMES[0]: 1}
    with SyncRateLimiter(f"{url}?timeout_ms=10000{options}", limits=limits(1)) as limiter:

        def decide(key: str) -> None:
            with limiter.acquire(key, RESOURCE, amounts):
                pass

        yield decide


@contextmanager
def limits_on(strategy: str, url: str) -> Iterator[Decide]:
    from limits import RateLimitItemPerHour, storage, strategies

    held = storage.RedisStorage(url, max_connections=POOL_MAX)
    limiter = getattr(strategies, strategy)(held)
    yield partial(limiter.hit, RateLimitItemPerHour(PLENTY))
    held.storage.connection_pool.disconnect()


@contextmanager
def throttled(url: str) -> Iterator[Decide]:
    from throttled import RedisStore, Throttled, per_hour

    store = RedisStore(
        server=url, options={"CONNECTION_POOL_KWARGS": {"max_connections": POOL_MAX}}
    )
    yield Throttled(using="token_bucket", quota=per_hour(PLENTY), store=store).limit
    store._backend.get_client().connection_pool.disconnect()


def contestants() -> dict[str, Opened]:
    found: dict[str, Opened] = {
        OURS: partial(headgate, ""),
        "headgate, ?connections=1": partial(headgate, "&connections=1"),
    }
    absent = peers.missing()
    if "limits" not in absent:
        found["limits fixed window, redis-py"] = partial(limits_on, FIXED)
        found["limits moving window, redis-py"] = partial(limits_on, MOVING)
    if "throttled-py" not in absent:
        found["throttled-py token bucket"] = throttled
    return found


def measure(url: str, seconds: float, rounds: int) -> list[dict[str, Any]]:
    """All in turns at every number of threads; the server is emptied before each."""
    contest = list(contestants().items())
    seen: dict[tuple[int, str], list[tuple[float, float, float]]] = {}
    for place in range(rounds):
        for threads in THREADS:
            for name, opened in contest if place % 2 == 0 else reversed(contest):
                ask(url, "FLUSHALL")
                with opened(url) as decide:
                    seen.setdefault((threads, name), []).append(_round(decide, threads, seconds))
    return [
        {
            "name": name,
            "threads": threads,
            "per_second": max(rate for rate, _, _ in timed),
            "median": statistics.median(rate for rate, _, _ in timed),
            "cpu_us": min(cpu_us for _, cpu_us, _ in timed),
            "fairness": statistics.median(fair for _, _, fair in timed),
        }
        for (threads, name), timed in seen.items()
    ]


def _round(decide: Decide, threads: int, seconds: float) -> tuple[float, float, float]:
    """Decisions per second, CPU us each, and the slowest thread's share of the fastest's."""
    for key in KEYS:
        decide(key)
    counts, gate, clock = [0] * threads, threading.Barrier(threads + 1), time.perf_counter
    end_s = 0.0

    def caller(place: int) -> None:
        keys = itertools.islice(itertools.cycle(KEYS), place, None)
        decide(next(keys))  # its connection is open
        gate.wait(PATIENCE_S)
        gate.wait(PATIENCE_S)
        while clock() < end_s:
            decide(next(keys))
            counts[place] += 1

    crew = [threading.Thread(target=caller, args=(place,)) for place in range(threads)]
    for thread in crew:
        thread.start()
    gate.wait(PATIENCE_S)
    cpu_s, start_s = time.process_time(), clock()
    end_s = start_s + seconds
    gate.wait(PATIENCE_S)
    for thread in crew:
        thread.join()
    spent_s, cpu_s = clock() - start_s, time.process_time() - cpu_s
    done = sum(counts)
    return done / spent_s, cpu_s / done * 1e6, min(counts) / max(counts)


def report(rows: list[dict[str, Any]], seconds: float, rounds: int) -> None:
    for threads in THREADS:
        own = next(row for row in rows if row["threads"] == threads and row["name"] == OURS)
        show(
            f"{threads} thread(s), blocking, {seconds:g} s each, best of {rounds} rounds in turns",
            ("", "decisions/s", "median", "client CPU us", "slowest thread", "acquire is"),
            [
                (row["name"], f"{row['per_second']:,.0f}", f"{row['median']:,.0f}",
                 f"{row['cpu_us']:.1f}", f"{row['fairness']:.2f} of the fastest",
                 f"{own['per_second'] / row['per_second']:.1f} x")
                for row in rows if row["threads"] == threads
            ],
        )  # fmt: skip
