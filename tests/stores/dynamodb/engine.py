"""The AWS engine of the tests: `ministack`, in a virtual environment of its own, on loopback.

It pins a botocore, so it must not share the tests' environment. HEADGATE_MINISTACK_VENV names the
environment; else it is `.venv-ministack` at the root of the repository, made when it is missing.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parents[3]
PACKAGE = "ministack>=1.5,<2"
STORE_SERVICES = "dynamodb,dynamodbstreams"
START_S_MAX = 60.0
STOP_S_MAX = 10.0
POLL_S = 0.05
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}

# It ends itself when the test run it belongs to is gone, however that ended.
PROGRAM = """
import os, sys, threading, time
def watch(owner):
    while True:
        try:
            os.kill(owner, 0)
        except OSError:
            os._exit(3)
        time.sleep(1)
threading.Thread(target=watch, args=(int(sys.argv.pop()),), daemon=True).start()
from ministack.app import main
main()
"""


@dataclass(frozen=True)
class Engine:
    """A running ministack; `stop` ends it by its process id."""

    pid: int
    port: int
    folder: str

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    def stop(self) -> None:
        for how in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, how)
            end_s = time.monotonic() + STOP_S_MAX
            while _alive(self.pid) and time.monotonic() < end_s:
                time.sleep(POLL_S)
            if not _alive(self.pid):
                break
        shutil.rmtree(self.folder, ignore_errors=True)


def start(owner: int | None = None, services: str = STORE_SERVICES) -> Engine:
    """A new engine on a free port, answering; it outlives its `owner` by a second at most."""
    python = environment()
    port = free_port()
    folder = tempfile.mkdtemp(prefix="headgate-ministack-")
    log = Path(folder) / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(python), "-c", PROGRAM, str(owner or os.getpid())],
            env=_settings(port, folder, services),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,  # Ctrl-C is for the tests, which then stop it
        )
    end_s = time.monotonic() + START_S_MAX
    while not _answers(port):
        if process.poll() is not None or time.monotonic() > end_s:
            process.kill()
            tail = log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"ministack did not start ({python}); it said:\n{tail}")
        time.sleep(POLL_S)
    _CHILDREN[process.pid] = process
    return Engine(process.pid, port, folder)


@contextlib.contextmanager
def shared(folder: Path, owner: int, services: str = STORE_SERVICES) -> Iterator[Engine]:
    """One engine for all that name the same folder; the last to leave stops it."""
    folder.mkdir(exist_ok=True)
    book = folder / "ministack.json"
    with _locked(folder / "ministack.lock"):
        entry = json.loads(book.read_text()) if book.exists() else {"users": 0}
        if not entry["users"]:
            entry = {"users": 0, "engine": asdict(start(owner, services))}
        entry["users"] += 1
        book.write_text(json.dumps(entry))
    engine = Engine(**entry["engine"])
    try:
        yield engine
    finally:
        with _locked(folder / "ministack.lock"):
            entry = json.loads(book.read_text())
            entry["users"] -= 1
            book.write_text(json.dumps(entry))
            if not entry["users"]:
                engine.stop()


def environment() -> Path:
    """The Python that has ministack; installs it where it is missing, and says so."""
    named = os.environ.get("HEADGATE_MINISTACK_VENV")
    folder = Path(named) if named else ROOT / ".venv-ministack"
    python = folder / "bin" / "python"
    if _has_ministack(python):
        return python
    lock = Path(tempfile.gettempdir()) / f"headgate-ministack-{os.getuid()}.lock"
    with _locked(lock):
        if not _has_ministack(python):
            print(f"==> installing {PACKAGE} into {folder}", file=sys.stderr)  # noqa: T201
            install = [str(python), "-m", "pip", "install", "--quiet", PACKAGE]
            try:
                subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
                subprocess.run(install, check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise RuntimeError(
                    f"the tests of the DynamoDB store need ministack, which could not be had "
                    f"({error}). Make it by hand: python3 -m venv {folder} && {folder}/bin/pip "
                    f"install '{PACKAGE}', or name one with HEADGATE_MINISTACK_VENV"
                ) from error
    return python


_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}


def _settings(port: int, folder: str, services: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | {
        "BIND_HOST": HOST,
        "GATEWAY_PORT": str(port),
        "MINISTACK_HOST": HOST,
        "SERVICES": services,
        "LOG_LEVEL": "WARNING",
        "TMPDIR": folder,
        "SFTP_ENABLED": "0",
        "IOT_MTLS_ENABLED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _has_ministack(python: Path) -> bool:
    return any((python.parent.parent / "lib").glob("python3*/site-packages/ministack/app.py"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=1)
    headers = {
        "X-Amz-Target": "DynamoDB_20120810.ListTables",
        "Content-Type": "application/x-amz-json-1.0",
        "Authorization": "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/dynamodb/aws4_request",
    }
    try:
        connection.request("POST", "/", b"{}", headers)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _alive(pid: int) -> bool:
    child = _CHILDREN.get(pid)
    if child is not None:
        return child.poll() is None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")  # the child of another worker, dead but not yet buried
    with contextlib.suppress(OSError):
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    return True


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
