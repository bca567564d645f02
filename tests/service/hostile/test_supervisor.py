"""The supervisor alone, with processes that only pretend: deaths, failed starts, signals.

Time is made here, so that each case takes milliseconds. The same with real processes is in
test_workers.py.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from headgate.service import __main__
from headgate.service.program import Options
from headgate.service.server import serve
from headgate.service.server import workers as serve_workers
from headgate.service.server.options import ServerOptions
from headgate.service.server.workers import FAILED_STARTS_MAX, Workers, ready_file

pytestmark = pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="needs signals")

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STEPS_MAX = 20_000  # of 0.1 s; a supervisor that is still there then never ends


def is_hangup_blocked() -> bool:
    return signal.SIGHUP in signal.pthread_sigmask(signal.SIG_BLOCK, [])


class FakeProcess:
    """A worker's process, as the supervisor sees one."""

    def __init__(self, stage: Stage, pid: int, command: Sequence[str]) -> None:
        self.pid = pid
        self.command = command
        self.code: int | None = None
        self.signals: list[int] = []
        self.was_hangup_blocked = is_hangup_blocked()
        self._folder = stage.folder

    def serve(self) -> None:
        ready_file(self._folder, self.pid).touch()

    def poll(self) -> int | None:
        return self.code

    def send_signal(self, number: int) -> None:
        self.signals.append(number)
        if number == signal.SIGTERM:
            self.code = -number

    def wait(self, timeout_s: float | None = None) -> int:
        assert self.code is not None, "it was not told to end"
        return self.code


