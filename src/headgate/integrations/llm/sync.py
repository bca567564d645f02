"""SyncLlmLimiter: LlmLimiter for threads. It runs the same coroutines over a blocking limiter."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from headgate.core.runtime import blocking, run
from headgate.integrations.gate import AwaitableLimiter
from headgate.integrations.llm.account import CallAccount
from headgate.integrations.llm.limiter import LlmLimiter
from headgate.integrations.llm.stream import SyncMeteredStream, close_stream
from headgate.sync import SyncRateLimiter


class SyncLlmLimiter:
    """For blocking clients; safe to share between threads."""

    def __init__(self, limiter: SyncRateLimiter, **options: Any) -> None:
        self.core = _BlockingCalls(AwaitableLimiter(limiter), **options)

    def create(
        self,
        entity_id: str,
        method: Callable[..., Any],
        /,
        *,
        resource: str | None = None,
        **request: Any,
    ) -> Any:
        """What `method(**request)` returns, or RateLimitExceeded before it is called.

        A stream (`stream=True`) comes back as a SyncMeteredStream: it is settled when it ends, so
        read it to the end or close it.
        """
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
        streamed = {**request, "stream": True}
        opened = self.create(entity_id, method, resource=resource, **streamed)
        try:
            yield from opened
        finally:
            run(close_stream(opened))

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


class _BlockingCalls(LlmLimiter):
    _stream = SyncMeteredStream


def _awaitable(method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(method)  # so that its parameters can still be looked up
    async def call(**request: Any) -> Any:
        return method(**request)

    return call
