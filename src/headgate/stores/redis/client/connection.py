"""Calls from one event loop: one connection to each node carries them all at once.

Calls of one turn of the loop are written together, or by the dozen if they are many. Replies come
in order, so a queue of waiters is all the bookkeeping there is. A timer per call would cost more
than the call (ADR 12). All calls have the same time limit, so the head of the queue is always the
first to be overdue, and one timer that watches it is enough. When it is overdue, replies can no
longer be matched with calls: the connection is given up, and every call that was sent is told that
its outcome is unknown. Calls that were not sent yet wait for the next connection. No call is ever
sent twice.

Deadlines are times of a LoopClock, which stands still while the loop is too busy to listen.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from operator import itemgetter
from typing import Any

from redis.asyncio import connection as redis_py

from headgate.core.errors import StoreTrouble
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
from headgate.transport.gates import ReusedBufferProtocol, cancel_later, wait_finished

# --------------------------------------------------------------------------------------------------
# An open connection, the calls on it, and how each of them ends.

Future = asyncio.Future[Any]
TICKS_PER_TIMEOUT = 10

# Who waits, until when, what is sent, and whether strings in the reply are text.
Entry = tuple[Future, float, bytes, bool]
_bytes_of = itemgetter(2)


class LoopClock:
    """The time in which the event loop was free to hear from a server.

    Deadlines are there to notice a silent server. A loop that spends three seconds starting ten
    thousand tasks hears nothing in the meantime, and that is not the server's fault: by
    `loop.time()` all their calls would be overdue before the first connection is dialled. So time
    is counted in ticks, and a tick that comes late because the loop was busy counts as one tick.
    It ticks only while somebody asks for the time: whoever waits asks again when the time is up.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        self.loop = loop
        self._tick_s = timeout_s / TICKS_PER_TIMEOUT
        self._late_s = 1.5 * self._tick_s  # a timer is always a little late
        self._elapsed_s = 0.0
        self._ticked_s = 0.0
        self._unasked = 0
        self._timer: asyncio.TimerHandle | None = None

    def now_s(self) -> float:
        self._unasked = 0
        if self._timer is None:
            self._start()
        passed_s = self.loop.time() - self._ticked_s  # min() would be 0.1 us, 2 % of a call
        return self._elapsed_s + (passed_s if passed_s < self._late_s else self._late_s)

    def _start(self) -> None:
        self._ticked_s = self.loop.time()
        self._timer = self.loop.call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        self._elapsed_s += min(self.loop.time() - self._ticked_s, self._late_s)
        self._unasked += 1
        if self._unasked > 2 * TICKS_PER_TIMEOUT:
            self._timer = None
        else:
            self._start()


async def answer_then_cancel(answer: Future, why: asyncio.CancelledError) -> Any:
    """The answer, then the cancellation that came meanwhile, at the task's next await."""
    try:
        return await wait_finished(answer)
    finally:
        cancel_later(why)


CALLS_MAX = 10_000
EARLY_CALLS = 16  # do not wait for the turn's end: the server works while this side goes on
GRACE_S = 0.001

# A writer is kept for as long as its transport is used: it closes that when it is collected.
Dial = Callable[[Node], Awaitable[asyncio.StreamWriter]]


