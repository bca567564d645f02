"""An open connection, the calls on it, and how each of them ends."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from headgate.core.errors import StoreTrouble
from headgate.stores.redis.client.commands import pack
from headgate.transport.gates import cancel_later, finished

ASKING = pack(("ASKING",))

Future = asyncio.Future[Any]
TICKS_PER_TIMEOUT = 10

Entry = tuple[Future, float, bytes]  # who waits, until when, and what is sent


class LoopClock:
    """The time in which the event loop was free to hear from a server.

    Deadlines are there to notice a silent server. A loop that spends three seconds starting ten
    thousand tasks hears nothing in the meantime, and that is not the server's fault: by
    `loop.time()` all their calls would be overdue before the first connection is dialled. So time
    is counted in ticks, and a tick that comes late because the loop was busy counts as one tick.
    It ticks only while somebody asks for the time: whoever waits asks again when the time is up.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        self.loop = loop
        self._tick_s = timeout_s / TICKS_PER_TIMEOUT
        self._late_s = 1.5 * self._tick_s  # a timer is always a little late
        self._elapsed_s = 0.0
        self._ticked_s = 0.0
        self._unasked = 0
        self._timer: asyncio.TimerHandle | None = None

    def now_s(self) -> float:
        self._unasked = 0
        if self._timer is None:
            self._start()
        return self._elapsed_s + min(self.loop.time() - self._ticked_s, self._late_s)

    def _start(self) -> None:
        self._ticked_s = self.loop.time()
        self._timer = self.loop.call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        self._elapsed_s += min(self.loop.time() - self._ticked_s, self._late_s)
        self._unasked += 1
        if self._unasked > 2 * TICKS_PER_TIMEOUT:
            self._timer = None
        else:
            self._start()


class Line(NamedTuple):
    """An open connection; `held` keeps alive what would close it when collected."""

    transport: asyncio.WriteTransport
    held: object


class Ended(asyncio.Protocol):
    """Sees a given-up connection to its end, so that it stays referenced until then."""

    def __init__(self, line: Line, gone: Future | None) -> None:
        self._line: Line | None = line
        self._gone = gone

    def connection_lost(self, error: Exception | None) -> None:
        self._line = None
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)


def fail(future: Future, why: StoreTrouble, packed: bytes) -> None:
    if packed is not ASKING:  # nobody waits for that one
        future.set_exception(why)


def settle(future: Future, outcome: Any) -> None:
    if isinstance(outcome, StoreTrouble):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


async def seen_through(answer: Future, why: asyncio.CancelledError) -> Any:
    """The answer, then the cancellation that came meanwhile, at the task's next await."""
    try:
        return await finished(answer)
    finally:
        cancel_later(why)
