"""Calls from threads: a few connections, the one used last is used first; nothing here suspends.

Several calls of one caller go out together, each on a connection of its own, before the first
reply is read: parallel on the network, with no further threads.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from headgate.core.errors import StoreTrouble
from headgate.stores.dynamodb.client import errors as trouble
from headgate.stores.dynamodb.client.http import (
    IDLE_S_MAX,
    DynamoEndpoint,
    IdleCheck,
    Reply,
    reply_reader,
)
from headgate.transport.http1 import BadResponse

RECEIVE_BYTES = 65_536

Result = TypeVar("Result")


class BlockingDynamoConnection:
    """One connection, used by one thread at a time."""

    def __init__(self, plain: socket.socket) -> None:
        self.used_s = time.monotonic()
        self._socket = plain
        self._reader = reply_reader()
        self._watch = IdleCheck(plain.fileno())
        self._sent_ns = 0

    def is_usable(self) -> bool:
        return time.monotonic() - self.used_s < IDLE_S_MAX and not self._watch.is_stale()

    def send(self, packed: bytes, due_s: float) -> None:
        self._set_timeout(due_s)
        self._sent_ns = time.monotonic_ns()
        self._socket.sendall(packed)

    def receive(self, due_s: float) -> Reply:
        """The reply; after any trouble the connection is of no use."""
        while True:
            self._set_timeout(due_s)
            data = self._socket.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError("it closed the connection")
            reply = self._reader.feed(data)
            if reply is not None:
                reply.sent_ns, reply.received_ns = self._sent_ns, time.monotonic_ns()
                self.used_s = reply.received_ns / 1e9
                return reply

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def _set_timeout(self, due_s: float) -> None:
        left_s = due_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(left_s)


class BlockingDynamoPool:
    """Thread-safe, and for one process: a forked child needs a wire of its own."""

    def __init__(self, place: DynamoEndpoint, timeout_ms: int, connections: int) -> None:
        self.now_s = time.monotonic
        self._place = place
        self._timeout_ms = timeout_ms
        self._size = connections
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()  # a semaphore, written in C
        for _ in range(connections):
            self._room.put(None)
        self._free: list[BlockingDynamoConnection] = []
        self._closed = False

    async def ask(self, packed: bytes, due_s: float) -> Reply | StoreTrouble:
        return self._together((packed,), due_s)[0]

    async def ask_all(self, packed: Sequence[bytes], due_s: float) -> list[Reply | StoreTrouble]:
        answers: list[Reply | StoreTrouble] = []
        while len(answers) < len(packed):
            answers += self._together(packed[len(answers) :], due_s)
        return answers

    async def aside(self, work: Callable[[], Result], due_s: float) -> Result:
        return work()

    async def whole(self, flow: Coroutine[Any, Any, Result]) -> Result:
        return await flow

    async def pause(self, pause_s: float) -> None:
        time.sleep(pause_s)  # noqa: ASYNC251  # it is meant to block

    async def close(self) -> None:
        self._closed = True
        self._empty()

    def _together(self, packed: Sequence[bytes], due_s: float) -> list[Reply | StoreTrouble]:
        """Answers to as many, from the first on, as there are connections free; at least one.

        Only the first is waited for: who holds one connection and waits for a second can wait
        for ever on another who does the same.
        """
        if not self._enter(due_s):
            return [trouble.pool_exhausted(self._place, self._size, self._timeout_ms)]
        entered = 1
        while entered < len(packed) and self._enter(0):
            entered += 1
        under_way: deque[BlockingDynamoConnection | StoreTrouble] = deque()
        answers: list[Reply | StoreTrouble] = []
        try:
            for place in range(entered):
                under_way.append(self._send(packed[place], due_s))
            while under_way:
                answers.append(self._receive(under_way.popleft(), due_s))
            return answers
        finally:
            for connection in under_way:  # something like KeyboardInterrupt: their replies are lost
                if isinstance(connection, BlockingDynamoConnection):
                    connection.close()
            for _ in range(entered):
                self._room.put(None)
            if self._closed:
                self._empty()

    def _enter(self, due_s: float) -> bool:
        try:
            self._room.get(timeout=max(0, due_s - time.monotonic()))
        except queue.Empty:
            return False
        return True

    def _send(self, packed: bytes, due_s: float) -> BlockingDynamoConnection | StoreTrouble:
        if self._closed:
            return trouble.store_closed()
        try:
            connection = self._take() or self._dial(due_s)
        except (OSError, UnicodeError) as error:
            return trouble.connect_error(error, self._place, self._timeout_ms)
        try:
            connection.send(packed, due_s)
        except OSError as error:  # not all of it left, so it cannot be read as a request
            connection.close()
            return trouble.send_error(self._place, error)
        except BaseException:
            connection.close()
            raise
        return connection

    def _receive(
        self, connection: BlockingDynamoConnection | StoreTrouble, due_s: float
    ) -> Reply | StoreTrouble:
        if isinstance(connection, StoreTrouble):
            return connection
        try:
            reply = connection.receive(due_s)
        except TimeoutError:
            connection.close()
            return trouble.deadline_exceeded(self._place, self._timeout_ms)
        except OSError as error:
            connection.close()
            return trouble.connection_lost(self._place, error)
        except BadResponse as error:
            connection.close()
            return trouble.connection_lost(self._place, f"it sent what is no reply: {error}")
        except BaseException:
            connection.close()
            raise
        if reply.keep:
            self._free.append(connection)
        else:
            connection.close()
        return reply

    def _take(self) -> BlockingDynamoConnection | None:
        while (connection := self._pop()) is not None:
            if connection.is_usable():
                return connection
            connection.close()
        return None

    def _empty(self) -> None:
        while (connection := self._pop()) is not None:
            connection.close()

    def _pop(self) -> BlockingDynamoConnection | None:
        try:
            return self._free.pop()
        except IndexError:
            return None

    def _dial(self, due_s: float) -> BlockingDynamoConnection:
        place = self._place
        left_s = max(due_s - time.monotonic(), 0.001)
        plain = socket.create_connection((place.host, place.port), left_s)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if place.tls is not None:
                plain = place.tls.wrap_socket(plain, server_hostname=place.host)
        except BaseException:
            plain.close()
            raise
        return BlockingDynamoConnection(plain)
