"""Eight threads on one bucket: exactly its capacity, nothing lost."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from headgate import Limit, RateLimitExceeded, SyncRateLimiter
from headgate.testing import FakeClock

THREADS = 8
TRIES = 150


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_eight_threads_share_one_bucket_exactly(store: str, tmp_path: Path) -> None:
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/threads.db"
    limits = [Limit.per_hour("small", 500), Limit.per_hour("large", 10**6)]
    limiter = SyncRateLimiter(url, limits=limits, clock=FakeClock())
    admitted = [0] * THREADS
    start = threading.Barrier(THREADS)

    def worker(number: int) -> None:
        start.wait()
        for n in range(TRIES):
            try:
                with limiter.acquire("a", "api", {"small": 1, "large": 7}) as lease:
                    if n % 5 == 0:
                        lease.adjust(large=3)
                    admitted[number] += 1
            except RateLimitExceeded:
                pass

    workers = [threading.Thread(target=worker, args=(n,)) for n in range(THREADS)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    assert sum(admitted) == 500
    states = {state.limit_name: state for state in limiter.get_buckets("a", "api")}
    assert states["small"].total_consumed_milli == 500_000
    assert states["small"].tokens_milli == 0
    spent = states["large"].capacity_milli - states["large"].tokens_milli
    assert spent == states["large"].total_consumed_milli
    limiter.close()


def test_threads_that_wait_get_their_turn() -> None:
    limiter = SyncRateLimiter("memory://", limits=[Limit.per_second("rps", 200)])
    done: list[int] = []

    def worker(number: int) -> None:
        for _ in range(10):
            with limiter.acquire("a", "api", {"rps": 10}, wait=30):
                done.append(number)

    workers = [threading.Thread(target=worker, args=(n,)) for n in range(4)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    assert len(done) == 40
    assert limiter.engine.queues._queues == {}
