"""LlmLimiter: calls to language models, limited by requests and tokens.

    llm = LlmLimiter(limiter)
    reply = await llm.create("key-1", client.chat.completions.create, model=…, messages=…)
    async for chunk in llm.stream("key-1", client.messages.create, model=…, messages=…): …

Before the call, the estimated prompt and the longest possible answer are reserved. After it, the
lease is settled with what the provider says was used; that of a stream when the stream ends.
Whoever hangs up pays for what was metered.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from inspect import isawaitable
from typing import Any

from headgate.core.errors import RateLimiterUnavailable, RateLimitExceeded, StoreDenied
from headgate.integrations.gate import AwaitableLimiter, asyncio_limiter, is_off
from headgate.integrations.llm.account import (
    CallAccount,
    CallRules,
    account_for,
    headers_of,
    is_raw,
    model_of,
    status_of,
    with_usage_asked,
)
from headgate.integrations.llm.stream import (
    MeteredStream,
    OpenCall,
    RawStream,
    SyncMeteredStream,
    close_stream,
)
from headgate.integrations.outgoing import debit_for
from headgate.limiter import RateLimiter
from headgate.transport.quota import Quota, parse_model_quotas, parse_retry_after_ms

WAIT_MS_MAX = 24 * 3600 * 1000


class LlmLimiter:
    """For asyncio; see account.CallRules for the options."""

    _stream: type[MeteredStream] | type[SyncMeteredStream] = MeteredStream

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
        """What `method(**request)` returns, or RateLimitExceeded before it is called.

        A stream (`stream=True`) comes back as a MeteredStream: it is settled when it ends, so read
        it to the end or close it.
        """
        account = account_for(self.rules, request)
        model = model_of(request, resource)
        if is_off():
            return await method(**request)
        asked = with_usage_asked(method, request) if self.rules.ask_usage else request
        call = await self._open_call(entity_id, model, account)
        try:
            reply = await method(**asked)
            body = reply.parse() if is_raw(reply) else reply
            is_awaited = body is not reply and isawaitable(body)
            body = await body if is_awaited else body
            is_stream = self._stream.is_stream(body, asked=bool(request.get("stream")))
            if not is_stream:
                account.meter.see(body)
        except BaseException as error:
            await call.end(error)
            raise
        if not is_stream:
            await call.end()
            await self._learn_from(reply, model)
            return reply
        stream = self._stream(body, call, hides_usage=asked != request)
        await self._learn_from(reply, model)
        return stream if body is reply else RawStream(reply, stream, is_awaited=is_awaited)

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
        streamed = {**request, "stream": True}
        opened = await self.create(entity_id, method, resource=resource, **streamed)
        try:
            async for chunk in opened:
                yield chunk
        finally:
            await close_stream(opened)

    @asynccontextmanager
    async def reserve(
        self, entity_id: str, resource: str, prompt: Any, *, output_max: int | None = None
    ) -> AsyncIterator[CallAccount]:
        """For calls of any other shape: `call.meter.see(part)` with replies, chunks or text."""
        account = CallAccount(self.rules, prompt, output_max)
        if is_off():
            yield account
            return
        call = await self._open_call(entity_id, resource, account)
        try:
            yield account
        except BaseException as error:
            await call.end(error)
            raise
        await call.end()

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

    async def _open_call(self, entity_id: str, resource: str, account: CallAccount) -> OpenCall:
        use = self.rules
        pending = self.limiter.acquire_many(
            use.requests_for(entity_id, resource, account.reserved),
            use.on_unavailable,
            on_error="keep",
            wait=use.wait_s,
        )
        return await OpenCall(account, pending, lambda e: self._learn_from(e, resource)).begin()

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
