"""A pool of HTTP/1.1 connections to one server: what those for tasks and for threads share.

A connection carries one request at a time, is used again as long as the server keeps it, and is
given up after a response that leaves open where it ends (`http1`). A pool never sends a request
twice: it says what became of one, and whoever asked decides what to do about it.
"""

from __future__ import annotations

import select
import ssl
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeVar

from headgate.transport.http1 import Response, ResponseReader

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A host, a port and, for https, how to check who answers there."""

    host: str
    port: int
    tls: ssl.SSLContext | None

    @property
    def authority(self) -> str:
        """The Host header: the port is named where it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = 443 if self.tls is not None else 80
        return host if self.port == usual else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.tls is not None else 'http'}://{self.authority}"


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """`until_close` is for servers of any kind, whose bodies may end with the connection."""

    address: ServerAddress
    connections: int
    idle_s_max: float  # servers hang up on idle connections; an older one is not used again
    body_bytes_max: int
    until_close: bool = False

    def new_reader(self) -> ResponseReader:
        return ResponseReader(self.body_bytes_max, until_close=self.until_close)


class Failure(Enum):
    """Why a request got no response. Only the last two may have reached the server as a whole."""

    CLOSED = "the pool is closed"
    CROWDED = "too many requests wait for a connection"
    BUSY = "no connection was free in time"
    CONNECT = "no connection could be made"
    SEND = "the connection broke before the request was written"
    LOST = "the connection broke, or what came is no response"
    OVERDUE = "there was no response in time"


class NoResponse(NamedTuple):
    failure: Failure
    reason: object = ""  # an exception, or a sentence

    @property
    def maybe_sent(self) -> bool:
        return self.failure is Failure.LOST or self.failure is Failure.OVERDUE


Answer = Response | NoResponse


class HttpPool(Protocol):
    """`due_s` is a time of `now_s`, and no request outlasts it. Nothing here raises but what a
    cancelled task or an interrupted thread has to hear."""

    def now_s(self) -> float: ...

    async def ask(
        self, packed: bytes, due_s: float, *, reserve_s: float = 0.0, can_abandon: bool = False
    ) -> Answer:
        """What came of sending it once; with less than `reserve_s` left it is not sent.

        A task that is cancelled while the request is under way still waits for the answer, unless
        it `can_abandon` it, which costs the connection.
        """
        ...

    async def ask_all(self, packed: Sequence[bytes], due_s: float) -> list[Answer]:
        """All at once, as far as connections go; never left half done."""
        ...

    async def run_in_thread(self, work: Callable[[], Result], due_s: float) -> Result:
        """What the blocking work returns; TimeoutError if that is not in time.

        Callers that ask for the same work while it is done share its result.
        """
        ...

    async def finish(self, flow: Coroutine[Any, Any, Result]) -> Result:
        """What the flow comes to; a cancellation waits for that."""
        ...

    async def pause(self, pause_s: float) -> None: ...

    async def close(self) -> None:
        """Waits for what was sent, which its deadline bounds; refuses the rest."""
        ...

    def abandon(self) -> None:
        """Ends it from another event loop or thread than its own."""
        ...


def idle_check(fileno: int) -> Callable[[int], object]:
    """A function that, called with 0, tells whether an idle connection is of no further use.

    The other side hung up, or it said something that nobody asked for: read as a part of the next
    response, that would answer the wrong request. It reads nothing from the connection.
    """
    if not hasattr(select, "poll"):  # Windows has none; elsewhere select fails past 1024 files
        return lambda _: select.select((fileno,), (), (), 0)[0]
    poll = select.poll()
    poll.register(fileno, select.POLLIN | getattr(select, "POLLRDHUP", 0))
    return poll.poll
