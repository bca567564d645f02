"""SQLite while processes die in the middle of it, and while somebody keeps its lock."""

from __future__ import annotations

import pytest

from proof.fire.brief import tried


@pytest.mark.parametrize("scenario", ["calm", "workers"])
def test_the_bound_holds_and_only_what_was_under_way_is_lost(scenario: str) -> None:
    assert tried("sqlite", scenario).found.forgotten == 0


def test_a_lock_that_is_kept_costs_answers_and_nothing_else() -> None:
    found = tried("sqlite", "lock").found
    assert found.unanswered > 0
    assert (found.leaked, found.forgotten) == (0, 0)
