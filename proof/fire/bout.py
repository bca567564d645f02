"""One engine, one scenario, so many seconds: the fire is laid, burns by a seeded schedule, and what
is left is examined."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from proof.fire.checker import Bout, Fault, Findings, Terms, examine
from proof.fire.grounds import GROUNDS, Attack, Ground, now_ms
from proof.fire.journal import Life, parse, read
from proof.fire.worker import BUCKETS
from tests.stores.redis import servers

PROCESSES = 8
RECOVER_S_MAX = 90.0
START_S_MAX = 180.0
END_S_MAX = 30.0
POLL_S = 0.02
TAIL_BYTES = 4096
COLOURS = ("blocking", "async")


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
        told = map(str, (self._url, path, life, COLOURS[life % 2], *reversed(self._terms)))
        with (self._folder / "output.log").open("ab") as output:
            self._running[life] = subprocess.Popen(
                [sys.executable, "-m", "proof.fire.worker", *told],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

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


# What is done to each engine, by scenario.
_EVERYWHERE: dict[str, tuple[str, ...]] = {"calm": (), "workers": ("kill_worker", "stop_worker")}
_CUTS = ("cut", "cut_before", "cut_after", "hold")
SCENARIOS: dict[str, dict[str, tuple[str, ...]]] = {
    "redis": {
        **_EVERYWHERE,
        "scripts": ("flush_scripts",),
        "cuts": _CUTS,
        "restart": ("restart",),
        "freeze": ("freeze",),
        "outage": ("outage",),
    },
    "cluster": {**_EVERYWHERE, "failover": ("failover",)},
    "sqlite": {**_EVERYWHERE, "lock": ("lock",)},
    "dynamodb": {**_EVERYWHERE, "cuts": _CUTS, "freeze": ("freeze",)},
}


class Fire(NamedTuple):
    """How it burnt."""

    engine: str
    scenario: str
    seconds: float
    faults: list[Fault]
    found: Findings


def burn(
    engine: str, scenario: str, seconds: float, seed: int, *, every_s: float = 2.0,
    processes: int = PROCESSES,
) -> Fire:  # fmt: skip
    """`processes` workers hammer for that long; about every `every_s` something is done to them.

    The seed decides what is done, when and to whom; how the machine schedules it is up to chance.
    """
    with servers.folder("headgate-fire-") as folder:
        with GROUNDS[engine](folder, scenario) as ground:
            ground.prepare()
            with Crew(folder, ground.url, ground.terms, processes) as crew:
                until(crew.all_at_work, "starting the workers")
                kinds = SCENARIOS[engine][scenario]
                faults = _attack(ground, crew, kinds, seconds, random.Random(seed), every_s)
                lives = crew.end()
            bout = Bout(ground.terms, ground.promise, lives, faults, ground.counts())
    return Fire(engine, scenario, seconds, faults, examine(bout))


def _attack(
    ground: Ground,
    crew: Crew,
    kinds: tuple[str, ...],
    seconds: float,
    rng: random.Random,
    every_s: float,
) -> list[Fault]:
    own: dict[str, Attack] = {"kill_worker": crew.kill_worker, "stop_worker": crew.stop_worker}
    attacks = {**ground.attacks, **own}
    end_s = time.monotonic() + seconds
    faults: list[Fault] = []
    while time.monotonic() < end_s:
        time.sleep(min(rng.uniform(0.5, 1.5) * every_s, max(0.0, end_s - time.monotonic())))
        if kinds and (time.monotonic() < end_s or not faults):
            kind = kinds[len(faults)] if len(faults) < len(kinds) else rng.choice(kinds)
            began_ms = now_ms()
            faults.append(attacks[kind](rng) or Fault(kind, began_ms, now_ms()))
            until(partial(crew.somebody_admitted, faults[-1].over_ms), "recovering", RECOVER_S_MAX)
    last_ms = faults[-1].over_ms if faults else 0
    until(partial(crew.all_at_work, last_ms), "coming back", RECOVER_S_MAX)
    return faults
