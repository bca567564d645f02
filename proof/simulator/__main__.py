"""`./run proof --seed N`: scenarios from a seed, as many steps as are asked for; a violation is
shrunk.

A step is one thing that happens in the simulated world: an event of the scenario begins, a request
reaches the server, an answer (or the news that none will come) reaches a client.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, date, datetime
from pathlib import Path
from typing import NamedTuple

from proof.simulator.runner import Report, Shrinker, reports, simulate
from proof.simulator.scenario import Scenario, plotted
from proof.simulator.world import WORLDS

STEPS = 200_000
RELEASE_STEPS = 10_000_000
SEED = 1
# Fixed, so that the same commit gives the same figures and no change fails by chance. People who
# want to search further ask for `--seed today`.
RELEASE_SEEDS = (14005, 15001, 15002, 15003, 15004)
TODAY = "today"
FAILURES = Path("sim-failures")
KINDS = ("events", "faults", "told", "checks")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="./run proof", description="Simulates clients, faults and a server on a virtual clock."
    )
    made.add_argument(
        "--seed", type=seed_text, action="append", metavar=f"N|{TODAY}",
        help=f"may be given several times; {TODAY!r} makes new seeds from the date; default: "
        f"{SEED}, with --release {', '.join(map(str, RELEASE_SEEDS))}",
    )  # fmt: skip
    made.add_argument("--steps", type=int, help=f"for each seed; default: {STEPS:,}")
    made.add_argument(
        "--release", action="store_true", help=f"{RELEASE_STEPS:,} steps for each of five seeds"
    )
    made.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes; all cores")
    made.add_argument("--world", choices=(*WORLDS, "all"), default="all")
    made.add_argument("--first", type=int, default=0, help="scenario to begin with: to go on")
    made.add_argument("--episode", type=int, help="this scenario of the seed alone")
    made.add_argument("--replay", type=Path, help="a scenario that was kept in a file")
    made.add_argument("--trace", action="store_true", help="tell everything that happens")
    return made


def seed_text(text: str) -> str:
    if text != TODAY:
        int(text)  # argparse tells what is wrong with it
    return text


def seeds_of(texts: list[str] | None, release: bool, today: date) -> list[int]:
    """The seeds to run. Those of a date are its digits and one more: 202611171, 202611172, …"""
    if not texts:
        return list(RELEASE_SEEDS) if release else [SEED]
    count = len(RELEASE_SEEDS) if release else 1
    found: list[int] = []
    for text in texts:
        if text == TODAY:
            found += [int(f"{today:%Y%m%d}{number}") for number in range(1, count + 1)]
        else:
            found.append(int(text))
    return found


def say(text: str = "") -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    chosen = parser().parse_args(arguments)
    if chosen.replay is not None:
        return told(simulate(Scenario.from_json(chosen.replay.read_text()), trace=True))
    worlds = WORLDS if chosen.world == "all" else (chosen.world,)
    seeds = seeds_of(chosen.seed, chosen.release, datetime.now(UTC).date())
    if chosen.episode is not None:
        found = [
            simulate(plotted(world, seed, chosen.episode), trace=chosen.trace)
            for seed in seeds
            for world in worlds
        ]
        return max([told(report) for report in found])
    steps = chosen.steps or (RELEASE_STEPS if chosen.release else STEPS)
    rows = [explore(worlds, seed, chosen.first, steps, max(1, chosen.jobs)) for seed in seeds]
    if chosen.release or len(rows) > 1:
        say_table(rows, commit())
    return 1 if any(row.violations for row in rows) else 0


class Row(NamedTuple):
    """What one seed came to."""

    seed: int
    scenarios: int
    steps: int
    virtual_ms: int
    violations: int
    spent_s: float


def explore(worlds: tuple[str, ...], seed: int, first: int, steps: int, jobs: int) -> Row:
    """Scenario after scenario; ends with the first that breaks a promise."""
    begins = f", from scenario {first}" if first else ""
    say(f"seed {seed}, {steps:,} steps, worlds: {', '.join(worlds)}{begins}")
    sums: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    begun_s, done, scenarios, virtual_ms = time.perf_counter(), 0, 0, 0
    broken: Report | None = None
    for report in reports(worlds, seed, first, jobs):
        done += report.steps
        virtual_ms += report.virtual_ms
        scenarios += 1
        for kind in KINDS:
            sums[kind].update(getattr(report, kind))
        if report.violations:
            broken = report
        if broken is not None or done >= steps:
            break
    spent_s = time.perf_counter() - begun_s
    row = Row(seed, scenarios, done, virtual_ms, 0 if broken is None else 1, spent_s)
    if broken is not None:
        tell_story(broken)
        return row
    for kind in KINDS:
        say(f"{kind}: " + ", ".join(f"{name} {sums[kind][name]:,}" for name in sorted(sums[kind])))
    say(
        f"{scenarios} scenarios, {done:,} steps, {virtual_ms / 3_600_000:,.1f} simulated hours, "
        f"0 violations, {spent_s:.1f} s ({spent_s / done * 1e6:.0f} us a step)"
    )
    return row


def say_table(rows: list[Row], made_of: str) -> None:
    """One row per seed, in the form of the table in `docs/explanation/guarantees.md`."""
    say()
    say("| seed | scenarios | steps | simulated hours | violations | seconds | commit |")
    say("|---|---|---|---|---|---|---|")
    for row in rows:
        figures = (row.seed, row.scenarios, f"{row.steps:,}".replace(",", " "),
                   f"{row.virtual_ms / 3_600_000:,.0f}".replace(",", " "), row.violations,
                   f"{row.spent_s:.0f}", made_of)  # fmt: skip
        say(f"| {' | '.join(map(str, figures))} |")


def commit() -> str:
    """The commit that was run; with a plus where files differ from it."""
    describe = ["git", "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    try:
        return subprocess.check_output(
            describe, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL, text=True
        ).strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def told(report: Report) -> int:
    for line in report.trace:
        say(line)
    for violation in report.violations:
        say(f"VIOLATION {violation}")
    say(f"{report.steps} steps, {len(report.violations)} violations")
    return 1 if report.violations else 0


def tell_story(report: Report) -> None:
    """The shortest story of a violation, and how to tell it again."""
    found = report.scenario
    say(f"VIOLATION {report.violations[0]}")
    again = f"--world {found.world} --seed {found.seed} --episode {found.episode}"
    say(f"the whole: ./run proof {again}")
    short = Shrinker(simulate, report.promise).shrunk(found)
    FAILURES.mkdir(exist_ok=True)
    path = FAILURES / f"{found.world}-{found.seed}-{found.episode}.json"
    path.write_text(short.to_json())
    say(f"shrunk from {len(found.events)} events to {len(short.events)}, faults: {short.faults}")
    for line in simulate(short, trace=True).trace:
        if " #-" not in line:
            say(line)
    say(f"the short one: ./run proof --replay {path}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
