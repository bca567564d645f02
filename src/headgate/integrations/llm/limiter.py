"""LlmLimiter: calls to language models, limited by requests and tokens.

    llm = LlmLimiter(limiter)
    reply = await llm.create("key-1", client.chat.completions.create, model=…, messages=…)
    async for chunk in llm.stream("key-1", client.messages.create, model=…, messages=…): …

Before the call, the estimated prompt and the longest possible answer are reserved. After it, the
lease is settled with what the provider says was used. Whoever hangs up pays for what was metered.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from headgate.core.errors import RateLimiterUnavailable, RateLimitExceeded, StoreDenied
from headgate.integrations.gate import AwaitableLimiter, asyncio_limiter, is_off
from headgate.integrations.llm.account import (
    CallAccount,
    CallRules,
    account_for,
    headers_of,
    model_of,
    status_of,
    unwrap_reply,
)
from headgate.integrations.outgoing import debit_for
from headgate.limiter import RateLimiter
from headgate.transport.quota import Quota, parse_model_quotas, parse_retry_after_ms

WAIT_MS_MAX = 24 * 3600 * 1000


class LlmLimiter:
    """For asyncio; see account.CallRules for the options."""

    def __init__(self, limiter: RateLimiter | AwaitableLimiter, **options: Any) -> None:
        self.limiter = (
            limiter if isinstance(limiter, AwaitableLimiter) else asyncio_limiter(limiter)
        )
        self.rules = CallRules(**options)

    async def create(
        self,
        entity_id: str,
        method: Callable[..., Awaitable[Any]],
        /,
        *,
        resource: str | None = None,
        **request: Any,
    ) -> Any:
        """What `method(**request)` returns, or RateLimitExceeded before it is called."""
        account = account_for(self.rules, request)
        async with self._reservation(entity_id, model_of(request, resource), account):
            reply = await method(**request)
            account.meter.see(unwrap_reply(reply))
        await self._learn_from(reply, model_of(request, resource))
        return reply

    async def stream(
        self,
        entity_id: str,
        method: Callable[..., Awaitable[Any]],
        /,
        *,
        resource: str | None = None,
        **request: Any,
    ) -> AsyncIterator[Any]:
        """The chunks of `method(**request, stream=True)`, metered as they pass."""
        account = account_for(self.rules, request)
        async with self._reservation(entity_id, model_of(request, resource), account):
            chunks = await method(**{**request, "stream": True})
            try:
                async for chunk in chunks:
                    account.meter.see(chunk)
                    yield chunk
            finally:
                await _close_stream(chunks)

    @asynccontextmanager
    async def reserve(
        self, entity_id: str, resource: str, prompt: Any, *, output_max: int | None = None
    ) -> AsyncIterator[CallAccount]:
        """For calls of any other shape: `call.meter.see(part)` with replies, chunks or text."""
        account = CallAccount(self.rules, prompt, output_max)
        async with self._reservation(entity_id, resource, account):
            yield account

    async def learn(
        self, headers: Mapping[str, Any], entity_id: str, resource: str, *, refused: bool = False
    ) -> dict[str, int]:
        """Lowers a bucket to what the provider's headers say is left; returns what was taken, by
        limit. `refused`: they came with a 429, so nothing is admitted before its wait is over."""
        told = _told_limits(headers, self.limiter.engine.clock(), refused=refused)
        kinds = {self.rules.tokens: told["tokens"]}
        if self.rules.requests is not None:
            kinds[self.rules.requests] = told["requests"]
        limits = None if entity_id == self.rules.provider else self.rules.limits
        nothing = [(entity_id, resource, dict.fromkeys(kinds, 0), limits)]
        debits = {}
        for status in (await self.limiter.check_many(nothing)).statuses:
            name = status.limit_name
            debit = debit_for(status, *kinds[name])
            if status.entity_id == entity_id and debit:
                debits[name] = debit
        if debits:
            try:
                async with self.limiter.acquire_many(nothing) as lease:
                    await lease.adjust(**debits)
            except RateLimitExceeded:  # in debt, so already lower than the provider says
                return {}
        return debits

    @asynccontextmanager
    async def _reservation(
        self, entity_id: str, resource: str, account: CallAccount
    ) -> AsyncIterator[None]:
        if is_off():
            yield
            return
        use = self.rules
        requests = use.requests_for(entity_id, resource, account.reserved)
        async with self.limiter.acquire_many(
            requests, use.on_unavailable, on_error="keep", wait=use.wait_s
        ) as lease:
            try:
                yield
            except BaseException as error:
                await lease.settle(**{use.tokens: account.owed(error)})
                await self._learn_from(error, resource)
                raise
            await lease.settle(**{use.tokens: account.owed(None)})

    async def _learn_from(self, answer: Any, resource: str) -> None:
        headers = headers_of(answer)
        if headers is not None and self.rules.provider is not None and not is_off():
            refused = isinstance(answer, BaseException) and status_of(answer) == 429
            # Only a hint: the call itself is over and counted.
            with suppress(RateLimiterUnavailable, StoreDenied):
                await self.learn(headers, self.rules.provider, resource, refused=refused)


def _told_limits(
    headers: Mapping[str, Any], now_ms: int, *, refused: bool
) -> dict[str, tuple[int | None, int | None]]:
    """What remains of the provider's "requests" and "tokens", and after a 429 how long each is
    closed; None where the headers do not say."""
    quotas = parse_model_quotas(headers, now_ms)
    told = {kind: quotas.get(kind, Quota()) for kind in ("requests", "tokens")}
    is_one_empty = any(quota.remaining == 0 for quota in told.values())
    found: dict[str, tuple[int | None, int | None]] = {}
    for kind, quota in told.items():
        wait_ms = parse_retry_after_ms(headers, now_ms)
        if wait_ms is None and quota.reset_at_ms is not None:
            wait_ms = max(0, quota.reset_at_ms - now_ms)
        # A limit that has some left was not the reason, if the other one has nothing left.
        if wait_ms is None or not refused or (is_one_empty and quota.remaining != 0):
            found[kind] = quota.remaining, None
        else:
            found[kind] = quota.remaining, min(WAIT_MS_MAX, wait_ms)
    return found


async def _close_stream(chunks: Any) -> None:
    """Closes the stream, so that the provider stops generating."""
    for name in ("aclose", "close"):
        close = getattr(chunks, name, None)
        if callable(close):
            closing = close()
            if hasattr(closing, "__await__"):
                await closing
            return
