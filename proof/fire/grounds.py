"""Where it burns: each engine started for one bout, with what can be done to it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest import mock

from headgate import SyncRateLimiter, SyncRepository
from headgate.core.record import cell_of
from headgate.core.runtime import run
from headgate.stores.redis.client.cluster import slot_of
from proof.fire.checker import Count, Fault, Promise, Terms
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
