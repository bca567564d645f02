"""Server interceptors that limit gRPC methods, on threads and in asyncio.

grpc.server(pool, interceptors=[LimitInterceptor(sync_limiter, "100/minute")])
grpc.aio.server(interceptors=[AsyncLimitInterceptor(limiter, "100/minute")])

Refusals are RESOURCE_EXHAUSTED with the wait in the trailing metadata, where gRPC clients that
retry look for it.
"""

from __future__ import annotations

import inspect
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any, Unpack
from urllib.parse import unquote

import grpc

from headgate.core.errors import ValidationError
from headgate.integrations.gate import Gate, GateOptions, Rates, asyncio_limiter, blocking_limiter
from headgate.integrations.keys import Caller
from headgate.integrations.responses import Answer
from headgate.limiter import RateLimiter
from headgate.sync import SyncRateLimiter

_CODES = {
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    403: grpc.StatusCode.PERMISSION_DENIED,
    422: grpc.StatusCode.OUT_OF_RANGE,
    500: grpc.StatusCode.INTERNAL,
}


def _with_default_resource(options: GateOptions) -> GateOptions:
    """The options with the resource `grpc`, unless they name another."""
    return {"resource": "grpc", **options}


class LimitInterceptor(grpc.ServerInterceptor):
    """For servers on threads; see Gate for the options."""

    def __init__(
        self, limiter: SyncRateLimiter, limits: Rates = None, **options: Unpack[GateOptions]
    ) -> None:
        self.gate = Gate(blocking_limiter(limiter), limits, **_with_default_resource(options))

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        def around(behaviour: Callable[..., Any]) -> Callable[..., Any]:
            def limited(request: Any, context: Any) -> Any:
                answer = self.gate.ask_blocking(caller_of(context, details))
                context.set_trailing_metadata(_metadata(answer))
                if not answer.allowed:
                    context.abort(_CODES[answer.status], answer.detail)
                return behaviour(request, context)

            return limited

        return _wrap_handler(continuation(details), around)


class AsyncLimitInterceptor(grpc.aio.ServerInterceptor):
    """For asyncio servers whose methods are `async def`; see Gate for the options."""

    def __init__(
        self, limiter: RateLimiter, limits: Rates = None, **options: Unpack[GateOptions]
    ) -> None:
        self.gate = Gate(asyncio_limiter(limiter), limits, **_with_default_resource(options))

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        async def pass_or_abort(context: Any) -> None:
            answer = await self.gate.ask(caller_of(context, details))
            context.set_trailing_metadata(_metadata(answer))
            if not answer.allowed:
                await context.abort(_CODES[answer.status], answer.detail, _metadata(answer))

        def around(behaviour: Callable[..., Any]) -> Callable[..., Any]:
            async def limited(request: Any, context: Any) -> Any:
                await pass_or_abort(context)
                return await behaviour(request, context)

            async def limited_stream(request: Any, context: Any) -> AsyncIterator[Any]:
                await pass_or_abort(context)
                async with aclosing(behaviour(request, context)) as parts:
                    async for part in parts:
                        yield part

            if inspect.isasyncgenfunction(behaviour):
                return limited_stream
            if inspect.iscoroutinefunction(behaviour):
                return limited
            raise ValidationError("method", details.method, "blocks the loop; make it async def")

        return _wrap_handler(await continuation(details), around)


def caller_of(context: Any, details: Any) -> Caller:
    """A call, as key functions see it: its metadata are the headers, binary ones in base64 as on
    the wire; `native` is the context of the call."""

    def fields() -> Iterator[tuple[str, str]]:
        for name, value in details.invocation_metadata or ():
            yield name, value if isinstance(value, str) else b64encode(value).decode()

    return Caller(_address(context.peer()), fields, "POST", details.method, context)


def _address(peer: str) -> str | None:
    """The address in `ipv4:192.0.2.1:4711` or `ipv6:%5B::1%5D:4711`."""
    kind, _, rest = unquote(peer or "").partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else None


def _metadata(answer: Answer) -> tuple[tuple[str, str], ...]:
    wait_ms = answer.retry_after_ms
    pushback = () if wait_ms is None else (("grpc-retry-pushback-ms", str(max(1, wait_ms))),)
    return (*answer.headers, *pushback)


def _wrap_handler(handler: Any, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    """The handler with its behaviour wrapped; None if there is no such method."""
    if handler is None:
        return None
    for kind in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
        behaviour = getattr(handler, kind)
        if behaviour is not None:
            return getattr(grpc, f"{kind}_rpc_method_handler")(
                around(behaviour), handler.request_deserializer, handler.response_serializer
            )
    return handler
