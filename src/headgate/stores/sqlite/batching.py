"""The line of calls that tasks have sent: one thread serves it, and writes what it finds together.

A commit costs more than a decision, and waking a thread more than both. So the writes that wait at
the same time are done in one transaction, in their order. If anything goes wrong with one of them,
the transaction is undone and each is done on its own: what is common is fast, what is not is exact.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from headgate.core.errors import Contended, Unreachable
from headgate.transport.gates import SentWork, wait_finished

TOGETHER_MAX = 64
WAITING_MAX = 10_000

Result = TypeVar("Result")
Job = Callable[[], Any]


class QueuedCall(NamedTuple):
    """What one task waits for. `alone` does the work in a transaction of its own; `part` is what it
    does inside one that others share, None where it must not share. At `until_s` it is given up."""

    alone: Job
    part: Callable[[Any], Any] | None
    future: SentWork[Any]
    until_s: float


# Does the parts of several calls in one transaction before a time; None where it came to nothing.
RunTogether = Callable[[list[Callable[[Any], Any]], float], list[Any] | None]


class CallQueue:
    """Calls in their order; the line is bounded. A call that was sent runs to its end.

    The calls of one turn of an event loop are sent together at its end: the thread is woken once,
    and not while the loop is busy with the requests it will wake it for next.
    """

    def __init__(self, together: RunTogether) -> None:
        self._together = together
        self._calls: queue.SimpleQueue[list[QueuedCall] | None] = queue.SimpleQueue()
        self._turns: dict[asyncio.AbstractEventLoop, list[QueuedCall]] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._waiting = 0
        self._ended = False

    async def do(
        self, alone: Callable[[], Result], part: Callable[[Any], Any] | None, until_s: float
    ) -> Result:
        if self._ended:
            raise store_closed()
        loop = asyncio.get_running_loop()
        turn = self._turns.get(loop)
        if turn is None:
            turn = self._begin_turn(loop)
        if self._waiting + len(turn) >= WAITING_MAX:
            raise Contended(f"{WAITING_MAX} calls wait for this store already; slow down")
        future: SentWork[Result] = SentWork(loop=loop)
        turn.append(QueuedCall(alone, part, future, until_s))
        return await wait_finished(future)

    def dismiss(self) -> None:
        """What is in the line is still served; nothing joins it any more."""
        with self._lock:
            self._ended = True
            self._calls.put(None)

    def _begin_turn(self, loop: asyncio.AbstractEventLoop) -> list[QueuedCall]:
        for other in [one for one in list(self._turns) if one.is_closed()]:
            self._turns.pop(other, None)
        turn = self._turns[loop] = []
        loop.call_soon(self._send, loop)
        return turn

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        calls = self._turns.pop(loop)
        with self._lock:
            if not self._ended:
                self._waiting += len(calls)
                self._calls.put(calls)
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._serve, name="headgate-sqlite", daemon=True
                    )
                    self._thread.start()
                return
        _settle([(call, None, store_closed()) for call in calls])

    def _serve(self) -> None:
        waiting: deque[QueuedCall] = deque()
        ended = False
        while waiting or not ended:
            if not ended:
                ended = self._drain(waiting)
            if waiting:
                self._serve_some(waiting)

    def _drain(self, waiting: deque[QueuedCall]) -> bool:
        """Takes over what was sent, and waits for it if there is nothing else to do; whether that
        was the end."""
        while len(waiting) < TOGETHER_MAX:
            try:
                turn = self._calls.get(block=not waiting)
            except queue.Empty:
                return False
            if turn is None:
                return True
            waiting.extend(turn)
        return False

    def _serve_some(self, waiting: deque[QueuedCall]) -> None:
        """The first call, and those after it that may share its transaction."""
        calls = [waiting.popleft()]
        while waiting and len(calls) < TOGETHER_MAX and _may_share(calls[0], waiting[0]):
            calls.append(waiting.popleft())
        done = self._run_calls(calls)
        with self._lock:
            self._waiting -= len(calls)
        _deliver(done)

    def _run_calls(
        self, calls: list[QueuedCall]
    ) -> list[tuple[QueuedCall, Any, BaseException | None]]:
        if len(calls) > 1:
            parts = [call.part for call in calls if call.part is not None]
            results = self._together(parts, calls[0].until_s)
            if results is not None:
                return [(call, result, None) for call, result in zip(calls, results, strict=True)]
        return [_outcome(call) for call in calls]


def store_closed() -> Unreachable:
    return Unreachable("this SQLite store is closed; open it again to use it")


def _outcome(call: QueuedCall) -> tuple[QueuedCall, Any, BaseException | None]:
    try:
        return call, call.alone(), None
    except BaseException as error:  # noqa: BLE001  # it is the caller's, whatever it is
        return call, None, error


def _may_share(one: QueuedCall, other: QueuedCall) -> bool:
    return one.part is not None and other.part is not None


def _deliver(done: list[tuple[QueuedCall, Any, BaseException | None]]) -> None:
    """Wakes each event loop once for all its calls."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[QueuedCall, Any, BaseException | None]]] = {}
    for one in done:
        loops.setdefault(one[0].future.get_loop(), []).append(one)
    for loop, ours in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop is gone, and its tasks with it
            loop.call_soon_threadsafe(_settle, ours)


def _settle(done: list[tuple[QueuedCall, Any, BaseException | None]]) -> None:
    for call, result, error in done:
        if not call.future.done():
            if error is None:
                call.future.set_result(result)
            else:
                call.future.set_exception(error)
