"""Which connections are idle, how many there are, who waits for one: decided under a short lock.

Nothing here opens, closes or waits; it says what to close and what to wait at.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, NamedTuple, Protocol, TypeVar

from headgate.transport.gates import Gate, Pace

IDLE_MS_MAX = 4_000  # below the 5 s after which common servers hang up: a call never meets that
WAITERS_MAX = 10_000


class Closable(Protocol):
    def close(self) -> None: ...


Link = TypeVar("Link", bound=Closable)


class Waiter(Generic[Link]):
    """Somebody in the line; `served` once a link or a place for a new one is theirs."""

    __slots__ = ("gate", "link", "served")

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.link: Link | None = None
        self.served = False


class Turn(NamedTuple, Generic[Link]):
    """An idle link; or a place for a new one (`fresh`); or a waiter; or nothing: too many wait."""

    link: Link | None
    fresh: bool
    waiter: Waiter[Link] | None
    stale: list[Link]


class Pool(Generic[Link]):
    """At most `most` links; the one used last is used next, so that the others can grow old."""

    def __init__(self, most: int, pace: Pace, idle_ms_max: int = IDLE_MS_MAX) -> None:
        self._most = most
        self._pace = pace
        self._idle_ms_max = idle_ms_max
        self._idle: list[tuple[int, Link]] = []
        self._count = 0
        self._line: deque[Waiter[Link]] = deque()
        self._lock = threading.Lock()

    def take(self, now_ms: int) -> Turn[Link]:
        with self._lock:
            oldest_ms = now_ms - self._idle_ms_max
            stale = [link for at_ms, link in self._idle if at_ms < oldest_ms]
            if stale:
                self._idle = [one for one in self._idle if one[0] >= oldest_ms]
                self._count -= len(stale)
            if self._idle:
                return Turn(self._idle.pop()[1], False, None, stale)
            if self._count < self._most:
                self._count += 1
                return Turn(None, True, None, stale)
            if len(self._line) >= WAITERS_MAX:
                return Turn(None, False, None, stale)
            waiter: Waiter[Link] = Waiter(self._pace.gate())
            self._line.append(waiter)
            return Turn(None, False, waiter, stale)

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

    def leave(self, waiter: Waiter[Link]) -> bool:
        """Whether the waiter left in time; False where it was served meanwhile."""
        with self._lock:
            if not waiter.served:
                self._line.remove(waiter)
            return not waiter.served

    def emptied(self) -> list[Link]:
        """All idle links, which are the caller's to close."""
        with self._lock:
            found = [link for _, link in self._idle]
            self._idle.clear()
            self._count -= len(found)
            return found

    def _next(self) -> Waiter[Link] | None:
        if not self._line:
            return None
        waiter = self._line.popleft()
        waiter.served = True
        return waiter