class RedisConnection(ReusedBufferProtocol):
    """The calls to one node, and the connection that carries them."""

    def __init__(self, node: Node, dial: Dial, clock: LoopClock, timeout_ms: int) -> None:
        super().__init__()
        self.node = node
        self._dial = dial
        self._clock = clock
        self._loop = clock.loop
        self._timeout_ms = timeout_ms
        self._unsent: list[Entry] = []
        self._sent: deque[Entry] = deque()
        self._line: asyncio.StreamWriter | None = None
        self._reader = new_reader()
        self._dialing: asyncio.Task[None] | None = None
        self._gone: Future | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._suspect: Entry | None = None
        self._last_due_s = 0.0
        self._flush_planned = self._paused = self._retired = self._closed = False
        self._answers: dict[Future, Any] = {}  # for callers that were cancelled a moment ago

    @property
    def is_connected(self) -> bool:
        return self._line is not None and not self._retired

    async def ask(
        self, packed: bytes, due_s: float, asking: bool = False, is_text: bool = True
    ) -> Any:
        """The reply; once sent, a cancelled caller still waits for it and is cancelled later."""
        if self._closed:
            raise trouble.store_closed()
        if len(self._unsent) + len(self._sent) >= CALLS_MAX:
            raise trouble.too_many_calls(self.node, CALLS_MAX)
        future: Future = self._loop.create_future()
        if due_s < self._last_due_s:  # a second attempt, older than the line it joins
            self._expire(future, due_s)
        else:
            self._last_due_s = due_s
        if asking:  # it works on the very next command, so the two stay together
            unheard: Future = self._loop.create_future()  # nobody waits for its reply
            unheard.set_result(None)
            self._unsent.append((unheard, self._last_due_s, ASKING, True))
        self._unsent.append((future, self._last_due_s, packed, is_text))
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush)
        elif len(self._unsent) >= EARLY_CALLS and self._line is not None:
            self._write(self._line)
        try:
            return await future
        except asyncio.CancelledError as cancelled:
            answer = self._answer_of(future)
            if answer is None:
                raise  # never sent, nothing to wait for
            why = cancelled
        return await answer_then_cancel(answer, why)

    def retire(self) -> None:
        """What was sent is still answered; what comes next goes over a new connection."""
        self._retired = self._line is not None

    async def close(self) -> None:
        """Waits for what was sent, which its deadline bounds; refuses the rest."""
        self._closed = True
        self._fail_unsent(trouble.store_closed())
        if self._dialing is not None:
            self._dialing.cancel()
        waiting = [entry[0] for entry in self._sent if not entry[0].done()]
        if waiting:
            await asyncio.wait(waiting)
        if self._line is not None:
            self._gone = self._loop.create_future()
            self._line.transport.abort()
            await asyncio.wait((self._gone,), timeout=1)

    def abandon(self) -> None:
        """Ends it now, from a callback of its loop."""
        self._closed = True
        self._fail_unsent(trouble.store_closed())
        if self._line is not None:
            self._line.transport.abort()

    def leave(self) -> None:
        """Ends it after its loop was closed, when nothing can be awaited or called back."""
        line, self._line = self._line, None
        if line is not None:
            with contextlib.suppress(OSError, TypeError):  # uvloop has closed it already
                line.transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def buffer_updated(self, nbytes: int) -> None:
        reader, sent = self._reader, self._sent
        try:
            reader.feed(self._reused_buffer, 0, nbytes)  # type: ignore[arg-type]
            while sent:
                future, _, _, is_text = sent[0]
                if (reply := reader.gets(is_text)) is NOTHING:
                    break
                sent.popleft()
                if not future.done():
                    future.set_result(reply)
                elif future.cancelled():
                    self._answers[future] = reply
            else:
                if reader.has_data():
                    raise ValueError("more than was asked")
        except Exception as error:  # noqa: BLE001  # whatever it is, the order of replies is lost
            self._hang_up(f"it sent what is no reply: {error!r}")
        if self._retired and not sent:
            self._hang_up("retired")

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._line = None
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
        self._fail_sent(error or "it closed the connection")
        if self._unsent:
            self._flush()

    def _flush(self) -> None:
        self._flush_planned = False
        unsent = self._unsent
        if not unsent:
            return
        line = self._line
        if line is None:
            if self._dialing is None:
                self._dialing = self._loop.create_task(self._connect(unsent[0][1]))
            return
        if self._retired and not self._sent:
            self._hang_up("retired")
        else:
            self._write(line)

    def _write(self, line: asyncio.StreamWriter) -> None:
        if self._paused or self._retired or line.transport.is_closing():
            return
        unsent, self._unsent = self._unsent, []
        self._sent.extend(unsent)
        line.transport.write(b"".join(map(_bytes_of, unsent)))
        if self._timer is None:
            self._watch()

    async def _connect(self, due_s: float) -> None:
        try:
            async with asyncio.timeout(due_s - self._clock.now_s()):
                line = await self._dial(self.node)
        except asyncio.CancelledError:
            self._fail_unsent(trouble.connect_error(ConnectionError("cancelled"), self.node, 0))
            raise
        except Exception as error:  # noqa: BLE001  # every failure to connect is the same news
            self._dialing = None
            why = trouble.connect_error(error, self.node, self._timeout_ms)
            late_s = self._clock.now_s() if isinstance(error, TimeoutError) else math.inf
            self._fail_unsent(why, late_s)
            self._flush()  # who has time left, also since this loop was busy, has another attempt
            return
        finally:
            self._dialing = None
        if self._closed:
            line.transport.abort()
            return
        self._line, self._reader = line, new_reader()
        self._paused = self._retired = False
        line.transport.set_protocol(self)
        self._flush()

    def _watch(self) -> None:
        if self._sent:
            left_s = self._sent[0][1] - self._clock.now_s()
            self._timer = self._loop.call_later(max(0, left_s), self._look)

    def _look(self) -> None:
        """Deadlines are in order, so the head of the queue is the first that can be overdue."""
        self._timer = None
        if self._sent and self._sent[0][1] <= self._clock.now_s():
            if self._suspect is not self._sent[0]:
                # A loop that was busy may have the answer unread: it reads once more, then.
                self._suspect = self._sent[0]
                self._timer = self._loop.call_later(GRACE_S, self._look)
                return
            self._fail_sent(None)
            self._hang_up("overdue")
        self._suspect = None
        self._watch()

    def _expire(self, future: Future, due_s: float) -> None:
        if future.done():
            return
        left_s = due_s - self._clock.now_s()
        if left_s > 0:
            self._loop.call_later(left_s, self._expire, future, due_s)
            return
        why = trouble.not_sent_in_time if self._withdraw(future) else trouble.deadline_exceeded
        future.set_exception(why(self.node, self._timeout_ms))

    def _hang_up(self, reason: object) -> None:
        """Gives the connection up now; what is sent from here on goes over another."""
        line, self._line = self._line, None
        self._retired = False
        if line is not None:
            line.transport.set_protocol(asyncio.Protocol())  # what it still says is not for us
            line.transport.abort()
        self._fail_sent(reason)
        if self._unsent:
            self._flush()

    def _fail_sent(self, reason: object | None) -> None:
        entries, self._sent = self._sent, deque()
        for future, *_ in entries:
            why = (
                trouble.deadline_exceeded(self.node, self._timeout_ms)
                if reason is None
                else trouble.connection_lost(self.node, reason)
            )
            if not future.done():
                future.set_exception(why)
            elif future.cancelled():
                self._answers[future] = why

    def _fail_unsent(self, why: StoreTrouble, late_s: float = math.inf) -> None:
        """Those that were due by then, or all."""
        entries = self._unsent
        self._unsent = [entry for entry in entries if entry[1] > late_s]
        for future, due_s, *_ in entries:
            if due_s <= late_s and not future.done():
                future.set_exception(type(why)(*why.args))

    def _answer_of(self, future: Future) -> Future | None:
        """Where the answer of a cancelled caller's call arrives; None if it was never sent."""
        if not future.cancelled():
            return future
        answer: Future = self._loop.create_future()
        if future in self._answers:
            known = self._answers.pop(future)
            if isinstance(known, StoreTrouble):
                answer.set_exception(known)
            else:
                answer.set_result(known)
            return answer
        for place, entry in enumerate(self._sent):
            if entry[0] is future:
                self._sent[place] = (answer, *entry[1:])
                return answer
        self._withdraw(future)
        return None

    def _withdraw(self, future: Future) -> bool:
        """Whether the call was still here to be kept back."""
        unsent = self._unsent
        for place, entry in enumerate(unsent):
            if entry[0] is future:
                asked = place > 0 and unsent[place - 1][2] is ASKING
                del unsent[place - asked : place + 1]
                return True
        return False


