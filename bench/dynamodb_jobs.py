"""Acquires on one DynamoDB engine: the workloads, and how contestants are timed side by side.

All contestants of a workload are open at once, each on a table of its own, and every caller has
acquired once (so that connections are open and states known). Then they take turns in short slices,
so that a machine which is slow for a while is slow for all of them: what is compared are the two
slices of one turn. CPU is this process's own (`process_time`): the engine's is told apart.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

REGION = "us-east-1"
RESOURCE = "api"
PARENT = "org"
CALLERS = (1, 32)
PLENTY = 10**9
DAY_S = 86_400
COLD_ENTITIES = 1000  # of a run of all rounds
ROUNDS = 30
LEAD_IN_PART = 4  # of a slice goes before it, untimed: the other contestant had the caches

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
    Workload(COLD, WIDE, lambda caller, place: f"key{place}", acquires_max=COLD_ENTITIES),
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
    cpus_us: list[float] = field(default_factory=list)  # of the slices, in the order of the turns
    engine_s: float = 0.0
    acquires: int = 0
    astray: int = 0  # acquires that did not come to what the workload wants

    @property
    def per_second(self) -> float:
        return statistics.median(self.rates)

    @property
    def cpu_us(self) -> float:
        return min(self.cpus_us)

    @property
    def cpu_median_us(self) -> float:
        return statistics.median(self.cpus_us)

    @property
    def engine_us(self) -> float:
        return self.engine_s / self.acquires * 1e6


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
    """`rounds` turns of every contestant at every workload, a slice of so many seconds each."""
    found: list[Timing] = []
    for workload in workloads:
        for callers in CALLERS:
            timings = [Timing(contestant, workload, callers) for contestant in contestants]
            asyncio.run(_in_turn(timings, endpoint, engine_pid, seconds, rounds))
            found += timings
    return found


async def _in_turn(
    timings: list[Timing], endpoint: str, engine_pid: int, seconds: float, rounds: int
) -> None:
    async with AsyncExitStack() as stack:
        lanes: list[tuple[Timing, Acquire, Iterator[int]]] = []
        for timing in timings:
            opened = timing.contestant.open(endpoint, table_name(), timing.workload)
            acquire = await stack.enter_async_context(opened)
            await warm_up(acquire, timing.workload, timing.callers)
            lanes.append((timing, acquire, itertools.count()))
        gc.collect()
        gc.freeze()  # collecting goes on, as in a real process, but not of what exists already
        try:
            for turn in range(rounds):
                for timing, acquire, places in lanes if turn % 2 else reversed(lanes):
                    most = timing.workload.acquires_max // ROUNDS
                    lead_in = most // LEAD_IN_PART
                    await _slice(acquire, timing, places, lead_in, seconds / LEAD_IN_PART)
                    engine_s = cpu_s_of(engine_pid)
                    spent = await _slice(acquire, timing, places, most - lead_in, seconds)
                    timing.engine_s += cpu_s_of(engine_pid) - engine_s
                    timing.acquires += spent.acquires
                    timing.rates.append(spent.acquires / spent.wall_s)
                    timing.cpus_us.append(spent.cpu_s / spent.acquires * 1e6)
                    timing.astray += spent.astray
        finally:
            gc.unfreeze()


async def warm_up(acquire: Acquire, workload: Workload, callers: int) -> None:
    """Every caller twice: at once, so that every connection is open, and before that one by one."""
    for caller in range(callers):
        await acquire(workload.first(caller))
    firsts = [workload.first(caller) for caller in range(callers)]
    await asyncio.gather(*(acquire(entity) for entity in firsts))


async def _slice(
    acquire: Acquire, timing: Timing, places: Iterator[int], most: int, seconds: float
) -> Spent:
    """Acquires of all callers for so long; of new entities a number of them, however long."""
    workload, clock = timing.workload, time.perf_counter
    counted = workload.acquires_max < PLENTY
    begun = done = astray = 0

    async def caller(number: int) -> None:
        nonlocal begun, done, astray
        while begun < most and (counted or clock() < end_s):
            begun += 1
            admitted = await acquire(workload.entity(number, next(places)))
            done += 1
            astray += admitted is not workload.admitted

    cpu_s, start_s = time.process_time(), clock()
    end_s = start_s + seconds
    await asyncio.gather(*(caller(number) for number in range(timing.callers)))
    return Spent(done, astray, clock() - start_s, time.process_time() - cpu_s)


def cpu_s_of(pid: int) -> float:
    """What a process has used so far, on systems that tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
