"""Waiting, for tasks and for threads. With `ownership`, all that the core knows of either.

A WaitGate is something to wait at until it is opened or time is up; a GateFactory makes gates.
`wait_finished` waits for work that must not be abandoned once it was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable
from typing import Protocol, TypeVar

Result = TypeVar("Result")

# What a store's call raises only if it was not sent: one that was runs to its end, see `finished`.
Cancelled = asyncio.CancelledError


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
        await asyncio.wait((self._future,), timeout=timeout_ms / 1000)
        return self._future.done()


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
