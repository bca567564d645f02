"""Several workers under attack: broken files, killed workers, signals at bad moments.

What must hold: a service that serves goes on serving, whatever happens to one worker or to a file.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.service.server import serve
from headgate.service.server.workers import BACKOFF_S_MAX, EARLY_S, Worker, restart_delay_s
from tests.service.http.kit import until
from tests.service.server.kit import (
    ASK,
    CHECK,
    Running,
    children_of,
    is_alive,
    policy,
    program,
    run_main,
)

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads the process table")

wait_until: Callable[[Callable[[], bool]], None] = partial(until, steps=6000)


class Service:
    """A running service with two workers, whose board is in `folder`."""

    def __init__(self, running: Running, folder: Path, key: str) -> None:
        self.running = running
        self.pid = running.process.pid
        self._folder = folder
        self._bearer = {"authorization": f"Bearer {key}"}

    def workers(self) -> list[int]:
        """Those that have said that they serve."""
        said = {int(file.stem) for file in self._folder.glob("headgate-*/*.ready")}
        return [pid for pid in children_of(self.pid) if pid in said]

    def wait_for_workers(self) -> None:
        """Waits until both serve, or fails at once where the service has ended."""
        wait_until(lambda: not is_alive(self.pid) or len(self.workers()) == 2)
        assert is_alive(self.pid), f"the service has ended:\n{self.running.log}"

    def kill_workers(self) -> None:
        """Kills both once they serve, and waits for others."""
        self.wait_for_workers()
        killed = self.workers()
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not [pid for pid in killed if is_alive(pid)])
        self.wait_for_workers()

    def get(self, path: str) -> str:
        with httpx.Client(trust_env=False, timeout=30, headers=self._bearer) as client:
            return client.get(self.running.url + path).text

    def check(self, *, bearer: bool = True) -> httpx.Response:
        """Over a connection of its own: each may reach another worker."""
        headers = self._bearer if bearer else {}
        with httpx.Client(trust_env=False, timeout=30, headers=headers) as client:
            return client.post(self.running.url + CHECK, json=ASK)

    def limits(self) -> set[str]:
        return {self.check().headers["x-ratelimit-limit"] for _ in range(8)}


def stored_in(file: Path) -> str:
    return f"runtime: {{store: 'sqlite:///{file}'}}\n"


def test_two_workers_are_one_service_whatever_happens_to_them_and_to_their_files(
    tmp_path: Path,
) -> None:
    policies, keys = tmp_path / "policies.yaml", tmp_path / "keys.json"
    one, two = tmp_path / "one.db", tmp_path / "two.db"
    policies.write_text(policy(30, stored_in(one)))
    made = run_main("key", "--keys", str(keys), "--scopes", "check,read", "--namespace", "*")
    options = ("--workers", "2", "--policies", str(policies), "--keys", str(keys))
    with program(*options, TMPDIR=str(tmp_path)) as running:
        service = Service(running, tmp_path, made.stdout.strip())
        # A SIGHUP that comes before they can handle it kills nobody.
        wait_until(lambda: len(children_of(service.pid)) == 2)
        first = children_of(service.pid)
        for pid in (service.pid, *first):
            os.kill(pid, signal.SIGHUP)
        service.wait_for_workers()
        assert sorted(service.workers()) == sorted(first)

        left = [service.check().json()["tokens_remaining"] for _ in range(20)]
        assert left == list(range(29, 9, -1)), "they do not share their buckets"
        metrics = 'headgate_requests_total{scope="user",resource="api.search",allowed="true"} 20'
        until(lambda: metrics in service.get("/metrics"))

        # Nobody is left who has read the good files, and the next ones find none.
        policies.write_text("rate_limits:\n  - {name: search, password: hunter2\n")
        keys.write_text("keys: [")
        service.kill_workers()
        assert service.limits() == {"30"}
        assert service.check(bearer=False).status_code == 401
        assert "started with the last good policies" in running.log
        assert "hunter2" not in service.get("/readyz")

        # Workers that count in different stores would admit a multiple of every limit.
        policies.write_text(policy(10, stored_in(two)))
        service.kill_workers()
        wait_until(lambda: service.limits() == {"10"})
        assert service.check().status_code == 429
        assert not two.exists()

        assert running.log.count("was killed by SIGKILL while serving") == 4
        assert 'headgate_worker_deaths_total{when="serving"} 4' in service.get("/metrics")
        last = service.workers()
        assert running.end() == 0
        assert not [pid for pid in last if is_alive(pid)]
        assert not list(tmp_path.glob("headgate-*"))


def test_workers_that_are_being_started_end_with_their_supervisor(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/limits.db"
    with program("--workers", "2", "--store", store, TMPDIR=str(tmp_path)) as running:
        service = Service(running, tmp_path, "")
        wait_until(lambda: len(children_of(service.pid)) == 2)
        started = children_of(service.pid)
        assert not service.workers(), "they serve already, so this test would show nothing"
        running.process.kill()
        running.process.wait(30)
        try:
            wait_until(lambda: not [pid for pid in started if is_alive(pid)])
        finally:
            for pid in started:
                if is_alive(pid):
                    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_to_end_before_the_server_listens_is_honoured(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = serve.Server.run

    def run(self: serve.Server, *arguments: Any, **more: Any) -> None:
        signal.raise_signal(number)
        assert self.should_exit, "it would serve for ever"
        real(self, *arguments, **more)

    monkeypatch.setattr(serve.Server, "run", run)
    ended = run_main("--store", "memory://")
    assert ended.code == 0, ended.stderr
    assert "Traceback" not in ended.stderr


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
