"""Calls from one event loop: one shared connection per node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any

from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection

from headgate.core.errors import StoreTrouble
from headgate.stores.redis.client import errors as trouble
from headgate.stores.redis.client.commands import Parts, connection_options, packed
from headgate.stores.redis.client.connection import LoopClock, OpenTransport, RedisConnection
from headgate.stores.redis.client.url import Access, Node
from headgate.transport.gates import wait_finished


class AsyncRedisTransport:
    """Bound to the loop it is made in; `accesses` names nodes that are not entered like others."""

    def __init__(
        self, access: Access, timeout_ms: int, accesses: Mapping[Node, Access] | None = None
    ) -> None:
        self.timeout_s = timeout_ms / 1000
        self.loop = asyncio.get_running_loop()
        self._clock = LoopClock(self.loop, self.timeout_s)
        self.now_s = self._clock.now_s
        self._timeout_ms = timeout_ms
        self._access = access
        self._accesses = accesses or {}
        self._links: dict[Node, RedisConnection] = {}
        self._turn: asyncio.Future[None] | None = None  # of the one who is alone
        self._closed = False

    def ask(
        self, node: Node, parts: Parts, due_s: float, *, asking: bool = False
    ) -> Coroutine[Any, Any, Any]:
        link = self._links.get(node) or self._new_link(node)
        return link.ask(packed(parts), due_s, asking)

    async def together(self, flows: Sequence[Coroutine[Any, Any, Any]]) -> list[Any | StoreTrouble]:
        if len(flows) == 1:
            return [await _outcome(flows[0])]
        return await wait_finished(asyncio.gather(*map(_outcome, flows)))

    @contextlib.asynccontextmanager
    async def alone(self, due_s: float) -> AsyncIterator[None]:
        # Not a lock, which would wake one waiter per turn of the loop: most of them only want to
        # see what the one before them found, so all wake together and pass one after the other.
        while self._turn is not None:
            left_s = due_s - self.now_s()
            if left_s <= 0:
                raise trouble.turn_timeout(self._timeout_ms)
            await asyncio.wait((self._turn,), timeout=left_s)
        turn = self._turn = self.loop.create_future()
        try:
            yield
        finally:
            self._turn = None
            turn.set_result(None)

    async def pause(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)

    def is_connected(self, node: Node) -> bool:
        link = self._links.get(node)
        return link is not None and link.is_connected

    def retire(self, node: Node) -> None:
        link = self._links.get(node)
        if link is not None:
            link.retire()

    async def close(self) -> None:
        self._closed = True
        if self._links:
            closing = [link.close() for link in self._links.values()]
            await wait_finished(asyncio.gather(*closing))

    def abandon(self) -> None:
        """Ends it from another loop or thread."""
        self._closed = True
        for link in self._links.values():
            try:
                self.loop.call_soon_threadsafe(link.abandon)
            except RuntimeError:  # the loop is closed
                link.leave()

    def _new_link(self, node: Node) -> RedisConnection:
        if self._closed:
            raise trouble.store_closed()
        link = self._links[node] = RedisConnection(node, self._dial, self._clock, self._timeout_ms)
        return link

    async def _dial(self, node: Node) -> OpenTransport:
        access = self._accesses.get(node, self._access)
        options = connection_options(node, access, None)  # the caller ends it in time
        connection = _kind(node, access)(**options)
        try:
            await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return _take_over(connection)


async def _outcome(flow: Coroutine[Any, Any, Any]) -> Any | StoreTrouble:
    try:
        return await flow
    except StoreTrouble as error:
        return error


def _kind(node: Node, access: Access) -> Any:
    if node.port == 0:
        return UnixDomainSocketConnection
    return Connection if access.tls is None else SSLConnection


def _take_over(connection: Any) -> OpenTransport:
    """The transport under redis-py's connection, which has nothing left to say."""
    writer, reader = connection._writer, connection._reader
    connection._writer = connection._reader = None
    assert not reader._buffer, "bytes nobody asked for came before the first call"
    return OpenTransport(writer.transport, writer)
