"""Tasks, threads and processes: the time they go by, how they wait, and whose a connection is.

A WaitGate is something to wait at until it is opened or time is up; a GateFactory makes gates.
`wait_finished` waits for work that must not be abandoned once it was sent. A PerOwner keeps one
thing per event loop or process, a SingleRead lets one caller read for all. This is all that the
core knows of either.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

Result = TypeVar("Result")
Thing = TypeVar("Thing")

# What a store's call raises only if it was not sent: one that was runs to its end, see `finished`.
Cancelled = asyncio.CancelledError


def steady_clock() -> Callable[[], int]:
    """Wall time when made, monotonic from then on: it never steps back."""
    offset_ns = time.time_ns() - time.monotonic_ns()
    monotonic_ns = time.monotonic_ns

    def now_ms() -> int:
        return (monotonic_ns() + offset_ns) // 1_000_000

    return now_ms


class WaitGate(Protocol):
    def open(self) -> None: ...

    async def wait(self, timeout_ms: int) -> bool:
        """True once opened, False if that did not happen in time."""
        ...


class GateFactory(Protocol):
    def gate(self) -> WaitGate: ...


class BlockingGate:
    """A gate for threads; `wait` never suspends."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = threading.Event()

    def open(self) -> None:
        self._event.set()

    async def wait(self, timeout_ms: int) -> bool:
        return self._event.wait(timeout_ms / 1000)


class AsyncGate:
    """A gate for tasks; it may be opened from any thread."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def open(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone, and the waiter with it
            self._future.get_loop().call_soon_threadsafe(self._open_here)

    def _open_here(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self, timeout_ms: int) -> bool:
        loop = self._future.get_loop()
        if not is_time_frozen():
            await asyncio.wait((self._future,), timeout=timeout_ms / 1000)
            return self._future.done()
        # Where time is frozen for tests, the loop's timers never ring: a thread does.
        opened = True

        def ring() -> None:
            nonlocal opened
            opened = self._future.done()
            self._open_here()

        alarm = threading.Timer(timeout_ms / 1000, loop.call_soon_threadsafe, (ring,))
        alarm.daemon = True
        alarm.start()
        try:
            await asyncio.wait((self._future,))
        finally:
            alarm.cancel()
        if not opened:
            self._future = loop.create_future()  # closed again, for whoever waits on
        return opened


# What freezegun and its kin replace is `time.monotonic`, not this one; Windows has it not.
_REAL_NS: Callable[[], int] | None = (
    partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC)
    if hasattr(time, "clock_gettime_ns")
    else None
)
LOOK_NS = 20_000  # a clock that moves has moved by then


def is_time_frozen() -> bool:
    """Whether `time.monotonic` does not move while real time passes."""
    if _REAL_NS is None:
        return False
    start, until_ns = time.monotonic(), _REAL_NS() + LOOK_NS
    while time.monotonic() == start:
        if _REAL_NS() > until_ns:
            return True
    return False


class BlockingGateFactory:
    def gate(self) -> WaitGate:
        return BlockingGate()


class AsyncGateFactory:
    def gate(self) -> WaitGate:
        return AsyncGate()


def gate_factory_for(clock: object, *, blocking: bool) -> GateFactory:
    """Real waiting, unless the clock brings its own (a clock of tests and simulations)."""
    bring = getattr(clock, "pace", None)
    if bring is not None:
        pace: GateFactory = bring(blocking=blocking)
        return pace
    return BlockingGateFactory() if blocking else AsyncGateFactory()


class SentWork(asyncio.Future[Result]):
    """The end of work that was sent. Waiting for it can be interrupted; the work itself cannot, so
    a task that is cancelled meanwhile learns of it when the work is done."""

    def cancel(self, msg: object = None) -> bool:
        return False


class ShieldedTask(asyncio.Task[Result]):
    """Work that nobody can call off before it is sent either: neither who waits for it, nor a loop
    that cancels all its tasks at its end, and then waits for them."""

    def cancel(self, msg: object = None) -> bool:
        return False


async def wait_finished(work: asyncio.Future[Result]) -> Result:
    """What the work comes to, also if the waiting task is cancelled meanwhile.

    Work that was sent may already have taken tokens. So a cancellation waits for its end and is
    delivered at the next await of the task, when whoever asked knows what there is to undo.
    """
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            if type(work) is SentWork:  # a tenth of the cost
                await work
            else:
                await asyncio.wait((work,))
        except asyncio.CancelledError as why:
            cancelled = why
        except Exception:  # noqa: BLE001  # the work's own, and told below
            break
    if cancelled is not None:
        cancel_later(cancelled)
    return work.result()


def cancel_later(why: asyncio.CancelledError) -> None:
    """The outcome is known first, then the cancellation that came meanwhile: at the next await."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()  # the count stays as it was, so asyncio.timeout still knows its own
    task.cancel(*why.args[:1])  # anyio knows its own by the message


async def finish(call: Awaitable[Result]) -> Result:
    """What the call comes to, unless the task was cancelled meanwhile."""
    try:
        result = await call
    except Exception:
        await raise_if_cancelled()
        raise
    await raise_if_cancelled()
    return result


