"""Who sent an HTTP request, as far as it says: a key, a certificate, an address."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from headgate.service.http.read import Head
from headgate.service.keys.access import DEV_CALLER, Because, Caller, Refusal
from headgate.service.keys.authenticate__app_door import Entrance

SANS = "headgate.sans"  # in a scope's extensions: names of the client certificate, if verified

NAMES_MAX = 256

_HERE = frozenset({"127.0.0.1", "::1"})
_LOCAL_HOSTS = frozenset({b"localhost", b"127.0.0.1", b"[::1]"})


async def recognised(door: Entrance, scope: Any, head: Head) -> Caller | Refusal:
    """The caller, or why there is none."""
    if door.dev:
        return here_or_nobody(scope, head)
    bearer, plain = head.get(b"authorization"), head.get(b"x-api-key")
    if bearer is None and plain is None:
        return await door.recognise(None, sans=_sans(scope))
    if bearer is not None and plain is not None:
        return Refusal(Because.MALFORMED)
    if bearer is not None:
        kind, _, plain = bearer.partition(b" ")
        if kind.lower() != b"bearer":
            return Refusal(Because.MALFORMED)
    return await door.recognise((plain or b"").strip().decode("latin-1"))


def here_or_nobody(scope: Any, head: Head) -> Caller | Refusal:
    """Dev mode: whoever is on this machine."""
    return DEV_CALLER if is_local(scope, head) else Refusal(Because.NO_KEY)


def is_local(scope: Any, head: Head) -> bool:
    """Whether the request began on this machine. A web page can make a browser here send requests
    to a name that points here, and a proxy here speaks for others: neither counts."""
    if b"x-forwarded-for" in head or b"forwarded" in head:
        return False
    client = scope.get("client")
    return (client is None or client[0] in _HERE) and _is_local_name(head.get(b"host"))


@lru_cache(NAMES_MAX)
def _is_local_name(host: bytes | None) -> bool:
    if host is None or host in _LOCAL_HOSTS:
        return True
    name, colon, port = host.rpartition(b":")
    return (name if colon and port.isdigit() else host).lower() in _LOCAL_HOSTS


def _sans(scope: Any) -> Sequence[str]:
    found: Sequence[str] = (scope.get("extensions") or {}).get(SANS, ())
    return found
