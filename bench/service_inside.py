"""A request's CPU without sockets: the default server's protocol, driven in this process.

Rounds of the bare echo and of the service take turns, and each is compared with the echo and the
check of its own round, so the shares hold on a busy machine, too, where rates say little.

`python -m bench.service_inside [ROUNDS]`
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from bench import machine
from bench.service_echo import echo
from bench.service_load import Load
from bench.service_servers import POLICIES
from bench.table import show
from headgate.service.http.asgi import Rest
from headgate.service.program import Options, Program
from headgate.service.server.options import read_options
from headgate.service.server.serve import Server, config_of

CONNECTIONS = 16
HEAD = (
    b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"traceparent: 00-%032x-%016x-01\r\ncontent-length: %d\r\n\r\n%b"
)
DATE = [(b"date", b"Thu, 01 Jan 2026 00:00:00 GMT")]


class Wire:
    """A transport that counts the answers written to it.

    By their heads: the server's usual way writes head and body apart, and counting both would end
    a round with half of its requests unanswered, whose work then falls into the next one's time.
    """

    def __init__(self) -> None:
        self.answers = 0
        self.errors = 0

    def write(self, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1 "):
            self.answers += 1
            self.errors += not data.startswith(b"HTTP/1.1 20")

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 50_000) if name in ("peername", "sockname") else default

    def is_closing(self) -> bool:
        return False

    def nothing(self, *_: Any) -> None:
        """Flow control: there is none."""

    close = pause_reading = resume_reading = set_protocol = nothing


class Inside:
    """Connections to an application, without a network."""

    def __init__(self, app: Any, lane: Any, load: Load) -> None:
        config = config_of(read_options(["--store", "memory://"], {}), app, lane)
        config.load()
        state = Server(config).server_state
        state.default_headers = DATE
        self._lines = []
        for _ in range(CONNECTIONS):
            protocol: Any = config.http_protocol_class(
                config=config, server_state=state, app_state={}
            )
            wire = Wire()
            protocol.connection_made(wire)
            self._lines.append((protocol, wire))
        self._path, self._bodies, self._number = load.path.encode(), load.bodies, 0
        self.all_us: list[float] = []

    def requests(self, count: int) -> list[bytes]:
        """The next requests. No head ever comes twice, and identifiers take turns, as those of real
        clients do."""
        found = []
        for _ in range(count):
            self._number += 1
            body = self._bodies[self._number % len(self._bodies)]
            found.append(HEAD % (self._path, self._number << 64, self._number, len(body), body))
        return found

    async def ask(self, requests: list[bytes]) -> int:
        """Sends them all, and waits until they are answered; how many they were."""
        before, sent, count = self._answers(), 0, len(requests)
        while sent < count:
            for protocol, _ in self._lines[: count - sent]:
                protocol.data_received(requests[sent])
                sent += 1
            while self._answers() < before + sent:  # noqa: ASYNC110  # turns are all it waits for
                await asyncio.sleep(0)
        errors = sum(wire.errors for _, wire in self._lines)
        if errors or self._answers() != before + sent:
            raise RuntimeError(
                f"{sent} requests, {self._answers() - before} answers, {errors} errors"
            )
        return sent

    async def time(self, count: int) -> None:
        requests = self.requests(count)
        began_s = time.process_time()
        sent = await self.ask(requests)
        self.all_us.append((time.process_time() - began_s) / sent * 1e6)

    def _answers(self) -> int:
        return sum(wire.answers for _, wire in self._lines)


async def _measured(folder: Path, rounds: int) -> dict[str, float]:
    policies = folder / "policies.yaml"
    policies.write_text(POLICIES, encoding="utf-8")
    program = Program.build(Options(store="memory://", policies=str(policies)))
    await program.start()
    rest = Rest(program)
    single, batch = Load.single(), Load.batch(100)
    kinds = {
        "bare echo": (Inside(echo, None, single), 800),
        "check": (Inside(rest, rest, single), 800),
        "check without the express lane": (Inside(rest, None, single), 800),
        "acquire of three": (Inside(rest, rest, Load.acquire()), 800),
        "lease": (Inside(rest, rest, Load.lease()), 400),
        "batch of 100": (Inside(rest, rest, batch), 16),
    }
    for inside, count in kinds.values():
        await inside.ask(inside.requests(6 * count))  # so often that every identifier was there
    gc.collect()
    for _ in range(rounds):
        for inside, count in kinds.values():
            await inside.time(count)
    await program.close()
    return {name: inside.all_us for name, (inside, _) in kinds.items()}


def measured(folder: Path, rounds: int) -> dict[str, list[float]]:
    """CPU microseconds per request by kind, of each round."""
    return uvloop.run(_measured(folder, rounds))


def show_inside(found: dict[str, list[float]]) -> None:
    """Medians, where half of the rounds lie, and shares of the same round's echo and check."""

    def share(name: str, of: str) -> float:
        return statistics.median(a / b for a, b in zip(found[name], found[of], strict=True))

    rows = []
    for name, all_us in found.items():
        quarter, middle, three_quarters = statistics.quantiles(all_us, n=4)
        rows.append(
            (name, middle, f"{quarter:.1f} - {three_quarters:.1f}", min(all_us),
             f"{1 / share(name, 'bare echo'):.2f}", f"{share(name, 'check'):.2f}")
        )  # fmt: skip
    show(
        "CPU without sockets: the server's protocol in one process, rounds in turn, memory store",
        ("", "us/request", "half of the rounds", "least", "of echo", "in checks"),
        rows,
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        show_inside(measured(Path(place), int((*sys.argv, "60")[1])))
        print(f"\nload at the end {machine.load()}")
