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
from headgate.integrations.gate import asyncio_limiter, is_off
from headgate.integrations.llm.account import (
    CallAccount,
    account_for,
    call_rules,
    headers_of,
    model_of,
    status_of,
    unwrap_reply,
)
from headgate.integrations.llm.provider import debit_for, read_headers, refused_wait_ms
from headgate.limiter import RateLimiter


class LlmLimiter:
    """For asyncio; see account.call_rules for the options."""

    def __init__(self, limiter: RateLimiter, **options: Any) -> None:
        self.limiter = asyncio_limiter(limiter)
        self.rules = call_rules(**options)

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
        says = read_headers(headers, self.limiter.engine.clock())
        kinds = {self.rules.tokens: says.tokens}
        if self.rules.requests is not None:
            kinds[self.rules.requests] = says.requests
        nothing = dict.fromkeys(kinds, 0)
        limits = None if entity_id == self.rules.provider else self.rules.limits
        verdict = await self.limiter.check(entity_id, resource, nothing, limits)
        debits = {}
        for status in verdict.statuses:
            reported = kinds[status.limit_name]
            wait_ms = refused_wait_ms(says, reported) if refused else None
            if status.entity_id == entity_id and (debit := debit_for(status, reported, wait_ms)):
                debits[status.limit_name] = debit
        if debits:
            try:
                async with self.limiter.acquire(entity_id, resource, nothing, limits) as lease:
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
        wants = use.wants(entity_id, resource, account.reserved)
        async with self.limiter.acquire_many(
            wants, use.on_unavailable, on_error="keep", wait=use.wait_s
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


async def _close_stream(chunks: Any) -> None:
    """Closes the stream, so that the provider stops generating."""
    for name in ("aclose", "close"):
        close = getattr(chunks, name, None)
        if callable(close):
            closing = close()
            if hasattr(closing, "__await__"):
                await closing
            return
