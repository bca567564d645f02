"""The program as people run it: a process of its own, stopped by its id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import headgate

START_S = 60


class Running:
    """A started program and what it said at its start."""

    def __init__(self, process: subprocess.Popen[str], lines: list[str]) -> None:
        self.process = process
        self.lines = lines
        self.url = lines[0].split()[-1]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Asked to end; its exit code."""
        if self.process.poll() is None:
            self.send(signal.SIGTERM)
        return self.process.wait(30)


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
    # The source that this process has imported: it may be one with a planted fault.
    source = str(Path(headgate.__file__).parents[1])
    return {**kept, "PYTHONPATH": source, **more}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "headgate.service", *arguments]


def run_once(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The program, where it is expected to end by itself: whatever listens on its usual port."""
    return subprocess.run(
        command(*arguments), env=environment(**{"HEADGATE_PORT": "0", **more}),
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@contextmanager
def program(*arguments: str, **more: str) -> Iterator[Running]:
    process = subprocess.Popen(
        command("--port", "0", *arguments),
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    late = threading.Timer(START_S, process.kill)
    late.start()
    try:
        yield Running(process, read_greeting(process))
    finally:
        late.cancel()
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(30)
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()


def read_greeting(process: subprocess.Popen[str]) -> list[str]:
    """What a program says at its start, up to its last line."""
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or "openapi.json" not in lines[-1]:
        line = process.stdout.readline()
        if not line:
            said = "see its log" if process.stderr is None else process.stderr.read()
            raise AssertionError(f"it did not start: {said}")
        lines.append(line.rstrip())
    return lines
