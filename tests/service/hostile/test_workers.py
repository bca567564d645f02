"""Several workers under attack: broken files, killed workers, signals at bad moments.

What must hold: a service that serves goes on serving, whatever happens to one worker or to a file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from headgate.service.keys.file import FileKeys
from headgate.service.keys.key import KeyScope
from headgate.service.server.workers import BACKOFF_S_MAX, EARLY_S, Worker, restart_delay_s
from tests.service.http.kit import until
from tests.service.server.kit import Running, command, environment, run_once

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads the process table")

CHECK = "/v1/ratelimit/check"
ASK = {"identifier": "ann", "resource": "api.search"}
SECRET = "hunter2"
BROKEN = f"rate_limits:\n  - {{name: search, password: {SECRET}\n"


def policy(capacity: int) -> str:
    return (
        "rate_limits:\n  - {name: search, scope: user, resource: api.search, "
        f"capacity: {capacity}, refill_rate: 0}}\n"
    )


def children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if words[1] == str(pid) and words[0] != "Z":
                found.append(int(entry.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return words[0] != "Z"


class Service(Running):
    """A running service with two workers. Its log goes to a file, and its board to `folder`."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        super().__init__(process, _greeting(process))
        self.folder = folder

    def workers(self) -> list[int]:
        """Those that have said that they serve."""
        said = {int(file.stem) for file in self.folder.glob("headgate-*/*.ready")}
        return [pid for pid in children_of(self.process.pid) if pid in said]

    def wait_for_workers(self) -> None:
        """Waits until both serve, or fails at once where the service has ended."""
        wait_until(lambda: self.process.poll() is not None or len(self.workers()) == 2)
        assert self.process.poll() is None, f"the service has ended:\n{self.log}"

    def kill_workers(self) -> None:
        """Kills both once they serve."""
        self.wait_for_workers()
        killed = self.workers()
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not [pid for pid in killed if is_alive(pid)])

    def limit(self) -> str | None:
        """The limit that a check is told; None where nobody answers it."""
        try:
            with httpx.Client(trust_env=False, timeout=30) as client:
                said = client.post(self.url + CHECK, json=ASK)
        except httpx.HTTPError:
            return None
        return said.headers.get("x-ratelimit-limit")

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()


def wait_until(happened: Callable[[], bool]) -> None:
    until(happened, steps=6000)


@contextmanager
def two_workers(folder: Path, *more: str, store: bool = True) -> Iterator[Service]:
    named = ("--store", f"sqlite:///{folder}/limits.db") if store else ()
    process = None
    try:
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                command("--port", "0", "--workers", "2", *named, *more),
                env=environment(TMPDIR=str(folder)), text=True,
                stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        yield Service(process, folder)
    finally:
        if process is not None:
            left = [process.pid, *children_of(process.pid)]
            for pid in left:
                if is_alive(pid):
                    os.kill(pid, signal.SIGKILL)
            process.wait(30)
            assert process.stdout is not None
            process.stdout.close()


