"""A server that answers as it is told, and the ways to call a port in either colour."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

from headgate.core.errors import StoreTrouble
from headgate.core.runtime import run
from headgate.stores.dynamodb.client.calls import DynamoPort, DynamoRequest, open_port

TAKE = DynamoRequest("UpdateItem", {"TableName": "limits", "Key": {"PK": {"S": "a"}}})
CREDIT = DynamoRequest("UpdateItem", TAKE.params, credit=True)
READ = DynamoRequest("GetItem", TAKE.params)


@dataclass(frozen=True)
class Answer:
    """What the server does with one request."""

    status: int = 200
    body: bytes = b'{"Attributes":{}}'
    delay_s: float = 0.0
    cut: bool = False  # reads the request and hangs up
    goodbye: bool = False  # says that this is the connection's last reply
    hang_up: bool = False  # hangs up after the reply without saying so
    raw: Sequence[bytes] = ()  # sent as they are, piece by piece
    gate: threading.Event | None = None  # answered when it is set


def error(code: str, status: int = 400, **more: Any) -> Answer:
    said = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "so it is", **more}
    return Answer(status, json.dumps(said).encode())


@dataclass
class Seen:
    operation: str
    headers: dict[str, str]
    body: Any


@dataclass
class Canned:
    """Answers the next of `answers`; once there is none, what `compute` says, else 200. `seen` is
    what it was sent. An answer that is not `raw` leaves in one piece."""

    answers: deque[Answer] = field(default_factory=deque)
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    open_now: int = 0
    open_max: int = 0
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    sent: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))  # raw ones
    now_s: Callable[[], float] = time.time
    tls: ssl.SSLContext | None = None
    default: Answer = field(default_factory=Answer)
    compute: Callable[[Seen], Answer] | None = None

    def __enter__(self) -> Canned:
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._threads.append(threading.Thread(target=self._accept))
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for thread in self._threads:
            thread.join(10)

    @property
    def endpoint(self) -> str:
        scheme = "https" if self.tls else "http"
        return f"{scheme}://localhost:{self._port}"

    @property
    def _port(self) -> int:
        return self._listener.getsockname()[1]

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()

    def hang_up(self) -> None:
        """Ends every connection there is."""
        with self._lock:
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def tell(self, *answers: Answer) -> None:
        self.answers.extend(answers)

    def wait_for(self, requests: int) -> None:
        for _ in range(requests):
            assert self.arrived.acquire(timeout=10), "the request never came"

    def wait_sent(self, answers: int) -> None:
        """Until all pieces of that many raw answers were sent."""
        for _ in range(answers):
            assert self.sent.acquire(timeout=10), "the answer was never sent"

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(plain,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, plain: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.callback(plain.close)
            if self.tls is not None:
                plain = stack.enter_context(self.tls.wrap_socket(plain, server_side=True))
            with self._lock:
                self._sockets.add(plain)
                self.connections += 1
                self.open_now += 1
                self.open_max = max(self.open_max, self.open_now)
            try:
                with plain.makefile("rb") as lines:
                    while self._one(plain, lines):
                        pass
            finally:
                with self._lock:
                    self._sockets.discard(plain)
                    self.open_now -= 1

    def _one(self, plain: socket.socket, lines: Any) -> bool:
        """Whether the connection goes on."""
        first = lines.readline()
        if not first:
            return False
        headers = {}
        while (line := lines.readline().decode().strip()) != "":
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = json.loads(lines.read(int(headers["content-length"])))
        with self._lock:
            seen = Seen(headers["x-amz-target"].partition(".")[2], headers, body)
            self.seen.append(seen)
            if self.answers:
                answer = self.answers.popleft()
            else:
                answer = self.compute(seen) if self.compute else self.default
        self.arrived.release()
        if answer.gate is not None:
            assert answer.gate.wait(10)
        time.sleep(answer.delay_s)
        if answer.cut:
            plain.shutdown(socket.SHUT_RDWR)
            return False
        self._reply(plain, answer)
        return not (answer.goodbye or answer.hang_up)

    def _reply(self, plain: socket.socket, answer: Answer) -> None:
        if answer.raw:
            for piece in answer.raw:
                plain.sendall(piece)
                time.sleep(0.002)
            self.sent.release()
            return
        head = (
            f"HTTP/1.1 {answer.status} Whatever\r\nServer: Server\r\n"
            f"Date: {formatdate(self.now_s(), usegmt=True)}\r\n"
            f"Content-Type: application/x-amz-json-1.0\r\nContent-Length: {len(answer.body)}\r\n"
            f"Connection: {'close' if answer.goodbye else 'keep-alive'}\r\n\r\n"
        )
        plain.sendall(head.encode() + answer.body)


Test = Callable[[DynamoPort], Coroutine[Any, Any, Any]]


def opened(endpoint: str, *, blocking: bool, **options: Any) -> DynamoPort:
    """A port that is patient unless told."""
    options.setdefault("timeout_ms", 10_000)
    return open_port(region="us-east-1", endpoint=endpoint, blocking=blocking, **options)


def using(endpoint: str, test: Test, *, blocking: bool = False, **options: Any) -> Any:
    """What the test's flow returns, run with a port of the colour."""

    async def main() -> Any:
        port = opened(endpoint, blocking=blocking, **options)
        try:
            return await test(port)
        finally:
            await port.close()

    return run(main()) if blocking else asyncio.run(asyncio.wait_for(main(), 60))


async def outcome(call: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await call
    except StoreTrouble as trouble:
        return trouble
