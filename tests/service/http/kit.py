"""The REST wire around a `World`: called as ASGI without a server, or served on a free port."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import uvicorn

from headgate import Repository
from headgate.service.decide.service import Service
from headgate.service.http.asgi import Rest
from headgate.service.keys.access import Authenticator
from headgate.service.metrics import ServiceMetrics
from headgate.service.program import Options, Program
from headgate.service.server.protocol import protocol_with
from headgate.service.settings import ServiceSettings
from headgate.testing import FakeClock
from tests.service.decide.kit import RULES, World

JSON = (b"content-type", b"application/json")
HOST = (b"host", b"localhost")

PATHS = {
    "check": "/v1/ratelimit/check",
    "take": "/v1/ratelimit/take",
    "peek": "/v1/ratelimit/peek",
    "batch": "/v1/ratelimit/batch",
    "check_all": "/v1/ratelimit/acquire",
    "acquire": "/v1/leases",
    "charge": "/v1/ratelimit/charge",
}


class Said(NamedTuple):
    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)


def program_of(world: World, authenticator: Authenticator | None = None, **options: Any) -> Program:
    metrics = ServiceMetrics()
    world.service._on_answer = metrics.count_answer
    world.service.on_admitted = metrics.count_admitted
    return Program(Options(**options), world.service, authenticator or Authenticator(None), metrics)


def at_once_rest(authenticator: Authenticator | None = None, **settings: Any) -> Rest:
    """The same of a service whose buckets in memory nothing stands around: it answers at once."""
    metrics = ServiceMetrics()
    service = Service(
        Repository("memory://", clock=FakeClock()),
        RULES,
        ServiceSettings(**settings),
        on_answer=metrics.count_answer,
        on_admitted=metrics.count_admitted,
    )
    assert service.is_local
    return Rest(Program(Options(), service, authenticator or Authenticator(None), metrics))


def rest_of(world: World, authenticator: Authenticator | None = None, **options: Any) -> Rest:
    return Rest(program_of(world, authenticator, **options))


def scope_of(
    method: str,
    path: str,
    headers: list[tuple[bytes, bytes]],
    query: bytes = b"",
    client: tuple[str, int] | None = ("127.0.0.1", 50_000),
    extensions: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query,
        "headers": headers,
        "client": client,
        "server": ("127.0.0.1", 8080),
        "extensions": dict(extensions or {}),
    }


async def send_raw(app: Any, scope: dict[str, Any], parts: list[bytes]) -> Said:
    """The answer to a request whose body comes in these parts; then the client leaves. Status 0
    stands for no answer."""
    waiting = [
        {"type": "http.request", "body": part, "more_body": place + 1 < len(parts)}
        for place, part in enumerate(parts)
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    if not sent:
        return Said(0, {}, b"")
    start = sent[0]
    names = [name for name, _ in start["headers"]]
    assert all(name == name.lower() for name in names)
    headers = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
    return Said(start["status"], headers, b"".join(one.get("body", b"") for one in sent[1:]))


async def call(
    app: Any,
    method: str,
    path: str,
    body: Any = None,
    *,
    key: str | None = None,
    query: str = "",
    headers: tuple[tuple[bytes, bytes], ...] = (),
    **scope: Any,
) -> Said:
    """One request; `body` is bytes as they are, or a value that goes as JSON."""
    content = b"" if body is None else body if isinstance(body, bytes) else dumped(body)
    fields = [HOST, *headers]
    if body is not None and not any(name == b"content-type" for name, _ in headers):
        fields.append(JSON)
    if key is not None:
        fields.append((b"authorization", f"Bearer {key}".encode()))
    return await send_raw(app, scope_of(method, path, fields, query.encode(), **scope), [content])


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


class Board:
    """An ASGI application whose inside can be exchanged while it is served."""

    app: Any = None
    paths = tuple(PATHS.values())

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for _ in range(2):
                message = await receive()
                await send({"type": message["type"] + ".complete"})
            return
        await self.app(scope, receive, send)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.app, name)


@contextmanager
def served(
    app: Any, *, lifespan: str = "off", express: bool = True, **config: Any
) -> Iterator[tuple[str, uvicorn.Server]]:
    """The default server on a free loopback port, in a thread of its own."""
    lane = app if express and isinstance(app, Rest | Board) else None
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=protocol_with(config.pop("connections_max", 100), lane),
            ws="none",
            lifespan=lifespan,  # type: ignore[arg-type]
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_graceful_shutdown=5,
            **config,
        )
    )
    with in_thread(server, listener) as port:
        yield f"http://127.0.0.1:{port}", server


@contextmanager
def in_thread(server: uvicorn.Server, listener: socket.socket) -> Iterator[int]:
    """The port of a server that runs in a thread of its own."""
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        until(lambda: server.started)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def until(happened: Any, *, steps: int = 2000) -> None:
    """Waits for something that another thread or process does; gives up after a long time."""
    pause = threading.Event()
    for _ in range(steps):
        if happened():
            return
        pause.wait(0.01)
    raise AssertionError("it did not happen")


def run(flow: Any) -> Any:
    return asyncio.run(flow)
