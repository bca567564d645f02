"""HTTP/1.1 from one event loop: a bounded pool of connections, the one used last is used first.

A request that finds no connection free waits in line as bytes ready to be written: whichever
connection becomes free writes them at once, without waking the caller in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextvars import Context
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar, cast

from headgate.transport.gates import ReusedBufferProtocol, cancel_later, wait_finished
from headgate.transport.http1 import BadResponse
from headgate.transport.http_pool import (
    Answer,
    Failure,
    NoResponse,
    PoolOptions,
    ServerAddress,
    idle_check,
)

# --------------------------------------------------------------------------------------------------
# Requests on their way, and how the tasks that made them are woken.
#
# A future of asyncio wakes its task in the loop's next turn. Here a task is woken by the callback
# that read its answer, which saves a turn for every request. asyncio takes what is awaited here for
# a future all the same: it has the few methods and attributes that a task asks of one (see
# `asyncio.isfuture`).


@dataclass(slots=True, eq=False, repr=False)  # a request has secrets, and tasks show this
class PendingCall:
    """One request: waiting for a connection, then on its `connection`, then settled.

    A task that is cancelled while it awaits this hears of it at once where the request may still be
    withdrawn (`can_withdraw`, until it is sent) or its answer given up (`can_abandon`, afterwards).
    Else it learns of it when it is woken.
    """

    packed: bytes
    due_s: float
    send_by_s: float
    _loop: asyncio.AbstractEventLoop
    can_withdraw: bool = True
    can_abandon: bool = False
    connection: AsyncHttpConnection | None = None
    outcome: Answer | None = None
    over: bool = False
    _wakeup: Callable[[PendingCall], object] | None = None
    _context: Context | None = None
    _why: asyncio.CancelledError | None = None
    _asyncio_future_blocking: bool = False

    def __await__(self) -> Generator[Any, None, None]:
        if not self.over:
            self._asyncio_future_blocking = True
            yield self

    def add_done_callback(self, wakeup: Callable[[Any], object], *, context: Context) -> None:
        self._wakeup = wakeup
        self._context = context

    def result(self) -> None:
        why, self._why = self._why, None
        if why is not None:
            try:
                raise why
            finally:
                del why  # it would keep itself, by its traceback

    def cancel(self, msg: object = None) -> bool:
        may_end = self.can_withdraw if self.connection is None else self.can_abandon
        if self.over or not may_end:
            return False
        self._why = asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg)
        self.settle(None)
        if self.connection is not None:
            self.connection.hang_up()
        return True

    def settle(self, outcome: Answer | None, *, at_once: bool = False) -> None:
        """Wakes who waits. `at_once` is for callbacks of the loop: a task cannot be woken by
        another."""
        self.outcome = outcome
        wakeup, self._wakeup = self._wakeup, None
        self.over = True
        if wakeup is None:
            return
        if not at_once or asyncio.current_task(self._loop) is not None:
            self._loop.call_soon(wakeup, self, context=self._context)
            return
        try:
            cast(Context, self._context).run(wakeup, self)
        except (SystemExit, KeyboardInterrupt) as ending:
            self._loop.call_soon(_raise, ending)  # the loop's to raise, not the transport's


def _raise(ending: BaseException) -> None:
    raise ending


# --------------------------------------------------------------------------------------------------
# One connection of an event loop, and the request it carries.

GRACE_S = 0.001


class AsyncHttpConnection(ReusedBufferProtocol):
    """Carries one request at a time and watches its deadline, without a timer per request.

    Most requests are answered in a millisecond and may take two seconds. A timer set and cancelled
    for each (`asyncio.timeout`) costs about 10 us, a sixth of a whole call, and leaves its entry in
    the loop's heap. So a connection has one timer: it is left alone while requests come and go,
    and when it goes off too early for the request of that moment it is set again for that one.
    This costs one timer per time limit. Only a request that is due before the timer has it moved.
    """

    def __init__(self, pool: AsyncHttpPool) -> None:
        super().__init__()
        self._pool = pool
        self._loop = pool.loop
        self._idle_s_max = pool.options.idle_s_max
        self._reader = pool.options.new_reader()
        self._call: PendingCall | None = None
        self._transport: asyncio.Transport | None = None
        self._is_stale: Callable[[int], object] = bool
        self._timer: asyncio.TimerHandle | None = None
        self._suspect: PendingCall | None = None
        self._used_s = 0.0
        self._sent_ns = 0
        self.ended = self._loop.create_future()

    @property
    def is_busy(self) -> bool:
        return self._call is not None

    def send(self, call: PendingCall, *, was_idle: bool = False) -> bool:
        """False where it `was_idle` and is of no further use: old, or given up by the other side.

        One that was made a moment ago may have TLS session tickets unread, and is not asked."""
        transport = self._transport
        assert transport is not None
        if was_idle and (
            transport.is_closing()
            or time.monotonic() - self._used_s >= self._idle_s_max
            or self._is_stale(0)
        ):
            return False
        assert self._call is None, "a connection carries one request at a time"
        self._call = call
        call.connection = self
        self._sent_ns = time.monotonic_ns()
        transport.write(call.packed)
        timer = self._timer
        if timer is not None and timer.when() > call.due_s:  # a second attempt has less time
            timer.cancel()
            timer = None
        if timer is None:
            self._timer = self._loop.call_at(call.due_s, self._look)
        return True

    def hang_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            with contextlib.suppress(RuntimeError):  # its event loop is gone, and it with it
                self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._used_s = time.monotonic()
        plain = transport.get_extra_info("socket")
        if plain is not None:
            self._is_stale = idle_check(plain.fileno())

    def buffer_updated(self, nbytes: int) -> None:
        call = self._call
        if call is None:
            self.hang_up()  # nobody asked: kept, these bytes would begin the reply to the next call
            return
        try:
            response = self._reader.feed(bytes(self._reused_buffer[:nbytes]))
        except BadResponse as error:
            self._fail(NoResponse(Failure.LOST, f"it sent no HTTP response: {error}"))
            return
        if response is None:
            return
        self._call = None
        self._used_s = time.monotonic()
        response.sent_ns, response.received_ns = self._sent_ns, time.monotonic_ns()
        if response.keep:
            self._pool.on_idle(self)
        else:
            self.hang_up()
        call.settle(response, at_once=True)  # last: who is woken may use this very connection

    def eof_received(self) -> None:
        """The transport ends itself after this; where a body ends with it, that is the answer."""
        call = self._call
        if call is not None:
            with contextlib.suppress(BadResponse):
                response = self._reader.end()
                self._call = None
                self.hang_up()
                call.settle(response, at_once=True)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_stale = bool
        self._fail(NoResponse(Failure.LOST, error or "it closed the connection"))
        self._pool.on_closed(self)
        if not self.ended.done():
            self.ended.set_result(None)

    def _fail(self, why: NoResponse) -> None:
        call, self._call = self._call, None
        self.hang_up()
        if call is not None:
            call.settle(why)

    def _look(self) -> None:
        self._timer = None
        call = self._call
        if call is None:
            return
        if self._loop.time() < call.due_s:
            self._timer = self._loop.call_at(call.due_s, self._look)
        elif self._suspect is not call:
            # A loop that was busy may have the answer unread: it reads once more, then.
            self._suspect = call
            self._timer = self._loop.call_later(GRACE_S, self._look)
        else:
            self._fail(NoResponse(Failure.OVERDUE))


# --------------------------------------------------------------------------------------------------
# The pool.

CALLS_WAITING_MAX = 10_000
EYEBALLS_DELAY_S = 0.25  # of several addresses: when the next is tried beside the first

Result = TypeVar("Result")


class AsyncHttpPool:
    """Bound to the loop it is made in; see HttpPool."""

    def __init__(self, options: PoolOptions) -> None:
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.now_s = self.loop.time
        self._free: list[AsyncHttpConnection] = []
        self._open: set[AsyncHttpConnection] = set()
        self._dialing: set[asyncio.Task[None]] = set()
        self._waiting: deque[PendingCall] = deque()  # in the order in which they must be sent
        self._in_threads: dict[Callable[[], Any], asyncio.Future[Any]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def ask(
        self, packed: bytes, due_s: float, *, reserve_s: float = 0.0, can_abandon: bool = False
    ) -> Answer:
        call = PendingCall(packed, due_s, due_s - reserve_s, self.loop, can_abandon=can_abandon)
        self._submit(call)
        try:
            await call
        except asyncio.CancelledError as why:
            if call.connection is None:
                self._withdraw(call)
                raise
            if can_abandon:
                raise
            cancel_later(why)
        assert call.outcome is not None
        return call.outcome

    async def ask_all(self, packed: Sequence[bytes], due_s: float) -> list[Answer]:
        calls = [PendingCall(one, due_s, due_s, self.loop, can_withdraw=False) for one in packed]
        for call in calls:
            self._submit(call)
        cancelled: asyncio.CancelledError | None = None
        for call in reversed(calls):  # mostly the last is answered last, and the task woken once
            try:
                await call
            except asyncio.CancelledError as why:
                cancelled = why
        if cancelled is not None:
            cancel_later(cancelled)
        return [call.outcome for call in calls if call.outcome is not None]

    async def run_in_thread(self, work: Callable[[], Result], due_s: float) -> Result:
        running = self._in_threads.get(work)
        if running is None:
            running = self._in_threads[work] = self.loop.run_in_executor(None, work)
            running.add_done_callback(lambda _: self._in_threads.pop(work))
        async with asyncio.timeout_at(due_s):
            result: Result = await asyncio.shield(running)
            return result

    async def finish(self, flow: Coroutine[Any, Any, Result]) -> Result:
        return await wait_finished(self.loop.create_task(flow))

    async def pause(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)

    async def close(self) -> None:
        self._closed = True
        for task in self._dialing:
            task.cancel()
        self._refuse(NoResponse(Failure.CLOSED))
        while busy := [connection.ended for connection in self._open if connection.is_busy]:
            # One that becomes idle is hung up at once.
            await wait_finished(asyncio.ensure_future(asyncio.wait(busy)))
        ended = [connection.ended for connection in self._open]
        self._hang_up()
        if ended:
            await asyncio.wait(ended, timeout=1)

    def abandon(self) -> None:
        self._closed = True
        try:
            self.loop.call_soon_threadsafe(self._hang_up)
        except RuntimeError:  # the loop is closed, and so are its connections
            self._open.clear()

    def on_idle(self, connection: AsyncHttpConnection) -> None:
        """A connection has nothing to carry: the next in line, if any, is sent at once."""
        while self._waiting:
            call = self._waiting.popleft()
            if call.over:
                continue
            if call.send_by_s <= self.loop.time():
                call.settle(NoResponse(Failure.BUSY))
                continue
            connection.send(call)
            return
        if self._closed:
            connection.hang_up()
        else:
            self._free.append(connection)

    def on_closed(self, connection: AsyncHttpConnection) -> None:
        self._open.discard(connection)
        if connection in self._free:
            self._free.remove(connection)
        if self._waiting:
            self._dial_if_room()

    def _submit(self, call: PendingCall) -> None:
        while self._free:
            connection = self._free.pop()
            if connection.send(call, was_idle=True):
                return
            connection.hang_up()
            self._open.discard(connection)
        if self._closed:
            call.settle(NoResponse(Failure.CLOSED))
        elif len(self._waiting) >= CALLS_WAITING_MAX:
            call.settle(NoResponse(Failure.CROWDED, CALLS_WAITING_MAX))
        else:
            self._wait(call)

    def _wait(self, call: PendingCall) -> None:
        if self._waiting and call.send_by_s < self._waiting[-1].send_by_s:
            insort(self._waiting, call, key=attrgetter("send_by_s"))  # e.g. a second attempt
        else:
            self._waiting.append(call)
        if self._timer is not None and self._timer.when() > call.send_by_s:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self.loop.call_at(call.send_by_s, self._look)
        self._dial_if_room()

    def _withdraw(self, call: PendingCall) -> None:
        if call in self._waiting:
            self._waiting.remove(call)

    def _look(self) -> None:
        """The head of the line is the first that can be overdue."""
        self._timer = None
        now_s = self.loop.time()
        while self._waiting and self._waiting[0].send_by_s <= now_s:
            late = Failure.BUSY if self._open else Failure.CONNECT
            self._waiting.popleft().settle(NoResponse(late, TimeoutError()))
        if self._waiting:
            self._timer = self.loop.call_at(self._waiting[0].send_by_s, self._look)

    def _dial_if_room(self) -> None:
        """Dials for the line as a whole: whoever is next in it when a connection is there gets it,
        so that nobody waits for a connection of their own while another becomes free."""
        room = self.options.connections - len(self._open) - len(self._dialing)
        if room > 0 and len(self._dialing) < len(self._waiting) and not self._closed:
            task = self.loop.create_task(self._dial(self._waiting[-1].due_s))
            self._dialing.add(task)
            task.add_done_callback(self._dialing.discard)

    async def _dial(self, due_s: float) -> None:
        address = self.options.address
        connection = AsyncHttpConnection(self)
        try:
            async with asyncio.timeout_at(due_s):
                await self._connect(connection, address)
        except (OSError, UnicodeError) as error:
            connection.hang_up()
            self._dialing.discard(cast("asyncio.Task[None]", asyncio.current_task()))
            if not self._open:  # who is refused may ask again at once, and is to dial then
                self._refuse(NoResponse(Failure.CONNECT, error))
            return
        except BaseException:
            connection.hang_up()
            raise
        self._open.add(connection)
        self.on_idle(connection)

    async def _connect(self, connection: AsyncHttpConnection, address: ServerAddress) -> None:
        """Addresses are tried side by side only where there are several: asyncio's way to do that
        leaves a socket open if it is cancelled at a bad moment."""
        found = await self.loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        delay_s = EYEBALLS_DELAY_S if len(found) > 1 else None
        host = address.host
        if delay_s is None and found[0][0] is socket.AF_INET:
            host = found[0][4][0]  # so that it is not looked up again
        await self.loop.create_connection(
            lambda: connection, host, address.port, ssl=address.tls,
            server_hostname=None if address.tls is None else address.host,
            happy_eyeballs_delay=delay_s,
        )  # fmt: skip

    def _refuse(self, why: NoResponse) -> None:
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            call.settle(why)

    def _hang_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._refuse(NoResponse(Failure.CLOSED))
        for connection in list(self._open):
            connection.hang_up()
