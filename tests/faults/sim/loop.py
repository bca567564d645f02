"""An event loop whose time is virtual: where nobody has anything to do, the next timer is now."""

from __future__ import annotations

import asyncio
import selectors

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


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.virtual_s = 0.0
        jump = _Jump()
        jump.loop = self
        super().__init__(jump)

    def time(self) -> float:
        return self.virtual_s

    def now_ms(self) -> int:
        """The true time, which no client knows; half a microsecond forgives the sums of floats."""
        return START_MS + int(self.virtual_s * 1000 + 5e-4)

    def _write_to_self(self) -> None:
        """There is one thread, so nobody has to be woken."""
