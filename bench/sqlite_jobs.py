"""One process that decides against a shared SQLite file for a fixed time."""

from __future__ import annotations

import sqlite3
import time
from array import array
from collections import Counter
from collections.abc import Callable
from typing import Any

from bench.children import wait_for_go
from headgate import Limit, RateLimiterUnavailable, RateLimitExceeded, SyncRateLimiter

PLENTY = 10**9
KEY = "user-000"

Decide = Callable[[], str]  # "admitted", "refused", or what went wrong


def job(contestant: str, path: str, mode: str, seconds: str) -> dict[str, Any]:
    decide = OPENERS[contestant](path, mode == "refused")
    decide()
    wait_for_go()
    outcomes: Counter[str] = Counter()
    waits_ns = array("q")
    clock_ns = time.perf_counter_ns
    start_ns = now_ns = clock_ns()
    end_ns = start_ns + int(float(seconds) * 1e9)
    while now_ns < end_ns:
        outcomes[decide()] += 1
        before_ns, now_ns = now_ns, clock_ns()
        waits_ns.append(now_ns - before_ns)
    decided = outcomes["admitted"] + outcomes["refused"]
    return {
        "outcomes": dict(outcomes),
        "decided": decided,
        "per_second": decided / ((now_ns - start_ns) / 1e9),
        "wait_max_ms": max(waits_ns) / 1e6,
        "wait_p99_ms": sorted(waits_ns)[len(waits_ns) * 99 // 100] / 1e6,
    }


def _headgate(path: str, refused: bool) -> Decide:
    limit = Limit.per_hour("rpm", 1) if refused else Limit.per_second("rpm", PLENTY)
    limiter = SyncRateLimiter(f"sqlite:///{path}", limits=[limit])
    amounts = {"rpm": 1}

    def decide() -> str:
        try:
            with limiter.acquire(KEY, "api", amounts):
                return "admitted"
        except RateLimitExceeded:
            return "refused"
        except RateLimiterUnavailable:
            return "unavailable"

    return decide


def _pyrate(path: str, refused: bool, *, file_lock: bool) -> Decide:
    """A window of a second: its bucket counts the rows of the window for each decision, so a
    longer window would only slow it down.

    Its limiter would wait out a refusal, and asked not to wait it gives up on a file lock that is
    taken; so refusals are asked of the bucket itself.
    """
    from pyrate_limiter import Duration, Limiter, Rate, SQLiteBucket

    rate = Rate(1, Duration.HOUR) if refused else Rate(PLENTY, Duration.SECOND)
    bucket = SQLiteBucket.init_from_file([rate], db_path=path, use_file_lock=file_lock)
    limiter = Limiter(bucket)

    def attempt() -> bool:
        if refused:
            return bool(bucket.put(limiter.bucket_factory.wrap_item(KEY)))
        return bool(limiter.try_acquire(KEY))

    def decide() -> str:
        try:
            return "admitted" if attempt() else "refused"
        except sqlite3.OperationalError as error:
            return str(error)

    return decide


HEADGATE = "headgate"
LOCKED = "pyrate-limiter, file lock + WAL"
PLAIN = "pyrate-limiter, as it comes"
OPENERS: dict[str, Callable[[str, bool], Decide]] = {
    HEADGATE: _headgate,
    LOCKED: lambda path, refused: _pyrate(path, refused, file_lock=True),
    PLAIN: lambda path, refused: _pyrate(path, refused, file_lock=False),
}
