"""Servers for client tests: one that plays a script over real sockets, and the real service.

Both run in threads of their own on free loopback ports, and both are stopped by their owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, NamedTuple

from headgate.client import AsyncClient, Client
from headgate.core.runtime import Clock
from headgate.service.http.asgi import Rest
from headgate.service.program import Options, Program
from headgate.testing import FakeClock
from tests.service.http.kit import served as serve

KEY = "hg_aaaaaaaaaaaa_" + "s" * 43
ALLOWED = {
    "allowed": True,
    "tokens_remaining": 9,
    "tokens_capacity": 10,
    "reset_at": "2023-11-14T22:13:21.000Z",
    "degraded": False,
}

HANG_UP = b""  # a scripted answer: read the request, then close
Answer = bytes | Callable[[socket.socket], object]


def response(status: int, document: object = None, *, fields: str = "") -> bytes:
    body = b"" if document is None else json.dumps(document).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n{fields}\r\n"
    return head.encode() + body


def refused(wait_ms: int | None) -> bytes:
    """A 429 as the service says it."""
    document = {
        **ALLOWED,
        "allowed": False,
        "retry_after_seconds": None if wait_ms is None else wait_ms / 1000,
        "error": {"code": "RATE_LIMIT_EXCEEDED", "message": "…"},
        "violated-policies": ["search"],
    }
    fields = "" if wait_ms is None else f"retry-after: 1\r\nretry-after-ms: {wait_ms}\r\n"
    return response(429, document, fields=fields)


def problem(status: int, code: str, *, fields: str = "", **more: object) -> bytes:
    return response(
        status, {"status": status, "code": code, "detail": "because", **more}, fields=fields
    )


class Script:
    """A server that gives its answers in order, the last one for ever."""

    def __init__(self, *answers: Answer, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._answers = list(answers)
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self.requests: list[bytes] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http{'' if tls is None else 's'}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def documents(self) -> list[Any]:
        return [json.loads(one.partition(b"\r\n\r\n")[2] or b"null") for one in self.requests]

    def hang_up(self) -> None:
        """Closes every connection from this side."""
        with self._lock:
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        self._thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                self._open.append(one)
            threading.Thread(target=self._serve, args=(one,), daemon=True).start()

    def _secured(self, one: socket.socket) -> socket.socket:
        return one if self._tls is None else self._tls.wrap_socket(one, server_side=True)

    def _serve(self, plain: socket.socket) -> None:
        with contextlib.suppress(OSError), self._secured(plain) as one:
            while request := _request(one):
                with self._lock:
                    self.requests.append(request)
                    left = len(self._answers) > 1
                    answer = self._answers.pop(0) if left else self._answers[0]
                if callable(answer):
                    answer(one)
                elif answer == HANG_UP:
                    break
                else:
                    one.sendall(answer)
        plain.close()


def _request(one: socket.socket) -> bytes:
    got = b""
    while b"\r\n\r\n" not in got:
        data = one.recv(65_536)
        if not data:
            return b""
        got += data
    head, _, body = got.partition(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    while len(body) < length:
        body += one.recv(65_536)
    return head + b"\r\n\r\n" + body


class Awaited:
    """A blocking client whose calls can be awaited, so that one test serves both modes."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        if name == "acquire":
            return lambda *args, **kwargs: _awaited(value(*args, **kwargs))

        async def call(*args: Any, **kwargs: Any) -> Any:
            return value(*args, **kwargs)

        return call if callable(value) else value


@contextlib.asynccontextmanager
async def _awaited(acquiring: Any) -> AsyncIterator[Awaited]:
    with acquiring as lease:
        yield Awaited(lease)


Flow = Callable[[Any], Coroutine[Any, Any, Any]]


def play(mode: str, url: str, flow: Flow, **options: Any) -> Any:
    """Runs a flow with a client of that mode, and closes it."""

    async def whole() -> Any:
        client: Any
        if mode == "async":
            async with AsyncClient(url, **options) as client:
                return await flow(client)
        with Client(url, **options) as client:
            return await flow(Awaited(client))

    return asyncio.run(whole())


class Served(NamedTuple):
    url: str


def scripted(*answers: Answer, tls: ssl.SSLContext | None = None) -> contextlib.closing[Script]:
    return contextlib.closing(Script(*answers, tls=tls))


@contextlib.contextmanager
def served(options: Options | None = None, clock: Clock | None = None) -> Iterator[Served]:
    """The real service on a memory store, by default with a clock that stands still."""
    chosen = options or Options(store="memory://")
    with serve(Rest(Program.build(chosen, clock=clock or FakeClock())), lifespan="on") as (url, _):
        yield Served(url)
