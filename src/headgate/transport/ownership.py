"""Who may use a connection: an event loop its own, a process its own.

A port made before a fork, or used from a second event loop, works there too: it makes itself new
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


class PerLoop(Generic[Thing]):
    """One thing per event loop, made when first used there; `leave` ends that of another loop."""

    def __init__(
        self,
        make: Callable[[], Thing],
        leave: Callable[[Thing], None],
        closed: Callable[[], Exception],
    ) -> None:
        self._make = make
        self._leave = leave
        self._closed_trouble = closed
        self._lock = threading.Lock()
        self._things: dict[asyncio.AbstractEventLoop, Thing] = {}
        self._last: tuple[asyncio.AbstractEventLoop | None, Thing | None] = (None, None)
        self._closed = False

    def here(self) -> Thing:
        loop = asyncio.get_running_loop()
        known, thing = self._last
        if known is loop and thing is not None:
            return thing
        return self._of(loop)

    def close(self) -> Thing | None:
        """Ends those of other loops and hands out that of this one, to be ended by its own rules;
        nothing is made any more."""
        self._closed = True
        self._last = (None, None)
        with self._lock:
            things, self._things = self._things, {}
        mine = things.pop(asyncio.get_running_loop(), None)
        for thing in things.values():
            self._leave(thing)
        return mine

    def _of(self, loop: asyncio.AbstractEventLoop) -> Thing:
        with self._lock:
            if self._closed:
                raise self._closed_trouble()
            found = self._things.get(loop)
            if found is None:
                self._sweep()
                found = self._things[loop] = self._make()
            self._last = (loop, found)
            return found

    def _sweep(self) -> None:
        """Loops that ended without closing theirs leave nothing open behind them."""
        for loop in [loop for loop in self._things if loop.is_closed()]:
            self._leave(self._things.pop(loop))


class PerProcess(Generic[Thing]):
    """One thing per process; those of the parent stay referenced, and so open for the parent."""

    def __init__(self, make: Callable[[], Thing], closed: Callable[[], Exception]) -> None:
        self._make = make
        self._closed_trouble = closed
        self._things: dict[int, Thing] = {}
        self._closed = False

    def here(self) -> Thing:
        thing = self._things.get(_forks)
        if thing is not None:
            return thing
        if self._closed:
            raise self._closed_trouble()
        return self._things.setdefault(_forks, self._make())

    def close(self) -> Thing | None:
        """Hands out this process's own, to be ended; nothing is made any more."""
        self._closed = True
        return self._things.pop(_forks, None)


# --------------------------------------------------------------------------------------------------
# What arrives on a connection, read into a buffer that stays.
#
# An event loop that hands out bytes makes room for 256 kB before each read and gives most of it
# back. Where that memory comes fresh from the system each time, it costs more than reading a short
# answer.

BUFFER_BYTES = 32_768  # more than that at once arrives in pieces


class ReusedBufferProtocol(asyncio.BufferedProtocol):
    """A protocol whose `received` has what `data_received` of others has."""

    def __init__(self) -> None:
        self._reused_buffer = memoryview(bytearray(BUFFER_BYTES))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reused_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received(bytes(self._reused_buffer[:nbytes]))

    def received(self, data: bytes) -> None:
        raise NotImplementedError
