"""LimitMiddleware: a limit in front of any ASGI app, HTTP and WebSocket, streams untouched."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Unpack

from headgate.core.http_fields import Headers
from headgate.integrations.gate import Gate, GateOptions, Rates, asyncio_limiter
from headgate.integrations.keys import Caller
from headgate.integrations.responses import Answer
from headgate.limiter import RateLimiter

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY_VIOLATION = 1008


class LimitMiddleware:
    """`app = LimitMiddleware(app, limiter, "100/minute")`; see Gate for the options."""

    def __init__(
        self,
        app: App,
        limiter: RateLimiter,
        limits: Rates = None,
        **options: Unpack[GateOptions],
    ) -> None:
        self.app = app
        self.gate = Gate(asyncio_limiter(limiter), limits, **options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):  # lifespan, and types that do not exist yet
            await self.app(scope, receive, send)
            return
        answer = await self.gate.ask(caller_of(scope))
        if answer.allowed:
            await self.app(scope, receive, with_headers(send, lambda: answer.headers))
        elif scope["type"] == "http":
            await _send_problem(send, answer, "http.response")
        else:
            await refuse_websocket(scope, receive, send, answer)


def caller_of(scope: Scope) -> Caller:
    """The request in an ASGI scope, as key functions see it."""
    client = scope.get("client")
    return Caller(
        client[0] if client else None,
        lambda: (
            (name.decode("latin-1"), text.decode("latin-1")) for name, text in scope["headers"]
        ),
        scope.get("method", "GET"),
        scope.get("path", ""),
        scope,
    )


def with_headers(send: Send, headers: Callable[[], Headers]) -> Send:
    """Adds the headers to the response, except those that an inner limit has set already."""

    async def sending(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.accept"):
            present = list(message.get("headers") or ())
            taken = {bytes(name).lower() for name, _ in present}
            message = {**message, "headers": present + _encode(headers(), taken)}
        await send(message)

    return sending


async def refuse_websocket(scope: Scope, receive: Receive, send: Send, answer: Answer) -> None:
    """Sends an HTTP answer if the server can; otherwise closes the socket before accepting it."""
    message = await receive()
    if message["type"] != "websocket.connect":
        return
    if "websocket.http.response" in (scope.get("extensions") or {}):
        await _send_problem(send, answer, "websocket.http.response")
        return
    reason = answer.problem["title"] if answer.problem else ""
    await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})


async def _send_problem(send: Send, answer: Answer, kind: str) -> None:
    body = answer.body
    headers = [*answer.refusal_headers, ("content-length", str(len(body)))]
    start = {"type": f"{kind}.start", "status": answer.status, "headers": _encode(headers, set())}
    await send(start)
    await send({"type": f"{kind}.body", "body": body, "more_body": False})


def _encode(headers: Headers, taken: set[bytes]) -> list[tuple[bytes, bytes]]:
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    return [pair for pair in pairs if pair[0] not in taken]
