"""Servers to put load on, each a process of its own that is stopped by its id, and their CPU."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.children import ROOT

TICKS = os.sysconf("SC_CLK_TCK")
START_S = 60.0
POLICIES = """\
rate_limits:
  - {name: search, scope: user, resource: api.search, capacity: 1000000000, refill_rate: 1000000}
  - {name: address, scope: ip, resource: api.search, capacity: 1000000000, refill_rate: 1000000}
  - {name: all, scope: global, resource: api.search, capacity: 1000000000, refill_rate: 1000000}
"""


class Running:
    """A server that answers at `url`."""

    def __init__(self, url: str, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self.url = url
        self._processes = processes

    def cpu_s(self) -> float:
        """CPU time of its processes and their children until now."""
        return sum(_cpu_s(pid) for one in self._processes for pid in (one.pid, *_children(one.pid)))


@contextmanager
def echo(workers: int) -> Iterator[Running]:
    port = _free_port()
    command = ["-m", "bench.service_echo", str(port)]
    with _started([command] * workers, port) as running:
        yield running


@contextmanager
def headgate(store: str, workers: int, folder: Path) -> Iterator[Running]:
    port = _free_port()
    policies = folder / "policies.yaml"
    policies.write_text(POLICIES, encoding="utf-8")
    command = [
        "-m", "headgate.service", "--store", store, "--port", str(port),
        "--workers", str(workers), "--policies", str(policies), "--log-level", "error",
    ]  # fmt: skip
    with _started([command], port) as running:
        yield running


@contextmanager
def _started(commands: Sequence[Sequence[str]], port: int) -> Iterator[Running]:
    paths = [str(ROOT / "src"), str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    processes = [
        subprocess.Popen(
            [sys.executable, *command], env=environment, cwd=ROOT, stdout=subprocess.DEVNULL
        )
        for command in commands
    ]
    try:
        _wait_for(port, processes)
        yield Running(f"http://127.0.0.1:{port}", processes)
    finally:
        for one in processes:
            one.terminate()
        for one in processes:
            one.wait(30)


def _wait_for(port: int, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Until it answers; workers get a moment more to be all there."""
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        if any(one.poll() is not None for one in processes):
            break
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as line:
                line.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
                if line.recv(100).startswith(b"HTTP/1.1 200"):
                    time.sleep(1.0)
                    return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("a server did not start; see its error above")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _cpu_s(pid: int) -> float:
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / TICKS


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(word) for word in text.split()]
