"""Who may use a connection: an event loop its own, a process its own.

A port made before a fork, or used from a second event loop, works there too: it makes itself new
connections, and leaves those of the others alone.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from headgate.errors import StoreTrouble
from headgate.stores.dynamodb import port_trouble as trouble
from headgate.stores.dynamodb.port_calls import Request
from headgate.stores.dynamodb.port_clock import ServiceClock
from headgate.stores.dynamodb.port_flow import Flow
from headgate.stores.dynamodb.wire import Wire
from headgate.stores.dynamodb.wire_async import AsyncWire

_forks = 0


def _count_fork() -> None:
    global _forks  # noqa: PLW0603  # one fact per process
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class AsyncPort:
    """A flow per event loop, made when first used there: connections belong to one loop."""

    def __init__(
        self,
        clock: ServiceClock,
        make: Callable[[Wire], Flow],
        wire: Callable[[], AsyncWire],
    ) -> None:
        self.now_ms = clock.now_ms
        self._make = make
        self._make_wire = wire
        self._lock = threading.Lock()
        self._flows: dict[asyncio.AbstractEventLoop, tuple[AsyncWire, Flow]] = {}
        self._last: tuple[asyncio.AbstractEventLoop | None, Flow | None] = (None, None)
        self._closed = False

    async def call(self, request: Request) -> dict[str, Any]:
        return await self._here().call(request)

    async def call_all(self, requests: Sequence[Request]) -> list[dict[str, Any] | StoreTrouble]:
        return await self._here().call_all(requests)

    async def close(self) -> None:
        self._closed = True
        self._last = (None, None)
        with self._lock:
            flows, self._flows = self._flows, {}
        mine = flows.pop(asyncio.get_running_loop(), None)
        for wire, _ in flows.values():
            wire.abandon()
        if mine is not None:
            await mine[1].close()

    def _here(self) -> Flow:
        loop = asyncio.get_running_loop()
        known, flow = self._last
        if known is loop and flow is not None:
            return flow
        return self._flow_of(loop)

    def _flow_of(self, loop: asyncio.AbstractEventLoop) -> Flow:
        with self._lock:
            if self._closed:
                raise trouble.closed()
            found = self._flows.get(loop)
            if found is None:
                self._sweep()
                wire = self._make_wire()
                found = self._flows[loop] = (wire, self._make(wire))
            self._last = (loop, found[1])
            return found[1]

    def _sweep(self) -> None:
        """Loops that ended without closing the port leave nothing open behind them."""
        for loop in [loop for loop in self._flows if loop.is_closed()]:
            wire, _ = self._flows.pop(loop)
            wire.abandon()


class BlockingPort:
    """A flow per process; those of the parent stay referenced, and so open for the parent."""

    def __init__(self, clock: ServiceClock, make: Callable[[], Flow]) -> None:
        self.now_ms = clock.now_ms
        self._make = make
        self._flows: dict[int, Flow] = {}
        self._closed = False

    async def call(self, request: Request) -> dict[str, Any]:
        return await self._here().call(request)

    async def call_all(self, requests: Sequence[Request]) -> list[dict[str, Any] | StoreTrouble]:
        return await self._here().call_all(requests)

    async def close(self) -> None:
        self._closed = True
        flow = self._flows.pop(_forks, None)
        if flow is not None:
            await flow.close()

    def _here(self) -> Flow:
        flow = self._flows.get(_forks)
        if flow is not None:
            return flow
        if self._closed:
            raise trouble.closed()
        return self._flows.setdefault(_forks, self._make())
