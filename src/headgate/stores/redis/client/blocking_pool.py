"""A few blocking connections to one node; a call that finds none free waits for one."""

from __future__ import annotations

import contextlib
import functools
import queue
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any

from redis import connection as redis_py

from headgate.core.errors import StoreTrouble
from headgate.core.runtime import run
from headgate.stores.redis.client import errors as trouble
from headgate.stores.redis.client.commands import (
    ASKING,
    NOTHING,
    PackedCommand,
    Parts,
    RedisTransport,
    new_reader,
    outcome_of,
    pack,
)
from headgate.stores.redis.client.url import Access, Node
from headgate.transport.http_pool import idle_check

RECEIVE_BYTES = 65_536


class BlockingRedisConnection:
    """One connection, used by one thread at a time."""

    def __init__(self, plain: socket.socket) -> None:
        self._socket = plain
        self._reader = new_reader()
        self._is_stale = idle_check(plain.fileno())

    def is_usable(self) -> bool:
        return not self._is_stale(0)

    def ask(self, packed: bytes, replies: int, due_s: float) -> Any:
        """The last of so many replies; after any trouble the connection is of no use."""
        self._set_timeout(due_s)
        self._socket.sendall(packed)
        reply: Any = None
        for _ in range(replies):
            while (reply := self._reader.gets()) is NOTHING:
                self._set_timeout(due_s)
                data = self._socket.recv(RECEIVE_BYTES)
                if not data:
                    raise ConnectionResetError("it closed the connection")
                self._reader.feed(data)
        return reply

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def _set_timeout(self, due_s: float) -> None:
        left_s = due_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(left_s)


class BlockingRedisPool:
    """At most `size` connections to a node; the one used last is used first."""

    def __init__(
        self, node: Node, new_connection: Callable[[float], Any], size: int, timeout_ms: int
    ) -> None:
        self._node = node
        self._new_connection = new_connection
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
            reply = self._ask_on(line, packed, replies, due_s)
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
        connection = self._new_connection(max(due_s - time.monotonic(), 0.001))
        try:
            connection.connect()
        except Exception as error:
            connection.disconnect()
            raise trouble.connect_error(error, self._node, self._timeout_ms) from error
        plain, connection._sock = connection._sock, None
        line = BlockingRedisConnection(plain)
        self._open.add(line)
        return line

    def _ask_on(
        self, line: BlockingRedisConnection, packed: bytes, replies: int, due_s: float
    ) -> Any:
        try:
            return line.ask(packed, replies, due_s)
        except BaseException as error:  # its replies are out of step from now on
            self._drop(line)
            if isinstance(error, TimeoutError):
                raise trouble.deadline_exceeded(self._node, self._timeout_ms) from error
            if isinstance(error, Exception):
                raise trouble.connection_lost(self._node, error) from error
            raise


# --------------------------------------------------------------------------------------------------
# Calls from threads: a pool of connections per node; nothing here suspends.


class BlockingRedisTransport(RedisTransport):
    """Thread-safe, and for one process: a forked child needs one of its own."""

    def __init__(
        self, access: Access, timeout_ms: int, accesses: Mapping[Node, Access], connections: int
    ) -> None:
        super().__init__(access, timeout_ms, accesses)
        self.now_s = time.monotonic
        self._size = connections
        self._lock = threading.Lock()

    async def ask(self, node: Node, parts: Parts, due_s: float, *, asking: bool = False) -> Any:
        pool: BlockingRedisPool = self._nodes.get(node) or self._connections(node)
        packed = parts.packed if type(parts) is PackedCommand else pack(parts)
        if asking:
            return pool.ask(ASKING + packed, 2, due_s)
        return pool.ask(packed, 1, due_s)

    async def together(self, flows: Sequence[Coroutine[Any, Any, Any]]) -> list[Any | StoreTrouble]:
        return [run(outcome_of(flow)) for flow in flows]

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

    async def close(self) -> None:
        self.abandon()

    def abandon(self) -> None:
        self._closed = True
        for pool in list(self._nodes.values()):
            pool.close()

    def _connect(self, node: Node) -> BlockingRedisPool:
        new_connection = functools.partial(self._new_connection, node, redis_py)
        return BlockingRedisPool(node, new_connection, self._size, self._timeout_ms)
