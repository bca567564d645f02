"""Where the service is, and the connections to it."""

from __future__ import annotations

import re
import ssl
from collections.abc import Coroutine
from typing import Any, TypeVar
from urllib.parse import urlsplit

from headgate.client.answers import ClientError
from headgate.client.requests import RequestHead
from headgate.client.retry import NoReply
from headgate.core.errors import ValidationError
from headgate.transport.gates import PerOwner
from headgate.transport.http1 import Response
from headgate.transport.http_pool import Failure, HttpPool, NoResponse, PoolOptions, ServerAddress
from headgate.transport.pool_async import AsyncHttpPool
from headgate.transport.pool_blocking import BlockingHttpPool

Result = TypeVar("Result")

# --------------------------------------------------------------------------------------------------
# Where the service is and who asks: a URL and a key, parsed once.

PORTS = {"http": 80, "https": 443}
KEY_LENGTH_MAX = 4096

_KEY = re.compile(r"[\x21-\x7e]+")
_HOST = re.compile(r"[A-Za-z0-9.\-_]{1,253}|[0-9A-Fa-f:.]{2,45}")
_PATH = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@%\-]+)*/?")


def parse_address(
    url: object, api_key: str | None, tls: ssl.SSLContext | None
) -> tuple[ServerAddress, RequestHead]:
    """The address, and the head of every request sent there; the key is in the head alone."""
    if not isinstance(url, str):
        raise ValidationError("url", type(url).__name__, "must be a str")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _bad_url("cannot be parsed") from None
    if "@" in parts.netloc:
        raise _bad_url("holds a user or password; give the key as api_key=")
    if parts.scheme not in PORTS or parts.hostname is None:
        raise _bad_url("must look like https://limits.example.com")
    if parts.query or parts.fragment or _PATH.fullmatch(parts.path) is None:
        raise _bad_url("may have a path, and nothing after it")
    if _HOST.fullmatch(parts.hostname) is None or port == 0:
        raise _bad_url("has no usable host or port; write an international name as punycode")
    secure = parts.scheme == "https"
    if tls is not None and not secure:
        raise ValidationError("tls", "<SSLContext>", "needs an https URL")
    address = ServerAddress(
        parts.hostname,
        port or PORTS[parts.scheme],
        (tls or ssl.create_default_context()) if secure else None,
    )
    return address, _head(parts.path.rstrip("/"), address.authority, api_key)


def _head(path: str, host: str, api_key: str | None) -> RequestHead:
    fields = [("host", host), ("user-agent", "headgate-client"), ("accept", "application/json")]
    if api_key is not None:
        fields.append(("authorization", f"Bearer {parse_key(api_key)}"))
    return RequestHead(path, tuple(fields))


def parse_key(api_key: object) -> str:
    """The key; what is wrong with one is told without showing it."""
    if (
        not isinstance(api_key, str)
        or len(api_key) > KEY_LENGTH_MAX
        or _KEY.fullmatch(api_key) is None
    ):
        raise ValidationError("api_key", "<hidden>", "must be printable ASCII without spaces")
    return api_key


def _bad_url(reason: str) -> ValidationError:
    """The URL is not repeated: people put passwords into them."""
    return ValidationError("url", "<not shown>", reason)


# --------------------------------------------------------------------------------------------------
# One attempt over the connections of the running event loop, or of this process.

IDLE_S_MAX = 4.0  # below the 5 s after which common servers hang up: a call never meets that
BODY_BYTES_MAX = 4 * 1024 * 1024
SENDING_SHARE = 10  # what has not a tenth of its time left is not sent: its answer would be lost


class ServiceTransport:
    """The connections of one client to its service."""

    def __init__(self, address: ServerAddress, connections: int, *, blocking: bool) -> None:
        self._address = address
        options = PoolOptions(address, connections, IDLE_S_MAX, BODY_BYTES_MAX, until_close=True)
        pool_type = BlockingHttpPool if blocking else AsyncHttpPool
        self._pools: PerOwner[HttpPool] = PerOwner(
            lambda: pool_type(options), _closed_error, None if blocking else HttpPool.abandon
        )

    async def attempt(self, payload: bytes, timeout_ms: int, linger: bool) -> Response | NoReply:
        """What came of sending it once, within that time. With `linger`, a task that is cancelled
        still waits for the answer."""
        pool = self._pools.here()
        timeout_s = timeout_ms / 1000
        found = await pool.ask(
            payload,
            pool.now_s() + timeout_s,
            reserve_s=timeout_s / SENDING_SHARE,
            can_abandon=not linger,
        )
        return self._no_reply(found, timeout_ms) if isinstance(found, NoResponse) else found

    async def finish(self, flow: Coroutine[Any, Any, Result]) -> Result:
        """What the flow comes to, also if the task is cancelled meanwhile."""
        try:
            pool = self._pools.here()
        except ClientError:
            flow.close()
            raise
        return await pool.finish(flow)

    async def close(self) -> None:
        pool = self._pools.close()
        if pool is not None:
            await pool.close()

    def _no_reply(self, found: NoResponse, timeout_ms: int) -> NoReply:
        failure, reason = found
        if failure is Failure.CLOSED:
            raise _closed_error()
        if failure is Failure.CONNECT:
            late = isinstance(reason, TimeoutError)
            told = f" within {timeout_ms} ms" if late else f": {reason}"
            text = f"no connection to {self._address}{told}"
        elif failure in (Failure.BUSY, Failure.CROWDED):
            text = "no connection was free in time; raise connections= or call less at once"
        elif failure is Failure.OVERDUE:
            text = f"no answer within {timeout_ms} ms"
        else:
            text = f"the connection to {self._address} broke: {reason}"
        return NoReply(text, sent=found.maybe_sent)


def _closed_error() -> ClientError:
    return ClientError("this client was closed; make a new one")
