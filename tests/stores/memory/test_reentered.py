"""A lease that the garbage collector ends, in the middle of what its thread does in the store."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headgate import Limit, SyncRateLimiter
from headgate.core.decision import Demand
from headgate.core.record import BucketKey, Terms
from headgate.core.runtime import run
from headgate.stores.memory import buckets as module
from headgate.stores.memory.buckets import MemoryStore

NOW_MS = 1_767_225_600_000
KEY = BucketKey("n", "e", "r")
TERMS = Terms((Limit.per_day("x", 10).spec,), 1)


def in_time(work: Callable[[], Any]) -> None:
    """A thread that waits for itself would wait for ever."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def demand(tokens: int) -> Demand:
    return Demand(KEY, TERMS, (tokens * 1000,))


@pytest.mark.parametrize("step", ["take", "decide", "adjust_record"])
def test_what_is_given_back_in_the_middle_is_not_lost(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    run(store.consume([demand(6)], NOW_MS))
    real = getattr(module, step)
    ended = []

    def interrupted(*args: Any, **how: Any) -> Any:
        result = real(*args, **how)
        if not ended:
            ended.append(True)
            run(store.adjust([demand(-4)], NOW_MS))
        return result

    monkeypatch.setattr(module, step, interrupted)

    def work() -> None:
        if step == "adjust_record":
            run(store.adjust([demand(1)], NOW_MS))
        else:
            other = Demand(BucketKey("n", "e2", "r"), TERMS, (1000,))
            wanted = [demand(1)] if step == "take" else [demand(1), other]
            assert run(store.consume(wanted, NOW_MS)).allowed

    in_time(work)
    assert ended
    [record] = run(store.peek([KEY], NOW_MS)).records
    assert record is not None
    assert record[4] == (10 - 6 + 4 - 1) * 1000


class Stream:
    """Who reads one row of it and loses interest leaves a cycle to the collector."""

    def __init__(self, limiter: SyncRateLimiter, key: str) -> None:
        self.limiter, self.key = limiter, key
        self.rows = self.read()

    def read(self) -> Iterator[int]:
        with self.limiter.acquire(self.key, "api", {"rps": 1}):
            yield 1
            yield 2


def test_generators_that_are_dropped_with_a_lease_stop_nobody() -> None:
    kept = gc.get_threshold()

    def work() -> None:
        gc.set_threshold(7)
        try:
            with SyncRateLimiter(limits=[Limit.per_second("rps", 10**9)]) as limiter:
                for number in range(3000):
                    next(Stream(limiter, f"k{number % 50}").rows)
        finally:
            gc.set_threshold(*kept)

    in_time(work)
