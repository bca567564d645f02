"""SQLite while processes die in the middle of it, and while somebody keeps its lock."""

from __future__ import annotations

import pytest

from proof.fire.bout import burn
from proof.size import sized

SECONDS = sized(2.5, 2.5, 30.0)
EVERY_S = 0.7 if SECONDS < 10 else 2.0
PROCESSES = 4 if SECONDS < 10 else 8
SEED = 20


def try_fire(engine: str, scenario: str, none: str, some: str) -> None:
    """It burns and every promise is kept. `none` names what never happens, `some` what does: else
    the attack hit nothing. Where only the machine can slow the workers down, the limit is reached:
    else it would say nothing."""
    fire = burn(engine, scenario, SECONDS, SEED, every_s=EVERY_S, processes=PROCESSES)
    found = fire.found
    assert found.broken == (), (engine, scenario, SEED)
    if scenario in ("calm", "workers"):
        assert found.refused > 0
    if scenario == "calm":
        assert (found.unanswered, found.leaked, found.forgotten) == (0, 0, 0)
    else:
        assert fire.faults
    assert all(getattr(found, name) == 0 for name in none.split()), found
    assert all(getattr(found, name) > 0 for name in some.split()), found


@pytest.mark.parametrize(
    ("scenario", "none", "some"),
    [
        ("calm", "forgotten", ""),
        ("workers", "forgotten", ""),
        ("lock", "leaked forgotten", "unanswered"),  # it costs answers and nothing else
    ],
)
def test_promises_are_kept(scenario: str, none: str, some: str) -> None:
    try_fire("sqlite", scenario, none, some)
