"""A limiter on a clock that stands still, and ASGI apps driven by hand."""

from __future__ import annotations

import asyncio
import json
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
    named = [(name.replace("_", "-"), value) for name, value in headers.items()]
    named += [("x-forwarded-for", value) for value in forwarded]
    return Caller(peer, lambda: named, "GET", "/", None)


def client(app: Any, address: str = "198.51.100.7") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, client=(address, 4711))
    return httpx.AsyncClient(transport=transport, base_url="http://app")


def get(app: Any, path: str = "/", *, address: str = "198.51.100.7", **headers: str) -> Any:
    async def once() -> httpx.Response:
        async with client(app, address) as browser:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return await browser.get(path, headers=named)

    return run(once())


def _scope(kind: str, path: str, **more: Any) -> dict[str, Any]:
    return {
        "type": kind, "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [], "client": ("198.51.100.7", 4711), "server": ("app", 80), "root_path": "",
        "http_version": "1.1", "asgi": {"version": "3.0", "spec_version": "2.4"}, **more,
    }  # fmt: skip


async def websocket(
    app: Callable[..., Awaitable[None]], path: str = "/ws", *, denial: bool = True
) -> Any:
    """The first message of the app to a client that connects, says one word and leaves."""
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

    extensions = {"websocket.http.response": {}} if denial else {}
    scope = _scope("websocket", path, scheme="ws", subprotocols=[], extensions=extensions)
    await app(scope, receive, send)
    return sent[0]


def check_websocket(app: Any, path: str = "/ws") -> None:
    """One connection passes the limit, later ones are refused as the server can say it."""
    accepted = run(websocket(app, path))
    assert accepted["type"] == "websocket.accept"
    assert headers_of(accepted)["x-ratelimit-remaining"] == "0"
    refused = run(websocket(app, path))
    assert (refused["type"], refused["status"]) == ("websocket.http.response.start", 429)
    assert headers_of(refused)["retry-after"] == "60"
    refused = run(websocket(app, path, denial=False))
    assert (refused["type"], refused["code"]) == ("websocket.close", 1008)


async def hang_up(app: Callable[..., Awaitable[None]], path: str = "/") -> None:
    """A request that the server cancels once the first byte of the answer has come."""
    started = asyncio.Event()

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message.get("body"):
            started.set()

    task = asyncio.ensure_future(app(_scope("http", path, method="GET"), receive, send))
    await started.wait()
    task.cancel()
    await asyncio.wait([task])


async def hello(scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
    """An ASGI app with a page, a stream at /s and websockets."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        return
    if scope["type"] == "lifespan":
        await send({"type": "lifespan.startup.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]})
    await send({"type": "http.response.body", "body": b"hello", "more_body": scope["path"] == "/s"})
    if scope["path"] == "/s":
        await asyncio.Event().wait()  # a stream that goes on until it is cancelled


def headers_of(message: Any) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in message.get("headers", ())}


def check_limited(first: Any, second: Any, refused: Any, status: int = 200) -> None:
    """Three visits under "2/minute", as a client of any framework sees them."""
    assert (first.status_code, second.status_code) == (status, status)
    assert first.headers["X-RateLimit-Remaining"] == "1"
    assert first.headers["RateLimit"] == '"per_minute";r=1;t=30'
    assert first.headers["RateLimit-Policy"] == '"per_minute";q=2;w=60'
    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == "30"
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert json.loads(refused.text)["violated-policies"] == ["per_minute"]
