"""The program as people run it: a process of its own, stopped by its id."""

from __future__ import annotations

import http.client
import io
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import IO, NamedTuple
from unittest.mock import patch

import headgate
from headgate.service.server import serve

START_S = 60
ANSWER_S = 30  # far more than any answer takes; a test that waits this long has failed
CHECK = "/v1/ratelimit/check"
ASK = {"identifier": "ann", "resource": "api.search"}

# The last request of a connection: its answer cannot be taken for another, and ends it.
LAST = b"GET /ui/explain?resource=last HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
LAST_STATUS = b"HTTP/1.1 307 "


class Running:
    """A started program, and what it says. It logs to a file: a pipe that nobody reads would stop
    a program that has much to say."""

    def __init__(self, process: subprocess.Popen[str], log: IO[str], last: str) -> None:
        self.process = process
        self._log = log
        self.lines = self._greeting(last)
        (self.url,) = re.findall(r"https?://[^\s/]+", self.lines[0])
        self.port = int(self.url.rpartition(":")[2])

    def _greeting(self, last: str) -> list[str]:
        """What it says at its start, up to the last line of that, which begins so."""
        assert self.process.stdout is not None
        lines: list[str] = []
        while not lines or not lines[-1].startswith(last):
            line = self.process.stdout.readline()
            assert line, f"it did not start: {self.log}"
            lines.append(line.rstrip())
        return lines

    @property
    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Asked to end; its exit code."""
        if self.process.poll() is None:
            self.send(signal.SIGTERM)
        return self.process.wait(30)

    def kill(self) -> None:
        """Ends it and its workers at once, if they are still there."""
        for pid in [self.process.pid, *children_of(self.process.pid)]:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(30)

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def sockets(self) -> int:
        return sockets_on(self.port)

    def connect(self, receive_bytes: int | None = None) -> socket.socket:
        """A connection; with `receive_bytes` its window for answers is that small."""
        line = socket.socket()
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_bytes is not None:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        line.settimeout(ANSWER_S)
        line.connect(("127.0.0.1", self.port))
        return line

    def exchange(self, *pieces: bytes) -> bytes:
        """All answers to these pieces, which are sent one after the other."""
        with self.connect() as line:
            for piece in pieces:
                line.sendall(piece)
            return read_answers(line)

    def healthz_s(self) -> float:
        """How long another client waits for /healthz: the best of three tries, because a busy
        machine may be slow once, but a service that is busy with an attack is slow each time."""
        return min(self._healthz_s() for _ in range(3))

    def _healthz_s(self) -> float:
        began_s = time.monotonic()
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        client.request("GET", "/healthz")
        assert client.getresponse().status == 200
        client.close()
        return time.monotonic() - began_s


def read_answers(line: socket.socket) -> bytes:
    """Asks a last request, and gives what was answered before it, or before the end."""
    found = b""
    try:
        line.sendall(LAST)
        while part := line.recv(65_536):
            found += part
    except ConnectionError:  # it has answered and closed; what it said was there to be read
        pass
    before, _, last = found.rpartition(LAST_STATUS)
    return before if b"resource=last" in last else found


def sockets_on(port: int) -> int:
    """How many TCP sockets a server has on its port: the listener and its connections."""
    tables = ("/proc/net/tcp", "/proc/net/tcp6")
    rows = [row.split() for table in tables for row in Path(table).read_text().splitlines()]
    mine = f":{port:04X}"
    # Without an inode it is no longer the process's, but the kernel's (TIME_WAIT and the like).
    return len([row for row in rows if row[1].endswith(mine) and row[9] != "0"])


def children_of(pid: int) -> list[int]:
    states = {int(one.name): _state(int(one.name)) for one in Path("/proc").glob("[0-9]*")}
    return [
        child for child, state in states.items() if state[1:2] == [str(pid)] and state[0] != "Z"
    ]


def is_alive(pid: int) -> bool:
    return _state(pid)[:1] not in ([], ["Z"])


def _state(pid: int) -> list[str]:
    """State and parent of a process; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return []


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
    # The source that this process has imported: it may be one with a planted fault.
    source = str(Path(headgate.__file__).parents[1])
    return {**kept, "PYTHONPATH": source, **more}


class Ended(NamedTuple):
    code: int | str | None
    stdout: str
    stderr: str


@contextmanager
def process_state_kept() -> Iterator[None]:
    """What the program changes in its process is put back: signal handlers and logs."""
    signals = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    loggers = [logging.getLogger(name) for name in ("", "headgate", *serve.SERVER_LOGGERS)]
    levels = [one.level for one in loggers]
    handlers = loggers[0].handlers[:]
    try:
        yield
    finally:
        for one, handler in signals.items():
            signal.signal(one, handler)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        loggers[0].handlers[:] = handlers


def run_main(*arguments: str, **more: str) -> Ended:
    """The program in this process, where it is expected to end by itself."""
    environ = {**environment(), "HEADGATE_PORT": "0", **more}
    out, err = io.StringIO(), io.StringIO()
    with (
        process_state_kept(),
        patch.dict(os.environ, environ, clear=True),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            code: int | str | None = serve.main(arguments)
        except SystemExit as ended:
            code = ended.code
    return Ended(code, out.getvalue(), err.getvalue())


@contextmanager
def program(
    *arguments: str, module: str = "headgate.service", last: str = "all that can", **more: str
) -> Iterator[Running]:
    """The program on a free port, unless another is given."""
    command = [sys.executable, "-m", module, "--port", "0", *arguments]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            command, env=environment(**more), stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        late = threading.Timer(START_S, process.kill)
        late.start()
        running = None
        try:
            running = Running(process, log, last)
            late.cancel()
            yield running
            running.end()
        finally:
            late.cancel()
            if running is None:
                process.kill()
            else:
                running.kill()


def policy(capacity: int, more: str = "") -> str:
    """A policy file for what ASK asks."""
    return (
        "rate_limits:\n  - {name: search, scope: user, resource: api.search, "
        f"capacity: {capacity}, refill_rate: 0}}\n{more}"
    )


class Papers:
    """An authority, another one, and certificates of theirs: NAME.pem with NAME.key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("ca", "other"):
            usage = ["-addext", "keyUsage=critical,keyCertSign"]  # Python 3.13 asks for it
            self._openssl(*self._asking(name), "-x509", *usage, "-days", "2", "-out", f"{name}.pem")
        self._sign("server", "IP:127.0.0.1,DNS:localhost")
        self._sign("checkout", "DNS:checkout.internal,URI:spiffe://corp/checkout")
        self._sign("nobody", "DNS:nobody.internal")
        self._sign("forger", "DNS:checkout.internal", issuer="other")

    def pair(self, name: str) -> tuple[str, str]:
        """The files of a certificate and of its key."""
        return str(self.folder / f"{name}.pem"), str(self.folder / f"{name}.key")

    def _asking(self, name: str) -> list[str]:
        return [
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", f"{name}.key", "-subj", f"/CN={name}",
        ]  # fmt: skip

    def _sign(self, name: str, sans: str, issuer: str = "ca") -> None:
        self._openssl(*self._asking(name), "-out", f"{name}.csr")
        (self.folder / f"{name}.ext").write_text(
            f"subjectAltName={sans}\nauthorityKeyIdentifier=keyid\n"  # Python 3.13 asks for it
        )
        self._openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", f"{issuer}.pem", "-CAkey", f"{issuer}.key",
            "-CAcreateserial", "-out", f"{name}.pem", "-days", "2", "-extfile", f"{name}.ext",
        )  # fmt: skip

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)
