"""A store's clock that is set ahead and back: small steps change nothing, large ones recover."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate import Limit
from headgate.core.decision import Demand
from headgate.core.record import (
    CELLS,
    EPOCH,
    HOUR_MS,
    BucketKey,
    Terms,
    after_clock_step,
    new_record,
)
from headgate.core.runtime import run
from headgate.core.store import Store
from headgate.repository import open_backend

NOW_MS = 1_800_000_000_000
YEAR_MS = 365 * 24 * HOUR_MS
KEY = BucketKey("ns", "e", "r")
TERMS_OF = {
    "a minute": Terms((Limit.per_minute("n", 60).spec,), 1),
    "two limits": Terms((Limit.per_second("fast", 60).spec, Limit.per_day("slow", 60).spec), 1),
}
HOW = pytest.mark.parametrize("how", TERMS_OF)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/steps.db"
    made = open_backend(url, blocking=True).store
    yield made
    run(made.close())


def take(store: Store, now_ms: int, terms: Terms, tokens: int = 1) -> bool:
    demand = Demand(KEY, terms, (tokens * 1000,) * len(terms.specs))
    return run(store.consume([demand], now_ms)).allowed


def taken(store: Store, now_ms: int, terms: Terms) -> int:
    """How many can be taken at that moment."""
    count = 0
    while take(store, now_ms, terms):
        count += 1
    return count


@HOW
def test_a_clock_that_jumps_years_ahead_and_back_blocks_nothing(store: Store, how: str) -> None:
    terms = TERMS_OF[how]
    assert take(store, NOW_MS, terms, 10)
    assert take(store, NOW_MS + 5 * YEAR_MS, terms, 20)  # full again there, 40 are left
    assert run(store.peek([KEY], NOW_MS + 1000)).verdict(
        [Demand(KEY, terms, (40_000,) * len(terms.specs))]
    )
    assert taken(store, NOW_MS + 1000, terms) == 40  # the level came along, and no more
    demand = Demand(KEY, terms, (1000,) * len(terms.specs))
    refusal = run(store.consume([demand], NOW_MS + 1000))
    assert refusal.retry_after_ms <= 24 * HOUR_MS // 60
    again_ms = NOW_MS + 1000 + refusal.retry_after_ms
    assert not take(store, again_ms - 1, terms)
    assert take(store, again_ms, terms)


@HOW
def test_a_refusal_after_the_step_begins_to_refill(store: Store, how: str) -> None:
    terms = TERMS_OF[how]
    assert take(store, NOW_MS + 5 * YEAR_MS, terms, 60)
    for second in range(3):
        assert not take(store, NOW_MS + second, terms, 60)
    assert take(store, NOW_MS + 24 * HOUR_MS, terms, 60)


@HOW
def test_S7_debt_stays_debt_over_the_step(store: Store, how: str) -> None:
    terms = TERMS_OF[how]
    debit = Demand(KEY, terms, (1_000_000,) * len(terms.specs))
    run(store.adjust([debit], NOW_MS + 5 * YEAR_MS))
    assert not take(store, NOW_MS, terms)
    [record] = run(store.peek([KEY], NOW_MS)).records
    assert record[CELLS + 1] == -940_000


def test_S12_a_clock_that_is_an_hour_behind_moves_no_epoch() -> None:
    terms = TERMS_OF["two limits"]
    record = new_record(terms, NOW_MS)
    assert after_clock_step(record, NOW_MS - HOUR_MS) is record
    moved = after_clock_step(record, NOW_MS - HOUR_MS - 1)
    assert moved[CELLS + EPOCH] == NOW_MS - HOUR_MS - 1


@pytest.mark.parametrize("seed", range(6))
def test_each_jump_ahead_gives_one_capacity_at_most(store: Store, seed: int) -> None:
    """However the clock wanders: capacity, what refills in the time the clock really went, and a
    capacity per jump ahead, whether or not the clock comes back."""
    rng = random.Random(seed)
    terms = TERMS_OF["a minute"]
    now_ms, forward_ms, jumps, admitted = NOW_MS, 0, 0, 0
    for _ in range(200):
        kind = rng.random()
        if kind < 0.05:
            now_ms += rng.randrange(HOUR_MS, 5 * YEAR_MS)
            jumps += 1
        elif kind < 0.15:
            now_ms = max(NOW_MS, now_ms - rng.randrange(1, 5 * YEAR_MS))
        else:
            step_ms = rng.randrange(1, 5000)
            now_ms += step_ms
            forward_ms += step_ms
        admitted += take(store, now_ms, terms, tokens := rng.randrange(1, 30)) * tokens
    assert admitted <= 60 + forward_ms * 60 // 60_000 + jumps * 60
