"""HTTP/1.1 from threads: a few connections, the one used last is used first; nothing here suspends.

Several requests of one caller go out together, each on a connection of its own, before the first
response is read: parallel on the network, with no further threads.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from headgate.transport.http1 import BadResponse, Response
from headgate.transport.http_pool import (
    Answer,
    Failure,
    NoResponse,
    PoolOptions,
    ServerAddress,
    idle_check,
)

RECEIVE_BYTES = 65_536

Result = TypeVar("Result")


class BlockingHttpConnection:
    """One connection, used by one thread at a time; after any trouble it is of no use."""

    def __init__(self, plain: socket.socket, options: PoolOptions) -> None:
        self._used_s = time.monotonic()
        self._idle_s_max = options.idle_s_max
        self._socket = plain
        self._reader = options.new_reader()
        self._is_stale = idle_check(plain.fileno())
        self._sent_ns = 0

    def is_usable(self) -> bool:
        return time.monotonic() - self._used_s < self._idle_s_max and not self._is_stale(0)

    def send(self, packed: bytes, due_s: float) -> None:
        self._socket.settimeout(_left_s(due_s))
        self._sent_ns = time.monotonic_ns()
        self._socket.sendall(packed)

    def receive(self, due_s: float) -> Response:
        while True:
            self._socket.settimeout(_left_s(due_s))
            data = self._socket.recv(RECEIVE_BYTES)
            response = self._reader.feed(data) if data else self._end()
            if response is not None:
                response.sent_ns, response.received_ns = self._sent_ns, time.monotonic_ns()
                self._used_s = response.received_ns / 1e9
                return response

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def _end(self) -> Response:
        try:
            return self._reader.end()
        except BadResponse:
            raise ConnectionResetError("it closed the connection") from None


class BlockingHttpPool:
    """Thread-safe, and for one process: a forked child needs a pool of its own. See HttpPool."""

    def __init__(self, options: PoolOptions) -> None:
        self.options = options
        self.now_s = time.monotonic
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()  # a semaphore, written in C
        for _ in range(options.connections):
            self._room.put(None)
        self._free: list[BlockingHttpConnection] = []
        self._closed = False

    async def ask(
        self, packed: bytes, due_s: float, *, reserve_s: float = 0.0, can_abandon: bool = False
    ) -> Answer:
        return self._together((packed,), due_s, due_s - reserve_s)[0]

    async def ask_all(self, packed: Sequence[bytes], due_s: float) -> list[Answer]:
        answers: list[Answer] = []
        while len(answers) < len(packed):
            answers += self._together(packed[len(answers) :], due_s, due_s)
        return answers

    async def run_in_thread(self, work: Callable[[], Result], due_s: float) -> Result:
        return work()  # a thread is where it is called

    async def finish(self, flow: Coroutine[Any, Any, Result]) -> Result:
        return await flow

    async def pause(self, pause_s: float) -> None:
        time.sleep(pause_s)  # noqa: ASYNC251  # it is meant to block

    async def close(self) -> None:
        self.abandon()

    def abandon(self) -> None:
        """Idle connections end now, others when their answer is there."""
        self._closed = True
        while (connection := self._pop()) is not None:
            connection.close()

    def _together(self, packed: Sequence[bytes], due_s: float, send_by_s: float) -> list[Answer]:
        """Answers to as many, from the first on, as there are connections free; at least one.

        Only the first is waited for: who holds one connection and waits for a second can wait
        for ever on another who does the same.
        """
        if not self._enter(send_by_s):
            return [NoResponse(Failure.BUSY)]
        entered = 1
        while entered < len(packed) and self._enter(0):
            entered += 1
        under_way: deque[BlockingHttpConnection | NoResponse] = deque()
        answers: list[Answer] = []
        try:
            for place in range(entered):
                under_way.append(self._send(packed[place], due_s, send_by_s))
            while under_way:
                answers.append(self._receive(under_way.popleft(), due_s))
            return answers
        finally:
            for connection in under_way:  # something like KeyboardInterrupt: their replies are lost
                if isinstance(connection, BlockingHttpConnection):
                    connection.close()
            for _ in range(entered):
                self._room.put(None)
            if self._closed:
                self.abandon()

    def _enter(self, due_s: float) -> bool:
        try:
            self._room.get(timeout=max(0, due_s - time.monotonic()))
        except queue.Empty:
            return False
        return True

    def _send(
        self, packed: bytes, due_s: float, send_by_s: float
    ) -> BlockingHttpConnection | NoResponse:
        if self._closed:
            return NoResponse(Failure.CLOSED)
        try:
            connection = self._take() or BlockingHttpConnection(
                _dial(self.options.address, due_s), self.options
            )
        except (OSError, UnicodeError) as error:
            return NoResponse(Failure.CONNECT, error)
        if time.monotonic() > send_by_s:
            self._free.append(connection)  # fit for the next
            return NoResponse(Failure.BUSY)
        try:
            connection.send(packed, due_s)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):  # not all of it left, so it cannot be read as a request
                return NoResponse(Failure.SEND, error)
            raise
        return connection

    def _receive(self, connection: BlockingHttpConnection | NoResponse, due_s: float) -> Answer:
        if isinstance(connection, NoResponse):
            return connection
        try:
            response = connection.receive(due_s)
        except BaseException as error:
            connection.close()
            if isinstance(error, TimeoutError):
                return NoResponse(Failure.OVERDUE)
            if isinstance(error, BadResponse):
                return NoResponse(Failure.LOST, f"it sent no HTTP response: {error}")
            if isinstance(error, OSError):
                return NoResponse(Failure.LOST, error)
            raise
        if response.keep:
            self._free.append(connection)
        else:
            connection.close()
        return response

    def _take(self) -> BlockingHttpConnection | None:
        while (connection := self._pop()) is not None:
            if connection.is_usable():
                return connection
            connection.close()
        return None

    def _pop(self) -> BlockingHttpConnection | None:
        try:
            return self._free.pop()
        except IndexError:
            return None


def _dial(address: ServerAddress, due_s: float) -> socket.socket:
    """A socket to the first of the host's addresses that accepts, all of them within one time."""
    failed: OSError = OSError("the name has no address")
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, place in found:
        plain = socket.socket(family, kind, protocol)
        try:
            plain.settimeout(_left_s(due_s))
            plain.connect(place)
        except BaseException as error:
            plain.close()
            if not isinstance(error, OSError):
                raise
            failed = error
            continue
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls is None:
                return plain
            plain.settimeout(_left_s(due_s))
            return address.tls.wrap_socket(plain, server_hostname=address.host)
        except BaseException:
            plain.close()
            raise
    raise failed


def _left_s(due_s: float) -> float:
    left_s = due_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
