"""`./run sim`: scenarios from a seed, as many steps as are asked for; a violation is shrunk.

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
from pathlib import Path

from faults.sim.many import reports
from faults.sim.plot import plotted
from faults.sim.runner import Report, simulate
from faults.sim.scenario import Scenario
from faults.sim.shrink import Shrinker
from faults.sim.world import WORLDS

STEPS = 200_000
RELEASE_STEPS = 10_000_000
SEED = 1
FAILURES = Path("sim-failures")
KINDS = ("events", "faults", "told", "checks")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="./run sim", description="Simulates clients, faults and a server on a virtual clock."
    )
    made.add_argument("--seed", type=int, default=SEED)
    made.add_argument("--steps", type=int, default=STEPS)
    made.add_argument("--release", action="store_true", help=f"{RELEASE_STEPS:,} steps")
    made.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes; all cores")
    made.add_argument("--world", choices=(*WORLDS, "all"), default="all")
    made.add_argument("--first", type=int, default=0, help="scenario to begin with: to go on")
    made.add_argument("--episode", type=int, help="this scenario of the seed alone")
    made.add_argument("--replay", type=Path, help="a scenario that was kept in a file")
    made.add_argument("--trace", action="store_true", help="tell everything that happens")
    made.add_argument("--scale", action="store_true", help="the simulation of scale instead")
    return made


def say(text: str = "") -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    if "--scale" in arguments:
        rest = [one for one in arguments if one != "--scale"]
        return subprocess.run([sys.executable, "-m", "tests.faults.scale", *rest]).returncode
    chosen = parser().parse_args(arguments)
    if chosen.replay is not None:
        return told(simulate(Scenario.from_json(chosen.replay.read_text()), trace=True))
    worlds = WORLDS if chosen.world == "all" else (chosen.world,)
    if chosen.episode is not None:
        reports = [
            simulate(plotted(world, chosen.seed, chosen.episode), trace=chosen.trace)
            for world in worlds
        ]
        return max([told(report) for report in reports])
    steps = RELEASE_STEPS if chosen.release else chosen.steps
    return explored(worlds, chosen.seed, chosen.first, steps, max(1, chosen.jobs))


def explored(worlds: tuple[str, ...], seed: int, first: int, steps: int, jobs: int) -> int:
    """Scenario after scenario; ends with the first that breaks a promise."""
    begins = f", from scenario {first}" if first else ""
    say(f"seed {seed}, {steps:,} steps, worlds: {', '.join(worlds)}{begins}")
    sums: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    begun_s, done, episode, virtual_ms = time.perf_counter(), 0, 0, 0
    for report in reports(worlds, seed, first, jobs):
        done += report.steps
        virtual_ms += report.virtual_ms
        for kind in KINDS:
            sums[kind].update(getattr(report, kind))
        if report.violations:
            return failed(report)
        episode += 1
        if done >= steps:
            break
    for kind in KINDS:
        say(f"{kind}: " + ", ".join(f"{name} {sums[kind][name]:,}" for name in sorted(sums[kind])))
    spent_s = time.perf_counter() - begun_s
    say(
        f"{episode} scenarios, {done:,} steps, {virtual_ms / 3_600_000:,.1f} simulated hours, "
        f"0 violations, {spent_s:.1f} s ({spent_s / done * 1e6:.0f} us a step)"
    )
    return 0


def told(report: Report) -> int:
    for line in report.trace:
        say(line)
    for violation in report.violations:
        say(f"VIOLATION {violation}")
    say(f"{report.steps} steps, {len(report.violations)} violations")
    return 1 if report.violations else 0


def failed(report: Report) -> int:
    """The shortest story of a violation, and how to tell it again."""
    found = report.scenario
    say(f"VIOLATION {report.violations[0]}")
    say(f"the whole: ./run sim --world {found.world} --seed {found.seed} --episode {found.episode}")
    short = Shrinker(simulate, report.promise).shrunk(found)
    FAILURES.mkdir(exist_ok=True)
    path = FAILURES / f"{found.world}-{found.seed}-{found.episode}.json"
    path.write_text(short.to_json())
    say(f"shrunk from {len(found.events)} events to {len(short.events)}, faults: {short.faults}")
    for line in simulate(short, trace=True).trace:
        if " #-" not in line:
            say(line)
    say(f"the short one: ./run sim --replay {path}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
