"""All calls to Redis: one call, one script, wherever the server is, async or blocking.

The flows (single, sentinel, cluster) are written once. They await a wire, which does the waiting:
an AsyncWire shares one connection per node among all calls of its event loop, a BlockingWire has a
few per node and never suspends. A call that was sent is never sent again unless the server said
that it did nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headgate.core.errors import StoreTrouble
from headgate.stores.redis.client import errors as trouble
from headgate.stores.redis.client.async_wire import AsyncRedisTransport
from headgate.stores.redis.client.blocking_pool import BlockingRedisTransport
from headgate.stores.redis.client.cluster import SLOTS, ClusterPort, slot_of
from headgate.stores.redis.client.commands import (
    PackedCommand,
    Part,
    RedisPort,
    RedisTransport,
    Script,
    ScriptCall,
    packed_script_call,
)
from headgate.stores.redis.client.errors import ScriptRefused, Unexpected
from headgate.stores.redis.client.sentinel import SentinelPort
from headgate.stores.redis.client.single import SinglePort
from headgate.stores.redis.client.url import CLUSTER, SENTINEL, RedisTarget, parse
from headgate.transport.ownership import PerLoop, PerProcess

# --------------------------------------------------------------------------------------------------
# The port, async and blocking: each event loop, and each process, has connections of its own.


class RedisPerLoopPort:
    """Passes every call to the port of here and now."""

    def __init__(self, here: Callable[[], RedisPort], slots: int) -> None:
        self._here = here
        self.slots = slots

    async def script(self, script: Script, keys: Sequence[str], args: Sequence[Part]) -> Any:
        return await self._here().script(script, keys, args)

    def again(self, script: Script, parts: PackedCommand) -> Awaitable[Any]:
        return self._here().again(script, parts)

    async def command(self, *parts: Part, key: str | None = None) -> Any:
        return await self._here().command(*parts, key=key)

    async def everywhere(self, *parts: Part) -> list[Any]:
        return await self._here().everywhere(*parts)

    async def scan(self, pattern: str) -> list[str]:
        return await self._here().scan(pattern)

    def slot(self, key: str) -> int:
        return 0 if self.slots == 1 else slot_of(key)

    async def scripts(self, calls: Sequence[ScriptCall]) -> list[Any | StoreTrouble]:
        return await self._here().scripts(calls)


class AsyncRedisPort(RedisPerLoopPort):
    def __init__(
        self,
        make: Callable[[AsyncRedisTransport], RedisPort],
        wire: Callable[[], AsyncRedisTransport],
        slots: int,
    ) -> None:
        def opened() -> tuple[RedisPort, AsyncRedisTransport]:
            made = wire()
            return make(made), made

        self._own = PerLoop(opened, lambda pair: pair[1].abandon(), trouble.store_closed)
        super().__init__(lambda: self._own.here()[0], slots)

    async def close(self) -> None:
        mine = self._own.close()
        if mine is not None:
            await mine[0].close()


class BlockingRedisPort(RedisPerLoopPort):
    def __init__(self, make: Callable[[], RedisPort], slots: int) -> None:
        self._own = PerProcess(make, trouble.store_closed)
        super().__init__(self._own.here, slots)

    async def close(self) -> None:
        port = self._own.close()
        if port is not None:
            await port.close()


__all__ = [
    "PackedCommand",
    "RedisPort",
    "Script",
    "ScriptCall",
    "ScriptRefused",
    "Unexpected",
    "open_port",
    "packed_script_call",
]


def open_port(url: str, *, blocking: bool, timeout_ms: int = 1000) -> RedisPort:
    """The port a URL names; nothing is contacted before the first call."""
    target = parse(url, timeout_ms)
    accesses = dict.fromkeys(target.nodes, target.sentinel_access)
    others = accesses if target.kind == SENTINEL else {}
    slots = SLOTS if target.kind == CLUSTER else 1
    if not blocking:
        return AsyncRedisPort(
            lambda wire: _flow(target, wire),
            lambda: AsyncRedisTransport(target.access, target.timeout_ms, others),
            slots,
        )
    options = (target.access, target.timeout_ms, target.connections, others)
    return BlockingRedisPort(lambda: _flow(target, BlockingRedisTransport(*options)), slots)


def _flow(target: RedisTarget, wire: RedisTransport) -> RedisPort:
    if target.kind == SENTINEL:
        return SentinelPort(wire, target.nodes, target.service)
    if target.kind == CLUSTER:
        return ClusterPort(wire, target.nodes)
    return SinglePort(wire, target.nodes[0])
