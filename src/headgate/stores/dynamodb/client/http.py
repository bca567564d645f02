"""What goes over the wire, whatever carries it: places, replies, and the wire's promise.

A connection carries one call at a time, and no reply may leave open where it ends
(`transport.http1`). DynamoDB names the length of every reply; chunked ones are read too, since
proxies in between may make them.
"""

from __future__ import annotations

import select
import ssl
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from headgate.core.errors import StoreTrouble
from headgate.transport.http1 import Response, ResponseReader

IDLE_S_MAX = 20.0  # the service hangs up on idle connections; one that old is not used again
BODY_BYTES_MAX = 64 * 1024 * 1024  # the service's own bound is 16 MB

Result = TypeVar("Result")
Reply = Response


@dataclass(frozen=True, slots=True)
class DynamoEndpoint:
    """Where the service is: scheme, host, port and the region its signatures name."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    region: str

    @property
    def authority(self) -> str:
        """The Host header: the port is named where it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = 443 if self.tls is not None else 80
        return host if self.port == usual else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.tls is not None else 'http'}://{self.authority}"


class DynamoTransport(Protocol):
    """Calls to one endpoint; `due_s` is a time of `now_s`, and no call outlasts it."""

    def now_s(self) -> float: ...

    async def ask(self, packed: bytes, due_s: float) -> Reply | StoreTrouble:
        """The reply, or why there is none; NotApplied if it was certainly not sent."""
        ...

    async def ask_all(self, packed: Sequence[bytes], due_s: float) -> list[Reply | StoreTrouble]:
        """All at once, as far as connections go; never left half done."""
        ...

    async def aside(self, work: Callable[[], Result], due_s: float) -> Result:
        """What the blocking work returns; TimeoutError if that is not in time.

        Who asks for the same work while it is done gets what that comes to.
        """
        ...

    async def whole(self, flow: Coroutine[Any, Any, Result]) -> Result:
        """What the flow comes to; a cancellation waits for that."""
        ...

    async def pause(self, pause_s: float) -> None: ...

    async def close(self) -> None: ...


def reply_reader() -> ResponseReader:
    """Reads the replies of one connection."""
    return ResponseReader(BODY_BYTES_MAX)


class IdleCheck:
    """Sees whether an idle connection is of no further use, without reading from it.

    The other side hung up, or it said something that nobody asked for: read as a part of the next
    reply, that would answer the wrong call.
    """

    __slots__ = ("_poll",)

    def __init__(self, fileno: int) -> None:
        self._poll: select.poll | None = None
        if hasattr(select, "poll"):  # Windows has none
            self._poll = select.poll()
            self._poll.register(fileno, select.POLLIN | getattr(select, "POLLRDHUP", 0))

    def is_stale(self) -> bool:
        return self._poll is not None and bool(self._poll.poll(0))
