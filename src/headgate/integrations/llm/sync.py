"""SyncLlmLimiter: LlmLimiter for threads. It runs the same coroutines over a blocking limiter."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from headgate.core.runtime import blocking, run
from headgate.integrations.gate import AwaitableLimiter
from headgate.integrations.llm.account import CallAccount
from headgate.integrations.llm.limiter import LlmLimiter
from headgate.sync import SyncRateLimiter

_END = object()


class SyncLlmLimiter:
    """For blocking clients; safe to share between threads."""

    def __init__(self, limiter: SyncRateLimiter, **options: Any) -> None:
        self.core = LlmLimiter(AwaitableLimiter(limiter), **options)

    def create(
        self,
        entity_id: str,
        method: Callable[..., Any],
        /,
        *,
        resource: str | None = None,
        **request: Any,
    ) -> Any:
        """What `method(**request)` returns, or RateLimitExceeded before it is called."""
        return run(self.core.create(entity_id, _awaitable(method), resource=resource, **request))

    def stream(
        self,
        entity_id: str,
        method: Callable[..., Iterable[Any]],
        /,
        *,
        resource: str | None = None,
        **request: Any,
    ) -> Iterator[Any]:
        """The chunks of `method(**request, stream=True)`, metered as they pass."""
        flow: Any = self.core.stream(
            entity_id, _awaitable(lambda **kw: _each(method(**kw))), resource=resource, **request
        )
        try:
            while (chunk := run(_next(flow))) is not _END:
                yield chunk
        finally:
            run(flow.aclose())

    @contextmanager
    def reserve(
        self, entity_id: str, resource: str, prompt: Any, *, output_max: int | None = None
    ) -> Iterator[CallAccount]:
        """For calls of any other shape: `call.meter.see(part)` with replies, chunks or text."""
        held: Any = self.core.reserve(entity_id, resource, prompt, output_max=output_max)
        account: CallAccount = run(held.__aenter__())
        try:
            yield account
        except BaseException as error:
            run(held.__aexit__(type(error), error, error.__traceback__))
            raise
        run(held.__aexit__(None, None, None))

    learn = blocking(LlmLimiter.learn)


async def _each(chunks: Iterable[Any]) -> AsyncIterator[Any]:
    """A blocking stream that an `async for` can walk through without ever suspending."""
    try:
        for chunk in chunks:
            yield chunk
    finally:
        close = getattr(chunks, "close", None)
        if callable(close):
            close()


def _awaitable(method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    async def call(**request: Any) -> Any:
        return method(**request)

    return call


async def _next(flow: AsyncIterator[Any]) -> Any:
    return await anext(flow, _END)