def _greeting(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    lines = [process.stdout.readline().rstrip()]
    assert lines[0].startswith("headgate serves on "), "it did not start"
    return lines


def test_a_broken_policy_file_and_dead_workers_leave_the_service_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(policy(10))
    with two_workers(tmp_path, "--policies", str(file)) as service:
        service.wait_for_workers()
        file.write_text(BROKEN)
        service.kill_workers()  # nobody is left who has read the good file
        service.wait_for_workers()
        assert service.limit() == "10"
        assert service.process.poll() is None
        assert "started with the last good policies" in service.log
        file.write_text(policy(20))
        wait_until(lambda: {service.limit() for _ in range(8)} == {"20"})
        assert service.end() == 0


def test_a_broken_key_file_does_not_keep_a_replacement_from_starting(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key = run_once("key", "--keys", str(file)).stdout.strip()
    good = FileKeys(file)
    assert [KeyScope.CHECK in one.grant.scopes for one in good.state().keys.values()] == [True]
    with two_workers(tmp_path, "--keys", str(file)) as service:
        service.wait_for_workers()
        file.write_text("keys: [")
        service.kill_workers()
        service.wait_for_workers()
        bearer = {"authorization": f"Bearer {key}"}
        with httpx.Client(trust_env=False, timeout=30) as client:
            assert client.post(service.url + CHECK, json=ASK, headers=bearer).status_code == 200
            assert client.post(service.url + CHECK, json=ASK).status_code == 401
        assert service.end() == 0


def test_a_policy_file_that_names_another_store_splits_no_service(tmp_path: Path) -> None:
    """Workers that count in different stores would admit a multiple of every limit."""
    file = tmp_path / "policies.yaml"
    file.write_text(policy(3) + f"runtime: {{store: 'sqlite:///{tmp_path}/one.db'}}\n")
    with two_workers(tmp_path, "--policies", str(file), store=False) as service:
        service.wait_for_workers()
        assert [service.limit() for _ in range(3)] == ["3"] * 3
        file.write_text(policy(3) + f"runtime: {{store: 'sqlite:///{tmp_path}/two.db'}}\n")
        service.kill_workers()
        service.wait_for_workers()
        with httpx.Client(trust_env=False, timeout=30) as client:
            assert client.post(service.url + CHECK, json=ASK).status_code == 429
        assert not (tmp_path / "two.db").exists()


def test_killed_workers_are_reported_and_never_end_the_service(tmp_path: Path) -> None:
    with two_workers(tmp_path) as service:
        for _ in range(3):  # six early deaths; three ended the service once
            service.kill_workers()
        service.wait_for_workers()
        assert service.limit() is not None
        assert service.log.count("was killed by SIGKILL while serving") == 6
        with httpx.Client(trust_env=False, timeout=30) as client:
            metrics = client.get(service.url + "/metrics").text
        assert 'headgate_worker_deaths_total{when="serving"} 6' in metrics
        assert service.end() == 0


def test_where_no_worker_can_ever_start_the_service_ends_and_says_why(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    tls = ("--tls-certificate", missing, "--tls-key", missing)
    store = f"sqlite:///{tmp_path}/limits.db"
    ended = run_once("--store", store, "--workers", "2", *tls)
    assert ended.returncode == 1
    assert "No worker could start" in ended.stderr


def test_a_broken_policy_file_at_the_first_start_ends_it(tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(BROKEN)
    store = f"sqlite:///{tmp_path}/limits.db"
    ended = run_once("--store", store, "--workers", "2", "--policies", str(file))
    assert ended.returncode == 2
    assert "policies.yaml" in ended.stderr


def test_workers_that_are_being_started_end_with_their_supervisor(tmp_path: Path) -> None:
    with two_workers(tmp_path) as service:
        wait_until(lambda: len(children_of(service.process.pid)) == 2)
        started = children_of(service.process.pid)
        assert not service.workers(), "they serve already, so this test would show nothing"
        service.process.kill()
        service.process.wait(30)
        try:
            wait_until(lambda: not [pid for pid in started if is_alive(pid)])
        finally:
            for pid in started:
                if is_alive(pid):
                    os.kill(pid, signal.SIGKILL)


def test_sighup_right_after_the_start_kills_nobody(tmp_path: Path) -> None:
    with two_workers(tmp_path) as service:
        wait_until(lambda: len(children_of(service.process.pid)) == 2)
        first = children_of(service.process.pid)
        for pid in (service.process.pid, *first):
            os.kill(pid, signal.SIGHUP)
        service.wait_for_workers()
        assert sorted(service.workers()) == sorted(first)
        assert service.end() == 0


SLOW_START = """
import signal, sys
from headgate.service.server import serve
real = serve.Server.run
def run(self, *arguments, **more):
    signal.raise_signal(signal.{signal})
    return real(self, *arguments, **more)
serve.Server.run = run
sys.exit(serve.main(["--store", "memory://", "--port", "0"]))
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_to_end_before_the_server_listens_is_honoured(name: str) -> None:
    code = SLOW_START.format(signal=name)
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr


def test_sigterm_ends_a_supervisor_that_has_just_begun(tmp_path: Path) -> None:
    arguments = ("--port", "0", "--store", f"sqlite:///{tmp_path}/limits.db", "--workers", "2")
    process = subprocess.Popen(
        command(*arguments), env=environment(TMPDIR=str(tmp_path)), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline()  # its greeting: no worker is there yet
    process.terminate()
    try:
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()  # if it did not end; its workers end with it
    assert process.returncode == 0, said
    assert not list(tmp_path.glob("headgate-*"))


def test_restarts_back_off_up_to_a_bound() -> None:
    assert restart_delay_s(0) == 0
    delays = [restart_delay_s(count) for count in range(1, 100)]
    assert delays == sorted(delays)
    assert 0 < delays[0] < 1
    assert delays[1] == 2 * delays[0]
    assert delays[-1] == BACKOFF_S_MAX


def test_a_worker_that_keeps_dying_early_is_started_later_and_later() -> None:
    worker, waits = Worker(), []
    for now_s in (100, 200, 300, 400):
        worker.note_start(now_s)
        worker.note_serving(now_s + 1)
        worker.note_death(now_s + 1 + EARLY_S / 2)
        waits.append(worker.start_at_s - (now_s + 1 + EARLY_S / 2))
    assert waits == [restart_delay_s(count) for count in (1, 2, 3, 4)]
    assert worker.failed_starts == 0
    worker.note_start(500)
    worker.note_serving(501)
    worker.note_death(501 + EARLY_S)  # it has served for a while: whatever it was is over
    assert (worker.early_deaths, worker.start_at_s) == (0, 501 + EARLY_S)


def test_only_an_end_before_it_served_is_a_failed_start() -> None:
    worker = Worker()
    for count in (1, 2):
        worker.note_start(100 * count)
        worker.note_death(100 * count + 1)
    assert (worker.failed_starts, worker.early_deaths) == (2, 2)
    worker.note_start(400)
    worker.note_serving(401)
    assert worker.failed_starts == 0
