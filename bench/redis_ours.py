"""headgate on Redis: the limiter, its store, and the least a client could do in its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import hiredis

from bench.redis_clients import Bare
from bench.redis_jobs import KEYS, RESOURCE, Contestant, Decide
from headgate import Limit, RateLimiter
from headgate.core.decision import Demand
from headgate.core.record import BucketKey, Terms
from headgate.core.runtime import run
from headgate.stores.redis import open_redis
from headgate.stores.redis.buckets import CONSUME, RedisStore

PLENTY = 10**9
LIMITS_MOST = 12
NAMES = ("rpm", "tpm", "images", *(f"more-{place}" for place in range(LIMITS_MOST - 3)))

LEASE_1 = "headgate acquire + lease, 1 limit"
LEASE_3 = "headgate acquire + lease, 3 limits"
STORE_1 = "headgate store.consume, 1 limit"
BARE = "bare hiredis protocol, our EVALSHA"


def limits(count: int) -> list[Limit]:
    return [Limit.per_hour(name, PLENTY) for name in NAMES[:count]]


def demand(key: str, count: int) -> Demand:
    terms = _terms(count)
    return Demand(BucketKey("default", key, RESOURCE), terms, (1000,) * count)


def _terms(count: int, known: dict[int, Terms] = {}) -> Terms:  # noqa: B006  # plans share theirs, too
    if count not in known:
        known[count] = Terms(tuple(limit.spec for limit in limits(count)), 1)
    return known[count]


def calls(url: str, count: int) -> dict[str, tuple[list[str], list[str | int]]]:
    """By key, keys and arguments of a real consume, as a store sends them that has sent one."""
    store = open_redis(url, blocking=True).store
    assert isinstance(store, RedisStore)
    try:
        run(store.consume([demand(KEYS[0], count)], None))
        return {key: store._consume_call([demand(key, count)], None) for key in KEYS}
    finally:
        run(store.close())


@asynccontextmanager
async def lease(count: int, url: str) -> AsyncIterator[Decide]:
    amounts = dict.fromkeys(NAMES[:count], 1)
    async with RateLimiter(url, limits=limits(count)) as limiter:

        async def decide(key: str) -> None:
            async with limiter.acquire(key, RESOURCE, amounts):
                pass

        yield decide


@asynccontextmanager
async def store(count: int, url: str, *, usage: bool = True) -> AsyncIterator[Decide]:
    backend = open_redis(url, blocking=False, usage=usage)
    consume = backend.store.consume
    demands = {key: [demand(key, count)] for key in KEYS}
    yield lambda key: consume(demands[key], None)
    await backend.store.close()


class BareCalls(Bare):
    """The bare protocol with a command of the caller's choice, whose reply stays bytes."""

    def __init__(self) -> None:
        super().__init__()
        self._reader = hiredis.Reader()

    def send(self, parts: tuple[object, ...]) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        self._waiting.append(future)
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(self._pack(parts))
        return future


@asynccontextmanager
async def bare(url: str) -> AsyncIterator[Decide]:
    parts = {
        key: ("EVALSHA", CONSUME.sha, len(names), *names, *args)
        for key, (names, args) in calls(url, 1).items()
    }
    port = int(url.rsplit(":", 1)[1])
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(BareCalls, "127.0.0.1", port)
    yield lambda key: protocol.send(parts[key])
    transport.close()


CONTESTANTS = [
    Contestant(BARE, bare),
    Contestant(STORE_1, partial(store, 1)),
    Contestant(LEASE_1, partial(lease, 1)),
    Contestant(LEASE_3, partial(lease, 3)),
]
