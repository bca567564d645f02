"""One engine, one scenario, so many seconds: the fire is laid, burns by a seeded schedule, and what
is left is examined."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from proof.fire.checker import Bout, Findings, examine
from proof.fire.crew import Crew, until
from proof.fire.grounds import GROUNDS, Ground
from proof.fire.recovery import Fault
from tests.stores.redis import servers

PROCESSES = 8
RECOVER_S_MAX = 90.0

# What is done to each engine, by scenario.
SCENARIOS: dict[str, dict[str, tuple[str, ...]]] = {
    "redis": {
        "calm": (),
        "workers": ("kill_worker", "stop_worker"),
        "scripts": ("flush_scripts",),
        "cuts": ("cut", "cut_before", "cut_after", "hold"),
        "restart": ("restart",),
        "freeze": ("freeze",),
        "outage": ("outage",),
    },
    "cluster": {
        "calm": (),
        "workers": ("kill_worker", "stop_worker"),
        "failover": ("failover",),
    },
    "sqlite": {
        "calm": (),
        "workers": ("kill_worker", "stop_worker"),
        "lock": ("lock",),
    },
    "dynamodb": {
        "calm": (),
        "workers": ("kill_worker", "stop_worker"),
        "cuts": ("cut", "cut_before", "cut_after", "hold"),
        "freeze": ("freeze",),
    },
}


class Fire(NamedTuple):
    """How it burnt."""

    engine: str
    scenario: str
    seconds: float
    faults: list[Fault]
    found: Findings


def burn(
    engine: str, scenario: str, seconds: float, seed: int, *, every_s: float = 2.0,
    processes: int = PROCESSES,
) -> Fire:  # fmt: skip
    """`processes` workers hammer for that long; about every `every_s` something is done to them.

    The seed decides what is done, when and to whom; how the machine schedules it is up to chance.
    """
    with servers.folder("headgate-fire-") as folder:
        with GROUNDS[engine](folder, scenario) as ground:
            ground.prepare()
            with Crew(folder, ground.url, ground.terms, processes) as crew:
                until(crew.all_at_work, "starting the workers")
                kinds = SCENARIOS[engine][scenario]
                faults = _attack(ground, crew, kinds, seconds, random.Random(seed), every_s)
                lives = crew.end()
            bout = Bout(ground.terms, ground.promise, lives, faults, ground.counts())
    return Fire(engine, scenario, seconds, faults, examine(bout))


def _attack(
    ground: Ground,
    crew: Crew,
    kinds: tuple[str, ...],
    seconds: float,
    rng: random.Random,
    every_s: float,
) -> list[Fault]:
    own: dict[str, Callable[[random.Random], Fault]] = {
        "kill_worker": crew.kill_worker, "stop_worker": crew.stop_worker
    }  # fmt: skip
    attacks = {**ground.attacks, **own}
    end_s = time.monotonic() + seconds
    faults: list[Fault] = []
    while time.monotonic() < end_s:
        time.sleep(min(rng.uniform(0.5, 1.5) * every_s, max(0.0, end_s - time.monotonic())))
        if kinds and (time.monotonic() < end_s or not faults):
            kind = kinds[len(faults)] if len(faults) < len(kinds) else rng.choice(kinds)
            faults.append(attacks[kind](rng))
            until(partial(crew.somebody_admitted, faults[-1].over_ms), "recovering", RECOVER_S_MAX)
    last_ms = faults[-1].over_ms if faults else 0
    until(partial(crew.all_at_work, last_ms), "coming back", RECOVER_S_MAX)
    return faults
