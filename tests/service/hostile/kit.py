"""A real service process under attack: raw sockets, memory read from /proc, the log in a file."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.service.server.kit import START_S, Running, command, environment, read_greeting

RSS_MB_MAX = 150
HEALTHZ_S_MAX = 1.0
ANSWER_S = 30  # far more than any answer takes; a test that waits this long has failed

CHECK = b"/v1/ratelimit/check"
BODY = b'{"identifier":"ann","resource":"api.search"}'


class Target(Running):
    """A running service, what it has logged, and how much memory it has."""

    def __init__(self, process: subprocess.Popen[str], lines: list[str], log: Path) -> None:
        super().__init__(process, lines)
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def sockets(self) -> int:
        """How many TCP sockets it has on its port: the listener and its connections."""
        tables = ("/proc/net/tcp", "/proc/net/tcp6")
        rows = [row.split() for table in tables for row in Path(table).read_text().splitlines()]
        mine = f":{self.port:04X}"
        # Without an inode it is no longer the process's, but the kernel's (TIME_WAIT and the like).
        return len([row for row in rows if row[1].endswith(mine) and row[9] != "0"])

    def connect(self, receive_bytes: int | None = None) -> socket.socket:
        """A connection; with `receive_bytes` its window for answers is that small."""
        line = socket.socket()
        if receive_bytes is not None:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        line.settimeout(ANSWER_S)
        line.connect(("127.0.0.1", self.port))
        return line

    def exchange(self, *pieces: bytes) -> bytes:
        """All that is answered until the server closes, or is silent once it has answered."""
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
        said = httpx.get(self.url + "/healthz", trust_env=False, timeout=60)
        assert said.status_code == 200
        return time.monotonic() - began_s


@contextmanager
def target(folder: Path, *arguments: str) -> Iterator[Target]:
    """The service on a free loopback port. Its log is a file: a pipe that nobody reads would stop
    a service that has much to say."""
    log = folder / "service.log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            command("--port", "0", "--store", "memory://", *arguments),
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    late = threading.Timer(START_S, process.kill)
    late.start()
    try:
        lines = read_greeting(process)
        late.cancel()
        yield Target(process, lines, log)
    finally:
        late.cancel()
        process.terminate()
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def request(
    method: bytes = b"POST", path: bytes = CHECK, body: bytes = BODY, *fields: bytes
) -> bytes:
    head = [b"%b %b HTTP/1.1" % (method, path), b"host: localhost"]
    if method == b"POST":
        head += [b"content-type: application/json", b"content-length: %d" % len(body)]
    return b"\r\n".join([*head, *fields]) + b"\r\n\r\n" + (body if method == b"POST" else b"")


def chunked_head(method: bytes = b"POST", path: bytes = CHECK) -> bytes:
    return (
        b"%b %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n" % (method, path)
    )


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def read_answers(line: socket.socket, quiet_s: float = 1.0) -> bytes:
    """What comes until the end, or until nothing more has come for a while after the first."""
    found = b""
    try:
        while part := line.recv(65_536):
            found += part
            line.settimeout(quiet_s)
    except TimeoutError:
        assert found, "nothing was answered"
    except ConnectionResetError:
        pass
    return found


def flood(
    line: socket.socket, piece: Callable[[int], bytes], bytes_max: int, stalled_s: float = 2.0
) -> int:
    """Sends until it is too much, the server closes, or it has read nothing for a while; the number
    of bytes it took."""
    sent = number = 0
    line.settimeout(stalled_s)
    while sent < bytes_max:
        try:
            sent += line.send(piece(number))
        except OSError:  # a timeout is one, too
            return sent
        number += 1
    return sent


def flood_at_once(lines: list[socket.socket], piece: Callable[[int], bytes], each: int) -> int:
    """Floods all of them at the same time; the bytes the server took."""
    sent: list[int] = []
    threads = [
        threading.Thread(target=lambda line=line: sent.append(flood(line, piece, each)))
        for line in lines
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(sent)
