"""A short bout, as the tests run it; in a night each is longer."""

from __future__ import annotations

from proof.fire.bout import Fire, burn
from proof.size import sized

SECONDS = sized(2.5, 2.5, 30.0)
EVERY_S = 0.7 if SECONDS < 10 else 2.0
PROCESSES = 4 if SECONDS < 10 else 8
SEED = 20


def tried(engine: str, scenario: str) -> Fire:
    """It burnt and every promise was kept. Where only the machine can slow the workers down, the
    limit was reached: else it would say nothing."""
    fire = burn(engine, scenario, SECONDS, SEED, every_s=EVERY_S, processes=PROCESSES)
    found = fire.found
    assert found.broken == (), (engine, scenario, SEED)
    if scenario in ("calm", "workers"):
        assert found.refused > 0
    if scenario == "calm":
        assert (found.unanswered, found.leaked, found.forgotten) == (0, 0, 0)
    else:
        assert fire.faults
    return fire