class Stage:
    """A supervisor of two workers. `on_start` is called with each process when it is started, and
    `on_look` whenever the supervisor sleeps."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.now_s = 1000.0
        self.started: list[FakeProcess] = []
        self.on_start: Callable[[FakeProcess], None] = FakeProcess.serve
        self.on_look: Callable[[], None] = lambda: None
        self._steps = 0
        monkeypatch.setattr(serve_workers.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(serve_workers.time, "sleep", self._sleep)
        monkeypatch.setattr(serve_workers.subprocess, "Popen", self._start)
        serving = ServerOptions(Options(board=str(folder), workers=2))
        self.listener = socket.socket()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])  # as the program begins
        self.workers = Workers(serving, [], self.listener, "memory://")

    @property
    def alive(self) -> list[FakeProcess]:
        return [one for one in self.started if one.code is None]

    def run(self) -> int:
        return self.workers.run()

    def run_until(self, happened: Callable[[], bool]) -> int:
        """Runs until the supervisor ends by itself, or is told to because that has happened."""
        look = self.on_look

        def look_and_end() -> None:
            look()
            if happened():
                signal.raise_signal(signal.SIGTERM)

        self.on_look = look_and_end
        return self.run()

    def _start(self, command: Sequence[str], **given: Any) -> FakeProcess:
        process = FakeProcess(self, 10_000_000 + len(self.started), command)
        self.started.append(process)
        self.on_start(process)
        return process

    def _sleep(self, duration_s: float) -> None:
        self._steps += 1
        assert self._steps < STEPS_MAX, "the supervisor does not end"
        self.now_s += duration_s
        self.on_look()


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with monkeypatch.context() as patches:
        made = Stage(tmp_path, patches)
        yield made
    made.listener.close()
    for number, handler in handlers.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def fail(process: FakeProcess) -> None:
    process.code = 1


def test_a_worker_that_never_starts_does_not_end_a_service_whose_other_worker_serves(
    stage: Stage,
) -> None:
    def start(process: FakeProcess) -> None:
        if process is stage.started[0]:
            process.serve()
        else:
            fail(process)

    stage.on_start = start
    assert stage.run_until(lambda: len(stage.started) > 5 * FAILED_STARTS_MAX) == 0
    assert stage.started[0].signals == [signal.SIGTERM], "it has served all the time"


def test_a_worker_that_is_slow_to_start_is_waited_for_though_the_other_fails(stage: Stage) -> None:
    stage.on_start = lambda process: None if process is stage.started[0] else fail(process)

    def look() -> None:
        if len(stage.started) > 2 * FAILED_STARTS_MAX:
            stage.started[0].serve()

    stage.on_look = look
    assert stage.run_until(lambda: len(stage.started) > 5 * FAILED_STARTS_MAX) == 0
    assert stage.started[0].signals == [signal.SIGTERM]


def test_once_a_worker_has_served_the_supervisor_never_gives_up(stage: Stage) -> None:
    """Whatever keeps the workers from starting may be mended from outside, so it goes on."""

    def start(process: FakeProcess) -> None:
        if len(stage.started) <= 2 or len(stage.started) > 20 * FAILED_STARTS_MAX:
            process.serve()
        else:
            fail(process)

    def look() -> None:
        if len(stage.started) == 2:  # both serve, and end together
            for process in stage.alive:
                process.code = 1

    stage.on_start, stage.on_look = start, look
    assert stage.run_until(lambda: len(stage.alive) == 2 and len(stage.started) > 2) == 0


def test_where_no_worker_ever_served_the_supervisor_gives_up(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.on_start = fail
    assert stage.run() == 1
    assert len(stage.started) == 2 * FAILED_STARTS_MAX
    assert "No worker could start" in caplog.text


def test_a_worker_is_born_with_sighup_blocked_and_told_who_its_supervisor_is(stage: Stage) -> None:
    """It would be killed by one that comes before its handler stands."""
    assert stage.run_until(lambda: True) == 0
    assert [one.was_hangup_blocked for one in stage.started] == [True, True]
    for process in stage.started:
        place = list(process.command).index("--parent")
        assert process.command[place + 1] == str(os.getpid())


def test_the_supervisor_passes_sighup_on(stage: Stage) -> None:
    heard: list[int] = []

    def look() -> None:
        heard.append(len(stage.alive))
        assert not is_hangup_blocked(), "it would never get one"
        assert signal.getsignal(signal.SIGHUP) not in (signal.SIG_DFL, signal.SIG_IGN)
        signal.raise_signal(signal.SIGHUP)

    stage.on_look = look
    assert stage.run_until(lambda: True) == 0
    assert heard == [2]
    assert [one.signals for one in stage.started] == [[signal.SIGHUP, signal.SIGTERM]] * 2


def test_sighup_is_blocked_before_the_program_is_imported(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage puts the signals back as they were."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
    seen: list[bool] = []

    def start(*given: str, **named: str) -> int:
        seen.append(is_hangup_blocked())
        return 0

    monkeypatch.setattr(__main__, "run_program", start)
    assert __main__.start() == 0
    assert seen == [True]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_end_while_workers_are_started_is_honoured(
    stage: Stage, number: signal.Signals
) -> None:
    stage.on_start = lambda process: signal.raise_signal(number)
    assert stage.run() == 0
    assert len(stage.started) == 1, "no further worker is started"
    assert stage.started[0].signals == [signal.SIGTERM], "the one that was being started ends"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_end_before_anything_is_started_is_honoured(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def read(*given: object) -> ServerOptions:
        assert signal.getsignal(number) not in before, "nobody would hear it, or it would kill"
        signal.raise_signal(number)
        raise AssertionError("it goes on")

    before = (stage.workers._end, signal.SIG_DFL, signal.SIG_IGN)
    monkeypatch.setattr(serve, "read_options", read)
    with pytest.raises(SystemExit) as ended:
        serve.main([])
    assert ended.value.code == 0


@pytest.mark.parametrize(("parent", "ends"), [(os.getppid(), False), (os.getppid() + 1, True)])
async def test_a_worker_ends_when_its_supervisor_is_gone(parent: int, ends: bool) -> None:
    """Also one that was being started then: who its parent is was told it before."""

    serving = ServerOptions(Options(), parent=parent)
    server = serve.Server(serve.config_of(serving, app=None))
    server.parent = parent
    assert await server.on_tick(1) is ends
