"""A Redis backend for tests of its catalog and ledger, empty when it is opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate.core.runtime import run
from headgate.core.store import Backend, Capabilities
from headgate.stores.redis.buckets import RedisStore
from headgate.stores.redis.client.calls import RedisPort, open_port
from headgate.stores.redis.ledger import RedisLedger
from headgate.stores.redis.records import RedisCatalog
from tests.stores.redis import servers

NOW_MS = 1_750_000_000_000
CAPABILITIES = Capabilities("redis", "network", "one step", obeys_clock=True, durable=True)


def opened(url: str, *, blocking: bool = True, port: RedisPort | None = None) -> Backend:
    servers.flush(url)
    found = port or port_to(url, blocking=blocking)
    return Backend(RedisStore(found), RedisCatalog(found), RedisLedger(found), CAPABILITIES)


def port_to(url: str, *, blocking: bool = True) -> Any:
    port = open_port(url, blocking=blocking, timeout_ms=5000)
    return port if hasattr(port, "scan") else Scanning(port, url, blocking=blocking)


class Scanning:
    """Waits for Port.scan: until a port has it, each node of the URL is walked on its own."""

    def __init__(self, port: RedisPort, url: str, *, blocking: bool) -> None:
        nodes = url.split("://")[1].split("/", maxsplit=1)[0].split(",")
        self.inner: Any = port
        self.nodes = [
            open_port(f"redis://{node}", blocking=blocking, timeout_ms=5000) for node in nodes
        ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def scan(self, pattern: str, count: int = 1000) -> list[str]:
        found: list[str] = []
        for node in self.nodes:
            cursor = None
            while cursor != "0":
                reply = await node.command("SCAN", cursor or "0", "MATCH", pattern, "COUNT", count)
                cursor, names = reply
                found += names
        return found

    async def close(self) -> None:
        for node in self.nodes:
            await node.close()
        await self.inner.close()


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

    async def command(self, *parts: Any, key: str | None = None) -> Any:
        self.calls.append(parts[0])
        return await self.inner.command(*parts, key=key)

    async def scan(self, pattern: str) -> Any:
        self.calls.append("SCAN")
        return await self.inner.scan(pattern)
