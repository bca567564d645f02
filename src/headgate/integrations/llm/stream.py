"""Streams that are charged for when they end: MeteredStream and SyncMeteredStream.

`create(stream=True)` returns long before the provider has answered, so the lease of the call goes
with the stream and ends with it: when it was read to its end, was closed, failed or was cancelled.

A stream that is dropped without any of these keeps what was reserved. Nothing is written then: it
would happen while garbage is collected, in the middle of whatever the thread was doing, which may
hold a lock of the store.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from inspect import isawaitable
from typing import Any, Self

from headgate.core.runtime import blocking
from headgate.core.runtime import run as run_blocking
from headgate.integrations.llm.account import CallAccount, is_usage_alone


class OpenCall:
    """A call between its reservation and its settlement; it ends once."""

    def __init__(
        self,
        account: CallAccount,
        pending: Any,
        learn: Callable[[BaseException], Awaitable[None]],
    ) -> None:
        self.account = account
        self._pending = pending
        self._learn = learn
        self._lease: Any = None
        self.is_open = False

    async def begin(self) -> Self:
        self._lease = await self._pending.__aenter__()
        self.is_open = True
        return self

    async def end(self, error: BaseException | None = None) -> None:
        """Settles what was used, and learns from the error the provider may have answered with."""
        if not self.is_open:
            return
        self.is_open = False
        tokens = self.account.rules.tokens
        try:
            await self._lease.settle(**{tokens: self.account.owed(error)})
        finally:
            await self._pending.__aexit__(None, None, None)
        if error is not None:
            await self._learn(error)


class MeteredChunks:
    """The flows of both streams. What a provider's stream offers beside its chunks is passed on."""

    def __init__(self, chunks: Any, call: OpenCall, *, hides_usage: bool) -> None:
        self._chunks = chunks
        self._each = self._iterate(chunks)
        self._call = call
        self._hides_usage = hides_usage

    @staticmethod
    def _iterate(chunks: Any) -> Any:
        return chunks if hasattr(chunks, "__anext__") else aiter(chunks)

    async def _next(self) -> Any:
        while True:
            try:
                chunk = await anext(self._each)
            except StopAsyncIteration:
                await self._call.end()
                raise
            except BaseException as error:
                with suppress(Exception):  # the error that is raised says more
                    await self._close(error)
                raise
            self._call.account.meter.see(chunk)
            if not (self._hides_usage and is_usage_alone(chunk)):
                return chunk

    async def _close(self, error: BaseException | None = None) -> None:
        """Hangs up, so that the provider stops, and settles what was metered."""
        try:
            await close_stream(self._chunks)
        finally:
            await self._call.end(error)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_chunks" not in self.__dict__:  # such as a copy half made
            raise AttributeError(name)
        return getattr(self._chunks, name)

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        call = self.__dict__.get("_call")
        if call is not None and call.is_open:
            _warn(
                f"a stream was dropped before its end, so all of its {call.account.reserved} "
                f"reserved tokens stay charged; use it in a `with` block, or call its close()",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )


class MeteredStream(MeteredChunks):
    """A stream of an asyncio client. It is charged for when it ends, so read or close it."""

    @staticmethod
    def is_stream(reply: Any, *, asked: bool) -> bool:
        return hasattr(reply, "__anext__") or hasattr(reply, "__aiter__")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await self._next()

    async def close(self) -> None:
        await self._close()

    aclose = close

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._close()


class SyncMeteredStream(MeteredChunks):
    """A stream of a blocking client. It is charged for when it ends, so read or close it."""

    @staticmethod
    def is_stream(reply: Any, *, asked: bool) -> bool:
        """Whole replies may be iterable, too: over their fields. Then it must have been asked."""
        if hasattr(reply, "__next__"):
            return True
        is_whole = isinstance(reply, (str, bytes, Mapping)) or hasattr(reply, "usage")
        return asked and hasattr(reply, "__iter__") and not is_whole

    @staticmethod
    def _iterate(chunks: Any) -> Any:
        return _NeverSuspending(iter(chunks))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return run_blocking(self._next())
        except StopAsyncIteration:
            raise StopIteration from None

    close = blocking(MeteredChunks._close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _NeverSuspending:
    """A blocking iterator for flows that await."""

    def __init__(self, each: Any) -> None:
        self._each = each

    async def __anext__(self) -> Any:
        for chunk in self._each:
            return chunk
        raise StopAsyncIteration


class RawStream:
    """A raw reply whose `parse()` gives the metered stream; all else is the reply's own."""

    def __init__(self, reply: Any, stream: MeteredChunks, *, is_awaited: bool) -> None:
        self._reply = reply
        self._stream = stream
        self._is_awaited = is_awaited

    def parse(self) -> Any:
        return _at_once(self._stream) if self._is_awaited else self._stream

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_reply" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._reply, name)


async def _at_once(stream: MeteredChunks) -> MeteredChunks:
    return stream


async def close_stream(chunks: Any) -> None:
    """Closes the stream, so that the provider stops generating."""
    for name in ("aclose", "close"):
        close = getattr(chunks, name, None)
        if callable(close):
            closing = close()
            if isawaitable(closing):
                await closing
            return
