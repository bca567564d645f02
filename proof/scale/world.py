"""Virtual time: coroutines that wait for moments, run one after another in the order of those.

Nothing here knows asyncio: whatever the real code awaits ends in a port or a gate, and those wait
here. Ties are broken by who asked first, so a seed gives the same run every time.
"""

from __future__ import annotations

import heapq
import itertools
import random
import types
from collections.abc import Coroutine, Generator
from typing import Any

from headgate.transport.gates import GateFactory, WaitGate

START_MS = 1_700_000_000_000
US = 1000  # microseconds in a millisecond


class Task:
    """One caller's work; `trips` counts the round trips it waited for."""

    __slots__ = ("alarm", "flow", "trips")

    def __init__(self, flow: Coroutine[Any, Any, None]) -> None:
        self.flow = flow
        self.trips = 0
        self.alarm = 0  # the number of the alarm that may wake it; older ones are void


class World:
    """A clock in milliseconds when called, with a pace of its own for whoever waits."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_us = 0
        self.current: Task | None = None
        self._order = itertools.count(1)
        self._due: list[tuple[int, int, Task]] = []

    def __call__(self) -> int:
        return START_MS + self.now_us // US

    def spawn(self, flow: Coroutine[Any, Any, None], at_us: int | None = None) -> None:
        self.wake(Task(flow), self.now_us if at_us is None else at_us)

    def wake(self, task: Task, at_us: int) -> None:
        task.alarm = next(self._order)
        heapq.heappush(self._due, (at_us, task.alarm, task))

    def run(self) -> None:
        """Until nobody waits any more."""
        while self._due:
            at_us, alarm, task = heapq.heappop(self._due)
            if alarm != task.alarm:
                continue
            self.now_us = at_us
            self.current = task
            try:
                delay_us = task.flow.send(None)
            except StopIteration:
                continue
            self.wake(task, at_us + delay_us)

    async def pause_us(self, delay_us: int) -> None:
        await _for(delay_us)

    def pace(self, *, blocking: bool) -> GateFactory:
        return WorldPace(self)


class WorldGate:
    def __init__(self, world: World) -> None:
        self._world = world
        self._opened = False
        self._waiter: Task | None = None

    def open(self) -> None:
        self._opened = True
        if self._waiter is not None:
            self._world.wake(self._waiter, self._world.now_us)
            self._waiter = None

    async def wait(self, timeout_ms: int) -> bool:
        if not self._opened:
            self._waiter = self._world.current
            await _for(timeout_ms * US)
            self._waiter = None
        return self._opened


class WorldPace:
    def __init__(self, world: World) -> None:
        self._world = world

    def gate(self) -> WaitGate:
        return WorldGate(self._world)


@types.coroutine
def _for(delay_us: int) -> Generator[int, None, None]:
    yield delay_us
