"""A warm take on a canned wire: what the client alone costs, TLS and sockets included.

A server in another process answers as DynamoDB does, over TLS: the first calls by the model of the
proofs, each later write with the answer that the model gave to the first of its shape. CPU is this
process's own (`process_time`: user and system). `bare` sends the same bytes through asyncio's TLS,
or through a socket, and reads an answer of the same length: what is left if headgate cost nothing.

    python -m bench.dynamodb_wire [--quick] [--rounds N]
    python -m bench.dynamodb_wire --stacks FILE       where an async take spends its CPU, sampled

The second is for `python -m tools.flame_svg FILE`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dis
import gc
import json
import os
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

from bench import machine
from bench.table import Aim, aim, show, show_aims
from headgate import Limit, RateLimiter, SyncRateLimiter
from headgate.core.errors import StoreTrouble
from headgate.stores.dynamodb.client.calls import DynamoRequest
from headgate.stores.dynamodb.table.create import creation
from headgate.transport import pool_blocking
from proof.model.engine import Engine
from tests.stores.dynamodb.engine import CREDENTIALS

TABLE, HOST, CPU_US_AIM = "limits", "localhost", 150
LIMITS = [
    Limit.per_hour("rpm", 10**9),
    Limit.per_hour("tpm", 10**9),
]
AMOUNTS = {"rpm": 1, "tpm": 100}
ENTITY, RESOURCE = "user-0123456789", "gpt-4"
FAULTS = ("ConditionalCheckFailedException", "ResourceNotFoundException", "ValidationException")


class Canned(asyncio.Protocol):
    """One connection: a request is a head with a length, and a body."""

    engine = Engine()
    known: dict[bytes, bytes] = {}  # noqa: RUF012 - of the process, which serves one run

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._kept = b""

    def data_received(self, data: bytes) -> None:
        self._kept += data
        end = self._kept.find(b"\r\n\r\n")
        if end < 0:
            return
        head, body = self._kept[:end], self._kept[end + 4 :]
        if len(body) < int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]):
            return
        self._kept = b""
        shape = body.partition(b'"ExpressionAttributeValues"')[0]
        reply = self.known.get(shape) or self._reply(head, body)
        if b'"UPDATED_NEW"' in shape:
            self.known[shape] = reply
        self._transport.write(reply % formatdate(usegmt=True).encode())

    def _reply(self, head: bytes, body: bytes) -> bytes:
        """Whole but for its date."""
        operation = head.split(b"X-Amz-Target: ")[1].split(b"\r\n")[0].partition(b".")[2].decode()
        told = self.engine.apply(DynamoRequest(operation, json.loads(body)))
        status = b"200 OK"
        if isinstance(told, StoreTrouble):
            status = b"400 Bad Request"
            code = type(told).__name__
            code = {"ConditionFailed": FAULTS[0], "TableMissing": FAULTS[1]}.get(code, FAULTS[2])
            told = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": str(told)}
        text = json.dumps(told, separators=(",", ":")).encode()
        return (
            b"HTTP/1.1 %b\r\nServer: Server\r\nDate: %%b\r\n"
            b"Content-Type: application/x-amz-json-1.0\r\nContent-Length: %d\r\n"
            b"Connection: keep-alive\r\nx-amzn-RequestId: %b\r\nx-amz-crc32: 1234567890\r\n\r\n%b"
        ) % (status, len(text), b"A" * 52, text.replace(b"%", b"%%"))


async def serve(certificate: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    Canned.engine.apply(creation(TABLE))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Canned, "127.0.0.1", 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def endpoint() -> Iterator[int]:
    """The server's port. This process trusts its certificate and has credentials for it."""
    kept = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="headgate-wire-") as folder:
        certificate = str(Path(folder) / "both.pem")
        make = "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 2"
        subject = ["-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST}"]
        files = ["-keyout", certificate, "-out", certificate + ".crt"]
        subprocess.run([*make.split(), *subject, *files], check=True, capture_output=True)
        with Path(certificate).open("a", encoding="ascii") as both:
            both.write(Path(certificate + ".crt").read_text(encoding="ascii"))
        command = [sys.executable, "-m", "bench.dynamodb_wire", "--serve", certificate]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            os.environ |= {**CREDENTIALS, "SSL_CERT_FILE": certificate + ".crt"}
            try:
                yield int(process.stdout.readline())
            finally:
                process.terminate()
                os.environ.clear()
                os.environ.update(kept)


def url_of(port: int) -> str:
    options = f"region=us-east-1&endpoint=https://{HOST}:{port}&timeout_ms=10000&usage=stream"
    return f"dynamodb://{TABLE}?{options}"


# --------------------------------------------------------------------------------------------------
# Who is timed. An async contestant makes so many calls one after another, a blocking one too.

AsyncSpin = Callable[[int], Awaitable[None]]
Spin = Callable[[int], None]


