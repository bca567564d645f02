"""What the faces are made of: options parsed, connections and flow put together."""

from __future__ import annotations

import os
import random
import re
import ssl
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from headgate.client.errors import ClientError
from headgate.client.flow import TIMEOUT_S_MAX, RequestFlow, Timing, parse_seconds
from headgate.client.pool import ConnectionPool, PoolWaiter
from headgate.client.requests import RequestHead, parse_whole
from headgate.client.retry import NoReply, Retry
from headgate.core.errors import ValidationError
from headgate.core.limits import parse_namespace
from headgate.core.runtime import Clock, steady_clock
from headgate.transport.gates import GateFactory, gate_factory_for
from headgate.transport.http1 import Response

# --------------------------------------------------------------------------------------------------
# Where the service is and who asks: a URL and a key, parsed once.

PORTS = {"http": 80, "https": 443}
KEY_LENGTH_MAX = 4096

_KEY = re.compile(r"[\x21-\x7e]+")
_HOST = re.compile(r"[A-Za-z0-9.\-_]{1,253}|[0-9A-Fa-f:.]{2,45}")
_PATH = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@%\-]+)*/?")


class Address(NamedTuple):
    """A host, a port and, for https, how to check who answers there."""

    host: str
    port: int
    tls: ssl.SSLContext | None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_address(
    url: object, api_key: str | None, tls: ssl.SSLContext | None
) -> tuple[Address, RequestHead]:
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
    address = Address(
        parts.hostname,
        port or PORTS[parts.scheme],
        (tls or ssl.create_default_context()) if secure else None,
    )
    return address, _head(parts.path.rstrip("/"), _host_field(address), api_key)


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


def _host_field(address: Address) -> str:
    host = f"[{address.host}]" if ":" in address.host else address.host
    plain = PORTS["http" if address.tls is None else "https"]
    return host if address.port == plain else f"{host}:{address.port}"


def _bad_url(reason: str) -> ValidationError:
    """The URL is not repeated: people put passwords into them."""
    return ValidationError("url", "<not shown>", reason)


# --------------------------------------------------------------------------------------------------
# One attempt over a pool of connections: the same for threads and for tasks.
#
# `PooledTransport` gets a connection within its time, sends, reads, and gives it back or up. How a
# connection sends and reads is in `connection_async` and `connection_blocking`.

POOLS_MAX = 64
BUSY = "no connection was free in time; raise connections= or call less at once"
SENDING_SHARE = 10  # what has not a tenth of its time left is not sent: its answer would be lost


class ConnectFailed(Exception):
    """No connection could be made."""


class ResponseLost(Exception):
    """The request was sent, or part of it, and no response came."""


class HttpConnection(Protocol):
    """A connection that carries one request at a time."""

    @property
    def reusable(self) -> bool:
        """Whether the last response left it fit for another request."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it is still so, as far as can be seen from here."""
        ...

    async def exchange(self, payload: bytes, timeout_ms: int, linger: bool) -> Response:
        """The response; Lost where there is none in time. With `linger`, a cancelled caller still
        waits for it."""
        ...

    def close(self) -> None: ...


Connect = Callable[[int], Awaitable[HttpConnection]]


