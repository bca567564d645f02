"""limits, throttled-py and pyrate-limiter, each in the ways its documentation offers.

Several limits in one call: pyrate-limiter takes several rates in one bucket, all with the same
amount; limits and throttled-py decide one limit at a time, so a caller with two asks twice.
"""

from __future__ import annotations

import contextlib
import threading
import time as clock
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

from bench.peers_gate import MEMORY, REDIS, SQLITE, Answer, Place, Rate, Subject, Take, Time

TIMEOUT_S = 1  # of the client, where a subject is given one


@contextmanager
def limits(
    strategy: str, store: str, rates: Sequence[Rate], place: Place, time: Time, **options: Any
) -> Iterator[Take]:
    from limits import RateLimitItemPerSecond, storage, strategies

    with time.reign():
        uri = place.redis_url if store == REDIS else "memory://"
        held = storage.storage_from_string(uri, **options)
        limiter = getattr(strategies, strategy)(held)
        items = {rate.name: RateLimitItemPerSecond(rate.limit, rate.period_s) for rate in rates}
        prefix = place.fresh()

        def take(key: str, amounts: Mapping[str, Any]) -> Answer:
            for name, amount in amounts.items():
                words = (items[name], prefix, name, key)
                if not limiter.hit(*words, cost=amount):
                    reset_s = limiter.get_window_stats(*words).reset_time
                    return Answer(False, max(0.0, (reset_s - clock.time()) * 1000))
            return Answer(True)

        yield take


@contextmanager
def throttled(
    using: str, store: str, rates: Sequence[Rate], place: Place, time: Time, **options: Any
) -> Iterator[Take]:
    from throttled import MemoryStore, RedisStore, Throttled, per_duration

    with time.reign():
        held = RedisStore(server=place.redis_url, options=options) if store == REDIS else None
        shared = held or MemoryStore(options={"MAX_SIZE": 100_000})
        limiters = {
            rate.name: Throttled(
                using=using,
                quota=per_duration(timedelta(seconds=rate.period_s), rate.limit),
                store=shared,
            )
            for rate in rates
        }
        prefix = place.fresh()

        def take(key: str, amounts: Mapping[str, Any]) -> Answer:
            for name, amount in amounts.items():
                result = limiters[name].limit(f"{prefix}:{name}:{key}", cost=amount)
                if result.limited:
                    return Answer(False, result.state.retry_after * 1000)
            return Answer(True)

        yield take


Make = Callable[[list[Any], str, Place], Any]


@contextmanager
def pyrate(make: Make, rates: Sequence[Rate], place: Place, time: Time) -> Iterator[Take]:
    """A bucket for each key. Rates asked for together share one; else each has its own."""
    from pyrate_limiter import Limiter
    from pyrate_limiter import Rate as Theirs
    from pyrate_limiter.limiter import SingleBucketFactory

    with time.reign(), contextlib.ExitStack() as stack:
        made: dict[tuple[str, ...], tuple[Any, Any]] = {}
        prefix, making = place.fresh(), threading.Lock()

        def found(key: str, names: tuple[str, ...]) -> tuple[Any, Any]:
            with making:
                if (key, *names) not in made:
                    theirs = [Theirs(r.limit, r.period_ms) for r in rates if r.name in names]
                    bucket = make(theirs, f"{prefix}-{key}-{'-'.join(names)}", place)
                    # By a factory, so that a file lock is waited for by the bucket: its limiter,
                    # asked not to wait, would give up on it.
                    limiter = Limiter(SingleBucketFactory(bucket, schedule_leak=False))
                    made[(key, *names)] = stack.enter_context(limiter), bucket
                return made[(key, *names)]

        def take(key: str, amounts: Mapping[str, Any]) -> Answer:
            (amount, *others) = amounts.values()
            together = tuple(amounts) if set(others) <= {amount} else ()
            for names in [together] if together else [(name,) for name in amounts]:
                limiter, bucket = found(key, names)
                weight = amounts[names[0]]
                if not limiter.try_acquire(key, weight, blocking=False):
                    item = limiter.bucket_factory.wrap_item(key, weight)
                    return Answer(False, bucket.waiting(item))
            return Answer(True)

        yield take


