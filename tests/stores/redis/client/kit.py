"""Ports in tests: how one is used in either mode, and what came of a call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headgate.core.errors import StoreTrouble
from headgate.core.runtime import run
from headgate.stores.redis.client.calls import RedisPort, open_port
from headgate.stores.redis.client.commands import Script

INCR = Script("incr", "return redis.call('INCR', KEYS[1])")
BOTH_MODES = pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])

Test = Callable[[RedisPort], Coroutine[Any, Any, None]]


def use(url: str, test: Test, *, blocking: bool = False, timeout_ms: int = 5000) -> None:
    """The blocking port never suspends, so the same test runs in both modes."""

    async def main() -> None:
        port = open_port(url, blocking=blocking, timeout_ms=timeout_ms)
        try:
            await test(port)
        finally:
            await port.close()

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main()

    if blocking:
        run(main())
    else:
        asyncio.run(bounded())


def use_in_both_modes(url: str, test: Test, timeout_ms: int = 5000) -> None:
    for blocking in (False, True):
        use(url, test, blocking=blocking, timeout_ms=timeout_ms)


async def outcome(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except StoreTrouble as error:
        return error


def in_threads(count: int, work: Callable[[], object]) -> None:
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda _: work(), range(count)))
