"""The libraries headgate is measured beside on Redis, async; each may be missing.

Each is set up as its documentation says, where there is a choice the faster way. redis-py's pool
refuses the 101st concurrent call, so its size is raised for everybody who uses it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from bench import peers
from bench.redis_jobs import KEYS, Contestant, Decide
from bench.redis_ours import PLENTY

POOL_MAX = 256
NOTES = (
    f"redis-py's pool is raised to {POOL_MAX} connections for limits, throttled-py and "
    "pyrate-limiter: with its default of 100 they fail at 128 callers",
    "limits + coredis (its default client): coredis 6 must be entered by hand, limits does not",
    "pyrate-limiter: a Limiter per key, because one Limiter lets one async call in at a time; "
    "nothing leaks",
)


@asynccontextmanager
async def limits_on(client: str, strategy: str, url: str) -> AsyncIterator[Decide]:
    from limits import RateLimitItemPerHour
    from limits.aio import storage, strategies

    options: dict[str, Any] = {"max_connections": POOL_MAX} if client == "redispy" else {}
    held = storage.RedisStorage(f"async+{url}", implementation=client, **options)
    async with AsyncExitStack() as stack:
        if hasattr(held.bridge.storage, "__aenter__"):
            await stack.enter_async_context(held.bridge.storage)
        limiter = getattr(strategies, strategy)(held)
        yield partial(limiter.hit, RateLimitItemPerHour(PLENTY))


@asynccontextmanager
async def throttled(url: str) -> AsyncIterator[Decide]:
    from throttled.asyncio import RedisStore, Throttled, per_hour

    store = RedisStore(
        server=url, options={"CONNECTION_POOL_KWARGS": {"max_connections": POOL_MAX}}
    )
    yield Throttled(using="token_bucket", quota=per_hour(PLENTY), store=store).limit
    await store._backend.get_client().connection_pool.disconnect()


@asynccontextmanager
async def pyrate(make: Callable[[Any, str], Awaitable[Any]], url: str) -> AsyncIterator[Decide]:
    from pyrate_limiter import Limiter
    from pyrate_limiter.limiter import SingleBucketFactory
    from redis.asyncio import Redis

    async with Redis.from_url(url, max_connections=POOL_MAX) as client:
        limiters = {}
        for key in KEYS:
            factory = SingleBucketFactory(await make(client, key), schedule_leak=False)
            limiters[key] = Limiter(factory).try_acquire_async
        yield lambda key: limiters[key](key, blocking=False)


async def pyrate_log(client: Any, key: str) -> Any:
    """A window of a second: a longer one would only make its log longer."""
    from pyrate_limiter import Duration, Rate, RedisBucket

    return await RedisBucket.init([Rate(PLENTY, Duration.SECOND)], client, f"pyrate:{key}")


async def pyrate_tokens(client: Any, key: str) -> Any:
    from pyrate_limiter import Duration, Rate, RedisStateStore, StateBucket, TokenBucket

    store = RedisStateStore(client, f"pyrate:{key}")
    return StateBucket([Rate(PLENTY, Duration.HOUR)], algorithm=TokenBucket(), store=store)


FIXED, MOVING = "FixedWindowRateLimiter", "MovingWindowRateLimiter"
WAYS: list[tuple[str, str, str, Callable[[str], Any]]] = [
    ("limits", "redis", "fixed window, redis-py", partial(limits_on, "redispy", FIXED)),
    ("limits", "coredis", "fixed window, coredis", partial(limits_on, "coredis", FIXED)),
    ("limits", "redis", "moving window, redis-py", partial(limits_on, "redispy", MOVING)),
    ("throttled-py", "redis", "token bucket", throttled),
    ("pyrate-limiter", "redis", "RedisBucket", partial(pyrate, pyrate_log)),
    ("pyrate-limiter", "redis", "token bucket", partial(pyrate, pyrate_tokens)),
]


def contestants() -> list[Contestant]:
    """A row for each way whose library and client are installed; a line for those that are not."""
    absent = peers.missing()
    found = []
    for library, client, way, opened in WAYS:
        if library in absent:
            continue
        if importlib.util.find_spec(client) is None:
            print(f"\nleft out: {library} {way}. To compare: pip install {client}")
            continue
        found.append(Contestant(f"{library} {way}", opened, peer=True))
    return found
