"""Calls from one event loop: a bounded pool of connections, the one used last is used first.

A call that finds no connection free waits in line as bytes ready to be written: whichever
connection becomes free writes them at once, without waking the caller in between.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextvars import Context
from typing import Any, Protocol, TypeVar, cast

from headgate.core.errors import StoreTrouble
from headgate.stores.dynamodb.client import errors as trouble
from headgate.stores.dynamodb.client.http import (
    IDLE_S_MAX,
    DynamoEndpoint,
    IdleCheck,
    Reply,
    reply_reader,
)
from headgate.transport.gates import cancel_later, wait_finished
from headgate.transport.http1 import BadResponse
from headgate.transport.ownership import ReusedBufferProtocol

# --------------------------------------------------------------------------------------------------
# Calls on their way over connections of an event loop, and how who made them is woken.
#
# A future of asyncio wakes its task in the loop's next turn. Here a task is woken by the callback
# that read its answer, which saves a turn for every call. asyncio takes what is awaited here for a
# future all the same: it has the few methods that a task asks of one (see `asyncio.isfuture`).


class Completion:
    """What one task waits for, once. It cannot be cancelled, so a task that is cancelled meanwhile
    learns of it when it is woken."""

    __slots__ = ("_asyncio_future_blocking", "_context", "_loop", "_wakeup", "over")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False
        self._loop = loop
        self._wakeup: Callable[[Completion], object] | None = None
        self.over = False

    def __await__(self) -> Generator[Any, None, None]:
        if not self.over:
            self._asyncio_future_blocking = True
            yield self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(self, wakeup: Callable[[Any], object], *, context: Context) -> None:
        self._wakeup = wakeup
        self._context = context

    def result(self) -> None:
        return None

    def cancel(self, msg: object = None) -> bool:
        return False

    def wake(self, at_once: bool) -> None:
        """`at_once` is for callbacks of the loop: a task cannot be woken by another."""
        self.over = True
        wakeup, self._wakeup = self._wakeup, None
        if wakeup is None:
            return
        if not at_once or asyncio.current_task(self._loop) is not None:
            self._loop.call_soon(wakeup, self, context=self._context)
            return
        try:
            self._context.run(wakeup, self)
        except (SystemExit, KeyboardInterrupt) as ending:
            self._loop.call_soon(_raise, ending)  # the loop's to raise, not the transport's


def _raise(ending: BaseException) -> None:
    raise ending


class PendingCall(Completion):
    """One call: waiting for a connection, then sent, then settled. It can be cancelled until it is
    sent. One that belongs to a batch is not awaited itself, and is sent in any case."""

    __slots__ = ("_why", "batch", "due_s", "outcome", "packed", "sent")

    def __init__(
        self,
        packed: bytes,
        due_s: float,
        loop: asyncio.AbstractEventLoop,
        batch: PendingBatch | None = None,
    ) -> None:
        self._asyncio_future_blocking = False
        self._loop = loop
        self._wakeup = None
        self._why: asyncio.CancelledError | None = None
        self.over = False
        self.packed = packed
        self.due_s = due_s
        self.batch = batch
        self.sent = False
        self.outcome: Reply | StoreTrouble | None = None

    def settle(self, outcome: Reply | StoreTrouble, *, at_once: bool = False) -> None:
        self.outcome = outcome
        if self.batch is not None:
            self.batch.on_settled(at_once)
        elif not self.over:
            self.wake(at_once)

    def result(self) -> None:
        why, self._why = self._why, None
        if why is not None:
            try:
                raise why
            finally:
                del why  # it would keep itself, by its traceback

    def cancel(self, msg: object = None) -> bool:
        if self.sent or self.over:
            return False
        self._why = asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg)
        self.wake(at_once=False)
        return True


class PendingBatch(Completion):
    """Several calls that are waited for together."""

    __slots__ = ("_left",)

    def __init__(self, loop: asyncio.AbstractEventLoop, calls: int) -> None:
        super().__init__(loop)
        self._left = calls
        self.over = not calls

    def on_settled(self, at_once: bool) -> None:
        self._left -= 1
        if not self._left:
            self.wake(at_once)


# --------------------------------------------------------------------------------------------------
# One connection of an event loop, and the call it carries.

GRACE_S = 0.001


class ConnectionOwner(Protocol):
    def on_idle(self, connection: AsyncDynamoConnection) -> None:
        """The line is free for another call."""

    def on_closed(self, connection: AsyncDynamoConnection) -> None:
        """The line is no more."""


class AsyncDynamoConnection(ReusedBufferProtocol):
    """Carries one call at a time; a timer of its own watches the call's deadline.

    The timer is not moved with every call: when it goes off too early for the call of that moment
    it is set again, which costs one timer per time limit instead of one per call.
    """

    def __init__(
        self,
        owner: ConnectionOwner,
        place: DynamoEndpoint,
        timeout_ms: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__()
        self._owner = owner
        self._place = place
        self._timeout_ms = timeout_ms
        self._loop = loop
        self._reader = reply_reader()
        self._call: PendingCall | None = None
        self._transport: asyncio.Transport | None = None
        self._watch: IdleCheck | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._suspect: PendingCall | None = None
        self._used_s = 0.0
        self._sent_ns = 0
        self.ended = loop.create_future()

    @property
    def busy(self) -> PendingCall | None:
        return self._call

    def is_usable(self) -> bool:
        """Whether it can be used: not old, and not given up by the other side."""
        transport, watch = self._transport, self._watch
        return (
            transport is not None
            and not transport.is_closing()
            and time.monotonic() - self._used_s < IDLE_S_MAX
            and (watch is None or not watch.is_stale())
        )

    def send(self, call: PendingCall) -> None:
        assert self._call is None, "a connection carries one call at a time"
        assert self._transport is not None
        self._call = call
        call.sent = True
        self._sent_ns = time.monotonic_ns()
        self._transport.write(call.packed)
        timer = self._timer
        if timer is not None and timer.when() > call.due_s:  # a second attempt has less time
            timer.cancel()
            timer = None
        if timer is None:
            self._timer = self._loop.call_at(call.due_s, self._look)

    def hang_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._used_s = time.monotonic()
        plain = transport.get_extra_info("socket")
        if plain is not None:
            self._watch = IdleCheck(plain.fileno())

    def received(self, data: bytes) -> None:
        if self._call is None:
            self.hang_up()  # nobody asked: kept, these bytes would begin the reply to the next call
            return
        try:
            reply = self._reader.feed(data)
        except BadResponse as error:
            self._fail(trouble.connection_lost(self._place, f"it sent what is no reply: {error}"))
            return
        if reply is None:
            return
        call, self._call = self._call, None
        self._used_s = time.monotonic()
        reply.sent_ns, reply.received_ns = self._sent_ns, time.monotonic_ns()
        if reply.keep:
            self._owner.on_idle(self)
        else:
            self.hang_up()
        call.settle(reply, at_once=True)  # last: who is woken may use this very line

    def connection_lost(self, error: Exception | None) -> None:
        self._watch = None
        self._fail(trouble.connection_lost(self._place, error or "it closed the connection"))
        self._owner.on_closed(self)
        if not self.ended.done():
            self.ended.set_result(None)

    def _fail(self, why: StoreTrouble) -> None:
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
            self._fail(trouble.deadline_exceeded(self._place, self._timeout_ms))


CALLS_WAITING_MAX = 10_000

Result = TypeVar("Result")


class AsyncDynamoPool:
    """Bound to the loop it is made in."""

    def __init__(self, place: DynamoEndpoint, timeout_ms: int, connections: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.now_s = self.loop.time
        self._place = place
        self._timeout_ms = timeout_ms
        self._size = connections
        self._free: list[AsyncDynamoConnection] = []
        self._open: set[AsyncDynamoConnection] = set()
        self._dialing: set[asyncio.Task[None]] = set()
        self._waiting: deque[PendingCall] = deque()
        self._aside: dict[Callable[[], Any], asyncio.Future[Any]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def ask(self, packed: bytes, due_s: float) -> Reply | StoreTrouble:
        call = PendingCall(packed, due_s, self.loop)
        self._submit(call)
        try:
            await call
        except asyncio.CancelledError as why:
            if not call.sent:
                self._withdraw(call)
                raise
            cancel_later(why)
        assert call.outcome is not None
        return call.outcome

    async def ask_all(self, packed: Sequence[bytes], due_s: float) -> list[Reply | StoreTrouble]:
        batch = PendingBatch(self.loop, len(packed))
        calls = [PendingCall(each, due_s, self.loop, batch) for each in packed]
        for call in calls:
            self._submit(call)
        try:
            await batch
        except asyncio.CancelledError as why:
            cancel_later(why)
        return [call.outcome for call in calls if call.outcome is not None]

    async def aside(self, work: Callable[[], Result], due_s: float) -> Result:
        running = self._aside.get(work)
        if running is None:
            running = self._aside[work] = self.loop.run_in_executor(None, work)
            running.add_done_callback(lambda _: self._aside.pop(work))
        async with asyncio.timeout_at(due_s):
            result: Result = await asyncio.shield(running)
            return result

    async def whole(self, flow: Coroutine[Any, Any, Result]) -> Result:
        return await wait_finished(self.loop.create_task(flow))

    async def pause(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)

    async def close(self) -> None:
        """Waits for what was sent, which its deadline bounds; refuses the rest."""
        self._closed = True
        for task in self._dialing:
            task.cancel()
        self._refuse(trouble.store_closed())
        while busy := [
            connection.ended for connection in self._open if connection.busy is not None
        ]:
            await wait_finished(
                asyncio.ensure_future(asyncio.wait(busy))
            )  # an idle line is hung up now
        ended = [connection.ended for connection in self._open]
        self._hang_up()
        if ended:
            await asyncio.wait(ended, timeout=1)

    def abandon(self) -> None:
        """Ends it from another loop or thread."""
        self._closed = True
        try:
            self.loop.call_soon_threadsafe(self._hang_up)
        except RuntimeError:  # the loop is closed, and so are its connections
            self._open.clear()

    def on_idle(self, connection: AsyncDynamoConnection) -> None:
        """A line has nothing to carry: the next in line, if any, goes at once."""
        while self._waiting:
            call = self._waiting.popleft()
            if not call.over:
                connection.send(call)
                return
        if self._closed:
            connection.hang_up()
        else:
            self._free.append(connection)

    def on_closed(self, connection: AsyncDynamoConnection) -> None:
        self._open.discard(connection)
        if connection in self._free:
            self._free.remove(connection)
        if self._waiting:
            self._dial_if_room()

    def _submit(self, call: PendingCall) -> None:
        while self._free:
            connection = self._free.pop()
            if connection.is_usable():
                connection.send(call)
                return
            connection.hang_up()
            self._open.discard(connection)
        if self._closed:
            call.settle(trouble.store_closed())
        elif len(self._waiting) >= CALLS_WAITING_MAX:
            call.settle(trouble.too_many_calls(self._place, CALLS_WAITING_MAX))
        else:
            self._wait(call)

    def _wait(self, call: PendingCall) -> None:
        if self._waiting and call.due_s < self._waiting[-1].due_s:
            self._waiting.appendleft(call)  # a second attempt, older than the line it joins
        else:
            self._waiting.append(call)
        if self._timer is not None and self._timer.when() > call.due_s:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self.loop.call_at(call.due_s, self._look)
        self._dial_if_room()

    def _withdraw(self, call: PendingCall) -> None:
        if call in self._waiting:
            self._waiting.remove(call)

    def _look(self) -> None:
        """Deadlines are in order, so the head of the line is the first that can be overdue."""
        self._timer = None
        now_s = self.loop.time()
        while self._waiting and self._waiting[0].due_s <= now_s:
            self._waiting.popleft().settle(
                trouble.pool_exhausted(self._place, self._size, self._timeout_ms)
                if self._open
                else trouble.connect_error(TimeoutError(), self._place, self._timeout_ms)
            )
        if self._waiting:
            self._timer = self.loop.call_at(self._waiting[0].due_s, self._look)

    def _dial_if_room(self) -> None:
        room = self._size - len(self._open) - len(self._dialing)
        if room > 0 and len(self._dialing) < len(self._waiting) and not self._closed:
            task = self.loop.create_task(self._dial(self._waiting[-1].due_s))
            self._dialing.add(task)
            task.add_done_callback(self._dialing.discard)

    async def _dial(self, due_s: float) -> None:
        place = self._place
        connection = AsyncDynamoConnection(self, place, self._timeout_ms, self.loop)
        try:
            async with asyncio.timeout_at(due_s):
                await self.loop.create_connection(
                    lambda: connection, place.host, place.port, ssl=place.tls
                )
        except (OSError, UnicodeError) as error:
            connection.hang_up()
            self._dialing.discard(cast("asyncio.Task[None]", asyncio.current_task()))
            if not self._open:  # who is refused may ask again at once, and is to dial then
                self._refuse(trouble.connect_error(error, place, self._timeout_ms))
            return
        except BaseException:
            connection.hang_up()
            raise
        self._open.add(connection)
        self.on_idle(connection)

    def _refuse(self, why: StoreTrouble) -> None:
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            call.settle(type(why)(*why.args))

    def _hang_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._refuse(trouble.store_closed())
        for connection in list(self._open):
            connection.hang_up()
