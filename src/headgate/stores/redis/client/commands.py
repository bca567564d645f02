"""What goes over the wire, whatever carries it: packed commands, replies, and who is asked.

RESP2 only: it has no pushes, so replies come in the order of the commands and nothing else comes.
redis-py makes the connections (TLS, login, database); from then on the bytes are ours, since its
client costs ten times the call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, Self

from headgate.core.errors import StoreTrouble, Unreachable
from headgate.stores.redis.client.url import Access, Node

try:
    import hiredis
except ImportError:  # pure Python does the same, slower
    hiredis = None  # type: ignore[assignment,unused-ignore]

Part = str | int
Parts = tuple[Part, ...]

NOTHING = object()  # what a reader has when it has no whole reply

_CODE = re.compile(r"[A-Z][A-Z0-9_]*")


class ServerError(Exception):
    """An error reply, as a value: it is raised by nobody."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(text)

    @property
    def code(self) -> str:
        found = _CODE.match(self.text)
        return found[0] if found else ""


class NotSent(Unreachable):
    """No answer, and none could be: the call never left, so it may be sent elsewhere."""

    maybe_applied = False


class Reader(Protocol):
    def feed(self, data: bytes, /) -> None: ...

    def gets(self) -> Any:
        """The next reply; NOTHING until it is complete."""
        ...


class Wire(Protocol):
    """Calls to nodes, in one colour; `due_s` is a time of `now_s`, and no call outlasts it."""

    timeout_s: float

    def now_s(self) -> float: ...

    async def ask(self, node: Node, parts: Parts, due_s: float, *, asking: bool = False) -> Any:
        """The reply, which may be a ServerError; sent at most once. Trouble is StoreTrouble."""
        ...

    async def together(self, flows: Sequence[Coroutine[Any, Any, Any]]) -> list[Any | StoreTrouble]:
        """What each comes to, StoreTrouble as a value; at once where this colour can."""
        ...

    def alone(self, due_s: float) -> AbstractAsyncContextManager[None]:
        """One at a time; NotSent for those whose turn does not come."""
        ...

    async def pause(self, pause_s: float) -> None: ...

    def up(self, node: Node) -> bool:
        """Whether there is a connection to the node now."""
        ...

    def retire(self, node: Node) -> None:
        """The connections to the node serve no further calls; the next call makes a new one."""
        ...

    async def close(self) -> None: ...


def connection_options(node: Node, access: Access, timeout_s: float | None) -> dict[str, Any]:
    """redis-py's keyword arguments: no retries, no health checks, RESP2."""
    place: dict[str, Any] = {"path": node.host}
    if node.port != 0:
        place = {"host": node.host, "port": node.port, "socket_keepalive": True}
    return {
        **place,
        **(access.tls or {}),
        "username": access.username,
        "password": access.password,
        "db": access.db,
        "protocol": 2,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
    }


def python_pack(parts: Parts) -> bytes:
    pieces = [b"*%d\r\n" % len(parts)]
    for part in parts:
        data = str(part).encode()
        pieces.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(pieces)


def python_reader() -> Reader:
    from headgate.stores.redis.client.resp import PythonReader

    return PythonReader()


def hiredis_reader() -> Reader:
    return hiredis.Reader(
        replyError=ServerError, encoding="utf-8", errors="surrogateescape", notEnoughData=NOTHING
    )


pack: Callable[[Parts], bytes] = getattr(hiredis, "pack_command", python_pack)


class Ready(tuple[Part, ...]):
    """A command that is sent again and again, packed once."""

    packed: bytes

    def __new__(cls, parts: Parts) -> Self:
        made = super().__new__(cls, parts)
        made.packed = pack(parts)
        return made


def packed(parts: Parts) -> bytes:
    return parts.packed if type(parts) is Ready else pack(parts)


new_reader: Callable[[], Reader] = python_reader if hiredis is None else hiredis_reader
