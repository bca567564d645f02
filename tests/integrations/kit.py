"""A limiter on a clock that stands still, and ASGI apps driven by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import httpx

from headgate import RateLimiter, SyncRateLimiter
from headgate.integrations.keys import Caller, everybody
from headgate.testing import FakeClock

ALL = everybody()


def run(flow: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(flow)


def limiter(clock: FakeClock | None = None, **options: Any) -> RateLimiter:
    return RateLimiter("memory://", clock=clock or FakeClock(), **options)


def blocking(clock: FakeClock | None = None, **options: Any) -> SyncRateLimiter:
    return SyncRateLimiter("memory://", clock=clock or FakeClock(), **options)


def caller(peer: str | None = "198.51.100.7", *forwarded: str, **headers: str) -> Caller:
    named = {name.replace("_", "-"): [value] for name, value in headers.items()}
    named["x-forwarded-for"] = list(forwarded)
    return Caller(peer, lambda name: named.get(name.lower(), []), "GET", "/", None)


def client(app: Any, address: str = "198.51.100.7") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, client=(address, 4711))
    return httpx.AsyncClient(transport=transport, base_url="http://app")


def get(app: Any, path: str = "/", *, address: str = "198.51.100.7", **headers: str) -> Any:
    async def once() -> httpx.Response:
        async with client(app, address) as browser:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return await browser.get(path, headers=named)

    return run(once())


async def websocket(
    app: Callable[..., Awaitable[None]], path: str = "/ws", *, denial: bool = True
) -> list[Any]:
    """What the app sends to a client that connects, says one word and leaves."""
    inbox = [
        {"type": "websocket.connect"},
        {"type": "websocket.receive", "text": "hello"},
        {"type": "websocket.disconnect", "code": 1000},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return inbox.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "websocket", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [], "client": ("198.51.100.7", 4711), "server": ("app", 80), "scheme": "ws",
        "subprotocols": [], "root_path": "", "http_version": "1.1",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "extensions": {"websocket.http.response": {}} if denial else {},
    }  # fmt: skip
    await app(scope, receive, send)
    return sent


async def hang_up(
    app: Callable[..., Awaitable[None]], path: str = "/", *, cancel: bool = True
) -> None:
    """A request whose client is gone once the first byte has come; the server cancels it, or
    leaves it to the app to notice."""
    started = asyncio.Event()
    inbox = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        if inbox:
            return inbox.pop()
        await started.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message.get("body"):
            started.set()

    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(),
        "query_string": b"", "headers": [], "client": ("198.51.100.7", 4711),
        "server": ("app", 80), "scheme": "http", "root_path": "", "http_version": "1.1",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
    }  # fmt: skip
    task = asyncio.ensure_future(app(scope, receive, send))
    await started.wait()
    if cancel:
        task.cancel()
    await asyncio.wait([task])


def headers_of(message: Any) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in message.get("headers", ())}