def log(rates: list[Any], name: str, place: Place) -> Any:
    from pyrate_limiter import InMemoryBucket

    return InMemoryBucket(rates)


def fixed(rates: list[Any], name: str, place: Place) -> Any:
    from pyrate_limiter import InMemoryBucket
    from pyrate_limiter.abstracts.algorithm import FixedWindow

    return InMemoryBucket(rates, algorithm=FixedWindow())


def tokens(rates: list[Any], name: str, place: Place) -> Any:
    from pyrate_limiter import StateBucket, TokenBucket

    return StateBucket(rates, algorithm=TokenBucket())


def redis_log(rates: list[Any], name: str, place: Place, **options: Any) -> Any:
    from pyrate_limiter import RedisBucket
    from redis import Redis

    return RedisBucket.init(rates, Redis.from_url(place.redis_url, **options), name)


def redis_tokens(rates: list[Any], name: str, place: Place, **options: Any) -> Any:
    from pyrate_limiter import RedisStateStore, StateBucket, TokenBucket
    from redis import Redis

    store = RedisStateStore(Redis.from_url(place.redis_url, **options), name)
    return StateBucket(rates, algorithm=TokenBucket(), store=store)


def sqlite_log(rates: list[Any], name: str, place: Place) -> Any:
    from pyrate_limiter import SQLiteBucket

    path = str(place.folder / f"{place.spot or 'pyrate'}.sqlite")
    return SQLiteBucket.init_from_file(rates, table=name, db_path=path, use_file_lock=True)


STRATEGIES = {
    "fixed window": "FixedWindowRateLimiter",
    "moving window": "MovingWindowRateLimiter",
    "sliding window counter": "SlidingWindowCounterRateLimiter",
}
USING = ("token_bucket", "gcra", "fixed_window", "sliding_window", "leaking_bucket")
BUCKETS: list[tuple[str, str, Make]] = [
    ("sliding window log", MEMORY, log),
    ("fixed window", MEMORY, fixed),
    ("token bucket", MEMORY, tokens),
    ("sliding window log, file lock", SQLITE, sqlite_log),
    ("sliding window log", REDIS, redis_log),
    ("token bucket", REDIS, redis_tokens),
]

SUBJECTS = [
    *(
        Subject("limits", way, store, partial(limits, strategy, store), virtual=store != REDIS)
        for store in (MEMORY, REDIS)
        for way, strategy in STRATEGIES.items()
    ),
    *(
        Subject(
            "throttled-py",
            using.replace("_", " "),
            store,
            partial(throttled, using, store),
            virtual=store != REDIS,
        )
        for store in (MEMORY, REDIS)
        for using in USING
    ),
    *(
        Subject(
            "pyrate-limiter",
            way,
            store,
            partial(pyrate, make),
            together=True,
            virtual=store != REDIS,
        )
        for way, store, make in BUCKETS
    ),
]
# One way of each on Redis, with its client's timeout set: what the store's death is asked of, too.
_SOCKET = {"socket_timeout": TIMEOUT_S}
TIMED = [
    Subject(
        "limits",
        "fixed window, socket_timeout=1",
        REDIS,
        partial(limits, STRATEGIES["fixed window"], REDIS, **_SOCKET),
    ),
    Subject(
        "throttled-py",
        "token bucket, socket_timeout=1",
        REDIS,
        partial(throttled, "token_bucket", REDIS, CONNECTION_POOL_KWARGS=_SOCKET),
    ),
    Subject(
        "pyrate-limiter",
        "token bucket, socket_timeout=1",
        REDIS,
        partial(pyrate, partial(redis_tokens, **_SOCKET)),
    ),
]
