"""Promises are kept while engines, their clients and connections are attacked, processes die in the
middle of it and somebody keeps a lock."""

from __future__ import annotations

import pytest

from proof.fire.bout import burn
from proof.size import sized

SECONDS = sized(2.5, 2.5, 30.0)
EVERY_S = 0.7 if SECONDS < 10 else 2.0
PROCESSES = 4 if SECONDS < 10 else 8
SEED = 20


@pytest.mark.parametrize(
    ("engine", "scenario", "none", "some"),
    [
        ("sqlite", "calm", "forgotten", ""),
        ("sqlite", "workers", "forgotten", ""),
        ("sqlite", "lock", "leaked forgotten", "unanswered"),  # it costs answers and nothing else
        ("redis", "calm", "unanswered", ""),
        ("redis", "workers", "unanswered", ""),
        ("cluster", "calm", "unanswered", ""),
        ("dynamodb", "workers", "unanswered", ""),
        ("redis", "scripts", "unanswered leaked", ""),  # flushed all the time
        ("redis", "cuts", "forgotten", "unanswered"),  # before and after the reply
        ("dynamodb", "cuts", "forgotten", "unanswered"),
        # With AOF everysec; `broken` holds the loss against the last two seconds before each kill.
        ("redis", "restart", "", "unanswered"),
        ("cluster", "failover", "", "unanswered"),  # a master is killed, its replica takes over
    ],
)
def test_promises_are_kept(engine: str, scenario: str, none: str, some: str) -> None:
    """`none` names what never happens, `some` what does: else the attack hit nothing. Where only
    the machine can slow the workers down, the limit is reached: else it would say nothing."""
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
