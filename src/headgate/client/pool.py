"""Which connections are idle, how many there are, who waits for one: decided under a short lock.

Nothing here opens, closes or waits; it says what to close and what to wait at.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, NamedTuple, Protocol, TypeVar

from headgate.transport.gates import GateFactory, WaitGate

IDLE_MS_MAX = 4_000  # below the 5 s after which common servers hang up: a call never meets that
WAITERS_MAX = 10_000


class Closable(Protocol):
    def close(self) -> None: ...


Link = TypeVar("Link", bound=Closable)


class PoolWaiter(Generic[Link]):
    """Somebody in the line; `served` once a link or a place for a new one is theirs."""

    __slots__ = ("gate", "link", "served")

    def __init__(self, gate: WaitGate) -> None:
        self.gate = gate
        self.link: Link | None = None
        self.served = False


class Checkout(NamedTuple, Generic[Link]):
    """An idle link; or a place for a new one (`fresh`); or a waiter; or nothing: too many wait."""

    link: Link | None
    fresh: bool
    waiter: PoolWaiter[Link] | None
    stale: list[Link]


class ConnectionPool(Generic[Link]):
    """At most `most` links; the one used last is used next, so that the others can grow old."""

    def __init__(self, most: int, pace: GateFactory, idle_ms_max: int = IDLE_MS_MAX) -> None:
        self._most = most
        self._pace = pace
        self._idle_ms_max = idle_ms_max
        self._idle: list[tuple[int, Link]] = []
        self._count = 0
        self._queue: deque[PoolWaiter[Link]] = deque()
        self._lock = threading.Lock()

    def take(self, now_ms: int) -> Checkout[Link]:
        with self._lock:
            oldest_ms = now_ms - self._idle_ms_max
            stale = [link for at_ms, link in self._idle if at_ms < oldest_ms]
            if stale:
                self._idle = [one for one in self._idle if one[0] >= oldest_ms]
                self._count -= len(stale)
            if self._idle:
                return Checkout(self._idle.pop()[1], False, None, stale)
            if self._count < self._most:
                self._count += 1
                return Checkout(None, True, None, stale)
            if len(self._queue) >= WAITERS_MAX:
                return Checkout(None, False, None, stale)
            waiter: PoolWaiter[Link] = PoolWaiter(self._pace.gate())
            self._queue.append(waiter)
            return Checkout(None, False, waiter, stale)

    def give(self, link: Link, now_ms: int) -> None:
        """The link is free: the longest waiter's, else idle."""
        with self._lock:
            waiter = self._next()
            if waiter is None:
                self._idle.append((now_ms, link))
            else:
                waiter.link = link
                waiter.gate.open()

    def drop(self) -> None:
        """A link is no more: its place is the longest waiter's, else free."""
        with self._lock:
            waiter = self._next()
            if waiter is None:
                self._count -= 1
            else:
                waiter.gate.open()

    def leave(self, waiter: PoolWaiter[Link]) -> bool:
        """Whether the waiter left in time; False where it was served meanwhile."""
        with self._lock:
            if not waiter.served:
                self._queue.remove(waiter)
            return not waiter.served

    def emptied(self) -> list[Link]:
        """All idle links, which are the caller's to close."""
        with self._lock:
            found = [link for _, link in self._idle]
            self._idle.clear()
            self._count -= len(found)
            return found

    def _next(self) -> PoolWaiter[Link] | None:
        if not self._queue:
            return None
        waiter = self._queue.popleft()
        waiter.served = True
        return waiter
