"""One engine, one scenario, so many seconds: the engine is started with what can be done to it, the
fire burns by a seeded schedule, and what is left is examined."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from headgate import SyncRateLimiter, SyncRepository
from headgate.core.record import cell_of
from headgate.core.runtime import run
from headgate.stores.redis.client.cluster import slot_of
from proof.fire.checker import (
    Bout,
    Count,
    Fault,
    Findings,
    Life,
    Promise,
    Terms,
    parse,
    read,
)
from proof.fire.worker import BUCKETS, RESOURCE, limits
from tests.stores.dynamodb import engine as aws
from tests.stores.redis import servers

TIMEOUT_MS = 1000
PATIENCE_MS = 20_000  # where nothing is done to the engine, only the machine can be late
READ_MS = 20_000
OUTAGE_S = 3.0  # long enough for the breaker to open

# What is done; a fault where the attack knows better than its caller when it began and was over.
Attack = Callable[[random.Random], Fault | None]


@dataclass(frozen=True)
class Ground:
    """One engine on fire. `url` is what the workers use, `quiet_url` leads past the proxy."""

    url: str
    quiet_url: str
    terms: Terms
    promise: Promise
    attacks: Mapping[str, Attack] = field(default_factory=dict)

    def prepare(self) -> None:
        """The store's structures and the namespace exist, so that all workers find the same."""
        SyncRepository.open(self.quiet_url).close()

    def counts(self) -> dict[str, Count]:
        """What the store says was consumed of each bucket."""
        own = limits(self.terms.rate_per_s, self.terms.capacity)
        with SyncRateLimiter(self.quiet_url, limits=own) as limiter:
            return {bucket: _count(limiter, bucket) for bucket in BUCKETS}


