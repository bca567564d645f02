"""Acquires on one DynamoDB engine: headgate beside zae-limiter; CPU, throughput, calls and units.

The engine is ministack, started here on loopback and stopped again. What is timed goes to it
directly; what is counted goes through a proxy, the same for all.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench import dynamodb_ours, dynamodb_peers, machine
from bench.dynamodb_jobs import (
    CALLERS,
    COLD_ENTITIES,
    ROUNDS,
    WORKLOADS,
    Contestant,
    Timing,
    Workload,
    measure,
    table_name,
    warm_up,
)
from bench.dynamodb_meter import metered
from bench.dynamodb_ours import OURS
from bench.dynamodb_peers import PEER
from bench.table import Aim, aim, show
from tests.stores.dynamodb import engine

UNITS_AIM, CPU_AIM, CPU_US_AIM = 2, 8, 350
LIBRARIES = ("botocore", "aiobotocore", "orjson", "zae-limiter")
COUNTS = ("requests", "round_trips", "write_units", "read_units")

Counted = dict[tuple[str, str], dict[str, Any]]  # by workload and contestant


def run(quick: bool) -> dict[str, Any]:
    seconds, rounds, acquires = (0.05, 2, 8) if quick else (0.2, ROUNDS, 100)
    contestants = [dynamodb_ours.CONTESTANT, *dynamodb_peers.contestants()]
    with running() as served:
        _show_set_up()
        counted = {
            (workload.name, contestant.name): asyncio.run(
                _count(contestant, workload, served.port, acquires)
            )
            for workload in WORKLOADS
            for contestant in contestants
        }
        timings = measure(contestants, WORKLOADS, served.endpoint, served.pid, seconds, rounds)
    rows = [_row(timing) for timing in timings]
    _show_counted(counted, acquires)
    _show_timed(rows, seconds, rounds)
    return {
        "counted": [
            {"workload": workload, "name": name, **found}
            for (workload, name), found in counted.items()
        ],
        "dynamodb": rows,
        "aims": _aims(rows, counted),
    }


@contextmanager
def running() -> Iterator[engine.Engine]:
    """The engine, and credentials for it in this process's environment and no others."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    for name in kept:
        del os.environ[name]
    os.environ.update(engine.CREDENTIALS)
    served = engine.start()
    try:
        yield served
    finally:
        served.stop()
        for name in engine.CREDENTIALS:
            del os.environ[name]
        os.environ.update(kept)


async def _count(
    contestant: Contestant, workload: Workload, engine_port: int, acquires: int
) -> dict[str, Any]:
    """Per acquire, of one caller whose connections are open and who knows its buckets."""
    async with (
        metered(engine_port) as meter,
        contestant.open(meter.endpoint, table_name(), workload) as acquire,
    ):
        await warm_up(acquire, workload, 1)
        meter.begin()
        astray = 0
        for place in range(acquires):
            astray += await acquire(workload.entity(0, place)) is not workload.admitted
            meter.acquired()
        tally = meter.tally
    return {**tally.each(), "operations": dict(tally.operations), "astray": astray}


def _row(timing: Timing) -> dict[str, Any]:
    return {
        "name": timing.contestant.name,
        "workload": timing.workload.name,
        "callers": timing.callers,
        "per_second": timing.per_second,
        "cpu_us": timing.cpu_us,
        "cpu_median_us": timing.cpu_median_us,
        "engine_us": timing.engine_us,
        "astray": timing.astray,
        "rates": timing.rates,
        "cpus_us": timing.cpus_us,
    }


def _show_set_up() -> None:
    libraries = ", ".join(f"{name} {machine.version(name)}" for name in LIBRARIES)
    print(f"engine  {engine.PACKAGE} on loopback; {libraries}")
    for note in dynamodb_peers.NOTES:
        print(f"note    {note}")


def _show_counted(counted: Counted, acquires: int) -> None:
    show(
        f"counted per acquire, one caller, {acquires} acquires (astray: refused where there was "
        f"enough, or admitted where there was not)",
        ("", "workload", "requests", "round trips", "write units", "read units", "astray"),
        [
            (name, workload, *(found[count] for count in COUNTS), found["astray"])
            for (workload, name), found in counted.items()
        ],
    )
    for (workload, name), found in counted.items():
        operations = ", ".join(f"{count} {op}" for op, count in found["operations"].items())
        print(f"    {workload}, {name}: {operations or 'nothing'}")


def _show_timed(rows: list[dict[str, Any]], seconds: float, rounds: int) -> None:
    for callers in CALLERS:
        show(
            f"{callers} asyncio task(s), {rounds} turns of {seconds:g} s slices (cold: "
            f"{COLD_ENTITIES} entities in all); the part is the median of what it is in each turn",
            ("", "workload", "acquires/s", "client CPU us", "median us", "engine CPU us",
             "astray", "headgate's CPU is"),
            [
                (row["name"], row["workload"], f"{row['per_second']:,.0f}",
                 f"{row['cpu_us']:.1f}", f"{row['cpu_median_us']:.1f}",
                 f"{row['engine_us']:.0f}", row["astray"], _part(rows, row))
                for row in rows if row["callers"] == callers
            ],
        )  # fmt: skip


def _part(rows: list[dict[str, Any]], row: dict[str, Any]) -> str | None:
    if row["name"] == OURS:
        return None
    return f"1/{_times(_found(rows, OURS, row['workload'], row['callers']), row):.1f}"


def _times(ours: dict[str, Any], peer: dict[str, Any]) -> float:
    """How many times our CPU a peer took, turn by turn."""
    pairs = zip(ours["cpus_us"], peer["cpus_us"], strict=True)
    return statistics.median(theirs / mine for mine, theirs in pairs)


def _found(rows: list[dict[str, Any]], name: str, workload: str, callers: int) -> dict[str, Any]:
    return next(
        row
        for row in rows
        if (row["name"], row["workload"], row["callers"]) == (name, workload, callers)
    )


def _aims(rows: list[dict[str, Any]], counted: Counted) -> list[Aim]:
    found = []
    for workload in WORKLOADS:
        ours, peer = counted[workload.name, OURS], counted.get((workload.name, PEER))
        for callers in CALLERS:
            row = _found(rows, OURS, workload.name, callers)
            mine = row["cpu_us"]
            text = f"{workload.name}: <= {CPU_US_AIM} us client CPU at {callers}"
            found.append(aim(text, f"{mine:.0f} us", mine <= CPU_US_AIM))
            if peer is not None:
                times = _times(row, _found(rows, PEER, workload.name, callers))
                text = f"{workload.name}: <= 1/{CPU_AIM} of the peer's CPU at {callers}"
                found.append(aim(text, f"1/{times:.1f}", times >= CPU_AIM))
        if peer is not None:
            found += _count_aims(workload.name, ours, peer)
    return found


def _count_aims(workload: str, ours: dict[str, Any], peer: dict[str, Any]) -> list[Aim]:
    units = f"{ours['write_units']:.2f} to {peer['write_units']:.2f}"
    trips = f"{ours['round_trips']:.2f} to {peer['round_trips']:.2f}"
    return [
        aim(
            f"{workload}: half the peer's write units or less",
            units,
            ours["write_units"] * UNITS_AIM <= peer["write_units"],
        ),
        aim(
            f"{workload}: never more round trips",
            trips,
            ours["round_trips"] <= peer["round_trips"],
        ),
    ]
