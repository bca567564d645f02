"""Transports that keep an httpx client within a limit.

httpx.AsyncClient(transport=AsyncLimitedTransport(limiter, "10/second"))
httpx.Client(transport=LimitedTransport(sync_limiter, "10/second"))

headgate.integrations.outgoing says what counts.
"""

from __future__ import annotations

from typing import Any

import httpx

from headgate.integrations.gate import Rates, asyncio_limiter, blocking_limiter, is_off
from headgate.integrations.outgoing import (
    Call,
    debits,
    logging_failures,
    outgoing_rules,
    requested_wait_ms,
    send_within_limit,
)
from headgate.limiter import RateLimiter
from headgate.sync import SyncRateLimiter

NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class AsyncLimitedTransport(httpx.AsyncBaseTransport):
    """See outgoing_rules for the options; `transport` sends the calls (default: httpx's own)."""

    def __init__(
        self,
        limiter: RateLimiter,
        limits: Rates = None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        **options: Any,
    ) -> None:
        self.limiter = asyncio_limiter(limiter)
        self.rules = outgoing_rules(limits, **options)
        self.transport = httpx.AsyncHTTPTransport() if transport is None else transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if is_off():
            return await self.transport.handle_async_request(request)
        call, rules = call_of(request), self.rules
        async with self.limiter.acquire_many(
            [rules.want(call)], rules.on_unavailable, on_error="keep", wait=rules.wait_s
        ) as lease:
            try:
                response = await self.transport.handle_async_request(request)
            except NEVER_SENT:
                await lease.settle(**dict.fromkeys(lease.consumed, 0))
                raise
            now_ms = self.limiter.engine.clock()
            wait_ms = requested_wait_ms(response.status_code, response.headers, now_ms)
            if wait_ms is not None:
                status = rules.status(call)
                with logging_failures(self.limiter.engine, status):
                    verdict = await self.limiter.check_many([status])
                    await lease.adjust(**debits(verdict, wait_ms))
            return response

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
        self.limiter = blocking_limiter(limiter)
        self.rules = outgoing_rules(limits, **options)
        self.transport = httpx.HTTPTransport() if transport is None else transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return send_within_limit(
            self.limiter, self.rules, call_of(request),
            lambda: self.transport.handle_request(request),
            lambda error: isinstance(error, NEVER_SENT),
        )  # fmt: skip

    def close(self) -> None:
        self.transport.close()


def call_of(request: httpx.Request) -> Call:
    return Call(request.method, str(request.url), request.url.host)
