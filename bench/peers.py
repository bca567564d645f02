"""The libraries headgate is measured beside; each may be missing.

`hit` decides and consumes; `look` decides and consumes nothing, as headgate's check. Each library
is set up as its documentation says, where there is a choice the cheaper way: pyrate-limiter keeps
all keys in one bucket and leaks by hand, so its background thread stays out of the figures.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

from bench.ours import PLENTY
from bench.rounds import THREADS, Contestant, Open, Spin, in_threads

ADVICE = "pip install headgate[bench]"
MODULES = {"limits": "limits", "throttled-py": "throttled", "pyrate-limiter": "pyrate_limiter"}
KEYS_MAX = 10_000_000  # throttled-py's memory store holds 1024 keys unless told otherwise

Decide = Callable[[str], Any]


def missing() -> list[str]:
    return [name for name in MODULES if module(name) is None]


def module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(MODULES[name])
    except ImportError:
        return None


def fixed_window(verb: str = "hit", rate: int = PLENTY) -> Decide:
    from limits import RateLimitItemPerHour, storage, strategies

    limiter = strategies.FixedWindowRateLimiter(storage.MemoryStorage())
    return partial(getattr(limiter, verb), RateLimitItemPerHour(rate))


def moving_window() -> Decide:
    from limits import RateLimitItemPerHour, storage, strategies

    limiter = strategies.MovingWindowRateLimiter(storage.MemoryStorage())
    return partial(limiter.hit, RateLimitItemPerHour(PLENTY))


def fixed_window_async() -> Decide:
    from limits import RateLimitItemPerHour
    from limits.aio import storage, strategies

    limiter = strategies.FixedWindowRateLimiter(storage.MemoryStorage())
    return partial(limiter.hit, RateLimitItemPerHour(PLENTY))


def moving_window_async() -> Decide:
    from limits import RateLimitItemPerHour
    from limits.aio import storage, strategies

    limiter = strategies.MovingWindowRateLimiter(storage.MemoryStorage())
    return partial(limiter.hit, RateLimitItemPerHour(PLENTY))


def throttled(verb: str = "limit", rate: int = PLENTY) -> Decide:
    from throttled import MemoryStore, Throttled, per_hour

    store = MemoryStore(options={"MAX_SIZE": KEYS_MAX})
    limiter = Throttled(using="token_bucket", quota=per_hour(rate), store=store)
    return getattr(limiter, verb)


def throttled_async() -> Decide:
    from throttled.asyncio import MemoryStore, Throttled, per_hour

    store = MemoryStore(options={"MAX_SIZE": KEYS_MAX})
    return Throttled(using="token_bucket", quota=per_hour(PLENTY), store=store).limit


def pyrate(*, log: bool, verb: str = "try_acquire", rate: int = PLENTY) -> Decide:
    from pyrate_limiter import Duration, InMemoryBucket, Limiter, Rate, StateBucket, TokenBucket
    from pyrate_limiter.limiter import SingleBucketFactory

    rates = [Rate(rate, Duration.HOUR)]
    bucket = InMemoryBucket(rates) if log else StateBucket(rates, algorithm=TokenBucket())
    limiter = Limiter(SingleBucketFactory(bucket, schedule_leak=False))
    return partial(getattr(limiter, verb), blocking=False)


@contextmanager
def _open(make: Callable[[], Decide], keys: Sequence[str]) -> Iterator[Spin]:
    decide = make()

    def spin(keys: Sequence[str]) -> None:
        for key in keys:
            decide(key)

    yield spin


@contextmanager
def _open_async(make: Callable[[], Decide], keys: Sequence[str]) -> Iterator[Spin]:
    decide = make()

    async def spin(keys: Sequence[str]) -> None:
        for key in keys:
            await decide(key)

    yield spin


OPEN: dict[str, Callable[[Callable[[], Decide]], Open]] = {
    "blocking": lambda make: partial(_open, make),
    "async": lambda make: partial(_open_async, make),
    THREADS: lambda make: in_threads(partial(_open, make)),
}
HITS: list[tuple[str, str, str, Callable[[], Decide]]] = [
    ("limits", "fixed window, hit", "blocking", fixed_window),
    ("limits", "fixed window, hit", "async", fixed_window_async),
    ("limits", "moving window, hit", "blocking", moving_window),
    ("limits", "moving window, hit", "async", moving_window_async),
    ("throttled-py", "token bucket, limit", "blocking", throttled),
    ("throttled-py", "token bucket, limit", "async", throttled_async),
    ("pyrate-limiter", "in-memory bucket", "blocking", partial(pyrate, log=True)),
    ("pyrate-limiter", "in-memory bucket", "async",
     partial(pyrate, log=True, verb="try_acquire_async")),
    ("pyrate-limiter", "token bucket", "blocking", partial(pyrate, log=False)),
    ("limits", "fixed window, hit", THREADS, fixed_window),
    ("throttled-py", "token bucket, limit", THREADS, throttled),
]  # fmt: skip
REFUSALS: list[tuple[str, str, str, Callable[[], Decide]]] = [
    ("limits", "fixed window, refused", "blocking", partial(fixed_window, rate=1)),
    ("limits", "fixed window, refused", THREADS, partial(fixed_window, rate=1)),
    ("throttled-py", "token bucket, refused", "blocking", partial(throttled, rate=1)),
    ("throttled-py", "token bucket, refused", THREADS, partial(throttled, rate=1)),
    ("pyrate-limiter", "token bucket, refused", "blocking", partial(pyrate, log=False, rate=1)),
]
LOOKS: list[tuple[str, str, str, Callable[[], Decide]]] = [
    ("limits", "fixed window, test", "blocking", partial(fixed_window, "test")),
    ("throttled-py", "token bucket, peek", "blocking", partial(throttled, "peek")),
]


def contestants() -> list[Contestant]:
    """A row for each way of each library that is installed."""
    absent = missing()
    return [
        Contestant(
            f"{library} {way}",
            colour,
            OPEN[colour](make),
        )
        for library, way, colour, make in HITS + REFUSALS + LOOKS
        if library not in absent
    ]


def hit_names() -> set[str]:
    """The rows that decide and consume: what headgate's check and take have to be ahead of."""
    return {f"{library} {way}" for library, way, _, _ in HITS}
