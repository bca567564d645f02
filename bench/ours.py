"""headgate's rows: check, take and acquire, one limit and two, blocking, async and with threads."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from bench.rounds import THREADS, Contestant, Spin, in_threads
from headgate import Limit, RateLimiter, RateLimitExceeded, SyncRateLimiter
from headgate.core.lease import refusal_error

RESOURCE = "api"
PLENTY = 10**9
LIMITS = {
    1: [Limit.per_hour("rpm", PLENTY)],
    2: [Limit.per_hour("rpm", PLENTY), Limit.per_hour("tpm", PLENTY)],
}
AMOUNTS = {1: {"rpm": 1}, 2: {"rpm": 1, "tpm": 500}}
NOTHING_LEFT = [Limit.per_hour("rpm", 1)]  # after the first pass over the keys

CHECK = "headgate check, 1 limit"
UNUSED = "headgate check, 1 limit, unused bucket"
GIVEN = "headgate check, 1 limit, limits= given"
TAKE_1 = "headgate take, 1 limit"
TAKE_2 = "headgate take, 2 limits"
TAKE_REFUSED = "headgate take, refused"
TAKE_OBSERVED = "headgate take, refused, an observer hears of it"
TAKE_REPEATED = "headgate take, refused by the rejections layer (SQLite)"
LEASE_REFUSED = "headgate acquire, refused"
EXCEPTION = "headgate, the exception of a refusal"
LEASE_1 = "headgate acquire + lease, 1 limit"
LEASE_2 = "headgate acquire + lease, 2 limits"


@contextmanager
def _check(keys: Sequence[str], *, given: bool = False, used: bool = True) -> Iterator[Spin]:
    limits = LIMITS[1] if given else None
    amounts = AMOUNTS[1]
    with SyncRateLimiter("memory://", limits=LIMITS[1]) as limiter:
        for key in keys if used else ():
            with limiter.acquire(key, RESOURCE, amounts, limits):
                pass

        def spin(keys: Sequence[str]) -> None:
            for key in keys:
                limiter.check(key, RESOURCE, amounts, limits)

        yield spin


@contextmanager
def _check_async(keys: Sequence[str]) -> Iterator[Spin]:
    amounts = AMOUNTS[1]
    limiter = RateLimiter("memory://", limits=LIMITS[1])

    async def use(keys: Sequence[str]) -> None:
        for key in keys:
            async with limiter.acquire(key, RESOURCE, amounts):
                pass

    async def spin(keys: Sequence[str]) -> None:
        for key in keys:
            await limiter.check(key, RESOURCE, amounts)

    asyncio.run(use(keys))
    yield spin


@contextmanager
def _acquire(limits: int, keys: Sequence[str]) -> Iterator[Spin]:
    amounts = AMOUNTS[limits]
    with SyncRateLimiter("memory://", limits=LIMITS[limits]) as limiter:

        def spin(keys: Sequence[str]) -> None:
            for key in keys:
                with limiter.acquire(key, RESOURCE, amounts):
                    pass

        yield spin


@contextmanager
def _acquire_async(limits: int, keys: Sequence[str]) -> Iterator[Spin]:
    amounts = AMOUNTS[limits]
    limiter = RateLimiter("memory://", limits=LIMITS[limits])

    async def spin(keys: Sequence[str]) -> None:
        for key in keys:
            async with limiter.acquire(key, RESOURCE, amounts):
                pass

    yield spin


@contextmanager
def _take(limits: Sequence[Limit], keys: Sequence[str]) -> Iterator[Spin]:
    amounts = AMOUNTS[len(limits)]
    with SyncRateLimiter("memory://", limits=limits) as limiter:

        def spin(keys: Sequence[str]) -> None:
            for key in keys:
                limiter.take(key, RESOURCE, amounts)

        yield spin


@contextmanager
def _take_observed(keys: Sequence[str]) -> Iterator[Spin]:
    heard: list[str] = []
    with SyncRateLimiter(
        "memory://", limits=NOTHING_LEFT, observer=lambda event: heard.append(event.kind)
    ) as limiter:

        def spin(keys: Sequence[str]) -> None:
            heard.clear()
            for key in keys:
                limiter.take(key, RESOURCE, AMOUNTS[1])

        yield spin


@contextmanager
def _take_repeated(keys: Sequence[str]) -> Iterator[Spin]:
    """Nearly all of them: a refusal is trusted for a second, then the store is asked once more."""
    with (
        tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder,
        SyncRateLimiter(f"sqlite:///{folder}/limits.db", limits=NOTHING_LEFT) as limiter,
    ):
        for key in keys:
            limiter.take(key, RESOURCE, AMOUNTS[1])

        def spin(keys: Sequence[str]) -> None:
            for key in keys:
                limiter.take(key, RESOURCE, AMOUNTS[1])

        yield spin


@contextmanager
def _exception(keys: Sequence[str]) -> Iterator[Spin]:
    with SyncRateLimiter("memory://", limits=NOTHING_LEFT) as limiter:
        for _ in range(2):
            verdict = limiter.take(keys[0], RESOURCE, AMOUNTS[1])
        assert not verdict

        def spin(keys: Sequence[str]) -> None:
            for key in keys:
                try:
                    raise refusal_error(verdict, key)
                except RateLimitExceeded:
                    pass

        yield spin


@contextmanager
def _take_async(limits: Sequence[Limit], keys: Sequence[str]) -> Iterator[Spin]:
    amounts = AMOUNTS[len(limits)]
    limiter = RateLimiter("memory://", limits=limits)

    async def spin(keys: Sequence[str]) -> None:
        for key in keys:
            await limiter.take(key, RESOURCE, amounts)

    yield spin


@contextmanager
def _refused(keys: Sequence[str]) -> Iterator[Spin]:
    with SyncRateLimiter("memory://", limits=NOTHING_LEFT) as limiter:

        def spin(keys: Sequence[str]) -> None:
            for key in keys:
                try:
                    with limiter.acquire(key, RESOURCE, AMOUNTS[1]):
                        pass
                except RateLimitExceeded:
                    pass

        yield spin


@contextmanager
def _refused_async(keys: Sequence[str]) -> Iterator[Spin]:
    limiter = RateLimiter("memory://", limits=NOTHING_LEFT)

    async def spin(keys: Sequence[str]) -> None:
        for key in keys:
            try:
                async with limiter.acquire(key, RESOURCE, AMOUNTS[1]):
                    pass
            except RateLimitExceeded:
                pass

    yield spin


CONTESTANTS = [
    Contestant(TAKE_1, "blocking", partial(_take, LIMITS[1])),
    Contestant(TAKE_1, "async", partial(_take_async, LIMITS[1])),
    Contestant(TAKE_1, THREADS, in_threads(partial(_take, LIMITS[1]))),
    Contestant(TAKE_2, "blocking", partial(_take, LIMITS[2])),
    Contestant(TAKE_2, "async", partial(_take_async, LIMITS[2])),
    Contestant(TAKE_REFUSED, "blocking", partial(_take, NOTHING_LEFT)),
    Contestant(TAKE_REFUSED, "async", partial(_take_async, NOTHING_LEFT)),
    Contestant(TAKE_REFUSED, THREADS, in_threads(partial(_take, NOTHING_LEFT))),
    Contestant(TAKE_OBSERVED, "blocking", _take_observed),
    Contestant(TAKE_REPEATED, "blocking", _take_repeated),
    Contestant(EXCEPTION, "blocking", _exception),
    Contestant(LEASE_REFUSED, "blocking", _refused),
    Contestant(LEASE_REFUSED, "async", _refused_async),
    Contestant(CHECK, "blocking", _check),
    Contestant(CHECK, "async", _check_async),
    Contestant(UNUSED, "blocking", partial(_check, used=False)),
    Contestant(GIVEN, "blocking", partial(_check, given=True)),
    Contestant(LEASE_1, "blocking", partial(_acquire, 1)),
    Contestant(LEASE_1, "async", partial(_acquire_async, 1)),
    Contestant(LEASE_2, "blocking", partial(_acquire, 2)),
    Contestant(LEASE_2, "async", partial(_acquire_async, 2)),
]
