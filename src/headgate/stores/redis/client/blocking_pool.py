"""A few blocking connections to one node; a call that finds none free waits for one."""

from __future__ import annotations

import contextlib
import queue
import select
import socket
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any

from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

from headgate.core.errors import StoreTrouble
from headgate.core.runtime import run
from headgate.stores.redis.client import errors as trouble
from headgate.stores.redis.client.commands import (
    NOTHING,
    PackedCommand,
    Parts,
    connection_options,
    new_reader,
    pack,
)
from headgate.stores.redis.client.url import Access, Node

RECEIVE_BYTES = 65_536


class BlockingRedisConnection:
    """One connection, used by one thread at a time."""

    def __init__(self, plain: socket.socket) -> None:
        self._socket = plain
        self._reader = new_reader()
        self._poll: select.poll | None = None
        if hasattr(select, "poll"):  # Windows has none; elsewhere select fails past 1024 files
            self._poll = select.poll()
            self._poll.register(plain, select.POLLIN)

    def is_usable(self) -> bool:
        """Whether it can be used: one that says something unasked has been closed."""
        if self._poll is None:
            return not select.select((self._socket,), (), (), 0)[0]
        return not self._poll.poll(0)

    def ask(self, packed: bytes, replies: int, due_s: float) -> Any:
        """The last of so many replies; after any trouble the connection is of no use."""
        self._set_timeout(due_s)
        self._socket.sendall(packed)
        reply: Any = None
        for _ in range(replies):
            while (reply := self._reader.gets()) is NOTHING:
                self._receive(due_s)
        return reply

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def _receive(self, due_s: float) -> None:
        self._set_timeout(due_s)
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionResetError("it closed the connection")
        self._reader.feed(data)

    def _set_timeout(self, due_s: float) -> None:
        left_s = due_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(left_s)


class BlockingRedisPool:
    """At most `size` connections to a node; the one used last is used first."""

    def __init__(self, node: Node, access: Access, size: int, timeout_ms: int) -> None:
        self._node = node
        self._access = access
        self._size = size
        self._timeout_ms = timeout_ms
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()  # a semaphore, written in C
        for _ in range(size):
            self._room.put(None)
        self._free: list[BlockingRedisConnection] = []
        self._open: set[BlockingRedisConnection] = set()
        self._era = 0  # connections of an era that is over are not used again
        self._closed = False

    @property
    def is_connected(self) -> bool:
        return bool(self._open)

    def ask(self, packed: bytes, replies: int, due_s: float) -> Any:
        try:
            self._room.get(timeout=max(0, due_s - time.monotonic()))
        except queue.Empty:
            raise trouble.pool_exhausted(self._node, self._size, self._timeout_ms) from None
        try:
            if self._closed:
                raise trouble.store_closed()
            era = self._era
            line = self._take() or self._dial(due_s)
            reply = self._asked(line, packed, replies, due_s)
            self._free.append(line)
            if era != self._era:
                self._empty()
            return reply
        finally:
            self._room.put(None)

    def retire(self) -> None:
        """What is in use now is closed after its call."""
        self._era += 1
        self._empty()

    def close(self) -> None:
        self._closed = True
        self.retire()

    def _take(self) -> BlockingRedisConnection | None:
        while (line := self._pop()) is not None:
            if line.is_usable():
                return line
            self._drop(line)
        return None

    def _empty(self) -> None:
        while (line := self._pop()) is not None:
            self._drop(line)

    def _pop(self) -> BlockingRedisConnection | None:
        try:
            return self._free.pop()
        except IndexError:
            return None

    def _drop(self, line: BlockingRedisConnection) -> None:
        self._open.discard(line)
        line.close()

    def _dial(self, due_s: float) -> BlockingRedisConnection:
        left_s = max(due_s - time.monotonic(), 0.001)
        options = connection_options(self._node, self._access, left_s)
        connection = _kind(self._node, self._access)(**options)
        try:
            connection.connect()
        except Exception as error:
            connection.disconnect()
            raise trouble.connect_error(error, self._node, self._timeout_ms) from error
        plain, connection._sock = connection._sock, None
        line = BlockingRedisConnection(plain)
        self._open.add(line)
        return line

    def _asked(
        self, line: BlockingRedisConnection, packed: bytes, replies: int, due_s: float
    ) -> Any:
        answered = False
        try:
            reply = line.ask(packed, replies, due_s)
            answered = True
        except TimeoutError as error:
            raise trouble.deadline_exceeded(self._node, self._timeout_ms) from error
        except Exception as error:
            raise trouble.connection_lost(self._node, error) from error
        finally:
            if not answered:  # its replies are out of step from now on
                self._drop(line)
        return reply


def _kind(node: Node, access: Access) -> Any:
    if node.port == 0:
        return UnixDomainSocketConnection
    return Connection if access.tls is None else SSLConnection


# --------------------------------------------------------------------------------------------------
# Calls from threads: a pool of connections per node; nothing here suspends.

ASKING = pack(("ASKING",))


class BlockingRedisTransport:
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
        self._pools: dict[Node, BlockingRedisPool] = {}
        self._lock = threading.Lock()
        self._closed = False

    async def ask(self, node: Node, parts: Parts, due_s: float, *, asking: bool = False) -> Any:
        pool = self._pools.get(node) or self._new_pool(node)
        packed = parts.packed if type(parts) is PackedCommand else pack(parts)
        if asking:
            return pool.ask(ASKING + packed, 2, due_s)
        return pool.ask(packed, 1, due_s)

    async def together(self, flows: Sequence[Coroutine[Any, Any, Any]]) -> list[Any | StoreTrouble]:
        return [_outcome(flow) for flow in flows]

    @contextlib.asynccontextmanager
    async def alone(self, due_s: float) -> AsyncIterator[None]:
        if not self._lock.acquire(timeout=max(0, due_s - time.monotonic())):
            raise trouble.turn_timeout(self._timeout_ms)
        try:
            yield
        finally:
            self._lock.release()

    async def pause(self, pause_s: float) -> None:
        time.sleep(pause_s)  # noqa: ASYNC251  # it is meant to block

    def is_connected(self, node: Node) -> bool:
        pool = self._pools.get(node)
        return pool is not None and pool.is_connected

    def retire(self, node: Node) -> None:
        pool = self._pools.get(node)
        if pool is not None:
            pool.retire()

    async def close(self) -> None:
        self.abandon()

    def abandon(self) -> None:
        self._closed = True
        for pool in list(self._pools.values()):
            pool.close()

    def _new_pool(self, node: Node) -> BlockingRedisPool:
        if self._closed:
            raise trouble.store_closed()
        access = self._accesses.get(node, self._access)
        pool = BlockingRedisPool(node, access, self._connections, self._timeout_ms)
        return self._pools.setdefault(node, pool)


def _outcome(flow: Coroutine[Any, Any, Any]) -> Any | StoreTrouble:
    try:
        return run(flow)
    except StoreTrouble as error:
        return error
