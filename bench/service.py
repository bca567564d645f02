"""Checks over HTTP: one worker and two, three stores, next to a bare ASGI echo on the same server.

Load generator and server share the machine, so a rate says what both got together; CPU per request
is the server's alone. Rounds are interleaved, and the median of them counts.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench.service_inside import measured, show_inside
from bench.service_load import Figures, Load, has_wrk, put_on
from bench.service_servers import Running, echo, headgate
from bench.table import Aim, aim, show

CONNECTIONS = 16
BATCH = 100
POD_AIM, SHARE_AIM, BATCH_AIM, REDIS_AIM = 10_000, 0.9, 150_000, 2.0
THREE_AIM, DECISION_US_AIM = 1.8, 25.0

Opener = Callable[[], AbstractContextManager[Running]]


@dataclass(slots=True)
class Timing:
    """One server under one load, round by round."""

    name: str
    workers: int
    checks: int  # in one request
    open: Opener
    load: Load
    figures: list[Figures] = field(default_factory=list)
    cpus_us: list[float] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        return statistics.median(one.per_second for one in self.figures)

    @property
    def cpu_us(self) -> float:
        return statistics.median(self.cpus_us)

    def shares_of(self, ceiling: Timing) -> list[float]:
        """Of its CPU, round by round: what disturbs one of the two mostly disturbs both."""
        pairs = zip(self.cpus_us, ceiling.cpus_us, strict=True)
        return [of_ceiling / own for own, of_ceiling in pairs]


def run(quick: bool) -> dict[str, Any]:
    seconds, rounds = (1.0, 1) if quick else (2.0, 7)
    print(f"load    {'wrk' if has_wrk() else 'our own generator (apt-get install wrk)'}, ", end="")
    print(f"{CONNECTIONS} connections, {seconds:g} s, {rounds} rounds")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        inside = measured(Path(folder), 5 if quick else 60)
        timings = _timings(Path(folder), stack, quick)
        for _ in range(rounds):
            for timing in timings:
                _one_round(timing, seconds)
    rows = [_row(timing, timings) for timing in timings]
    _show(rows)
    show_inside(inside)
    medians = {name: statistics.median(all_us) for name, all_us in inside.items()}
    return {"service": rows, "inside_us": medians, "aims": _aims(rows)}


def _timings(folder: Path, stack: ExitStack, quick: bool) -> list[Timing]:
    single, batch = Load.single(), Load.batch(BATCH)
    stores = {"memory": "memory://", "sqlite": f"sqlite:///{folder}/limits.db"}
    if shutil.which("redis-server") is None:
        print("left out: Redis. To measure it: apt-get install redis-server")
    else:
        from bench.redis_clients import server

        stores["redis"] = f"redis://127.0.0.1:{stack.enter_context(server())}/0"
    found = []
    for workers in (1, 2):
        found.append(Timing("bare echo", workers, 1, partial(echo, workers), single))
        for name, url in stores.items():
            if workers > 1 and name == "memory":
                continue  # each worker would have its own buckets
            opened = partial(headgate, url, workers, folder)
            found.append(Timing(name, workers, 1, opened, single))
            if workers == 1:
                found.append(Timing(f"{name}, three limits", 1, 1, opened, Load.acquire()))
            found.append(Timing(f"{name}, batch of {BATCH}", workers, BATCH, opened, batch))
    return found[:4] if quick else found


def _one_round(timing: Timing, seconds: float) -> None:
    with timing.open() as running:
        put_on(running.url, timing.load, CONNECTIONS, 2.0)  # every bucket is there
        before_s = running.cpu_s()
        figures = put_on(running.url, timing.load, CONNECTIONS, seconds)
        spent_s = running.cpu_s() - before_s
    if figures.failed:
        raise SystemExit(f"{timing.name}: {figures.failed} answers were not 2xx")
    timing.figures.append(figures)
    timing.cpus_us.append(spent_s / figures.requests * 1e6)


def _row(timing: Timing, timings: list[Timing]) -> dict[str, Any]:
    ceiling = next(
        one for one in timings if one.name == "bare echo" and one.workers == timing.workers
    )
    return {
        "name": timing.name,
        "workers": timing.workers,
        "checks_per_request": timing.checks,
        "checks_per_second": timing.per_second * timing.checks,
        "p50_ms": statistics.median(one.p50_ms for one in timing.figures),
        "p99_ms": statistics.median(one.p99_ms for one in timing.figures),
        "cpu_us": timing.cpu_us,
        "share_of_echo": timing.per_second / ceiling.per_second,
        "echo_cpu_share": statistics.median(timing.shares_of(ceiling)),
        "rates": [one.per_second for one in timing.figures],
        "cpus_us": timing.cpus_us,
    }


def _show(rows: list[dict[str, Any]]) -> None:
    show(
        "checks over HTTP",
        (
            "server",
            "workers",
            "checks/s",
            "p50 ms",
            "p99 ms",
            "CPU us/request",
            "least - most",
            "of echo's rate",
            "echo's CPU",
        ),
        [
            (
                row["name"],
                row["workers"],
                round(row["checks_per_second"]),
                row["p50_ms"],
                row["p99_ms"],
                row["cpu_us"],
                f"{min(row['cpus_us']):.0f} - {max(row['cpus_us']):.0f}",
                f"{row['share_of_echo']:.0%}",
                f"{row['echo_cpu_share']:.0%}",
            )
            for row in rows
        ],
    )


def _aims(rows: list[dict[str, Any]]) -> list[Aim]:
    by_name = {(row["name"], row["workers"]): row for row in rows}
    found = []
    pod = by_name.get(("sqlite", 2))
    if pod is not None:
        rate = pod["checks_per_second"]
        text = f"{POD_AIM} checks/s per pod (two workers, SQLite)"
        found.append(aim(text, f"{rate:,.0f}", rate >= POD_AIM))
    share = by_name["memory", 1]["echo_cpu_share"]
    text = f"{SHARE_AIM:.0%} of the bare echo, by CPU (one worker, memory)"
    found.append(aim(text, f"{share:.0%}", share >= SHARE_AIM))
    several = by_name.get(("memory, three limits", 1))
    if several is not None:
        times = several["cpu_us"] / by_name["memory", 1]["cpu_us"]
        text = f"three limits at most {THREE_AIM:g} checks, by CPU"
        found.append(aim(text, f"{times:.2f}", times <= THREE_AIM))
    redis_batch = by_name.get((f"redis, batch of {BATCH}", 1))
    if redis_batch is not None:
        us = redis_batch["cpu_us"] / BATCH
        text = f"a decision of a batch on Redis at most {DECISION_US_AIM:g} us"
        found.append(aim(text, f"{us:.1f} us", us <= DECISION_US_AIM))
    batch = by_name.get((f"memory, batch of {BATCH}", 1))
    if batch is not None:
        rate = batch["checks_per_second"]
        found.append(aim(f"batch {BATCH_AIM} checks/s", f"{rate:,.0f}", rate >= BATCH_AIM))
    redis, sqlite = by_name.get(("redis", 1)), by_name.get(("sqlite", 1))
    if redis is not None and sqlite is not None:
        times = sqlite["checks_per_second"] / redis["checks_per_second"]
        text = f"Redis within {REDIS_AIM:g}x of the embedded store"
        found.append(aim(text, f"{times:.1f}x", times <= REDIS_AIM))
    return found


if __name__ == "__main__":
    import sys

    from bench.table import show_aims

    show_aims(run("--quick" in sys.argv)["aims"])
