"""What goes over the wire, whatever carries it: packed commands, replies, and who is asked.

RESP2 only: it has no pushes, so replies come in the order of the commands and nothing else comes.
redis-py makes the connections (TLS, login, database); from then on the bytes are ours, since its
client costs ten times the call.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import hiredis

from headgate.core.errors import StoreTrouble, Unreachable
from headgate.stores.redis.client.url import Access, Node

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


class RedisTransport(Protocol):
    """Calls to nodes, async or blocking; `due_s` is a time of `now_s`, and no call outlasts it."""

    timeout_s: float

    def now_s(self) -> float: ...

    async def ask(self, node: Node, parts: Parts, due_s: float, *, asking: bool = False) -> Any:
        """The reply, which may be a ServerError; sent at most once. Trouble is StoreTrouble."""
        ...

    async def together(self, flows: Sequence[Coroutine[Any, Any, Any]]) -> list[Any | StoreTrouble]:
        """What each comes to, StoreTrouble as a value; at once where it can."""
        ...

    def alone(self, due_s: float) -> AbstractAsyncContextManager[None]:
        """One at a time; NotSent for those whose turn does not come."""
        ...

    async def pause(self, pause_s: float) -> None: ...

    def is_connected(self, node: Node) -> bool:
        """Whether there is a connection to the node now."""
        ...

    def retire(self, node: Node) -> None:
        """The connections to the node serve no further calls; the next call makes a new one."""
        ...

    async def close(self) -> None:
        """What was sent is answered first; the rest is refused."""
        ...

    def abandon(self) -> None:
        """Ends it at once, from whatever thread."""
        ...


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


def new_reader() -> hiredis.Reader:
    """Fed with bytes as they arrive; `gets()` returns whole replies, else NOTHING."""
    return hiredis.Reader(
        replyError=ServerError, encoding="utf-8", errors="surrogateescape", notEnoughData=NOTHING
    )


# The stub of hiredis knows tuples of one part only.
pack: Callable[[Parts], bytes] = hiredis.pack_command  # type: ignore[assignment]


class PackedCommand(tuple[Part, ...]):
    """A command that is sent again and again, packed once."""

    packed: bytes

    def __new__(cls, parts: Parts) -> Self:
        made = super().__new__(cls, parts)
        made.packed = pack(parts)
        return made


# --------------------------------------------------------------------------------------------------
# What the store asks of Redis: scripts, commands, and where keys live.


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script as the server knows it; made once per file."""

    name: str
    source: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", digest)


def packed_script_call(script: Script, keys: Sequence[str], args: Sequence[Part]) -> PackedCommand:
    """A script call that is sent again and again."""
    return PackedCommand(("EVALSHA", script.sha, len(keys), *keys, *args))


class MissingScripts:
    """What to send after a server said NOSCRIPT: the whole script, or its hash once more.

    A server that was restarted knows no script, and ten thousand calls may find that out at once.
    The first of them sends the script; the others ask by its hash again, because their calls
    arrive after that one. Sending it with each of them would be 130 MB, which takes longer than
    the timeout.
    """

    def __init__(self, wire: RedisTransport) -> None:
        self._wire = wire
        self._sent_s: dict[tuple[Node | None, str], float] = {}

    def retry(
        self, node: Node | None, script: Script, parts: Parts, *, again: bool
    ) -> tuple[Parts, float]:
        """The parts to send and their deadline, a new one: the server has answered in time.

        `again` says that this call has been retried before and needs the whole script.
        """
        now_s = self._wire.now_s()
        timeout_s = self._wire.timeout_s
        sent_s = self._sent_s.get((node, script.sha), -math.inf)
        if again or now_s - sent_s > timeout_s:
            self._sent_s[node, script.sha] = now_s
            parts = ("EVAL", script.source, *parts[2:])
        return parts, now_s + timeout_s


ScriptCall = tuple[Script, Sequence[str], Sequence[Part]]


class RedisPort(Protocol):
    slots: int  # 1 without a cluster

    async def script(self, script: Script, keys: Sequence[str], args: Sequence[Part]) -> Any:
        """What the script returns; it runs once, also where the server did not know it yet."""
        ...

    def again(self, script: Script, parts: PackedCommand) -> Awaitable[Any]:
        """The same of a call that was packed before: `ready_call` makes one."""
        ...

    async def command(self, *parts: Part, key: str | None = None) -> Any:
        """The reply to one command; `key` says where it goes in a cluster (else the 2nd part)."""
        ...

    async def everywhere(self, *parts: Part) -> list[Any]:
        """The replies of every master; trouble of one is trouble of the call."""
        ...

    async def scan(self, pattern: str) -> list[str]:
        """Keys that match, on every master; some may come twice."""
        ...

    def slot(self, key: str) -> int:
        """Keys of one slot can be used in one call; without a cluster every key is in slot 0."""
        ...

    async def scripts(self, calls: Sequence[ScriptCall]) -> list[Any | StoreTrouble]:
        """One outcome per call, trouble as a value; the calls are not atomic together."""
        ...

    async def close(self) -> None:
        """No call is served any more; closing again does nothing."""
        ...


# --------------------------------------------------------------------------------------------------
# A walk over the keys of one server, in small steps that block nobody.

STEP = 1000


async def scan_keys(ask: Callable[..., Awaitable[Any]], pattern: str) -> list[str]:
    """Keys that match, as SCAN tells them: each at least once if it was there all the time."""
    found: list[str] = []
    cursor = "0"
    while True:
        cursor, names = await ask("SCAN", cursor, "MATCH", pattern, "COUNT", STEP)
        found += names
        if str(cursor) == "0":
            return found
