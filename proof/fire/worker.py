"""One process that takes from a few buckets again and again and writes down what it was given.

`python -m proof.fire.worker URL JOURNAL SEED MODE RATE CAPACITY`; it ends when told to (SIGTERM).
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from headgate import (
    Event,
    Limit,
    RateLimiter,
    RateLimiterUnavailable,
    RateLimitExceeded,
    SyncRateLimiter,
)
from headgate.core.decision import Demand, Verdict
from headgate.layers.layer import Layer
from proof.fire.checker import Pen

BUCKETS = ("hot", "warm")
RESOURCE = "api"
TASKS = 4
CREDIT_SHARE = 0.1
PAUSE_S_MAX = 0.1
PAUSE_S_DOWN = 0.01

_decided_ms: ContextVar[int] = ContextVar("decided_ms")
_lost: ContextVar[bool] = ContextVar("lost", default=False)


class Witness(Layer):
    """Remembers, for the task that asked, at which time of the store it was decided."""

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        verdict = await self.inner.consume(demands, now_ms)
        _decided_ms.set(verdict.now_ms)
        return verdict


def limits(rate_per_s: int, capacity: int) -> list[Limit]:
    """`x` is the limit under test; `y` is never full and never refills, so no credit is cut."""
    return [Limit.custom("x", capacity, rate_per_s, 1), Limit.custom("y", 10**9, 0, 1)]


def observer(event: Event) -> None:
    if event.kind == "credit_lost":
        _lost.set(True)


class Round:
    """One ask, from the first line in the journal to the last. Around the whole of it, it notes
    how it ended; `pause_s` is for how long to pause then."""

    def __init__(self, pen: Pen, rng: random.Random) -> None:
        self._pen = pen
        self._rng = rng
        self.bucket = BUCKETS[rng.random() < 0.2]
        self.gives_back = rng.random() < CREDIT_SHARE
        self.pause_s = 0.0
        pen.note("t", self.bucket)
        self._start_ns = time.monotonic_ns()

    def __enter__(self) -> Round:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, RateLimitExceeded):
            self._end("r")
            # About as long as was told: somebody is always early, so the limit is always tried.
            told_s = min(error.retry_after_seconds, PAUSE_S_MAX)
            self.pause_s = told_s * self._rng.uniform(0.5, 1.5)
        elif isinstance(error, RateLimiterUnavailable):
            self._end("u")
            self.pause_s = PAUSE_S_DOWN
        return self.pause_s > 0 or error is None

    def admitted(self) -> None:
        self._end("a", _decided_ms.get())

    @contextmanager
    def giving_back(self) -> Iterator[None]:
        _lost.set(False)
        self._pen.note("c", self.bucket)
        yield
        self._pen.note("l" if _lost.get() else "d", self.bucket)

    def _end(self, kind: str, *numbers: int) -> None:
        took_ms = (time.monotonic_ns() - self._start_ns) // 1_000_000
        self._pen.note(kind, self.bucket, *numbers, took_ms, time.time_ns() // 1_000_000)


class Worker:
    def __init__(self, pen: Pen, seed: int) -> None:
        self.pen = pen
        self.rng = random.Random(seed)
        self.over = False

    def blocking(self, limiter: SyncRateLimiter) -> None:
        limiter.engine.use(Witness(limiter.engine.store))
        while not self.over:
            one = Round(self.pen, self.rng)
            with one, limiter.acquire(one.bucket, RESOURCE, {"x": 1, "y": 1}) as lease:
                one.admitted()
                if one.gives_back:
                    with one.giving_back():
                        lease.release(y=1)
            if one.pause_s:
                time.sleep(one.pause_s)
        limiter.close()

    async def tasks(self, opened: Callable[[], RateLimiter]) -> None:
        limiter = opened()  # by the loop that it serves
        limiter.engine.use(Witness(limiter.engine.store))
        await asyncio.gather(*(self._task(limiter) for _ in range(TASKS)))
        await limiter.close()

    async def _task(self, limiter: RateLimiter) -> None:
        while not self.over:
            one = Round(self.pen, self.rng)
            with one:
                async with limiter.acquire(one.bucket, RESOURCE, {"x": 1, "y": 1}) as lease:
                    one.admitted()
                    if one.gives_back:
                        with one.giving_back():
                            await lease.release(y=1)
            if one.pause_s:
                await asyncio.sleep(one.pause_s)


def main(url: str, journal: str, seed: int, mode: str, rate_per_s: int, capacity: int) -> None:
    worker = Worker(Pen(Path(journal)), seed)
    signal.signal(signal.SIGTERM, lambda *_: setattr(worker, "over", True))
    options = {"limits": limits(rate_per_s, capacity), "observer": observer}
    if mode == "blocking":
        worker.blocking(SyncRateLimiter(url, **options))
    else:
        asyncio.run(worker.tasks(lambda: RateLimiter(url, **options)))


if __name__ == "__main__":
    _, url, journal, seed, mode, rate_per_s, capacity = sys.argv
    main(url, journal, int(seed), mode, int(rate_per_s), int(capacity))
