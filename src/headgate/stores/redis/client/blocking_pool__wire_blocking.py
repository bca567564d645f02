"""Calls from threads: a pool of connections per node; nothing here suspends."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any

from headgate.core.errors import StoreTrouble
from headgate.core.runtime import run
from headgate.stores.redis.client import errors as trouble
from headgate.stores.redis.client.blocking_pool import Pool
from headgate.stores.redis.client.commands import Parts, packed
from headgate.stores.redis.client.url import Access, Node

ASKING = packed(("ASKING",))


class BlockingWire:
    """Thread-safe, and for one process: a forked child needs a wire of its own."""

    def __init__(
        self,
        access: Access,
        timeout_ms: int,
        connections: int,
        accesses: Mapping[Node, Access] | None = None,
    ) -> None:
        self.timeout_s = timeout_ms / 1000
        self.now_s = time.monotonic
        self._timeout_ms = timeout_ms
        self._connections = connections
        self._access = access
        self._accesses = accesses or {}
        self._pools: dict[Node, Pool] = {}
        self._lock = threading.Lock()
        self._closed = False

    async def ask(self, node: Node, parts: Parts, due_s: float, *, asking: bool = False) -> Any:
        pool = self._pools.get(node) or self._new_pool(node)
        if asking:
            return pool.ask(ASKING + packed(parts), 2, due_s)
        return pool.ask(packed(parts), 1, due_s)

    async def together(self, flows: Sequence[Coroutine[Any, Any, Any]]) -> list[Any | StoreTrouble]:
        return [_outcome(flow) for flow in flows]

    @contextlib.asynccontextmanager
    async def alone(self, due_s: float) -> AsyncIterator[None]:
        if not self._lock.acquire(timeout=max(0, due_s - time.monotonic())):
            raise trouble.waited(self._timeout_ms)
        try:
            yield
        finally:
            self._lock.release()

    async def pause(self, pause_s: float) -> None:
        time.sleep(pause_s)  # noqa: ASYNC251  # this colour blocks

    def up(self, node: Node) -> bool:
        pool = self._pools.get(node)
        return pool is not None and pool.up

    def retire(self, node: Node) -> None:
        pool = self._pools.get(node)
        if pool is not None:
            pool.retire()

    async def close(self) -> None:
        self._closed = True
        for pool in list(self._pools.values()):
            pool.close()

    def _new_pool(self, node: Node) -> Pool:
        if self._closed:
            raise trouble.closed()
        access = self._accesses.get(node, self._access)
        pool = Pool(node, access, self._connections, self._timeout_ms)
        return self._pools.setdefault(node, pool)


def _outcome(flow: Coroutine[Any, Any, Any]) -> Any | StoreTrouble:
    try:
        return run(flow)
    except StoreTrouble as error:
        return error
