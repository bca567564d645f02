"""First come, first served: who waits for a bucket, in which order.

A waiter stands in the line of every bucket it wants and may try once it is first in all of them.
Tickets are numbered under one lock, so the oldest is first everywhere: no deadlock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from threading import RLock

from headgate.core.decision import Verdict
from headgate.core.errors import ClockStoppedError, ValidationError
from headgate.core.runtime import Clock
from headgate.transport.gates import GateFactory, WaitGate, reset_after_fork

WAITERS_MAX = 10_000
WAIT_SECONDS_MAX = 24 * 3600
STANDSTILL_MS = 1000  # of real time without the clock moving: then it never will


@dataclass(slots=True, eq=False)
class QueuedWaiter:
    keys: Sequence[str]
    gate: WaitGate | None = None


class WaitQueues:
    """The waiters of one limiter."""

    def __init__(self, pace: GateFactory, waiters_max: int = WAITERS_MAX) -> None:
        self._pace = pace
        self._waiters_max = waiters_max
        self._waiters = 0
        self._queues: dict[str, deque[QueuedWaiter]] = {}
        self._lock = RLock()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Those who wait in the parent will never leave a line here."""
        self._waiters = 0
        self._queues = {}
        self._lock = RLock()

    def has_waiters(self, keys: Sequence[str]) -> bool:
        """Whether somebody waits already for one of the buckets."""
        return bool(self._queues) and any(key in self._queues for key in keys)

    def join(self, keys: Sequence[str]) -> QueuedWaiter | None:
        """A place at the end; None where too many wait already."""
        waiter = QueuedWaiter(keys)
        with self._lock:
            if self._waiters >= self._waiters_max:
                return None
            self._waiters += 1
            for key in keys:
                self._queues.setdefault(key, deque()).append(waiter)
        return waiter

    def leave(self, waiter: QueuedWaiter) -> None:
        """The waiter is gone, and whoever may try now is told."""
        with self._lock:
            if waiter not in self._queues.get(waiter.keys[0], ()):
                return  # it is the parent's, and this a forked child
            self._waiters -= 1
            for key in waiter.keys:
                queue = self._queues[key]
                queue.remove(waiter)
                if not queue:
                    del self._queues[key]
            self._open_first_gates(waiter.keys)

    def wake_first(self, keys: Sequence[str]) -> None:
        """Tokens came back: who is first may try at once."""
        if self._queues:
            with self._lock:
                self._open_first_gates(keys)

    def gate_of(self, waiter: QueuedWaiter, *, behind: bool) -> WaitGate | None:
        """A new gate to wait at; with `behind`, None if nobody is ahead any more."""
        with self._lock:
            if behind and self._is_first(waiter):
                return None
            waiter.gate = self._pace.gate()
            return waiter.gate

    def _open_first_gates(self, keys: Sequence[str]) -> None:
        for key in keys:
            queue = self._queues.get(key)
            if queue and self._is_first(queue[0]) and queue[0].gate is not None:
                queue[0].gate.open()

    def _is_first(self, waiter: QueuedWaiter) -> bool:
        return all(self._queues[key][0] is waiter for key in waiter.keys)


class Patience:
    """Waits at gates for one caller, and notices where the clock never moves: a frozen one would
    let it wait for ever. Real time is what the gates took, for a frozen program has no other."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen_ms = clock()
        self._stood_ms = 0

    async def wait(self, gate: WaitGate, wait_ms: int) -> None:
        """Until the gate is opened or so much time has passed."""
        while wait_ms > 0:
            part_ms = min(wait_ms, STANDSTILL_MS)
            if await gate.wait(part_ms):
                return
            now_ms = self._clock()
            self._stood_ms = self._stood_ms + part_ms if now_ms == self._seen_ms else 0
            self._seen_ms = now_ms
            if self._stood_ms >= STANDSTILL_MS:
                raise ClockStoppedError(now_ms, self._stood_ms)
            wait_ms -= part_ms


async def wait_in_turn(
    queues: WaitQueues,
    keys: Sequence[str],
    attempt: Callable[[], Awaitable[Verdict]],
    clock: Clock,
    deadline_ms: int,
) -> Verdict:
    """Admitted in turn, or the refusal that made further waiting useless.

    The exact wait is known, so a waiter whose turn would come too late is refused at once; one
    whose time runs out in the line tries a last time. Giving up consumes nothing.
    """
    if not queues.has_waiters(keys):
        verdict = await attempt()
        if verdict.allowed or _is_late(verdict, clock(), deadline_ms):
            return verdict
    waiter = queues.join(keys)
    if waiter is None:
        return await attempt()
    patience = Patience(clock)
    try:
        while True:
            ahead = queues.gate_of(waiter, behind=True)
            left_ms = deadline_ms - clock()
            if ahead is not None and left_ms > 0:
                await patience.wait(ahead, left_ms)
                continue
            # Made before the attempt: what comes back in the meantime opens it already.
            gate = queues.gate_of(waiter, behind=False)
            assert gate is not None
            verdict = await attempt()
            if verdict.allowed or _is_late(verdict, clock(), deadline_ms):
                return verdict
            await patience.wait(gate, max(1, verdict.retry_after_ms or 1))
    finally:
        queues.leave(waiter)


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
