"""Time as an integer of milliseconds, read at the edge and passed down as a value."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]


def wall_clock_ms() -> int:
    """The host's wall clock: the same for every process on one machine."""
    return time.time_ns() // 1_000_000


def steady_clock() -> Clock:
    """Wall time when made, monotonic from then on: it never steps back."""
    offset_ns = time.time_ns() - time.monotonic_ns()
    monotonic_ns = time.monotonic_ns

    def now_ms() -> int:
        return (monotonic_ns() + offset_ns) // 1_000_000

    return now_ms