@contextlib.asynccontextmanager
async def take(port: int) -> AsyncIterator[AsyncSpin]:
    async with RateLimiter(url_of(port), limits=LIMITS) as limiter:

        async def spin(calls: int) -> None:
            for _ in range(calls):
                await limiter.take(ENTITY, RESOURCE, AMOUNTS)

        yield spin


@contextlib.asynccontextmanager
async def acquire(port: int) -> AsyncIterator[AsyncSpin]:
    async with RateLimiter(url_of(port), limits=LIMITS) as limiter:

        async def spin(calls: int) -> None:
            for _ in range(calls):
                async with limiter.acquire(ENTITY, RESOURCE, AMOUNTS):
                    pass

        yield spin


class BareProtocol(asyncio.Protocol):
    """Sends a request, and says when as much came as an answer has."""

    answered: asyncio.Future[None]

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.answered.set_result(None)


@contextlib.asynccontextmanager
async def bare(port: int) -> AsyncIterator[AsyncSpin]:
    loop, request = asyncio.get_running_loop(), warm_request(port)
    context = ssl.create_default_context()

    async def connect() -> BareProtocol:
        found = await loop.create_connection(BareProtocol, HOST, port, ssl=context)
        return found[1]

    free: list[BareProtocol] = []

    async def spin(calls: int) -> None:
        line = free.pop() if free else await connect()
        for _ in range(calls):
            line.answered = loop.create_future()
            line.transport.write(request)
            await line.answered
        free.append(line)

    yield spin
    for line in free:
        line.transport.abort()


@contextlib.contextmanager
def blocking_take(port: int) -> Iterator[Spin]:
    with SyncRateLimiter(url_of(port), limits=LIMITS) as limiter:

        def spin(calls: int) -> None:
            for _ in range(calls):
                limiter.take(ENTITY, RESOURCE, AMOUNTS)

        yield spin


@contextlib.contextmanager
def blocking_acquire(port: int) -> Iterator[Spin]:
    with SyncRateLimiter(url_of(port), limits=LIMITS) as limiter:

        def spin(calls: int) -> None:
            for _ in range(calls):
                with limiter.acquire(ENTITY, RESOURCE, AMOUNTS):
                    pass

        yield spin


@contextlib.contextmanager
def blocking_bare(port: int) -> Iterator[Spin]:
    request, context = warm_request(port), ssl.create_default_context()
    lines = threading.local()

    def spin(calls: int) -> None:
        if not hasattr(lines, "one"):
            plain = socket.create_connection((HOST, port))
            lines.one = context.wrap_socket(plain, server_hostname=HOST)
        for _ in range(calls):
            lines.one.sendall(request)
            lines.one.recv(65_536)

    yield spin


def warm_request(port: int) -> bytes:
    """What a warm take sends, as it was sent once."""
    sent: list[bytes] = []
    genuine = pool_blocking.BlockingHttpConnection.send

    def send(self: Any, packed: bytes, due_s: float) -> None:
        sent.append(packed)
        genuine(self, packed, due_s)

    with (
        mock.patch.object(pool_blocking.BlockingHttpConnection, "send", send),
        blocking_take(port) as spin,
    ):
        spin(3)
    return sent[-1]


TAKE, ACQUIRE, BARE = "headgate take", "headgate acquire + lease", "bare: the same bytes"
CONTESTANTS: list[tuple[str, Any, Any]] = [
    (TAKE, take, blocking_take),
    (ACQUIRE, acquire, blocking_acquire),
    (BARE, bare, blocking_bare),
]

# --------------------------------------------------------------------------------------------------
# How: all are open at once and take turns in slices, so that a noise hits all alike.

WAYS = ("async, 1 task", "async, 32 tasks", "blocking, 1 thread", "blocking, 4 threads")
Figures = dict[tuple[str, str], list[float]]  # CPU in us per call, by contestant and way


async def measure_async(port: int, calls: int, rounds: int, found: Figures) -> None:
    async with contextlib.AsyncExitStack() as stack:
        lanes = [
            (name, await stack.enter_async_context(opened(port))) for name, opened, _ in CONTESTANTS
        ]
        gc.collect()
        gc.freeze()  # collecting goes on, but not of what exists already
        for turn in range(rounds):
            for way, count in zip(WAYS[:2], (1, 32), strict=True):
                for name, spin in lanes if turn % 2 else reversed(lanes):
                    await asyncio.gather(*(spin(4) for _ in range(count)))
                    cpu_s, each = time.process_time(), calls // count
                    await asyncio.gather(*(spin(each) for _ in range(count)))
                    spent_s = time.process_time() - cpu_s
                    found.setdefault((name, way), []).append(spent_s / (each * count) * 1e6)
        gc.unfreeze()


