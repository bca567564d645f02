"""Calls from one event loop: one shared connection per node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any

from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection

from headgate.errors import StoreTrouble
from headgate.port import finished
from headgate.stores.redis import port_trouble as trouble
from headgate.stores.redis.address import Access, Node
from headgate.stores.redis.wire import Parts, connection_options, packed
from headgate.stores.redis.wire_line import Line
from headgate.stores.redis.wire_link import Link


class AsyncWire:
    """Bound to the loop it is made in; `accesses` names nodes that are not entered like others."""

    def __init__(
        self, access: Access, timeout_ms: int, accesses: Mapping[Node, Access] | None = None
    ) -> None:
        self.timeout_s = timeout_ms / 1000
        self.loop = asyncio.get_running_loop()
        self.now_s = self.loop.time
        self._timeout_ms = timeout_ms
        self._access = access
        self._accesses = accesses or {}
        self._links: dict[Node, Link] = {}
        self._lock = asyncio.Lock()
        self._closed = False

    def ask(
        self, node: Node, parts: Parts, due_s: float, *, asking: bool = False
    ) -> Coroutine[Any, Any, Any]:
        link = self._links.get(node) or self._new_link(node)
        return link.ask(packed(parts), due_s, asking)

    async def together(self, flows: Sequence[Coroutine[Any, Any, Any]]) -> list[Any | StoreTrouble]:
        if len(flows) == 1:
            return [await _outcome(flows[0])]
        return await finished(asyncio.gather(*map(_outcome, flows)))

    @contextlib.asynccontextmanager
    async def alone(self, due_s: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout_at(due_s):
                await self._lock.acquire()
        except TimeoutError as error:
            raise trouble.waited(self._timeout_ms) from error
        try:
            yield
        finally:
            self._lock.release()

    async def pause(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)

    def up(self, node: Node) -> bool:
        link = self._links.get(node)
        return link is not None and link.up

    def retire(self, node: Node) -> None:
        link = self._links.get(node)
        if link is not None:
            link.retire()

    async def close(self) -> None:
        self._closed = True
        if self._links:
            closing = [link.close() for link in self._links.values()]
            await finished(asyncio.gather(*closing))

    def abandon(self) -> None:
        """Ends it from another loop or thread."""
        self._closed = True
        for link in self._links.values():
            try:
                self.loop.call_soon_threadsafe(link.abandon)
            except RuntimeError:  # the loop is closed
                link.leave()

    def _new_link(self, node: Node) -> Link:
        if self._closed:
            raise trouble.closed()
        link = self._links[node] = Link(node, self._dial, self.loop, self._timeout_ms)
        return link

    async def _dial(self, node: Node, timeout_s: float) -> Line:
        access = self._accesses.get(node, self._access)
        options = connection_options(node, access, max(timeout_s, 0.001))
        connection = _kind(node, access)(**options)
        try:
            await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return _taken_over(connection)


async def _outcome(flow: Coroutine[Any, Any, Any]) -> Any | StoreTrouble:
    try:
        return await flow
    except StoreTrouble as error:
        return error


def _kind(node: Node, access: Access) -> Any:
    if node.port == 0:
        return UnixDomainSocketConnection
    return Connection if access.tls is None else SSLConnection


def _taken_over(connection: Any) -> Line:
    """The transport under redis-py's connection, which has nothing left to say."""
    writer, reader = connection._writer, connection._reader
    connection._writer = connection._reader = None
    assert not reader._buffer, "bytes nobody asked for came before the first call"
    return Line(writer.transport, writer)
