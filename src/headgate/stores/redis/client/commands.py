"""What goes over the wire, whatever carries it: packed commands, replies, scripts, and what the
async and the blocking transport have in common.

RESP2 only: it has no pushes, so replies come in the order of the commands and nothing else comes.
redis-py makes the connections (TLS, login, database); from then on the bytes are ours, since its
client costs ten times the call.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Self

import hiredis

from headgate.core.errors import StoreDenied, StoreTrouble, Unreachable
from headgate.stores.redis.client import errors as trouble
from headgate.stores.redis.client.errors import NotSent, ServerError
from headgate.stores.redis.client.url import Access, Node

Part = str | int | bytes
Parts = tuple[Part, ...]

NOTHING = object()  # what a reader has when it has no whole reply


def new_reader() -> hiredis.Reader:
    """Fed with bytes as they arrive; `gets()` returns whole replies, else NOTHING; `gets(False)`
    leaves strings in them bytes."""
    return hiredis.Reader(
        replyError=ServerError, encoding="utf-8", errors="surrogateescape", notEnoughData=NOTHING
    )


# The stub of hiredis knows tuples of one part only.
pack: Callable[[Parts], bytes] = hiredis.pack_command  # type: ignore[assignment]

ASKING = pack(("ASKING",))  # lets the next command use a slot that is on its way to that node


class PackedCommand(tuple[Part, ...]):
    """A command that is packed once, however often it is sent; strings in its reply stay bytes."""

    packed: bytes

    def __new__(cls, parts: Parts) -> Self:
        made = super().__new__(cls, parts)
        made.packed = pack(parts)
        return made


class Script:
    """A Lua script as the server knows it; made once per file. `raw` leaves strings in its replies
    bytes, because they hold packed numbers."""

    def __init__(self, name: str, source: str, *, raw: bool = False) -> None:
        self.name = name
        self.source = source
        self.raw = raw
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    def call(self, keys: Sequence[str], args: Sequence[Part]) -> Parts:
        """The command that runs it."""
        parts = ("EVALSHA", self.sha, len(keys), *keys, *args)
        return PackedCommand(parts) if self.raw else parts


# --------------------------------------------------------------------------------------------------
# What carries the calls.


class RedisTransport(ABC):
    """Calls to nodes, async or blocking; `due_s` is a time of `now_s`, and no call outlasts it.

    Connections to a node are made when it is first asked. `accesses` names the nodes that are not
    entered like the others.
    """

    now_s: Callable[[], float]

    def __init__(self, access: Access, timeout_ms: int, accesses: Mapping[Node, Access]) -> None:
        self.timeout_s = timeout_ms / 1000
        self._timeout_ms = timeout_ms
        self._access = access
        self._accesses = accesses
        self._nodes: dict[Node, Any] = {}  # the connection to each, or a pool of them
        self._closed = False

    @abstractmethod
    def ask(
        self, node: Node, parts: Parts, due_s: float, *, asking: bool = False
    ) -> Coroutine[Any, Any, Any]:
        """The reply, which may be a ServerError; sent at most once. Trouble is StoreTrouble."""

    @abstractmethod
    async def together(self, flows: Sequence[Coroutine[Any, Any, Any]]) -> list[Any | StoreTrouble]:
        """What each comes to, StoreTrouble as a value; at once where it can."""

    @abstractmethod
    def alone(self, due_s: float) -> AbstractAsyncContextManager[None]:
        """One at a time; NotSent for those whose turn does not come."""

    @abstractmethod
    async def pause(self, pause_s: float) -> None: ...

    @abstractmethod
    async def close(self) -> None:
        """What was sent is answered first; the rest is refused."""

    @abstractmethod
    def abandon(self) -> None:
        """Ends it at once, from whatever thread."""

    def is_connected(self, node: Node) -> bool:
        """Whether there is a connection to the node now."""
        return node in self._nodes and self._nodes[node].is_connected

    def retire(self, node: Node) -> None:
        """The connections to the node serve no further calls; the next call makes a new one."""
        if node in self._nodes:
            self._nodes[node].retire()

    def _connections(self, node: Node) -> Any:
        if self._closed:
            raise trouble.store_closed()
        return self._nodes.setdefault(node, self._connect(node))

    @abstractmethod
    def _connect(self, node: Node) -> Any:
        """What has `is_connected` and can `retire`."""

    def _new_connection(self, node: Node, kinds: Any, timeout_s: float | None) -> Any:
        """A connection of redis-py, not yet made: no retries, no health checks, RESP2. `kinds` is
        the module that has them, async or blocking."""
        access = self._accesses.get(node, self._access)
        kind = kinds.Connection if access.tls is None else kinds.SSLConnection
        place: dict[str, Any] = {"host": node.host, "port": node.port, "socket_keepalive": True}
        if node.port == 0:
            kind, place = kinds.UnixDomainSocketConnection, {"path": node.host}
        return kind(
            **place,
            **(access.tls or {}),
            username=access.username,
            password=access.password,
            db=access.db,
            protocol=2,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
        )


async def outcome_of(flow: Awaitable[Any]) -> Any | StoreTrouble:
    try:
        return await flow
    except StoreTrouble as error:
        return error


# --------------------------------------------------------------------------------------------------
# What a flow of calls does, to one master or to a cluster.


async def first_answer(
    wire: RedisTransport,
    nodes: Sequence[Node],
    question: Parts,
    due_s: float,
    *,
    nothing: str,
    failure: str,
) -> tuple[Node, list[Any]]:
    """The first list that one of these nodes replies, and whose it is.

    The nodes that are not asked yet share the time that is left, so that one that does not answer
    leaves time for the others. `nothing` says what a node does that has no answer, `failure` that
    none had.
    """
    said: object = "none was asked"
    denied: StoreDenied | None = None
    for place, node in enumerate(nodes):
        left_s = due_s - wire.now_s()
        share_s = left_s / (len(nodes) - place)
        try:
            reply = await wire.ask(node, question, due_s - left_s + share_s)
            if type(reply) is list and reply:
                return node, reply
            said = reply or f"{node} {nothing}"
            if type(reply) is ServerError:
                found = trouble.error_of_reply(reply, node)
                denied = found if isinstance(found, StoreDenied) else denied
        except StoreDenied as error:
            denied = error
        except (Unreachable, trouble.Unexpected) as error:
            said = error
    if denied is not None:
        raise denied
    raise NotSent(f"{failure}; nothing was sent ({said})")


class MissingScripts:
    """What to send after a server said NOSCRIPT: the whole script, or its hash once more.

    A server that was restarted knows no script, and ten thousand calls may find that out at once.
    The first of them sends the script; the others ask by its hash again, because their calls
    arrive after that one. Sending it with each of them would be 130 MB, which takes longer than
    the timeout.
    """

    def __init__(self, wire: RedisTransport) -> None:
        self._wire = wire
        self._sent_s: dict[tuple[Node, str], float] = {}

    def retry(
        self, node: Node, script: Script, parts: Parts, *, again: bool
    ) -> tuple[Parts, float]:
        """The parts to send and their deadline, a new one: the server has answered in time.

        `again` says that this call has been retried before and needs the whole script.
        """
        now_s = self._wire.now_s()
        timeout_s = self._wire.timeout_s
        sent_s = self._sent_s.get((node, script.sha), -math.inf)
        if again or now_s - sent_s > timeout_s:
            self._sent_s[node, script.sha] = now_s
            parts = type(parts)(("EVAL", script.source, *parts[2:]))
        return parts, now_s + timeout_s
