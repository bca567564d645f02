"""A few blocking connections to one node. Calls that find none free wait in line, and the first
of them to get one sends for all of them.

Threads that each send and receive contend for the interpreter between the two, and one that is done
takes the next connection before the others wake. So the head of the line sends what waits at once,
and reads all replies: faster with many threads, and nobody starves (figures in ADR 12).
"""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
import time
from collections import deque
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
from headgate.stores.redis.client.errors import ServerError
from headgate.stores.redis.client.url import Access, Node
from headgate.transport.http_pool import idle_check

RECEIVE_BYTES = 65_536
CALLS_MAX = 10_000  # waiting
CALLS_PER_BATCH = 64  # a batch is as late as its slowest call


class BlockingCall:
    """One call of a thread. The last of its replies, or the trouble it met, is its outcome."""

    __slots__ = ("due_s", "is_text", "leads", "outcome", "packed", "replies", "wake")

    def __init__(self, packed: bytes, replies: int, due_s: float, is_text: bool) -> None:
        self.packed = packed
        self.is_text = is_text  # or strings in the reply stay bytes
        self.replies = replies
        self.due_s = due_s
        self.outcome: Any = NOTHING
        self.leads = False  # it has a connection, and serves those who wait
        self.wake: threading.Lock | None = None


class BlockingRedisConnection:
    """One connection, used by one thread at a time."""

    def __init__(self, plain: socket.socket) -> None:
        self._socket = plain
        self._reader = new_reader()
        self._is_stale = idle_check(plain.fileno())

    def is_usable(self) -> bool:
        return not self._is_stale(0)

    def ask_all(self, calls: Sequence[BlockingCall], due_s: float) -> None:
        """Settles them, in their order; after any trouble the connection is of no use."""
        self._set_timeout(due_s)
        self._socket.sendall(b"".join([call.packed for call in calls]))
        for call in calls:
            for _ in range(call.replies):
                while (reply := self._reader.gets(call.is_text)) is NOTHING:
                    self._set_timeout(due_s)
                    data = self._socket.recv(RECEIVE_BYTES)
                    if not data:
                        raise ConnectionResetError("it closed the connection")
                    self._reader.feed(data)
            call.outcome = reply

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
        self._busy = 0
        self._waiting: deque[BlockingCall] = deque()
        self._lock = threading.Lock()
        self._free: list[BlockingRedisConnection] = []
        self._open: set[BlockingRedisConnection] = set()
        self._era = 0  # connections of an era that is over are not used again
        self._closed = False

    @property
    def is_connected(self) -> bool:
        return bool(self._open)

    def ask(self, packed: bytes, replies: int, due_s: float, is_text: bool = True) -> Any:
        call = BlockingCall(packed, replies, due_s, is_text)
        with self._lock:
            if self._busy < self._size:
                self._busy += 1
                call.leads = True
            elif len(self._waiting) >= CALLS_MAX:
                raise trouble.too_many_calls(self._node, CALLS_MAX)
            else:
                call.wake = threading.Lock()
                call.wake.acquire()
                self._waiting.append(call)
        if call.wake is not None:
            self._wait(call, call.wake)
        if call.leads:
            self._lead(call)
        outcome = call.outcome
        if isinstance(outcome, BaseException) and not isinstance(outcome, ServerError):
            raise outcome
        return outcome

    def _wait(self, call: BlockingCall, wake: threading.Lock) -> None:
        """Until the call is settled, or leads."""
        try:
            if wake.acquire(timeout=max(0, call.due_s - time.monotonic())):
                return
            if not self._withdraw(call):
                wake.acquire()  # it was sent a moment ago; whoever did that has a deadline
                return
        except BaseException:
            self._withdraw(call)
            raise
        raise trouble.pool_exhausted(self._node, self._size, self._timeout_ms)

    def _withdraw(self, call: BlockingCall) -> bool:
        """Whether it will not be sent any more."""
        with self._lock:
            if call.leads:
                self._pass_on()
                return True
            try:
                self._waiting.remove(call)
            except ValueError:
                return False
            return True

    def _pass_on(self) -> None:
        """Somebody is done: the next in line has the connection."""
        if not self._waiting:
            self._busy -= 1
            return
        call = self._waiting.popleft()
        call.leads = True
        assert call.wake is not None
        call.wake.release()

    def _lead(self, call: BlockingCall) -> None:
        """Sends this call and those that wait by now, and settles them."""
        calls = [call]
        try:
            if self._waiting:
                with self._lock:
                    while self._waiting and len(calls) < CALLS_PER_BATCH:
                        calls.append(self._waiting.popleft())
            now_s = time.monotonic()
            for one in calls:
                if one.due_s <= now_s:
                    one.outcome = trouble.pool_exhausted(self._node, self._size, self._timeout_ms)
            self._serve([one for one in calls if one.outcome is NOTHING])
        except BaseException as error:
            told = [one for one in calls[1:] if one.outcome is NOTHING]
            why = error
            if not isinstance(error, StoreTrouble):  # this thread is interrupted, not the others
                why = trouble.connection_lost(self._node, error)
            for one in told:
                one.outcome = type(why)(*why.args)
            if call.outcome is NOTHING or not isinstance(error, StoreTrouble):
                raise
        finally:
            with self._lock:
                self._pass_on()
            for one in calls[1:]:
                assert one.wake is not None
                one.wake.release()

    def _serve(self, calls: Sequence[BlockingCall]) -> None:
        if self._closed:
            raise trouble.store_closed()
        if not calls:
            return
        due_s = min(call.due_s for call in calls)
        era = self._era
        line = self._take() or self._dial(due_s)
        try:
            line.ask_all(calls, due_s)
        except BaseException as error:  # its replies are out of step from now on
            self._drop(line)
            if isinstance(error, TimeoutError):
                raise trouble.deadline_exceeded(self._node, self._timeout_ms) from error
            if isinstance(error, Exception):
                raise trouble.connection_lost(self._node, error) from error
            raise
        self._free.append(line)
        if era != self._era:
            self._empty()

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
        is_text = type(parts) is not PackedCommand
        packed = parts.packed if type(parts) is PackedCommand else pack(parts)
        if asking:
            return pool.ask(ASKING + packed, 2, due_s, is_text)
        return pool.ask(packed, 1, due_s, is_text)

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
