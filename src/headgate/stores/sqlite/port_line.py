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
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from headgate.errors import Contended, Unreachable
from headgate.port import finished

TOGETHER_MAX = 64
WAITING_MAX = 10_000

Result = TypeVar("Result")
Job = Callable[[], Any]


class Call(NamedTuple):
    """What one task waits for. `alone` does the work in a transaction of its own; `part` is what it
    does inside one that others share, None where it must not share."""

    alone: Job
    part: Callable[[Any], Any] | None
    future: asyncio.Future[Any]


# Does the parts of several calls in one transaction; None where it came to nothing.
Sharing = Callable[[list[Callable[[Any], Any]]], list[Any] | None]


class Line:
    """Calls in their order; the line is bounded. A call that was sent runs to its end."""

    def __init__(self, together: Sharing) -> None:
        self._together = together
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._waiting = 0
        self._ended = False

    async def do(self, alone: Callable[[], Result], part: Callable[[Any], Any] | None) -> Result:
        if self._waiting >= WAITING_MAX:
            raise Contended(f"{WAITING_MAX} calls wait for this store already; slow down")
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._ended:
                raise closed()
            self._waiting += 1
            self._calls.put(Call(alone, part, future))
            if self._thread is None:
                self._begin()
        try:
            return await finished(future)
        finally:
            with self._lock:
                self._waiting -= 1

    def dismiss(self) -> None:
        """What is in the line is still served; nothing joins it any more."""
        with self._lock:
            self._ended = True
            self._calls.put(None)

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._serve, name="headgate-sqlite", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        call = self._calls.get()
        while call is not None:
            calls = [call]
            call = self._gather(calls)
            done = self._done(calls)
            del calls  # a thread that waits holds on to nothing
            _tell(done)
            del done
            if call is None:
                call = self._calls.get()
            elif call is _END:
                return

    def _gather(self, calls: list[Call]) -> Call | None:
        """Fills up the list with calls that may share a transaction; the one that may not is
        served next."""
        while len(calls) < TOGETHER_MAX:
            try:
                following = self._calls.get_nowait()
            except queue.Empty:
                return None
            if following is None:
                return _END
            if following.part is None or calls[-1].part is None:
                return following
            calls.append(following)
        return None

    def _done(self, calls: list[Call]) -> list[tuple[Call, Any, BaseException | None]]:
        if len(calls) > 1:
            results = self._together([call.part for call in calls if call.part is not None])
            if results is not None:
                return [(call, result, None) for call, result in zip(calls, results, strict=True)]
        return [_outcome(call) for call in calls]


def closed() -> Unreachable:
    return Unreachable("this SQLite store is closed; open it again to use it")


def _outcome(call: Call) -> tuple[Call, Any, BaseException | None]:
    try:
        return call, call.alone(), None
    except BaseException as error:  # noqa: BLE001  # it is the caller's, whatever it is
        return call, None, error


def _never() -> Any:
    raise AssertionError("the end of a line is no call")


_END = Call(_never, None, None)  # type: ignore[arg-type]


def _tell(done: list[tuple[Call, Any, BaseException | None]]) -> None:
    """Wakes each event loop once for all its calls."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[Call, Any, BaseException | None]]] = {}
    for one in done:
        loops.setdefault(one[0].future.get_loop(), []).append(one)
    for loop, ours in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop is gone, and its tasks with it
            loop.call_soon_threadsafe(_settle, ours)


def _settle(done: list[tuple[Call, Any, BaseException | None]]) -> None:
    for call, result, error in done:
        if not call.future.done():
            if error is None:
                call.future.set_result(result)
            else:
                call.future.set_exception(error)
