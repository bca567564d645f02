"""Decisions per second of several processes on one SQLite file.

Every cell is measured in several rounds on a fresh file, all contestants in turn; the figure is
the best round. pyrate-limiter runs in both of its set-ups: as it comes, and with the file lock its
documentation asks for when processes share a file.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

from bench import peers, sqlite_async
from bench.children import ask_all
from bench.sqlite_jobs import HEADGATE, LOCKED, PLAIN
from bench.table import Aim, aim, show

MODES = ("admitted", "refused")
TIMES_AIM = {1: 8, 4: 6}
SLACK_S = 60

Cell = tuple[str, int, str]


def run(quick: bool) -> dict[str, Any]:
    seconds, rounds = (0.3, 1) if quick else (3.0, 3)
    contestants = _contestants()
    cells: list[Cell] = list(product(MODES, TIMES_AIM, contestants))
    found: dict[Cell, list[dict[str, Any]]] = {cell: [] for cell in cells}
    for place in range(rounds):
        for cell in cells if place % 2 == 0 else reversed(cells):
            found[cell].append(_measured(cell, seconds))
    rows = [_row(cell, results) for cell, results in found.items()]
    _show(rows, seconds, rounds)
    callers, caller_aims = sqlite_async.run(quick)
    return {"sqlite": rows, "async": callers, "aims": _aims(rows) + caller_aims}


def _contestants() -> list[str]:
    if peers.module("pyrate-limiter") is None:
        return [HEADGATE]
    if importlib.util.find_spec("filelock") is None:
        print("\nno filelock, so pyrate-limiter runs without its file lock: pip install filelock")
        return [HEADGATE, PLAIN]
    return [HEADGATE, LOCKED, PLAIN]


def _measured(cell: Cell, seconds: float) -> dict[str, Any]:
    mode, processes, contestant = cell
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        words = ("sqlite", contestant, Path(folder) / "limits.db", mode, seconds)
        answers = ask_all([words] * processes, seconds + SLACK_S)
    counts = [answer["decided"] for answer in answers]
    outcomes: Counter[str] = Counter()
    for answer in answers:
        outcomes.update(answer["outcomes"])
    return {
        "per_second": sum(answer["per_second"] for answer in answers),
        "counts": counts,
        "share_least": min(counts) / max(*counts, 1),
        "wait_max_ms": [answer["wait_max_ms"] for answer in answers],
        "wait_p99_ms": [answer["wait_p99_ms"] for answer in answers],
        "outcomes": dict(outcomes),
    }


def _row(cell: Cell, results: list[dict[str, Any]]) -> dict[str, Any]:
    mode, processes, contestant = cell
    best = max(results, key=lambda result: result["per_second"])
    rates = [result["per_second"] for result in results]
    return {
        "mode": mode,
        "processes": processes,
        "contestant": contestant,
        **best,
        "share_least": min(result["share_least"] for result in results),
        "spread_percent": (1 - min(rates) / max(*rates, 1e-9)) * 100,
        "rounds": results,
    }


def _show(rows: list[dict[str, Any]], seconds: float, rounds: int) -> None:
    show(
        f"decisions on one SQLite file, {seconds:g} s each, best of {rounds} rounds, one bucket",
        ("", "bucket", "processes", "decisions/s", "spread %", "least/most", "p99 ms", "max ms",
         "errors"),
        [
            (row["contestant"], row["mode"], row["processes"], f"{row['per_second']:,.0f}",
             f"{row['spread_percent']:.0f}", row["share_least"], max(row["wait_p99_ms"]),
             max(row["wait_max_ms"]), _errors(row["outcomes"]))
            for row in rows
        ],
    )  # fmt: skip
    several = [row for row in rows if row["processes"] > 1]
    show(
        "each process, best round",
        ("", "bucket", "decisions by process", "longest wait by process, ms"),
        [
            (row["contestant"], row["mode"], " ".join(str(count) for count in row["counts"]),
             " ".join(f"{wait_ms:.0f}" for wait_ms in row["wait_max_ms"]))
            for row in several
        ],
    )  # fmt: skip


def _errors(outcomes: dict[str, int]) -> int:
    return sum(count for name, count in outcomes.items() if name not in MODES)


def _aims(rows: list[dict[str, Any]]) -> list[Aim]:
    rate = {
        (row["mode"], row["processes"], row["contestant"]): row["per_second"]
        for row in rows
    }  # fmt: skip
    found = []
    for (processes, times), peer in product(TIMES_AIM.items(), (LOCKED, PLAIN)):
        peer_rate = rate.get(("admitted", processes, peer))
        if peer_rate:
            ratio = rate["admitted", processes, HEADGATE] / peer_rate
            text = f"{processes} process(es): >= {times} x {peer}"
            found.append(aim(text, f"{ratio:.1f} x", ratio >= times))
    return found
