"""What goes over the wire, whatever carries it: HTTP/1.1 requests, replies, and the wire's promise.

A connection carries one call at a time. DynamoDB names the length of every reply; chunked ones are
read too, since proxies in between may make them.
"""

from __future__ import annotations

import select
import ssl
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from headgate.errors import StoreTrouble

IDLE_S_MAX = 20.0  # the service hangs up on idle connections; one that old is not used again
HEAD_BYTES_MAX = 65_536
DATE, LENGTH, CONNECTION = b"\r\ndate:", b"\r\ncontent-length:", b"\r\nconnection:"
BODY_BYTES_MAX = 64 * 1024 * 1024  # the service's own bound is 16 MB

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Place:
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


@dataclass(slots=True)
class Reply:
    status: int
    head: bytes  # in lower case
    body: bytes
    keep: bool  # whether the connection takes another call
    sent_ns: int = 0  # of the monotonic clock, noted by whoever sent the call
    received_ns: int = 0


class Garbled(Exception):
    """What came is no reply to what was asked."""


class Wire(Protocol):
    """Calls to one place, in one colour; `due_s` is a time of `now_s`, and no call outlasts it."""

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


def field(head: bytes, mark: bytes) -> bytes:
    """What follows a mark such as DATE, from a head in lower case; empty if it is not there."""
    start = head.find(mark)
    if start < 0:
        return b""
    end = head.find(b"\r\n", start + 2)
    return head[start + len(mark) : end if end >= 0 else None].strip()


class Reader:
    """Puts the replies of one connection together, one after the other."""

    __slots__ = ("_kept", "_needed")

    def __init__(self) -> None:
        self._kept = bytearray()
        self._needed = 0

    def feed(self, data: bytes) -> Reply | None:
        """The reply once it is whole; most come in one piece."""
        if self._kept:
            self._kept += data
            if len(self._kept) < self._needed:
                return None
            data = bytes(self._kept)
        reply, self._needed = parse(data)
        if reply is not None:
            self._kept.clear()
        elif not self._kept:
            self._kept += data
        return reply


def parse(data: bytes) -> tuple[Reply | None, int]:
    """A whole reply, or how many bytes it takes at least; Garbled if it can be none."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        if len(data) > HEAD_BYTES_MAX or not b"HTTP/1.1 ".startswith(data[:9]):
            raise Garbled(f"no HTTP head: {data[:40]!r}")
        return None, len(data) + 1
    head = data[:end].lower()
    if not head.startswith(b"http/1."):
        raise Garbled(f"no HTTP/1.1 head: {data[:40]!r}")
    status = int(head[9:12])
    keep = b"close" not in head or field(head, CONNECTION) != b"close"
    if b"\r\ntransfer-encoding:" in head:
        body, needed = unchunk(data, end + 4)
        return (None if body is None else Reply(status, head, body, keep)), needed
    length = field(head, LENGTH)
    size = int(length) if length.isdigit() else BODY_BYTES_MAX + 1
    if size > BODY_BYTES_MAX:
        raise Garbled(f"HTTP {status} without a usable length")
    needed = end + 4 + size
    if len(data) != needed:
        if len(data) > needed:
            raise Garbled("more than one reply to one call")
        return None, needed
    return Reply(status, head, data[end + 4 :], keep), needed


def unchunk(data: bytes, at: int) -> tuple[bytes | None, int]:
    """The body of chunks that starts there, or how many bytes there must be at least."""
    chunks: list[bytes] = []
    while True:
        line = data.find(b"\r\n", at)
        if line < 0:
            return None, len(data) + 1
        size = int(data[at:line].split(b";")[0], 16)
        at = line + 2 + size + 2
        if size < 0 or at > BODY_BYTES_MAX:
            raise Garbled("a chunk of no usable size")
        if len(data) < at:
            return None, at
        if size == 0:
            return b"".join(chunks), at
        chunks.append(data[line + 2 : at - 2])


class Watch:
    """Sees whether the other side hung up on an idle connection, without reading from it."""

    __slots__ = ("_poll",)

    def __init__(self, fileno: int) -> None:
        self._poll: select.poll | None = None
        if hasattr(select, "poll"):  # Windows has none
            self._poll = select.poll()
            self._poll.register(fileno, getattr(select, "POLLRDHUP", select.POLLIN))

    def hung_up(self) -> bool:
        return self._poll is not None and bool(self._poll.poll(0))