def measure_blocking(port: int, calls: int, rounds: int, found: Figures) -> None:
    with contextlib.ExitStack() as stack:
        lanes = [(name, stack.enter_context(opened(port))) for name, _, opened in CONTESTANTS]
        pool = stack.enter_context(ThreadPoolExecutor(4))
        for turn in range(rounds):
            for way, count in zip(WAYS[2:], (1, 4), strict=True):
                for name, spin in lanes if turn % 2 else reversed(lanes):
                    list(pool.map(spin, [4] * count))
                    cpu_s, each = time.process_time(), calls // count
                    list(pool.map(spin, [each] * count))
                    spent_s = time.process_time() - cpu_s
                    found.setdefault((name, way), []).append(spent_s / (each * count) * 1e6)


def run(quick: bool, rounds: int = 12) -> dict[str, Any]:
    calls, rounds = (64, 2) if quick else (960, rounds)
    found: Figures = {}
    with endpoint() as port:
        asyncio.run(measure_async(port, calls, rounds, found))
        measure_blocking(port, calls, rounds, found)
    rows = [
        {"name": name, "mode": way, "us": min(times), "median_us": statistics.median(times)}
        for (name, way), times in found.items()
    ]
    show(
        f"client CPU of one call on a canned TLS wire, {rounds} turns of {calls} calls",
        ("", "way", "least us", "median us"),
        [(row["name"], row["mode"], row["us"], row["median_us"]) for row in rows],
    )
    return {"dynamodb_wire": rows, "aims": [each for way in WAYS for each in _aims(found, way)]}


def _aims(found: Figures, way: str) -> list[Aim]:
    mine = statistics.median(found[TAKE, way])
    pairs = zip(found[TAKE, way], found[ACQUIRE, way], strict=True)
    ratio = statistics.median(one / other for one, other in pairs)
    return [
        aim(f"{way}: a take <= {CPU_US_AIM} us (median)", f"{mine:.0f} us", mine <= CPU_US_AIM),
        aim(f"{way}: a take costs no more than an acquire", f"{ratio:.2f}", ratio <= 1.03),
    ]


# --------------------------------------------------------------------------------------------------
# Where the time goes: the stack at each tick of the process's CPU time.

TICK_S = 0.001
SYSTEM_CALLS = {  # what a method of the standard library is when it is on top
    "_SelectorSocketTransport.write": "socket.send",
    "_SelectorSocketTransport._read_ready__get_buffer": "socket.recv_into",
    "EpollSelector.select": "epoll_wait",
}
RESUME = dis.opmap["RESUME"]


def stack_of(frame: FrameType | None) -> tuple[str, ...]:
    """The stack of one sample: what the task does, or what the event loop does around it.

    Python hands out a signal when a function begins or a call into C has ended. One that is handed
    out at the beginning of a function came before it, so it counts for who called.
    """
    if frame is not None and frame.f_code.co_code[frame.f_lasti] == RESUME:
        frame = frame.f_back
    found: list[str] = []
    while frame is not None:
        name = frame.f_code.co_qualname
        if not found and name in SYSTEM_CALLS:
            found.append(SYSTEM_CALLS[name])
        if name == "take.<locals>.spin":
            return ("the task", *reversed(found))
        if name in ("BaseEventLoop._run_once", "BaseEventLoop.run_forever"):
            break
        found.append(name.replace("<locals>.", ""))
        frame = frame.f_back
    return ("the event loop", *reversed(found))


async def sample(port: int, seconds: float) -> tuple[Counter[tuple[str, ...]], float]:
    """The stacks of async takes, and the CPU of one in us."""
    stacks: Counter[tuple[str, ...]] = Counter()

    def tick(_: int, frame: FrameType | None) -> None:
        stacks[stack_of(frame)] += 1

    async with take(port) as spin:
        await spin(500)
        signal.signal(signal.SIGPROF, tick)
        signal.setitimer(signal.ITIMER_PROF, TICK_S, TICK_S)
        cpu_s, calls = time.process_time(), 0
        while time.process_time() - cpu_s < seconds:
            await spin(100)
            calls += 100
        signal.setitimer(signal.ITIMER_PROF, 0)
        return stacks, (time.process_time() - cpu_s) / calls * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.dynamodb_wire")
    parser.add_argument("--quick", action="store_true", help="a smoke run; its figures say little")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--stacks", metavar="FILE", type=Path)
    parser.add_argument("--serve", metavar="CERTIFICATE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(arguments.serve))
    elif arguments.stacks is not None:
        with endpoint() as port:
            stacks, cpu_us = asyncio.run(sample(port, 0.5 if arguments.quick else 30))
        lines = [f"{';'.join(stack)} {count}" for stack, count in stacks.most_common()]
        about = f"# {cpu_us:.1f} us a take, load {machine.load()}"
        arguments.stacks.write_text("\n".join([about, *lines, ""]), encoding="utf-8")
    else:
        for name, text in machine.about().items():
            print(f"{name:8}{text}")
        show_aims(run(arguments.quick, arguments.rounds)["aims"])
        print(f"\nload at the end {machine.load()}")


if __name__ == "__main__":
    main()
