"""The small version of the scale table: promises hold, and figures move if splitting stops."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from headgate.core.errors import StoreTrouble
from headgate.stores.dynamodb.client.calls import DynamoRequest
from headgate.stores.dynamodb.sharding import router as sharing
from proof.scale.cloud import Cloud
from proof.scale.scenarios import SMALL, Row, Tally, table

SEED = 1


@pytest.fixture(autouse=True)
def _replayable() -> Iterator[None]:
    """Generations are drawn from the common generator."""
    state = random.getstate()
    random.seed(SEED)
    yield
    random.setstate(state)


@cache
def row(name: str) -> Row:
    return SMALL[name](SEED, name)


@pytest.mark.parametrize("name", SMALL)
def test_nothing_is_admitted_beyond_what_is_promised(name: str) -> None:
    found = row(name)
    assert found.excess <= found.slack
    assert found.admitted > 0
    assert found.trips_at(0.99) <= 12


def test_a_hot_bucket_divides_and_few_are_held_back() -> None:
    found = row("5k/s, one entity")
    assert 4 <= found.shards <= 16
    assert found.held_back < found.asked * 0.05
    assert found.calls < 1.5


def test_without_splitting_the_partition_is_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "can_split", lambda seen, largest: False)
    found = SMALL["5k/s, one entity"](SEED, "no splits")
    assert found.shards == 1
    assert found.held_back > found.asked * 0.3
    assert found.excess <= 0


def test_a_store_that_forgets_writes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The monitor can fail: every other write is answered and lost."""
    whole = Cloud.do

    def forgetful(self: Cloud, request: DynamoRequest) -> dict[str, Any] | StoreTrouble:
        rows = self.engine.snapshot.rows
        kept = dict(rows)
        outcome = whole(self, request)
        if request.operation == "UpdateItem" and self.calls % 2 and isinstance(outcome, dict):
            rows.clear()
            rows.update(kept)
        return outcome

    monkeypatch.setattr(Cloud, "do", forgetful)
    found = SMALL["herd, each as told"](SEED, "forgetful")
    assert found.excess > 0


def test_prefetch_makes_a_tenth_of_the_calls_or_fewer() -> None:
    found = row("10k/s, prefetch")
    assert found.calls < 0.1
    assert found.trips_at(0.5) == 0
    assert found.held_back == 0


def test_prefetch_gets_off_the_ground_where_partitions_hold_back() -> None:
    """Without waiting for one another's call, half of it is held back and calls are more than
    acquires."""
    found = row("20k/s, prefetch, weak partitions")
    assert found.admitted > found.asked * 0.8
    assert found.calls < 0.2


def test_a_new_entity_is_two_round_trips() -> None:
    found = row("10^8 entities")
    assert (found.trips_at(0.5), found.trips_at(0.99)) == (2, 2)


def test_new_entities_meet_no_item_that_all_of_them_read() -> None:
    """The system's and the resource's items bear 3 000 reads a second, all processes together."""
    found = row("20k/s new entities")
    assert found.asked > 2500
    assert (found.away, found.held_back) == (0, 0)
    assert found.admitted == found.asked
    assert found.trips_at(0.5) == 2
    assert found.trips_at(0.99) <= 3, "who meets the end of a TTL waits for one read of another"


def test_an_outage_costs_a_few_calls_and_ends() -> None:
    blocked, allowed = row("outage, BLOCK"), row("outage, ALLOW")
    assert blocked.excess <= 0
    assert "0 degraded" in blocked.note
    assert "0 unavailable" in allowed.note
    assert allowed.admitted > blocked.admitted
    for found in (blocked, allowed):
        worst = int(found.note.rsplit("; ", 1)[1].split()[0])
        assert worst <= 10 * 5 + 10, "no more than it takes ten breakers to open"


def test_the_monitor_adds_up_every_interval() -> None:
    tally = Tally()
    tally.admitted_at.update({0: 10, 5: 5, 6: 6})
    assert tally.excess_over(10, 1) == 10 - 5 + 5 - 1 + 6 - 10


@pytest.mark.parametrize("name", ["herd, wait=", "outage, ALLOW"])
def test_the_same_seed_gives_the_same_figures(name: str) -> None:
    random.seed(SEED)
    one = SMALL[name](SEED, name)
    random.seed(SEED)
    assert SMALL[name](SEED, name) == one
    assert name in table([one])
