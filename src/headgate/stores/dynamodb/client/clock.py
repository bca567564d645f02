"""The service's clock, told by the `Date` of its replies and kept by the host's monotonic clock.

A date names a second. A reply that was asked for at `sent` and came at `received` bounds the
difference between the two clocks from both sides; replies near the turn of a second make the bounds
tight, within the round trip at best. The bounds are widened slowly, since clocks drift.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from headgate.transport.http1 import http_date_s
from headgate.transport.ownership import reset_after_fork

SECOND_NS = 1_000_000_000
DRIFT_PER_MILLION = 100  # more than a host's clock drifts in practice
ODD_NS = 2 * SECOND_NS  # bounds further off than this are an odd reply, until it is repeated
ODD_REPLIES = 3


class ServiceClock:
    """Never steps back; safe to share between threads and loops."""

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._monotonic_ns = monotonic_ns
        self._offset_ns = wall_ns() - monotonic_ns()
        self._host_believed = True  # until a reply proves it wrong
        self._bounds_ns: tuple[int, int] | None = None
        self._seen_ns = 0
        self._odd = 0
        self._date: tuple[bytes, int | None] = (b"", None)
        self._last_ns = 0
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """A thread that held the lock when the process forked is not there to release it."""
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        with self._lock:
            self._last_ns = max(self._last_ns, self._monotonic_ns() + self._offset_ns)
            return self._last_ns // 1_000_000

    def signing_s(self) -> int:
        """The time to sign with. It is asked before the first reply, and a host that is ahead must
        not stand still for that until the service has caught up."""
        return (self._monotonic_ns() + self._offset_ns) // SECOND_NS

    def observe(self, date: bytes, sent_ns: int, received_ns: int) -> None:
        """Learns from one reply; the times are of the monotonic clock."""
        known, at_s = self._date
        if known != date:
            at_s = http_date_s(date)
            self._date = (date, at_s)
        if at_s is None:
            return
        low_ns = at_s * SECOND_NS - received_ns
        high_ns = (at_s + 1) * SECOND_NS - sent_ns
        bounds = self._bounds_ns
        if bounds is not None and not self._odd:
            drift_ns = (received_ns - self._seen_ns) * DRIFT_PER_MILLION // 1_000_000
            if low_ns <= bounds[0] - drift_ns and high_ns >= bounds[1] + drift_ns:
                return  # it knows no more than is known already, as most replies
        with self._lock:
            self._bounds_ns = low_ns, high_ns = self._narrowed(low_ns, high_ns, received_ns)
            if self._host_believed and low_ns <= self._offset_ns <= high_ns:
                return
            self._host_believed = False
            self._offset_ns = (low_ns + high_ns) // 2

    def _narrowed(self, low_ns: int, high_ns: int, at_ns: int) -> tuple[int, int]:
        """The bounds so far and these taken together."""
        if self._bounds_ns is None:
            self._seen_ns = at_ns
            return low_ns, high_ns
        drift_ns = max(0, at_ns - self._seen_ns) * DRIFT_PER_MILLION // 1_000_000
        old_low_ns, old_high_ns = self._bounds_ns[0] - drift_ns, self._bounds_ns[1] + drift_ns
        gap_ns = max(low_ns - old_high_ns, old_low_ns - high_ns)
        if gap_ns > ODD_NS and self._odd + 1 < ODD_REPLIES:
            self._odd += 1
            return self._bounds_ns
        self._odd = 0
        self._seen_ns = max(self._seen_ns, at_ns)
        if gap_ns > ODD_NS:
            return low_ns, high_ns
        # Where the service's own clocks differ a little, what lies between them is left.
        inner = sorted((max(old_low_ns, low_ns), min(old_high_ns, high_ns)))
        return inner[0], inner[1]
