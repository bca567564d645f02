"""Async callers on one SQLite file: the calls of a loop's turn together, beside each by itself.

Both stores are open at once and take turns in slices. The one that groups nothing is the same store
over a port that hands every call to a thread of its own, as one does with a blocking library: a hop
there, a transaction, and a hop back for each decision.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench import machine
from bench.table import Aim, aim, show
from headgate import Limit, RateLimiter
from headgate.stores.sqlite import connection

GROUPED, ALONE = "headgate", "headgate, a transaction a call"
CALLERS = (1, 32, 128)
KEYS = [f"user-{place:03d}" for place in range(50)]
LIMITS = [Limit.per_second("rps", 10**9)]
TIMES_AIM = 3

Slice = dict[str, float]
Cell = tuple[str, int]


class OneByOnePort(connection.AsyncSqlitePort):
    """Every call goes to the thread by itself, and its answer comes back by itself."""

    def __init__(self, *options: Any) -> None:
        super().__init__(*options)
        self._thread = ThreadPoolExecutor(1)

    async def call(self, work: Callable[..., Any], begin: str = connection.WRITE) -> Any:
        link, _ = self._sites.here()
        deadline_s = time.monotonic() + self._timeout_s
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, link.run, work, begin, deadline_s)


def run(quick: bool) -> tuple[list[dict[str, Any]], list[Aim]]:
    slice_s, rounds = (0.05, 2) if quick else (0.25, 20)
    found = asyncio.run(_measure(slice_s, rounds))
    rows = [_row(cell, slices) for cell, slices in found.items()]
    show(
        f"async callers on one SQLite file, a take each, {len(KEYS)} keys, median of {rounds} "
        f"slices of {slice_s:g} s in turns (load {machine.load()})",
        ("", "callers", "takes/s", "spread %", "CPU us", "p50 ms", "p99 ms"),
        [
            (row["contestant"], row["callers"], f"{row['per_second']:,.0f}",
             f"{row['spread_percent']:.0f}", row["cpu_us"], row["p50_ms"], row["p99_ms"])
            for row in rows
        ],
    )  # fmt: skip
    return rows, _aims(found)


async def _measure(slice_s: float, rounds: int) -> dict[Cell, list[Slice]]:
    cells = [(name, callers) for callers in CALLERS for name in (GROUPED, ALONE)]
    found: dict[Cell, list[Slice]] = {cell: [] for cell in cells}
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        limiters = {name: await _open(Path(folder), name) for name in (GROUPED, ALONE)}
        for place in range(rounds):
            for cell in cells if place % 2 == 0 else reversed(cells):
                name, callers = cell
                found[cell].append(await _slice(limiters[name], callers, slice_s))
        for limiter in limiters.values():
            await limiter.close()
    return found


async def _open(folder: Path, name: str) -> RateLimiter:
    kind: Any = OneByOnePort if name == ALONE else connection.AsyncSqlitePort
    import headgate.stores.sqlite as opening

    kept, opening.AsyncSqlitePort = opening.AsyncSqlitePort, kind
    try:
        limiter = RateLimiter(f"sqlite:///{folder}/{len(name)}.db", limits=LIMITS)
    finally:
        opening.AsyncSqlitePort = kept  # type: ignore[misc]
    for key in KEYS:
        await limiter.take(key, "api", {"rps": 1})
    return limiter


async def _slice(limiter: RateLimiter, callers: int, slice_s: float) -> Slice:
    waits_ns: list[int] = []
    clock_ns = time.perf_counter_ns
    end_ns = clock_ns() + int(slice_s * 1e9)

    async def call(place: int) -> None:
        now_ns = clock_ns()
        while now_ns < end_ns:
            place += 1
            assert await limiter.take(KEYS[place % len(KEYS)], "api", {"rps": 1})
            before_ns, now_ns = now_ns, clock_ns()
            waits_ns.append(now_ns - before_ns)

    start_s, cpu_s = time.perf_counter(), time.process_time()
    await asyncio.gather(*(call(place) for place in range(callers)))
    spent_s, cpu_s = time.perf_counter() - start_s, time.process_time() - cpu_s
    waits_ns.sort()
    return {
        "per_second": len(waits_ns) / spent_s,
        "cpu_us": cpu_s / len(waits_ns) * 1e6,
        "p50_ms": waits_ns[len(waits_ns) // 2] / 1e6,
        "p99_ms": waits_ns[len(waits_ns) * 99 // 100] / 1e6,
    }


def _row(cell: Cell, slices: list[Slice]) -> dict[str, Any]:
    name, callers = cell
    rates = [one["per_second"] for one in slices]
    middle = {what: statistics.median(one[what] for one in slices) for what in slices[0]}
    spread = (max(rates) - min(rates)) / middle["per_second"] * 100
    return {"contestant": name, "callers": callers, **middle, "spread_percent": spread,
            "rounds": slices}  # fmt: skip


def _aims(found: dict[Cell, list[Slice]]) -> list[Aim]:
    """Slice against slice: what disturbs a turn disturbs both."""

    def times(what: str) -> float:
        pairs = zip(found[GROUPED, 32], found[ALONE, 32], strict=True)
        return statistics.median(one[what] / other[what] for one, other in pairs)

    faster, slower = times("per_second"), times("p99_ms")
    return [
        aim(f"SQLite, 32 async callers: >= {TIMES_AIM} x of a transaction a call",
            f"{faster:.1f} x", faster >= TIMES_AIM),
        aim("SQLite, 32 async callers: p99 no worse than of a transaction a call",
            f"{slower:.2f} x", slower <= 1),
    ]  # fmt: skip
