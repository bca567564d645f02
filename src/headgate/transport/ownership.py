"""Who may use a connection: an event loop its own, a process its own.

A client made before a fork, or used from a second event loop, works there too: it makes itself new
connections, and leaves those of the others alone. What keeps state of its own beside connections
asks to be told of a fork.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

Thing = TypeVar("Thing")

_forks = 0


class ForkAware(Protocol):
    def after_fork(self) -> None:
        """Called in a forked child before it goes on: what is the parent's alone is left to it,
        and locks that its other threads held are made anew."""
        ...


_inherited: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def reset_after_fork(thing: ForkAware) -> None:
    _inherited.add(thing)


def _count_fork() -> None:
    global _forks  # noqa: PLW0603  # one fact per process
    _forks += 1
    for thing in list(_inherited):
        thing.after_fork()


os.register_at_fork(after_in_child=_count_fork)


def fork_count() -> int:
    """Differs between a process and its forked children."""
    return _forks


class PerOwner(Generic[Thing]):
    """One thing per event loop, or for threads one per process, made when it is first used there.

    With `abandon` they belong to event loops, and it ends the thing of another loop than the
    running one. Without it they belong to processes: those of the parent stay referenced in a
    forked child, and so open for the parent. `closed` makes the error of a use after the end.
    """

    def __init__(
        self,
        make: Callable[[], Thing],
        closed: Callable[[], Exception],
        abandon: Callable[[Thing], None] | None,
    ) -> None:
        self._make = make
        self._closed_error = closed
        self._abandon = abandon
        self._owner: Callable[[], object] = (
            fork_count if abandon is None else asyncio.get_running_loop
        )
        self._things: dict[object, Thing] = {}
        self._last: tuple[object, Thing | None] = (None, None)  # spares the lock, most times
        self._closed = False
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def here(self) -> Thing:
        """The thing of the running event loop, or of this process."""
        owner = self._owner()
        known, thing = self._last
        if known == owner and thing is not None:
            return thing
        with self._lock:
            if self._closed:
                raise self._closed_error()
            found = self._things.get(owner)
            if found is None:
                self._abandon_those_of_closed_loops()
                found = self._things[owner] = self._make()
            self._last = (owner, found)
            return found

    def close(self) -> Thing | None:
        """Ends those of other loops and hands out the one of here, to be ended by its own rules;
        nothing is made any more."""
        with self._lock:
            self._closed = True
            self._last = (None, None)
            mine = self._things.pop(self._owner(), None)
            if self._abandon is not None:
                others, self._things = self._things, {}
                for thing in others.values():
                    self._abandon(thing)
        return mine

    def _abandon_those_of_closed_loops(self) -> None:
        """Loops that ended without closing theirs leave nothing open behind them."""
        for loop in list(self._things):
            if isinstance(loop, asyncio.AbstractEventLoop) and loop.is_closed():
                assert self._abandon is not None
                self._abandon(self._things.pop(loop))


# --------------------------------------------------------------------------------------------------
# What arrives on a connection, read into a buffer that stays.
#
# An event loop that hands out bytes makes room for 256 kB before each read and gives most of it
# back. Where that memory comes fresh from the system each time, it costs more than reading a short
# answer.

BUFFER_BYTES = 32_768  # more than that at once arrives in pieces


class ReusedBufferProtocol(asyncio.BufferedProtocol):
    """A protocol whose `buffer_updated` finds what arrived at the start of `_reused_buffer`."""

    def __init__(self) -> None:
        self._reused_buffer = memoryview(bytearray(BUFFER_BYTES))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reused_buffer
