"""An open connection, the calls on it, and how each of them ends."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from headgate.errors import StoreTrouble
from headgate.port import cancel_later, finished
from headgate.stores.redis.wire import pack

ASKING = pack(("ASKING",))

Future = asyncio.Future[Any]
Entry = tuple[Future, float, bytes]  # who waits, until when, and what is sent


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
