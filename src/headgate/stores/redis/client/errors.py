"""The server's and redis-py's complaints in headgate's words: what, why, what to do."""

from __future__ import annotations

import re
import ssl

from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError
from redis.exceptions import TimeoutError as RedisTimeout

from headgate.core.errors import Contended, Full, StoreDenied, StoreTrouble, Unreachable
from headgate.stores.redis.client.url import Node

MARK = "HEADGATE"  # how our scripts begin an error of their own

_UNREACHABLE = {
    "LOADING": "it is still loading its data; wait until it has",
    "READONLY": "it is a replica; name its master, or use redis+sentinel:// to follow failovers",
    "MASTERDOWN": "it is a replica that lost its master; bring the master back",
    "CLUSTERDOWN": "the cluster is down; see CLUSTER INFO for the slots nobody serves",
    "TRYAGAIN": "slots of this call are being moved; try again",
    "MISCONF": "it cannot save to disk and so takes no writes; see its log",
    "NOREPLICAS": "too few replicas are connected (min-replicas-to-write); bring them back",
}
# No outage: the server works, and goes on refusing until somebody changes its rights or the URL.
_DENIED = {
    "NOPERM": "its ACL user lacks a right; allow what the message names. headgate needs the keys "
    "~hg:* and +@connection +@scripting +@read +@write +time, in a cluster also +cluster|slots",
    "NOAUTH": "it wants a login; write redis://user:password@host",
    "WRONGPASS": "it refused the login; check user and password in the URL",
    "MOVED": "it is a node of a cluster; write redis+cluster://host:port",
    "ASK": "it is a node of a cluster; write redis+cluster://host:port",
    "DENIED": "it runs in protected mode, which lets in no other host; give it a password",
}
_ADVICE = {
    "CROSSSLOT": "the keys of one call are on several slots; report it as a bug",
    "WRONGTYPE": "another program uses this key; give headgate a database of its own",
    "NOSCRIPT": "a script vanished between two calls; try again",
}
# Refusals that come without a code of their own: inside a script, and before any login.
_UNCODED = {
    "The user executing the script can't": "NOPERM",
    "ACL failure in script": "NOPERM",
    "unauthenticated multibulk length": "NOAUTH",
    "unauthenticated bulk length": "NOAUTH",
}
_CODE = re.compile(r"[A-Z][A-Z0-9_]*")
# Redis 6 wraps what a command inside a script said.
_WRAPPED = re.compile(r"^ERR Error running script.*?: @?\w+: ?\d+: -?(?P<inner>[A-Z]+ .*)$", re.S)


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


class ScriptRefused(StoreTrouble):
    """One of our scripts gave an error of its own; `text` is all it said."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(text)


class Unexpected(StoreTrouble):
    """The server answered with an error that nobody foresaw; the call did not do its work."""


def error_of_reply(error: ServerError, node: Node) -> StoreTrouble:
    """An error reply: the call was not applied, unless our own script says otherwise."""
    text = _unwrap(error.text)
    code = ServerError(text).code
    if code == MARK:
        return ScriptRefused(text)
    if code == "BUSY":
        return Contended(
            f"redis {node} is busy with a script that does not end; nothing was done: "
            f"find it with CLIENT LIST, end it with SCRIPT KILL ({text})"
        )
    if code == "OOM":
        return Full(
            f"redis {node} did not do the call: its memory is full (maxmemory, noeviction); raise "
            f"maxmemory or remove other data; do not choose an eviction policy, which would forget "
            f"what was consumed ({text})"
        )
    for part, meant in _UNCODED.items():
        if code == "ERR" and part in text:
            code = meant
    if code in _DENIED:
        return StoreDenied(f"redis {node} refused the call: {_DENIED[code]} ({text})")
    if code in _UNREACHABLE:
        return Unreachable(f"redis {node} did not do the call: {_UNREACHABLE[code]} ({text})")
    if "max number of clients" in text:
        return Unreachable(f"redis {node} has too many clients; raise maxclients ({text})")
    advice = _ADVICE.get(code, "see the message, and report it as a bug")
    return Unexpected(f"redis {node} answered with an error: {advice} ({text})")


def is_replica(error: ServerError) -> bool:
    """Whether the server did nothing because it is no master any more."""
    return ServerError(_unwrap(error.text)).code == "READONLY"


def _unwrap(text: str) -> str:
    wrapped = _WRAPPED.match(text)
    return wrapped["inner"] if wrapped else text


def connect_error(error: BaseException, node: Node, timeout_ms: int) -> NotSent | StoreDenied:
    """No connection: nothing was sent."""
    if isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError):
        code = "NOPERM" if isinstance(error, NoPermissionError) else "WRONGPASS"
        return StoreDenied(
            f"redis {node} refused the connection: {_DENIED[code]} ({error}); nothing was sent"
        )
    if isinstance(error, TimeoutError | RedisTimeout):
        reason = f"no connection within {timeout_ms} ms; check the address, or raise ?timeout_ms=…"
    elif _caused_by(error, ssl.SSLError):
        reason = f"TLS failed; check ssl_ca_certs and that the server speaks TLS ({error})"
    elif node.port and _caused_by(error, FileNotFoundError, PermissionError):
        reason = f"a file of ssl_ca_certs, ssl_certfile or ssl_keyfile cannot be read ({error})"
    else:
        reason = f"no connection; check that it runs and the address is right ({error})"
    return NotSent(f"redis {node} gives no answer: {reason}; nothing was sent")


def _caused_by(error: BaseException, *kinds: type[BaseException]) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, kinds):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def connection_lost(node: Node, reason: object) -> Unreachable:
    return Unreachable(
        f"the connection to redis {node} was lost while a call was under way ({reason}); "
        f"whether it was applied is unknown"
    )


def deadline_exceeded(node: Node, timeout_ms: int) -> Unreachable:
    return Unreachable(
        f"redis {node} gave no answer within {timeout_ms} ms; whether the call was applied is "
        f"unknown: see what keeps the server busy (SLOWLOG), or raise ?timeout_ms=…"
    )


def not_sent_in_time(node: Node, timeout_ms: int) -> NotSent:
    return NotSent(f"redis {node} could not be asked within {timeout_ms} ms; nothing was sent")


def too_many_calls(node: Node, calls_max: int) -> Contended:
    return Contended(
        f"{calls_max} calls wait for redis {node} already; nothing was sent: slow down"
    )


def slot_moving(node: Node, reply: ServerError) -> Contended:
    return Contended(
        f"redis {node} and other nodes keep sending the call on; nothing was done: the cluster's "
        f"slots are being moved, try again ({reply.text})"
    )


def store_closed() -> NotSent:
    return NotSent("this Redis store is closed; open it again to use it")


def turn_timeout(timeout_ms: int) -> NotSent:
    return NotSent(f"others kept this call waiting for {timeout_ms} ms; nothing was sent")


def pool_exhausted(node: Node, connections: int, timeout_ms: int) -> Contended:
    return Contended(
        f"all {connections} connections to redis {node} were busy for {timeout_ms} ms; nothing "
        f"was sent: raise ?connections=… or use fewer threads"
    )
