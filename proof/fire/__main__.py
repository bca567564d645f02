"""`./run proof fire`: every engine and scenario for as long as you like, and a table of it."""

from __future__ import annotations

import argparse
import random
import signal
import sys
from statistics import median

from proof.fire.bout import PROCESSES, SCENARIOS, Fire, burn

SECONDS = 20.0
RELEASE_S = 30 * 60.0
HEAD = (
    "engine", "scenario", "s", "faults", "admitted", "refused", "no answer", "excess", "leaked",
    "may leak", "forgotten", "credits", "longest ms", "back after ms", "all back ms",
    "silence ms", "kept",
)  # fmt: skip


def main() -> int:
    asked = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    pairs = [
        (engine, scenario)
        for engine in (SCENARIOS if asked.engine == "all" else [asked.engine])
        for scenario in SCENARIOS[engine]
        if asked.scenario in (None, scenario)
    ]
    if not pairs:
        sys.exit(
            f"there is no such scenario; {asked.engine} has {', '.join(SCENARIOS[asked.engine])}"
        )
    seconds = RELEASE_S / len(pairs) if asked.release else asked.seconds
    _say(f"seed {asked.seed}, {asked.processes} processes, {seconds:g} s each")
    _say(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    broken = 0
    for engine, scenario in pairs:
        fire = burn(
            engine, scenario, seconds, asked.seed, every_s=asked.every, processes=asked.processes
        )
        _say(f"| {' | '.join(row(fire))} |")
        for text in fire.found.broken:
            broken += 1
            _say(f"BROKEN in {engine}/{scenario} with seed {asked.seed}: {text}")
    return 1 if broken else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run proof fire", description=__doc__)
    parser.add_argument("--engine", choices=[*SCENARIOS, "all"], default="all")
    parser.add_argument("--scenario", help="only this one")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each scenario")
    parser.add_argument("--release", action="store_true", help="30 minutes in all")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two faults")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    return parser.parse_args()


def row(fire: Fire) -> list[str]:
    found = fire.found
    return [
        fire.engine, fire.scenario, f"{fire.seconds:g}",
        *map(str, (len(fire.faults), found.admitted, found.refused, found.unanswered)),
        f"{found.excess:g}", *map(str, (found.leaked, found.may_leak, found.forgotten)),
        " ≤ ".join(map(str, found.credits)), str(found.longest_ms),
        *map(_spread, (found.until_one_ms, found.until_all_ms, found.silences_ms)),
        "no" if found.broken else "yes",
    ]  # fmt: skip


def _spread(times_ms: tuple[int, ...]) -> str:
    """The middle one and the worst."""
    return f"{median(times_ms):.0f} / {max(times_ms)}" if times_ms else "–"


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