class PooledTransport:
    """The connections of one client to its service."""

    def __init__(
        self,
        make_pool: Callable[[], ConnectionPool[HttpConnection]],
        connect: Connect,
        here: Callable[[], object],
        clock: Clock,
    ) -> None:
        self._make_pool = make_pool
        self._pools: dict[object, ConnectionPool[HttpConnection]] = {}
        self._connect = connect
        self._here = here
        self._clock = clock
        self._closed = False

    async def attempt(self, payload: bytes, timeout_ms: int, linger: bool) -> Response | NoReply:
        """What came back, within the time that this attempt has."""
        if self._closed:
            raise ClientError("this client was closed; make a new one")
        pool = self._pools.get(self._here()) or self._make_pool_here()
        end_ms = self._clock() + timeout_ms
        try:
            link = await self._get_connection(pool, end_ms)
        except ConnectFailed as error:
            return NoReply(str(error), sent=False)
        reusable = False
        left_ms = end_ms - self._clock()
        if left_ms * SENDING_SHARE < timeout_ms:
            self._put_back(pool, link, link.reusable)
            return NoReply(BUSY, sent=False)
        try:
            response = await link.exchange(payload, left_ms, linger)
            reusable = link.reusable
        except ResponseLost as error:
            return NoReply(str(error), sent=True)
        finally:
            self._put_back(pool, link, reusable)
        return response

    def close(self) -> None:
        """Idle connections end now, others when their answer is there."""
        self._closed = True
        for pool in self._pools.values():
            for link in pool.emptied():
                link.close()

    def _make_pool_here(self) -> ConnectionPool[HttpConnection]:
        """A pool for the event loop or process that calls: connections stay where they were
        made."""
        while len(self._pools) >= POOLS_MAX:
            self._pools.pop(next(iter(self._pools)))
        return self._pools.setdefault(self._here(), self._make_pool())

    async def _get_connection(
        self, pool: ConnectionPool[HttpConnection], end_ms: int
    ) -> HttpConnection:
        while True:
            checkout = pool.take(self._clock())
            for old in checkout.stale:
                old.close()
            link, fresh = checkout.link, checkout.fresh
            if checkout.waiter is not None:
                link = await self._wait_for_connection(pool, checkout.waiter, end_ms)
                fresh = link is None
            if link is None:
                if not fresh:
                    raise ConnectFailed(BUSY)
                return await self._open_connection(pool, end_ms)
            if link.alive:
                return link
            self._put_back(pool, link, False)

    async def _wait_for_connection(
        self, pool: ConnectionPool[HttpConnection], waiter: PoolWaiter[HttpConnection], end_ms: int
    ) -> HttpConnection | None:
        """A link, or None for a place to make one."""
        try:
            served = await waiter.gate.wait(max(1, end_ms - self._clock()))
        except BaseException:
            if not pool.leave(waiter):
                self._pass_on(pool, waiter)
            raise
        if not served and pool.leave(waiter):
            raise ConnectFailed(BUSY)
        return waiter.link

    async def _open_connection(
        self, pool: ConnectionPool[HttpConnection], end_ms: int
    ) -> HttpConnection:
        try:
            return await self._connect(max(1, end_ms - self._clock()))
        except BaseException:
            pool.drop()
            raise

    def _pass_on(
        self, pool: ConnectionPool[HttpConnection], waiter: PoolWaiter[HttpConnection]
    ) -> None:
        if waiter.link is None:
            pool.drop()
        else:
            self._put_back(pool, waiter.link, waiter.link.alive)

    def _put_back(
        self, pool: ConnectionPool[HttpConnection], link: HttpConnection, reusable: bool
    ) -> None:
        if reusable and not self._closed:
            pool.give(link, self._clock())
        else:
            link.close()
            pool.drop()


URL = "http://127.0.0.1:8080"
URL_VARIABLE = "HEADGATE_SERVICE_URL"
KEY_VARIABLE = "HEADGATE_API_KEY"
TIMEOUT_S = 5.0
ATTEMPT_TIMEOUT_S = 2.0
CONNECTIONS = 16
CONNECTIONS_MAX = 10_000


class ConnectionMode(NamedTuple):
    """How one kind of caller connects, and what its connections belong to."""

    blocking: bool
    connect: Callable[[Address, int], Awaitable[HttpConnection]]
    here: Callable[[], object]


class ClientParts(NamedTuple):
    flow: RequestFlow
    namespace: str | None
    shown: str


def build_client(
    mode: ConnectionMode,
    url: str | None,
    *,
    api_key: str | None,
    namespace: str | None,
    timeout_s: float,
    attempt_timeout_s: float,
    connections: int,
    retry: Retry | None,
    tls: ssl.SSLContext | None,
    clock: Clock | None,
) -> ClientParts:
    """A flow over connections of that mode; everything given is checked here."""
    if url is None:
        url = os.environ.get(URL_VARIABLE) or URL
        api_key = api_key or os.environ.get(KEY_VARIABLE) or None
    address, head = parse_address(url, api_key, tls)
    if retry is not None and not isinstance(retry, Retry):
        raise ValidationError("retry", retry, "must be a Retry")
    most = parse_whole("connections", connections, least=1)
    if most > CONNECTIONS_MAX:
        raise ValidationError("connections", most, f"must be at most {CONNECTIONS_MAX}")
    timing = Timing(
        parse_seconds("timeout_s", timeout_s, TIMEOUT_S_MAX),
        parse_seconds("attempt_timeout_s", attempt_timeout_s, TIMEOUT_S_MAX),
    )
    parsed_namespace = None if namespace is None else parse_namespace(namespace)
    ticks = clock or steady_clock()
    pace: GateFactory = gate_factory_for(clock, blocking=mode.blocking)
    transport = PooledTransport(
        lambda: ConnectionPool(most, pace),
        lambda timeout_ms: mode.connect(address, timeout_ms),
        mode.here,
        ticks,
    )
    flow = RequestFlow(transport, head, timing, retry or Retry(), ticks, pace, random.random)
    return ClientParts(
        flow, parsed_namespace, f"{'http' if address.tls is None else 'https'}://{address}"
    )
