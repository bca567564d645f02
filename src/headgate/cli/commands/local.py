"""`headgate local up|down|status`: a DynamoDB on this machine, to try things with."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import click

from headgate.cli.options import command_group, number_option
from headgate.cli.output import Output, Step, progress
from headgate.cli.session import OK, UNAVAILABLE, CommandFailed, Session

# --------------------------------------------------------------------------------------------------
# A local AWS engine (ministack) as a process that outlives the command: start, find, stop.
#
# It pins libraries of its own, so it lives in a virtual environment of its own. Where it runs is
# noted in a file; a process is only stopped if it still is the one that was noted.

HOST = "127.0.0.1"
PACKAGE = "ministack>=1.5,<2"
PROGRAM = "from ministack.app import main; main()"
MARK = "ministack"
START_S_MAX = 60.0
STOP_S_MAX = 10.0
POLL_S = 0.05
LOG_TAIL = 400


class RunningEngine(NamedTuple):
    """The engine as the note file names it."""

    pid: int
    port: int

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def url(self) -> str:
        return f"dynamodb://headgate?region=us-east-1&endpoint={self.endpoint}"


class EngineHome(NamedTuple):
    """Where the note, the log and the environment are kept."""

    note: Path
    log: Path
    environment: Path


def engine_home() -> EngineHome:
    folder = Path(os.environ.get("HEADGATE_HOME") or Path.home() / ".headgate")
    environment = os.environ.get("HEADGATE_MINISTACK_VENV") or folder / "ministack"
    return EngineHome(folder / "local.json", folder / "local.log", Path(environment))


def find_running(home: EngineHome) -> RunningEngine | None:
    """The engine in the note file, if that process still is one."""
    try:
        noted = RunningEngine(**json.loads(home.note.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return noted if _is_ours(noted.pid) else None


def start(home: EngineHome, port: int, step: Step) -> RunningEngine:
    """Starts an engine and waits until it answers."""
    python = home.environment / "bin" / "python"
    if not has_engine(home):
        raise CommandFailed(
            "there is no local AWS engine",
            f"ministack is not installed in {home.environment}",
            "headgate local up --install; or name its environment with HEADGATE_MINISTACK_VENV",
        )
    _check_free(port)
    folder = home.note.parent
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with home.log.open("wb") as out:
        process = subprocess.Popen(
            [str(python), "-c", PROGRAM],
            env=_settings(port, folder),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,  # it goes on when this terminal is closed
        )
    found = RunningEngine(process.pid, port)
    home.note.write_text(json.dumps(found._asdict()))
    end_s = time.monotonic() + START_S_MAX
    for turn in itertools.count(1):
        if is_answering(port):
            break
        if process.poll() is not None or time.monotonic() > end_s:
            process.kill()
            process.wait()
            home.note.unlink(missing_ok=True)
            said = _tail(home.log.read_bytes())
            raise CommandFailed(
                "the local AWS engine did not start", said or "it said nothing", f"see {home.log}"
            )
        step(turn, None)
        time.sleep(POLL_S)
    process.returncode = 0  # it is meant to outlive this command, which must not warn of that
    return found


def stop(home: EngineHome, found: RunningEngine) -> None:
    """Stops the engine and deletes its note."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(found.pid, how)
        end_s = time.monotonic() + STOP_S_MAX
        while _is_ours(found.pid) and time.monotonic() < end_s:
            time.sleep(POLL_S)
        if not _is_ours(found.pid):
            break
    with contextlib.suppress(ChildProcessError):  # if we started it, we have to reap it
        while os.waitpid(found.pid, os.WNOHANG) == (0, 0) and time.monotonic() < end_s:
            time.sleep(POLL_S)
    home.note.unlink(missing_ok=True)


def install_engine(home: EngineHome) -> None:
    """Installs ministack in its own virtual environment."""
    folder = home.environment
    python = folder / "bin" / "python"
    try:
        if not python.exists():
            subprocess.run(
                [sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True
            )
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE],
            check=True, capture_output=True,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:
        raise CommandFailed(
            "ministack could not be installed", _tail(error.stderr or b"") or str(error),
            f"python3 -m venv {folder} && {folder}/bin/pip install '{PACKAGE}'",
        ) from error  # fmt: skip


