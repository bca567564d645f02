"""The port in both colours: each event loop, and each process, has connections of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headgate.core.errors import StoreTrouble
from headgate.stores.redis.client import errors as trouble
from headgate.stores.redis.client.async_wire import AsyncWire
from headgate.stores.redis.client.commands import Part, Ready
from headgate.stores.redis.client.commands__port_calls import Port, Script, ScriptCall
from headgate.transport.ownership import PerLoop, PerProcess


class Face:
    """Passes every call to the port of here and now."""

    def __init__(self, here: Callable[[], Port], slot: Callable[[str], int]) -> None:
        self._here = here
        self._slot = slot

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


class AsyncPort(Face):
    def __init__(
        self,
        make: Callable[[AsyncWire], Port],
        wire: Callable[[], AsyncWire],
        slot: Callable[[str], int],
    ) -> None:
        def opened() -> tuple[Port, AsyncWire]:
            made = wire()
            return make(made), made

        self._own = PerLoop(opened, lambda pair: pair[1].abandon(), trouble.closed)
        super().__init__(lambda: self._own.here()[0], slot)

    async def close(self) -> None:
        mine = self._own.close()
        if mine is not None:
            await mine[0].close()


class BlockingPort(Face):
    def __init__(self, make: Callable[[], Port], slot: Callable[[str], int]) -> None:
        self._own = PerProcess(make, trouble.closed)
        super().__init__(self._own.here, slot)

    async def close(self) -> None:
        port = self._own.close()
        if port is not None:
            await port.close()
