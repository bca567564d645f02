"""`python -m bench.redis_clients [--quick]`: what a Redis client costs, on one EVALSHA.

Each contestant runs the same small script (HGET, HSET, TIME) on one server started here, `callers`
at a time. CPU is this process's own (`process_time`), so the server's is not in it; where a client
works in threads of its own, those are.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from bench import machine
from bench.table import aim, show, show_aims
from headgate.core.runtime import run
from headgate.stores.redis.client.calls import open_port
from headgate.stores.redis.client.commands import Script

CALLERS = (1, 32, 128)
SCRIPT = Script(
    "bench",
    "local now = redis.call('TIME')\n"
    "local seen = redis.call('HGET', KEYS[1], 'n')\n"
    "redis.call('HSET', KEYS[1], 'n', ARGV[1])\n"
    "return {seen, now[1]}",
)
KEY, ARGUMENT = "bench:{1}", "12345"
CALL = ("EVALSHA", SCRIPT.sha, 1, KEY, ARGUMENT)
OURS, BARE, CEILING = "headgate async", "hiredis protocol, bare", "redis-benchmark"

Call = Callable[[], Awaitable[Any]]


@contextlib.contextmanager
def server() -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    arguments = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(arguments, cwd=folder, stdout=subprocess.DEVNULL)
        try:
            _wait_for(port)
            yield port
        finally:
            process.terminate()
            process.wait()


def _wait_for(port: int) -> None:
    for _ in range(500):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        time.sleep(0.01)
    raise RuntimeError("redis-server did not start")


class Bare(asyncio.Protocol):
    """The least an asyncio client can do: no deadlines, no errors, no reconnecting."""

    def __init__(self) -> None:
        import hiredis

        self._pack = hiredis.pack_command
        self._reader = hiredis.Reader(encoding="utf-8")
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._out: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def call(self) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        self._waiting.append(future)
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(self._pack(CALL))
        return future

    def _flush(self) -> None:
        self._transport.write(b"".join(self._out))
        self._out = []

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            self._waiting.popleft().set_result(reply)


@contextlib.asynccontextmanager
async def ours(port: int) -> Any:
    mine = open_port(f"redis://127.0.0.1:{port}", blocking=False)
    yield lambda: mine.script(SCRIPT, (KEY,), (ARGUMENT,))
    await mine.close()


@contextlib.asynccontextmanager
async def bare(port: int) -> Any:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(Bare, "127.0.0.1", port)
    yield protocol.call
    transport.close()


@contextlib.asynccontextmanager
async def redis_py(port: int) -> Any:
    import redis.asyncio

    pool = redis.asyncio.BlockingConnectionPool(host="127.0.0.1", port=port, max_connections=128)
    client = redis.asyncio.Redis(connection_pool=pool)
    yield lambda: client.evalsha(SCRIPT.sha, 1, KEY, ARGUMENT)
    await client.aclose()
    await pool.disconnect()


@contextlib.asynccontextmanager
async def coredis(port: int) -> Any:
    import coredis as library

    client = library.Redis("127.0.0.1", port)
    async with contextlib.AsyncExitStack() as stack:
        if hasattr(client, "__aenter__"):
            await stack.enter_async_context(client)
        yield lambda: client.evalsha(SCRIPT.sha, [KEY], [ARGUMENT])


@contextlib.asynccontextmanager
async def glide(port: int) -> Any:
    from glide import GlideClient, GlideClientConfiguration, NodeAddress

    configuration = GlideClientConfiguration([NodeAddress("127.0.0.1", port)])
    client = await GlideClient.create(configuration)
    command: list[Any] = ["EVALSHA", SCRIPT.sha, "1", KEY, ARGUMENT]
    yield lambda: client.custom_command(command)
    await client.close()


ASYNC: dict[str, tuple[str, Callable[[int], Any]]] = {
    "redis-py asyncio, pool": ("redis", redis_py),
    "coredis": ("coredis", coredis),
    "valkey-glide": ("glide", glide),
    OURS: ("redis", ours),
    BARE: ("hiredis", bare),
}


async def timed(call: Call, callers: int, calls: int) -> tuple[float, float]:
    """Calls per second and CPU in us per call."""

    async def caller() -> None:
        for _ in range(calls // callers):
            await call()

    await asyncio.gather(*(_once(call) for _ in range(callers)))
    cpu_s, start_s = time.process_time(), time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    spent_s = time.perf_counter() - start_s
    done = calls // callers * callers
    return done / spent_s, (time.process_time() - cpu_s) / done * 1e6


async def _once(call: Call) -> None:
    await call()


def measure_async(opened: Callable[[int], Any], port: int, callers: int, calls: int) -> Any:
    async def main() -> tuple[float, float]:
        async with opened(port) as call:
            return await timed(call, callers, calls)

    return asyncio.run(main())


def measure_threads(call: Callable[[], Any], callers: int, calls: int) -> tuple[float, float]:
    def caller() -> None:
        for _ in range(calls // callers):
            call()

    call()
    threads = [threading.Thread(target=caller) for _ in range(callers)]
    cpu_s, start_s = time.process_time(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent_s = time.perf_counter() - start_s
    done = calls // callers * callers
    return done / spent_s, (time.process_time() - cpu_s) / done * 1e6


@contextlib.contextmanager
def blocking_redis_py(port: int) -> Iterator[Callable[[], Any]]:
    import redis

    pool = redis.BlockingConnectionPool(host="127.0.0.1", port=port, max_connections=128)
    client = redis.Redis(connection_pool=pool)
    yield lambda: client.evalsha(SCRIPT.sha, 1, KEY, ARGUMENT)
    client.close()
    pool.disconnect()


@contextlib.contextmanager
def blocking_ours(port: int) -> Iterator[Callable[[], Any]]:
    mine = open_port(f"redis://127.0.0.1:{port}?timeout_ms=10000", blocking=True)
    yield lambda: run(mine.script(SCRIPT, (KEY,), (ARGUMENT,)))
    run(mine.close())


BLOCKING: dict[str, Callable[[int], Any]] = {
    "redis-py blocking, pool": blocking_redis_py,
    "headgate blocking": blocking_ours,
}


def ceiling(port: int, callers: int, calls: int, pipelined: int) -> float:
    """redis-benchmark's calls per second; it keeps `pipelined` calls on each connection."""
    arguments = ["redis-benchmark", "-p", str(port), "-n", str(calls), "-c", str(callers), "-q"]
    arguments += ["-P", str(pipelined), *map(str, CALL)]
    text = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    return float(re.findall(r"([\d.]+) requests per second", text)[-1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.redis_clients")
    parser.add_argument("--quick", action="store_true", help="a smoke run; its figures say little")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    for name, text in machine.about().items():
        print(f"{name:8}{text}")
    versions = [f"{name} {machine.version(name)}" for name in _LIBRARIES]
    print("clients " + ", ".join(versions))
    calls, rounds = (2000, 1) if arguments.quick else (40_000, arguments.rounds)
    with server() as port:
        figures = contest(port, calls, rounds)
    report(figures)
    print(f"\nload at the end {machine.load()}")


_LIBRARIES = ("redis", "hiredis", "uvloop", "coredis", "valkey-glide")
Figures = dict[str, dict[int, tuple[float, float]]]


def contest(port: int, calls: int, rounds: int) -> Figures:
    """The best of some rounds; contestants take turns so that noise hits all alike."""
    setup = open_port(f"redis://127.0.0.1:{port}", blocking=True)
    run(setup.script(SCRIPT, (KEY,), (ARGUMENT,)))  # the server knows the script from here on
    run(setup.close())
    figures: Figures = {}
    for _ in range(rounds):
        for callers in CALLERS:
            some = calls // 4 if callers == 1 else calls
            for name, (module, opened) in ASYNC.items():
                if importlib.util.find_spec(module) is not None:
                    _keep(figures, name, callers, measure_async(opened, port, callers, some))
            for name, opened_blocking in BLOCKING.items():
                with opened_blocking(port) as call:
                    _keep(figures, name, callers, measure_threads(call, callers, some // 2))
            if shutil.which("redis-benchmark"):
                speed = ceiling(port, callers, some, 1), 0.0
                _keep(figures, f"{CEILING}, as many connections", callers, speed)
                speed = ceiling(port, 1, some, callers), 0.0
                _keep(figures, f"{CEILING}, one connection", callers, speed)
    return figures


def _keep(figures: Figures, name: str, callers: int, measured: tuple[float, float]) -> None:
    seen = figures.setdefault(name, {}).get(callers, measured)
    figures[name][callers] = max(seen[0], measured[0]), min(seen[1], measured[1])


def report(figures: Figures) -> None:
    heads = ["client", *(f"calls/s @{count}" for count in CALLERS)]
    heads += [f"CPU us @{count}" for count in CALLERS]
    rows = []
    for name, by_callers in figures.items():
        speeds = [f"{by_callers[count][0]:,.0f}" for count in CALLERS]
        rows.append([name, *speeds, *(by_callers[count][1] or None for count in CALLERS)])
    show("one EVALSHA (TIME, HGET, HSET)", heads, rows)
    if BARE in figures:
        show_aims([each for count in CALLERS[1:] for each in _aims(figures, count)])


def _aims(figures: Figures, callers: int) -> Iterator[dict[str, object]]:
    speed, cpu_us = figures[OURS][callers]
    share = speed / figures[BARE][callers][0]
    yield aim(f"CPU per call at {callers} <= 20 us", f"{cpu_us:.1f} us", cpu_us <= 20)
    yield aim(f">= 60 % of the bare protocol at {callers}", f"{share:.0%}", share >= 0.6)


if __name__ == "__main__":
    main()
