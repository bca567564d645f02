"""Transports that keep an httpx client within a limit.

httpx.AsyncClient(transport=AsyncLimitedTransport(limiter, "10/second"))
httpx.Client(transport=LimitedTransport(sync_limiter, "10/second"))

headgate.integrations.outgoing says what counts.
"""

from __future__ import annotations

from typing import Any

import httpx

from headgate.integrations.gate import AwaitableLimiter, Rates, asyncio_limiter
from headgate.integrations.outgoing import Call, OutgoingRules
from headgate.limiter import RateLimiter
from headgate.sync import SyncRateLimiter

NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class AsyncLimitedTransport(httpx.AsyncBaseTransport):
    """See OutgoingRules for the options; `transport` sends the calls (default: httpx's own)."""

    def __init__(
        self,
        limiter: RateLimiter,
        limits: Rates = None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        **options: Any,
    ) -> None:
        self.rules = OutgoingRules(asyncio_limiter(limiter), limits, **options)
        self.transport = httpx.AsyncHTTPTransport() if transport is None else transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self.rules.send(
            call_of(request),
            lambda: self.transport.handle_async_request(request),
            _was_never_sent,
        )

    async def aclose(self) -> None:
        await self.transport.aclose()


class LimitedTransport(httpx.BaseTransport):
    """The same for blocking clients."""

    def __init__(
        self,
        limiter: SyncRateLimiter,
        limits: Rates = None,
        *,
        transport: httpx.BaseTransport | None = None,
        **options: Any,
    ) -> None:
        self.rules = OutgoingRules(AwaitableLimiter(limiter), limits, **options)
        self.transport = httpx.HTTPTransport() if transport is None else transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self.rules.send_blocking(
            call_of(request), lambda: self.transport.handle_request(request), _was_never_sent
        )

    def close(self) -> None:
        self.transport.close()


def call_of(request: httpx.Request) -> Call:
    return Call(request.method, str(request.url), request.url.host)


def _was_never_sent(error: Exception) -> bool:
    return isinstance(error, NEVER_SENT)