async def finish_shielded(call: Coroutine[Any, Any, Result]) -> Result:
    """The same, with the call carried out however often the task is cancelled meanwhile, also while
    it waits for a connection. It costs a task: for what gives back, not for every call."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # a simulation: there is nobody who could cancel
        return await call
    return await finish(wait_finished(ShieldedTask(call, loop=loop)))


async def raise_if_cancelled() -> None:
    """Where a call ends: a cancellation that waited for its outcome is raised here, not later and
    elsewhere, and a task that only ever makes such calls can be cancelled."""
    if is_cancelling():
        await asyncio.sleep(0)


def is_cancelling() -> bool:
    """Whether somebody cancelled this task; never where no event loop runs, as in simulations and
    for blocking callers."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.cancelling() > 0


# --------------------------------------------------------------------------------------------------
# Who may use a connection: an event loop its own, a process its own.
#
# A client made before a fork, or used from a second event loop, works there too: it makes itself
# new connections, and leaves those of the others alone. What keeps state of its own beside
# connections asks to be told of a fork.

_forks = 0


class ForkAware(Protocol):
    def after_fork(self) -> None:
        """Called in a forked child before it goes on: what is the parent's alone is left to it,
        and locks that its other threads held are made anew."""
        ...


_inherited: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def reset_after_fork(thing: ForkAware) -> None:
    _inherited.add(thing)


def _count_fork() -> None:
    global _forks  # noqa: PLW0603  # one fact per process
    _forks += 1
    for thing in list(_inherited):
        thing.after_fork()


os.register_at_fork(after_in_child=_count_fork)


def fork_count() -> int:
    """Differs between a process and its forked children."""
    return _forks


class PerOwner(Generic[Thing]):
    """One thing per event loop, or for threads one per process, made when it is first used there.

    With `abandon` they belong to event loops, and it ends the thing of another loop than the
    running one. Without it they belong to processes: those of the parent stay referenced in a
    forked child, and so open for the parent. `closed` makes the error of a use after the end.
    """

    def __init__(
        self,
        make: Callable[[], Thing],
        closed: Callable[[], Exception],
        abandon: Callable[[Thing], None] | None,
    ) -> None:
        self._make = make
        self._closed_error = closed
        self._abandon = abandon
        self._owner: Callable[[], object] = (
            fork_count if abandon is None else asyncio.get_running_loop
        )
        self._things: dict[object, Thing] = {}
        self._last: tuple[object, Thing | None] = (None, None)  # spares the lock, most times
        self.is_closed = False
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def here(self) -> Thing:
        """The thing of the running event loop, or of this process."""
        owner = self._owner()
        known, thing = self._last
        if known == owner and thing is not None:
            return thing
        with self._lock:
            if self.is_closed:
                raise self._closed_error()
            found = self._things.get(owner)
            if found is None:
                self._abandon_those_of_closed_loops()
                found = self._things[owner] = self._make()
            self._last = (owner, found)
            return found

    def close(self) -> Thing | None:
        """Ends those of other loops and hands out the one of here, to be ended by its own rules;
        nothing is made any more."""
        with self._lock:
            self.is_closed = True
            self._last = (None, None)
            mine = self._things.pop(self._owner(), None)
            if self._abandon is not None:
                others, self._things = self._things, {}
                for thing in others.values():
                    self._abandon(thing)
        return mine

    def _abandon_those_of_closed_loops(self) -> None:
        """Loops that ended without closing theirs leave nothing open behind them."""
        for loop in list(self._things):
            if isinstance(loop, asyncio.AbstractEventLoop) and loop.is_closed():
                assert self._abandon is not None
                self._abandon(self._things.pop(loop))


# --------------------------------------------------------------------------------------------------
# One read for all who want the same at a time.

WAITERS_MAX = 10_000  # callers beyond that read alone


class SingleRead:
    """One read at a time for a process. Who comes meanwhile waits for its end, however it ends."""

    def __init__(self, pace: GateFactory | None) -> None:
        self.failures = 0
        self._pace = pace
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """The parent's read does not end here."""
        self._readers = 0
        self._gates: list[WaitGate] = []
        self._lock = threading.Lock()

    def join(self) -> WaitGate | None:
        """Where to wait for the read under way; None if the caller is to read, and to `end` it."""
        with self._lock:
            if self._readers and self._pace is not None and len(self._gates) < WAITERS_MAX:
                self._gates.append(self._pace.gate())
                return self._gates[-1]
            self._readers += 1
            return None

    def end(self, *, failed: bool) -> None:
        """Wakes everybody. After a failure each goes on alone: they would only fail in turns."""
        with self._lock:
            self._readers = max(0, self._readers - 1)
            self.failures += failed
            gates, self._gates = self._gates, []
        for gate in gates:
            gate.open()


# --------------------------------------------------------------------------------------------------
# What arrives on a connection, read into a buffer that stays.
#
# An event loop that hands out bytes makes room for 256 kB before each read and gives most of it
# back. Where that memory comes fresh from the system each time, it costs more than reading a short
# answer.

BUFFER_BYTES = 32_768  # more than that at once arrives in pieces


class ReusedBufferProtocol(asyncio.BufferedProtocol):
    """A protocol whose `buffer_updated` finds what arrived at the start of `_reused_buffer`."""

    def __init__(self) -> None:
        self._reused_buffer = memoryview(bytearray(BUFFER_BYTES))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reused_buffer
