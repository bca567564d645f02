"""A Redis backend for tests of its catalog and ledger, empty when it is opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate.core.runtime import run
from headgate.core.store import Capabilities
from headgate.stores.catalog import Backend
from headgate.stores.redis.buckets import RedisStore
from headgate.stores.redis.client.calls import RedisPort, open_port
from headgate.stores.redis.ledger import RedisLedger
from headgate.stores.redis.records import RedisCatalog, RedisExpiringRecords
from tests.stores.redis import servers

NOW_MS = 1_750_000_000_000
CAPABILITIES = Capabilities("redis", "network", "one step", obeys_clock=True, durable=True)


def opened(url: str, *, blocking: bool = True) -> Backend:
    servers.flush(url)
    return backend_of(port_to(url, blocking=blocking))


def backend_of(port: Any) -> Backend:
    parts = RedisStore(port), RedisCatalog(port), RedisLedger(port)
    return Backend(*parts, CAPABILITIES, RedisExpiringRecords(port))


def port_to(url: str, *, blocking: bool = True) -> RedisPort:
    return open_port(url, blocking=blocking, timeout_ms=servers.PATIENCE_MS)


def registered(backend: Backend, name: str = "team") -> str:
    return run(backend.catalog.register_namespace(name, "me", NOW_MS)).id


class Watched:
    """A port that counts calls and does something once, before a script of some name."""

    def __init__(self, port: RedisPort) -> None:
        self.inner: Any = port
        self.calls: list[str] = []
        self.before: dict[str, Callable[[], None]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def script(self, script: Any, keys: Any, args: Any) -> Any:
        act = self.before.pop(script.name, None)
        if act is not None:
            act()
        self.calls.append(script.name)
        return await self.inner.script(script, keys, args)

    async def scripts(self, calls: Any) -> Any:
        self.calls += [call[0].name for call in calls]
        return await self.inner.scripts(calls)

    async def command(self, *parts: Any) -> Any:
        self.calls.append(parts[0])
        return await self.inner.command(*parts)

    async def each_master(self) -> Any:
        self.calls.append("SCAN")
        return await self.inner.each_master()
