"""Acquires on one DynamoDB engine: the workloads, what a round is and how it is timed.

A round opens a contestant afresh on a table of its own, lets every caller acquire once (so that
connections are open and states known), and then lets the callers acquire until time or entities are
up. CPU is this process's own (`process_time`): the engine's is told apart.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

REGION = "us-east-1"
RESOURCE = "api"
PARENT = "org"
CALLERS = (1, 32)
PLENTY = 10**9
DAY_S = 86_400
COLD_ENTITIES = 1000
ROUNDS_MIN = 2

# Whether one acquire of this entity was admitted.
Acquire = Callable[[str], Awaitable[bool]]

_tables = itertools.count()


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit, as every contestant can say it: so much at once, `refill` per `period_s`."""

    name: str
    capacity: int
    refill: int
    period_s: int


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    rates: tuple[Rate, ...]
    entity: Callable[[int, int], str]  # by caller and by how many acquires there were before
    admitted: bool = True
    cascade: bool = False  # the entities have a parent that is asked, too
    acquires_max: int = PLENTY
    times: int = 1  # as long as others, so that all acquires are made, and in fewer rounds

    @property
    def amounts(self) -> dict[str, int]:
        return {"rpm": 1, "tpm": 100}

    def first(self, caller: int) -> str:
        """What a caller acquires before it is timed; a cold entity must not be met by that."""
        return self.entity(caller, -1 - caller)


WIDE = (Rate("rpm", PLENTY, PLENTY, 3600), Rate("tpm", PLENTY, PLENTY, 3600))
# Two acquires empty it, a millisecond fills it: refill is due between any two of a caller.
TIGHT = (Rate("rpm", 2, 2_000, 1), Rate("tpm", 200, 200_000, 1))
SPENT = (Rate("rpm", 1, 1, DAY_S), Rate("tpm", PLENTY, PLENTY, 3600))

HOT, REFILL, REFUSED, CASCADE, COLD = "hot", "refill due", "refused", "cascade", "cold"
WORKLOADS = (
    Workload(HOT, WIDE, lambda caller, place: "key"),
    Workload(REFILL, TIGHT, lambda caller, place: f"key-{caller}"),
    Workload(REFUSED, SPENT, lambda caller, place: "key", admitted=False),
    Workload(CASCADE, WIDE, lambda caller, place: "key", cascade=True),
    Workload(COLD, WIDE, lambda caller, place: f"key{place}", acquires_max=COLD_ENTITIES, times=20),
)


@dataclass(frozen=True, slots=True)
class Contestant:
    """`open` gets the engine's address, a table to make and the workload to prepare for."""

    name: str
    open: Callable[[str, str, Workload], AbstractAsyncContextManager[Acquire]]
    peer: bool = False


@dataclass(slots=True)
class Timing:
    contestant: Contestant
    workload: Workload
    callers: int
    rates: list[float] = field(default_factory=list)
    cpus_us: list[float] = field(default_factory=list)
    engines_us: list[float] = field(default_factory=list)
    astray: int = 0  # acquires that did not come to what the workload wants

    @property
    def per_second(self) -> float:
        return max(self.rates)

    @property
    def cpu_us(self) -> float:
        return min(self.cpus_us)

    @property
    def cpu_spread_percent(self) -> float:
        """How far the median round is above the least."""
        return (statistics.median(self.cpus_us) / self.cpu_us - 1) * 100


@dataclass(frozen=True, slots=True)
class Spent:
    acquires: int
    astray: int
    wall_s: float
    cpu_s: float


def table_name() -> str:
    return f"bench-{os.getpid()}-{next(_tables)}"


def measure(
    contestants: Sequence[Contestant],
    workloads: Sequence[Workload],
    endpoint: str,
    engine_pid: int,
    seconds: float,
    rounds: int,
) -> list[Timing]:
    """All contestants, in turn, so that the machine's noise hits them alike."""
    timings = [
        Timing(contestant, workload, callers)
        for workload in workloads
        for callers in CALLERS
        for contestant in contestants
    ]
    for place in range(rounds):
        for timing in timings if place % 2 == 0 else reversed(timings):
            if place >= max(ROUNDS_MIN, rounds // timing.workload.times):
                continue
            engine_s = cpu_s_of(engine_pid)
            spent = asyncio.run(_round(timing, endpoint, seconds))
            engine_s = cpu_s_of(engine_pid) - engine_s
            timing.rates.append(spent.acquires / spent.wall_s)
            timing.cpus_us.append(spent.cpu_s / spent.acquires * 1e6)
            timing.engines_us.append(engine_s / spent.acquires * 1e6)
            timing.astray += spent.astray
    return timings


async def _round(timing: Timing, endpoint: str, seconds: float) -> Spent:
    workload = timing.workload
    async with timing.contestant.open(endpoint, table_name(), workload) as acquire:
        await warm_up(acquire, workload, timing.callers)
        gc.collect()
        gc.freeze()  # collecting goes on, as in a real process, but not of what exists already
        try:
            return await _timed(acquire, workload, timing.callers, seconds)
        finally:
            gc.unfreeze()


async def warm_up(acquire: Acquire, workload: Workload, callers: int) -> None:
    """Every caller twice: at once, so that every connection is open, and before that one by one."""
    for caller in range(callers):
        await acquire(workload.first(caller))
    firsts = [workload.first(caller) for caller in range(callers)]
    await asyncio.gather(*(acquire(entity) for entity in firsts))


async def _timed(acquire: Acquire, workload: Workload, callers: int, seconds: float) -> Spent:
    places, clock = itertools.count(), time.perf_counter
    done = astray = 0

    async def caller(number: int) -> None:
        nonlocal done, astray
        while clock() < end_s and (place := next(places)) < workload.acquires_max:
            admitted = await acquire(workload.entity(number, place))
            done += 1
            astray += admitted is not workload.admitted

    cpu_s, start_s = time.process_time(), clock()
    end_s = start_s + seconds * workload.times
    await asyncio.gather(*(caller(number) for number in range(callers)))
    return Spent(done, astray, clock() - start_s, time.process_time() - cpu_s)


def cpu_s_of(pid: int) -> float:
    """What a process has used so far, on systems that tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
