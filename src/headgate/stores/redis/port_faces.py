"""Who may use a connection: an event loop its own, a process its own.

A port made before a fork, or used from a second event loop, works there too: it makes itself new
connections, and leaves those of the others alone.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headgate.errors import StoreTrouble
from headgate.stores.redis import port_trouble as trouble
from headgate.stores.redis.port_calls import Port, Script, ScriptCall
from headgate.stores.redis.wire import Part, Ready
from headgate.stores.redis.wire_async import AsyncWire

_forks = 0


def _count_fork() -> None:
    global _forks  # noqa: PLW0603  # one fact per process
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class AsyncPort:
    """A port per event loop, made when first used there: connections belong to one loop."""

    def __init__(
        self,
        make: Callable[[AsyncWire], Port],
        wire: Callable[[], AsyncWire],
        slot: Callable[[str], int],
    ) -> None:
        self._make = make
        self._make_wire = wire
        self._slot = slot
        self._lock = threading.Lock()
        self._ports: dict[asyncio.AbstractEventLoop, tuple[AsyncWire, Port]] = {}
        self._last: tuple[asyncio.AbstractEventLoop | None, Port | None] = (None, None)
        self._closed = False

    async def script(self, script: Script, keys: Sequence[str], args: Sequence[Part]) -> Any:
        return await self._here().script(script, keys, args)

    def again(self, script: Script, parts: Ready) -> Awaitable[Any]:
        return self._here().again(script, parts)

    async def command(self, *parts: Part, key: str | None = None) -> Any:
        return await self._here().command(*parts, key=key)

    async def everywhere(self, *parts: Part) -> list[Any]:
        return await self._here().everywhere(*parts)

    async def scan(self, pattern: str) -> list[str]:
        return await self._here().scan(pattern)

    def slot(self, key: str) -> int:
        return self._slot(key)

    async def scripts(self, calls: Sequence[ScriptCall]) -> list[Any | StoreTrouble]:
        return await self._here().scripts(calls)

    async def close(self) -> None:
        self._closed = True
        self._last = (None, None)
        with self._lock:
            ports, self._ports = self._ports, {}
        mine = ports.pop(asyncio.get_running_loop(), None)
        for wire, _ in ports.values():
            wire.abandon()
        if mine is not None:
            await mine[1].close()

    def _here(self) -> Port:
        loop = asyncio.get_running_loop()
        known, port = self._last
        if known is loop and port is not None:
            return port
        return self._port_of(loop)

    def _port_of(self, loop: asyncio.AbstractEventLoop) -> Port:
        with self._lock:
            if self._closed:
                raise trouble.closed()
            found = self._ports.get(loop)
            if found is None:
                self._sweep()
                wire = self._make_wire()
                found = self._ports[loop] = (wire, self._make(wire))
            self._last = (loop, found[1])
            return found[1]

    def _sweep(self) -> None:
        """Loops that ended without closing the port leave nothing open behind them."""
        for loop in [loop for loop in self._ports if loop.is_closed()]:
            wire, _ = self._ports.pop(loop)
            wire.abandon()


class BlockingPort:
    """A port per process; those of the parent stay referenced, and so open for the parent."""

    def __init__(self, make: Callable[[], Port], slot: Callable[[str], int]) -> None:
        self._make = make
        self._slot = slot
        self._ports: dict[int, Port] = {}
        self._closed = False

    async def script(self, script: Script, keys: Sequence[str], args: Sequence[Part]) -> Any:
        return await self._here().script(script, keys, args)

    def again(self, script: Script, parts: Ready) -> Awaitable[Any]:
        return self._here().again(script, parts)

    async def command(self, *parts: Part, key: str | None = None) -> Any:
        return await self._here().command(*parts, key=key)

    async def everywhere(self, *parts: Part) -> list[Any]:
        return await self._here().everywhere(*parts)

    async def scan(self, pattern: str) -> list[str]:
        return await self._here().scan(pattern)

    def slot(self, key: str) -> int:
        return self._slot(key)

    async def scripts(self, calls: Sequence[ScriptCall]) -> list[Any | StoreTrouble]:
        return await self._here().scripts(calls)

    async def close(self) -> None:
        self._closed = True
        port = self._ports.pop(_forks, None)
        if port is not None:
            await port.close()

    def _here(self) -> Port:
        port = self._ports.get(_forks)
        if port is not None:
            return port
        if self._closed:
            raise trouble.closed()
        return self._ports.setdefault(_forks, self._make())
