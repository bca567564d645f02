"""What is asked, when and by whom: the same for the same seed. Pure; nothing is sent here.

It has the shape of LLM traffic: a request reserves an estimate and is charged what it used, which
is now and then much more; keys differ in how much they ask; one of them comes in bursts.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

BURST_EVERY = 90  # requests between two bursts
BURST_SIZE = 30
SURPRISE = 0.03  # how often an answer is many times longer than was thought


class Call(NamedTuple):
    """One request, `gap` after the one before, in parts of the mean gap. With `estimate` 0 it is
    a plain check; else it holds a lease for `work_ms` and is settled with `actual`."""

    gap: float
    scope: str
    identifier: str
    resource: str
    estimate: int = 0
    actual: int = 0
    work_ms: int = 0


class Habit(NamedTuple):
    """What one key does: how often, of what, how large."""

    weight: int
    scope: str
    identifier: str
    resource: str
    estimate: int = 0


HABITS = (
    Habit(30, "api_key", "search-prod", "gpt-4-mini", 700),
    Habit(14, "api_key", "search-prod", "gpt-4", 900),
    Habit(14, "api_key", "support-bot", "gpt-4", 1200),
    Habit(8, "api_key", "support-bot", "gpt-4-mini", 500),
    Habit(6, "api_key", "intern", "gpt-4", 400),
    Habit(12, "user", "ann", "api.search"),
    Habit(16, "user", "bob", "api.search"),
)
BATCH = Habit(0, "api_key", "search-batch", "gpt-4", 600)


def calls(seed: int) -> Iterator[Call]:
    """Without end; about one call per unit of time, bursts on top."""
    rng = Random(seed)
    weights = [habit.weight for habit in HABITS]
    while True:
        for _ in range(BURST_EVERY):
            habit = rng.choices(HABITS, weights)[0]
            yield _call(rng, habit, rng.expovariate(1))
        for _ in range(BURST_SIZE):
            yield _call(rng, BATCH, 0.05)


def _call(rng: Random, habit: Habit, gap: float) -> Call:
    whom = (habit.scope, habit.identifier, habit.resource)
    if not habit.estimate:
        return Call(gap, *whom)
    estimate = max(1, int(habit.estimate * rng.uniform(0.6, 1.4)))
    longer = rng.uniform(20, 40) if rng.random() < SURPRISE else rng.uniform(0.3, 1.5)
    actual = int(estimate * longer)
    return Call(gap, *whom, estimate, actual, work_ms=rng.randrange(150, 1200))
