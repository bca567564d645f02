"""An event loop whose time is virtual: where nobody has anything to do, the next timer is now."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import selectors
from collections.abc import Callable
from contextvars import Context
from typing import Any

START_MS = 1_750_000_000_000


class Stuck(AssertionError):
    """Somebody waits, and nothing is under way that could end it."""


class _Jump(selectors.SelectSelector):
    """Waits for nothing: it moves the loop's time instead."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("everybody waits for somebody else")
        self.loop.virtual_s += timeout
        return []


class _Timer(asyncio.TimerHandle):
    """Timers of the same moment go off in an order that only their numbers decide. asyncio leaves
    that to the shape of its heap, and a scenario has to run the same way wherever it is run again.
    The order is shuffled: what happens at one moment must be right in any order."""

    number: int

    def __lt__(self, other: _Timer) -> bool:  # type: ignore[override]
        return (self.when(), self.number) < (other.when(), other.number)


class VirtualLoop(asyncio.SelectorEventLoop):
    _scheduled: list[_Timer]

    def __init__(self) -> None:
        self.virtual_s = 0.0
        self._numbers = itertools.count()
        jump = _Jump()
        jump.loop = self
        super().__init__(jump)

    def time(self) -> float:
        return self.virtual_s

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        timer.number = next(self._numbers) * 0x9E3779B1 % 2**32  # odd, so no two are the same
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def now_ms(self) -> int:
        """The true time, which no client knows; half a microsecond forgives the sums of floats."""
        return START_MS + int(self.virtual_s * 1000 + 5e-4)

    def _write_to_self(self) -> None:
        """There is one thread, so nobody has to be woken."""