def _tail(output: bytes) -> str:
    """The last of what a program said, on one line."""
    return " ".join(output.decode(errors="replace").split())[-LOG_TAIL:]


def has_engine(home: EngineHome) -> bool:
    return any((home.environment / "lib").glob("python3*/site-packages/ministack/app.py"))


def is_answering(port: int) -> bool:
    """Whether a DynamoDB answers there."""
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


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise CommandFailed(
                f"port {port} is taken", str(error.strerror), "choose another: --port"
            ) from error


def _is_ours(pid: int) -> bool:
    """Whether the process runs and is an engine: its id may have been reused."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    line = Path(f"/proc/{pid}/cmdline")
    try:
        return MARK in line.read_bytes().decode(errors="replace")  # empty for a zombie
    except OSError:
        return not line.parent.parent.exists()  # without /proc the id has to be enough


def _settings(port: int, folder: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | {
        "BIND_HOST": HOST,
        "GATEWAY_PORT": str(port),
        "MINISTACK_HOST": HOST,
        "SERVICES": "dynamodb,dynamodbstreams",
        "LOG_LEVEL": "WARNING",
        "TMPDIR": str(folder),
        "SFTP_ENABLED": "0",
        "IOT_MTLS_ENABLED": "0",
    }


CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


@command_group("""
    headgate local up --install
    headgate local down
""")
def local() -> None:
    """A local AWS engine (ministack) to try DynamoDB with; nothing of AWS is touched."""


@local.action("""
    headgate local up --install
    headgate local up --port 4567 --json
""")
@number_option("--port", 1, 65_535, 4566, "Where it listens, on 127.0.0.1.")
@click.option("--install", is_flag=True, help="Install ministack first, where it is missing.")
def up(session: Session, port: int, install: bool) -> Output:
    """Start the engine with a table called headgate; if it runs already, say where."""
    home = engine_home()
    found = find_running(home)
    if found is None:
        with progress(session, "starting") as step:
            if install and not has_engine(home):
                install_engine(home)
            found = start(home, port, step)
    has_table = _make_table(found)
    lines = [f"the local AWS engine answers on {found.endpoint} (process {found.pid})"]
    lines += ["", f"export HEADGATE_URL='{found.url}'"]
    lines += [f"export {name}={value}" for name, value in CREDENTIALS.items()]
    if not has_table:
        lines.append("pip install 'headgate[dynamodb]'   # to use it")
    return Output({**_document(found), "table": has_table}, "\n".join(lines))


@local.action("headgate local down")
def down(session: Session) -> Output:
    """Stop the engine; its data is lost."""
    home = engine_home()
    found = find_running(home)
    if found is None:
        return Output({"stopped": None}, "it does not run")
    with progress(session, "stopping"):
        stop(home, found)
    return Output({"stopped": found.pid}, f"stopped process {found.pid}")


@local.action("headgate local status --json")
def status(session: Session) -> Output:
    """Show where the engine runs, and whether it answers; exit code 4 if it does not."""
    found = find_running(engine_home())
    if found is None:
        document = {"running": False, "answers": False}
        return Output(document, "it does not run", exit_code=UNAVAILABLE)
    document = _document(found)
    said, code = ("answers", OK) if document["answers"] else ("does not answer", UNAVAILABLE)
    where = f"process {found.pid} {said} on {found.endpoint}"
    return Output(document, where, found.url, exit_code=code)


def _document(found: RunningEngine) -> dict[str, Any]:
    return {
        "running": True,
        "pid": found.pid,
        "endpoint": found.endpoint,
        "url": found.url,
        "answers": is_answering(found.port),
        "environment": CREDENTIALS,
    }


def _make_table(found: RunningEngine) -> bool:
    """Whether the table is there; False where headgate[dynamodb] is not installed."""
    from headgate.core.errors import ValidationError
    from headgate.sync import SyncRepository

    kept = {name: os.environ.get(name) for name in CREDENTIALS}
    os.environ.update(CREDENTIALS)  # never the caller's own: this engine is not AWS
    try:
        with SyncRepository(found.url) as repository:
            repository.create_table()
    except ValidationError:
        return False
    finally:
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    return True