def _count(limiter: SyncRateLimiter, bucket: str) -> Count:
    plan = run(limiter.engine.plan(bucket, RESOURCE, None, limiter.engine.clock()))
    record = run(limiter.engine.store.peek([plan.slots[0].key], None)).records[0]
    if record is None:
        return Count(0, 0)
    cells = [cell_of(record, name) for name in ("x", "y")]
    return Count(*(0 if cell is None else cell.consumed_milli // 1000 for cell in cells))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def cutting(proxy: servers.FaultProxy) -> dict[str, Attack]:
    """Connections that end: at any time, before a call got there, after it did."""

    def in_mode(rng: random.Random, mode: str) -> None:
        proxy.mode = mode
        time.sleep(rng.uniform(0.02, 0.1))
        proxy.mode = "pass"

    modes = {mode: partial(in_mode, mode=mode) for mode in ("cut_before", "cut_after", "hold")}
    return {"cut": lambda rng: proxy.cut(), **modes}


def freeze(pid: int, rng: random.Random) -> None:
    """The engine stands still for longer than a call may take, and goes on."""
    os.kill(pid, signal.SIGSTOP)
    time.sleep(TIMEOUT_MS / 1000 * rng.uniform(1.2, 2))
    os.kill(pid, signal.SIGCONT)


def option(url: str, **options: object) -> str:
    mark = "&" if "?" in url else "?"
    return url + mark + "&".join(f"{name}={value}" for name, value in options.items())


@contextlib.contextmanager
def redis(folder: Path, scenario: str) -> Iterator[Ground]:
    durable = ("--appendonly", "yes", "--appendfsync", "everysec")
    crashing = scenario in ("restart", "outage")
    timeout_ms = PATIENCE_MS if scenario in ("calm", "workers", "scripts") else TIMEOUT_MS
    breaker = "off" if scenario in ("cuts", "restart", "freeze") else "on"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(servers.Server(folder, *(durable if crashing else ())))
        proxy = stack.enter_context(servers.FaultProxy(server.port))
        url = proxy.url if scenario == "cuts" else server.url
        yield Ground(
            url=option(url, timeout_ms=timeout_ms, breaker=breaker),
            quiet_url=option(server.url, timeout_ms=READ_MS),
            terms=Terms(100, 400),
            promise=Promise(timeout_ms / 1000, crash_s=2.0, crashes=("restart", "outage")),
            attacks={
                **cutting(proxy),
                "flush_scripts": lambda rng: _flush(server.url),
                "restart": lambda rng: _again("restart", server, 0),
                "outage": lambda rng: _again("outage", server, OUTAGE_S),
                "freeze": lambda rng: freeze(server.pid, rng),
            },
        )


def _flush(url: str) -> None:
    for _ in range(50):
        servers.command(url, "SCRIPT", "FLUSH")
        time.sleep(0.005)


def _again(kind: str, server: servers.Server, pause_s: float) -> Fault:
    server.kill()
    died_ms = now_ms()
    time.sleep(pause_s)
    server.start()
    return Fault(kind, died_ms, now_ms())


@contextlib.contextmanager
def cluster(folder: Path, scenario: str) -> Iterator[Ground]:
    calm = scenario in ("calm", "workers")
    timeout_ms = PATIENCE_MS if calm else TIMEOUT_MS
    with servers.Cluster(folder, replicas=0 if calm else 1) as nodes:
        quiet_url = option(nodes.url, timeout_ms=READ_MS)
        yield Ground(
            url=option(nodes.url, timeout_ms=timeout_ms, breaker="on" if calm else "off"),
            quiet_url=quiet_url,
            terms=Terms(100, 400),
            promise=Promise(timeout_ms / 1000, crash_s=1.0, crashes=("failover",)),
            attacks={"failover": lambda rng: _fail_over(nodes, _hot_slot(quiet_url))},
        )


def _hot_slot(url: str) -> int:
    with SyncRateLimiter(url, limits=limits(1, 1)) as limiter:
        plan = run(limiter.engine.plan(BUCKETS[0], RESOURCE, None, 0))
        key = plan.slots[0].key
    return slot_of(f"{{{key.namespace}#{key.entity_id}}}")


def _fail_over(nodes: servers.Cluster, slot: int) -> Fault:
    """The master of the busiest bucket dies, its replica takes over, and it comes back as one."""
    master = nodes.owner(slot)
    master.kill()
    died_ms = now_ms()
    servers.until(lambda: nodes.owner(slot) is not master, "failing over")
    over_ms = now_ms()
    master.start()
    servers.until(lambda: nodes.follows(master), "following the new master")
    return Fault("failover", died_ms, over_ms)


@contextlib.contextmanager
def sqlite(folder: Path, scenario: str) -> Iterator[Ground]:
    path = folder / "limits.db"
    timeout_ms = 500 if scenario == "lock" else PATIENCE_MS
    url = f"sqlite:///{path}"

    def hold(rng: random.Random) -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("PRAGMA busy_timeout = 20000")
            other.execute("BEGIN IMMEDIATE")
            time.sleep(rng.uniform(0.8, 1.5))
            other.execute("ROLLBACK")

    yield Ground(
        url=option(url, timeout_ms=timeout_ms, breaker="off" if scenario == "lock" else "on"),
        quiet_url=option(url, timeout_ms=READ_MS),
        terms=Terms(50, 200),
        promise=Promise(timeout_ms / 1000),
        attacks={"lock": hold},
    )


@contextlib.contextmanager
def dynamodb(folder: Path, scenario: str) -> Iterator[Ground]:
    calm = scenario in ("calm", "workers")
    timeout_ms = PATIENCE_MS if calm else 2000
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, aws.CREDENTIALS))
        running = aws.start()
        stack.callback(running.stop)
        proxy = stack.enter_context(servers.FaultProxy(running.port))
        port = proxy.port if scenario == "cuts" else running.port
        yield Ground(
            url=_table(port, timeout_ms=timeout_ms, breaker="on" if calm else "off"),
            quiet_url=_table(running.port, timeout_ms=READ_MS),
            terms=Terms(10, 10),
            promise=Promise(timeout_ms / 1000, slack_s=timeout_ms / 1000),
            attacks={**cutting(proxy), "freeze": lambda rng: freeze(running.pid, rng)},
        )


def _table(port: int, **options: object) -> str:
    endpoint = f"http://{servers.HOST}:{port}"
    return option("dynamodb://fire", region="us-east-1", endpoint=endpoint, **options)


GROUNDS = {"redis": redis, "cluster": cluster, "sqlite": sqlite, "dynamodb": dynamodb}


PROCESSES = 8
RECOVER_S_MAX = 90.0
START_S_MAX = 180.0
END_S_MAX = 30.0
POLL_S = 0.02
TAIL_BYTES = 4096
MODES = ("blocking", "async")


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
        told = map(str, (self._url, path, life, MODES[life % 2], *reversed(self._terms)))
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
    return Fire(engine, scenario, seconds, faults, Findings(bout))


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
