"""A clock that moves when it is told to, and waiting that follows it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

from headgate.transport.gates import GateFactory, WaitGate

START_MS = 1_700_000_000_000
TURNS = 20


class FakeClock:
    """`RateLimiter(url, clock=FakeClock())`: time stands still until `advance` or `run_for`.

    A blocking caller that waits moves the clock itself, because nobody else could. Async callers
    wait until the test lets time pass with `await clock.run_for(ms)`.
    """

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms
        self._alarms: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> None:
        """Moves time on; whoever has waited long enough is woken when the loop next runs."""
        self.now_ms += ms
        while self._alarms and self._alarms[0][0] <= self.now_ms:
            _ring(heapq.heappop(self._alarms)[2])

    async def run_for(self, ms: int) -> None:
        """Lets time pass from one waiter's moment to the next, so that each runs in its turn."""
        end_ms = self.now_ms + ms
        await _turn()
        while self._alarms and self._alarms[0][0] <= end_ms:
            self.advance(max(0, self._alarms[0][0] - self.now_ms))
            await _turn()
        self.advance(end_ms - self.now_ms)
        await _turn()

    def pace(self, *, blocking: bool) -> GateFactory:
        return _FakePace(self, _BlockingFakeGate if blocking else _AsyncFakeGate)

    def alarm(self, in_ms: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._alarms, (self.now_ms + in_ms, next(self._order), future))
        return future


class _BlockingFakeGate:
    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._opened = False

    def open(self) -> None:
        self._opened = True

    async def wait(self, timeout_ms: int) -> bool:
        if not self._opened:
            self._clock.advance(timeout_ms)
        return self._opened


class _AsyncFakeGate:
    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def open(self) -> None:
        _ring(self._opened)

    async def wait(self, timeout_ms: int) -> bool:
        alarm = self._clock.alarm(timeout_ms)
        await asyncio.wait((self._opened, alarm), return_when=asyncio.FIRST_COMPLETED)
        return self._opened.done()


class _FakePace:
    def __init__(self, clock: FakeClock, kind: Callable[[FakeClock], WaitGate]) -> None:
        self._clock = clock
        self._kind = kind

    def gate(self) -> WaitGate:
        return self._kind(self._clock)


def _ring(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _turn() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)
