"""The processes under fire: started, killed, stopped, replaced, and watched by their journals."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from proof.fire.checker import Terms
from proof.fire.journal import Life, parse, read
from proof.fire.recovery import Fault
from proof.fire.worker import BUCKETS

START_S_MAX = 180.0
END_S_MAX = 30.0
POLL_S = 0.02
TAIL_BYTES = 4096
COLOURS = ("blocking", "async")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def until(what: Callable[[], bool], doing: str, at_most_s: float = START_S_MAX) -> None:
    end_s = time.monotonic() + at_most_s
    while not what():
        if time.monotonic() > end_s:
            raise AssertionError(f"{doing} took more than {at_most_s:g} s")
        time.sleep(POLL_S)


class Crew:
    """A fixed number of workers; one that is killed is replaced at once.

    Each has a journal of its own. A worker is known by the place of its life among all lives.
    """

    def __init__(self, folder: Path, url: str, terms: Terms, size: int) -> None:
        self._folder = folder
        self._url = url
        self._terms = terms
        self._environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._size = size
        self._journals: list[Path] = []
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Crew:
        for _ in range(self._size):
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()
        self._running.clear()

    def all_at_work(self, since_ms: int = 0) -> bool:
        """Whether each of them has had an answer since then; one that ended by itself is a bug."""
        assert all(process.poll() is None for process in self._running.values()), self._said()
        return all(
            any(a.kind != "u" and a.wall_ms >= since_ms for a in self._latest(life).answers)
            for life in self._running
        )

    def somebody_admitted(self, since_ms: int) -> bool:
        """Whether somebody was admitted to each bucket since then."""
        served = {
            answer.bucket
            for life in range(len(self._journals))
            for answer in self._latest(life).answers
            if answer.kind == "a" and answer.wall_ms >= since_ms
        }
        return served == set(BUCKETS)

    def kill_worker(self, rng: random.Random) -> Fault:
        life = rng.choice(sorted(self._running))
        process = self._running.pop(life)
        process.kill()
        at_ms = now_ms()
        process.wait()
        self._start()
        return Fault("kill_worker", at_ms, at_ms, life)

    def stop_worker(self, rng: random.Random) -> Fault:
        life = rng.choice(sorted(self._running))
        process = self._running[life]
        began_ms = now_ms()
        process.send_signal(signal.SIGSTOP)
        time.sleep(rng.uniform(0.3, 1.5))
        process.send_signal(signal.SIGCONT)
        return Fault("stop_worker", began_ms, now_ms(), life)

    def end(self) -> list[Life]:
        """All of them finish the call they are in; the lives they had, and those before them."""
        for process in self._running.values():
            process.terminate()
        codes = [process.wait(END_S_MAX) for process in self._running.values()]
        assert not any(codes), f"workers ended with {codes}: {self._said()}"
        self._running.clear()
        return [read(path) for path in self._journals]

    def _start(self) -> None:
        life = len(self._journals)
        path = self._folder / f"life-{life}.txt"
        path.touch()
        self._journals.append(path)
        told = [self._url, path, life, COLOURS[life % 2], self._terms.rate_per_s]
        command = [
            sys.executable,
            "-m",
            "proof.fire.worker",
            *map(str, told),
            str(self._terms.capacity),
        ]
        with (self._folder / "output.log").open("ab") as output:
            self._running[life] = subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def _said(self) -> str:
        return (self._folder / "output.log").read_text(errors="replace")[-2000:]

    def _latest(self, life: int) -> Life:
        """The last lines of its journal."""
        path = self._journals[life]
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().decode().splitlines(keepends=True)
        return parse(lines if size <= TAIL_BYTES else lines[1:])
