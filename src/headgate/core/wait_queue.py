"""First come, first served: who waits for a bucket, in which order.

A waiter stands in the line of every bucket it wants and may try once it is first in all of them.
Tickets are numbered under one lock, so the oldest is first everywhere: no deadlock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from threading import RLock

from headgate.core.decision import Verdict
from headgate.core.errors import ValidationError
from headgate.core.runtime import Clock
from headgate.transport.gates import Gate, Pace
from headgate.transport.ownership import reborn_in_children

WAITERS_MAX = 10_000
WAIT_SECONDS_MAX = 24 * 3600


class Ticket:
    __slots__ = ("gate", "keys")

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = keys
        self.gate: Gate | None = None


class Lines:
    """The waiters of one limiter."""

    def __init__(self, pace: Pace, waiters_max: int = WAITERS_MAX) -> None:
        self._pace = pace
        self._waiters_max = waiters_max
        self._waiters = 0
        self._lines: dict[str, deque[Ticket]] = {}
        self._lock = RLock()
        reborn_in_children(self)

    def reborn(self) -> None:
        """Those who wait in the parent will never leave a line here."""
        self._waiters = 0
        self._lines = {}
        self._lock = RLock()

    def busy(self, keys: Sequence[str]) -> bool:
        """Whether somebody waits already for one of the buckets."""
        return bool(self._lines) and any(key in self._lines for key in keys)

    def join(self, keys: Sequence[str]) -> Ticket | None:
        """A place at the end; None where too many wait already."""
        ticket = Ticket(keys)
        with self._lock:
            if self._waiters >= self._waiters_max:
                return None
            self._waiters += 1
            for key in keys:
                self._lines.setdefault(key, deque()).append(ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """The ticket is gone, and whoever may try now is told."""
        with self._lock:
            if ticket not in self._lines.get(ticket.keys[0], ()):
                return  # it is the parent's, and this a forked child
            self._waiters -= 1
            for key in ticket.keys:
                line = self._lines[key]
                line.remove(ticket)
                if not line:
                    del self._lines[key]
            self._tell(ticket.keys)

    def nudge(self, keys: Sequence[str]) -> None:
        """Tokens came back: who is first may try at once."""
        if self._lines:
            with self._lock:
                self._tell(keys)

    def gate_of(self, ticket: Ticket, *, behind: bool) -> Gate | None:
        """A new gate to wait at; with `behind`, None if nobody is ahead any more."""
        with self._lock:
            if behind and self._is_first(ticket):
                return None
            ticket.gate = self._pace.gate()
            return ticket.gate

    def _tell(self, keys: Sequence[str]) -> None:
        for key in keys:
            line = self._lines.get(key)
            if line and self._is_first(line[0]) and line[0].gate is not None:
                line[0].gate.open()

    def _is_first(self, ticket: Ticket) -> bool:
        return all(self._lines[key][0] is ticket for key in ticket.keys)


async def in_turn(
    lines: Lines,
    keys: Sequence[str],
    attempt: Callable[[], Awaitable[Verdict]],
    clock: Clock,
    deadline_ms: int,
) -> Verdict:
    """Admitted in turn, or the refusal that made further waiting useless.

    The exact wait is known, so a waiter whose turn would come too late is refused at once; one
    whose time runs out in the line tries a last time. Giving up consumes nothing.
    """
    if not lines.busy(keys):
        verdict = await attempt()
        if verdict.allowed or _is_late(verdict, clock(), deadline_ms):
            return verdict
    ticket = lines.join(keys)
    if ticket is None:
        return await attempt()
    try:
        while True:
            ahead = lines.gate_of(ticket, behind=True)
            left_ms = deadline_ms - clock()
            if ahead is not None and left_ms > 0:
                await ahead.wait(left_ms)
                continue
            gate = lines.gate_of(ticket, behind=False)  # what comes back meanwhile opens it already
            assert gate is not None
            verdict = await attempt()
            if verdict.allowed or _is_late(verdict, clock(), deadline_ms):
                return verdict
            await gate.wait(max(1, verdict.retry_after_ms or 1))
    finally:
        lines.leave(ticket)


def _is_late(verdict: Verdict, now_ms: int, deadline_ms: int) -> bool:
    wait_ms = verdict.retry_after_ms
    return wait_ms is None or now_ms + wait_ms > deadline_ms


def parse_wait_ms(wait_s: object) -> int:
    """How long a caller will queue; 0 is the same as not waiting."""
    if isinstance(wait_s, bool) or not isinstance(wait_s, (int, float)):
        raise ValidationError("wait", wait_s, "must be a number of seconds, or None to not wait")
    if not 0 <= wait_s <= WAIT_SECONDS_MAX:
        raise ValidationError("wait", wait_s, f"must be between 0 and {WAIT_SECONDS_MAX} seconds")
    return int(wait_s * 1000)
