"""Calls on their way over connections of an event loop, and how who made them is woken.

A future of asyncio wakes its task in the loop's next turn. Here a task is woken by the callback
that read its answer, which saves a turn for every call. asyncio takes what is awaited here for a
future all the same: it has the few methods that a task asks of one (see `asyncio.isfuture`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any

from headgate.core.errors import StoreTrouble
from headgate.stores.dynamodb.client.http import Reply


class Awaited:
    """What one task waits for, once. It cannot be cancelled, so a task that is cancelled meanwhile
    learns of it when it is woken."""

    __slots__ = ("_asyncio_future_blocking", "_context", "_loop", "_wakeup", "over")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False
        self._loop = loop
        self._wakeup: Callable[[Awaited], object] | None = None
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
            self._loop.call_soon(_raised, ending)  # the loop's to raise, not the transport's


def _raised(ending: BaseException) -> None:
    raise ending


class Errand(Awaited):
    """One call: waiting for a connection, then sent, then settled. It can be cancelled until it is
    sent. One that belongs to a batch is not awaited itself, and is sent in any case."""

    __slots__ = ("_why", "batch", "due_s", "outcome", "packed", "sent")

    def __init__(
        self,
        packed: bytes,
        due_s: float,
        loop: asyncio.AbstractEventLoop,
        batch: Batch | None = None,
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
            self.batch.settled(at_once)
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


class Batch(Awaited):
    """Several errands that are waited for together."""

    __slots__ = ("_left",)

    def __init__(self, loop: asyncio.AbstractEventLoop, errands: int) -> None:
        super().__init__(loop)
        self._left = errands
        self.over = not errands

    def settled(self, at_once: bool) -> None:
        self._left -= 1
        if not self._left:
            self.wake(at_once)
