"""What the REST wire needs of the event loop: deadlines that cost next to nothing, and a ticker.

A timer for every request would cost more than most decisions. Requests that are under way stand in
one dict instead, in the order in which they are due, and one timer looks at its beginning.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

STEP_S = 0.02
TICK_S = 1.0

log = logging.getLogger("headgate.service")

Cancelled = asyncio.CancelledError


class Deadlines:
    """Cancels what takes longer than `limit_s`; belongs to one event loop."""

    def __init__(self, limit_s: float) -> None:
        # A look can come a step late, so what is due is due a step early.
        self._limit_s = max(STEP_S, limit_s - STEP_S)
        self._due: dict[asyncio.Task[Any], float] = {}
        self._over: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due)

    def enter(self) -> asyncio.Task[Any]:
        """The running request has until its deadline from now on."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None
        self._due[task] = loop.time() + self._limit_s
        if self._timer is None:
            self._timer = loop.call_later(STEP_S, self._look, loop)
        return task

    def leave(self, task: asyncio.Task[Any]) -> None:
        self._due.pop(task, None)
        if self._over:
            self._over.discard(task)

    def passed(self) -> bool:
        """Whether the cancellation just caught is this deadline's, and then it is dealt with."""
        task = asyncio.current_task()
        if task is None or task not in self._over:
            return False
        self._over.discard(task)
        task.uncancel()
        return True

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        late = []
        for task, due_s in self._due.items():
            if due_s > now_s:
                break
            late.append(task)
        for task in late:
            del self._due[task]
            self._over.add(task)
            task.cancel()
        self._timer = loop.call_later(STEP_S, self._look, loop) if self._due else None


class Ticker:
    """Calls `tick` about every second until it is stopped; a failure is logged and outlived."""

    def __init__(self, tick: Callable[[], Awaitable[None]]) -> None:
        self._tick = tick
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self._tick()
            except Exception:
                log.exception("a tick failed; the next one comes")


async def run_in_thread(call: Callable[[], Any]) -> Any:
    """Runs what may block in a thread."""
    return await asyncio.get_running_loop().run_in_executor(None, partial(call))