# --------------------------------------------------------------------------------------------------
# All nodes: a connection to each, made when it is first asked.


class AsyncRedisTransport(RedisTransport):
    """Bound to the loop it is made in."""

    def __init__(self, access: Access, timeout_ms: int, accesses: Mapping[Node, Access]) -> None:
        super().__init__(access, timeout_ms, accesses)
        self.loop = asyncio.get_running_loop()
        self._clock = LoopClock(self.loop, self.timeout_s)
        self.now_s = self._clock.now_s
        self._turn: asyncio.Future[None] | None = None  # of the one who is alone

    def ask(
        self, node: Node, parts: Parts, due_s: float, *, asking: bool = False
    ) -> Coroutine[Any, Any, Any]:
        link: RedisConnection = self._nodes.get(node) or self._connections(node)
        if type(parts) is PackedCommand:
            return link.ask(parts.packed, due_s, asking, False)
        return link.ask(pack(parts), due_s, asking)

    async def together(self, flows: Sequence[Coroutine[Any, Any, Any]]) -> list[Any | StoreTrouble]:
        if len(flows) == 1:
            return [await outcome_of(flows[0])]
        return await wait_finished(asyncio.gather(*map(outcome_of, flows)))

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

    async def close(self) -> None:
        self._closed = True
        if self._nodes:
            closing = [link.close() for link in self._nodes.values()]
            await wait_finished(asyncio.gather(*closing))

    def abandon(self) -> None:
        self._closed = True
        for link in self._nodes.values():
            try:
                self.loop.call_soon_threadsafe(link.abandon)
            except RuntimeError:  # the loop is closed
                link.leave()

    def _connect(self, node: Node) -> RedisConnection:
        return RedisConnection(node, self._dial, self._clock, self._timeout_ms)

    async def _dial(self, node: Node) -> asyncio.StreamWriter:
        connection = self._new_connection(node, redis_py, None)  # the caller ends it in time
        try:
            await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        # redis-py has nothing left to say on it.
        reader: Any = connection._reader
        writer: asyncio.StreamWriter = connection._writer
        connection._writer = connection._reader = None
        assert not reader._buffer, "bytes nobody asked for came before the first call"
        return writer
