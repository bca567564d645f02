"""The part of a parent's consumption that came from children, as the reader of the stream sees it:
whatever is taken, given back, settled, divided or merged, each write tells its part of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from headgate import Limit, Repository, SyncRateLimiter, SyncRepository
from headgate.aws.aggregator.records import NO_STATE, Amount, amount_between, state_of, sum_amounts
from headgate.core.decision import Demand
from headgate.core.errors import StoreTrouble
from headgate.core.plan import join_halves
from headgate.core.runtime import run
from headgate.stores.dynamodb import over_port
from headgate.stores.dynamodb.client.calls import DynamoRequest
from headgate.testing import FakeClock
from proof.model.engine import Engine, ModelPort
from proof.model.values import thaw
from tests.stores.dynamodb.kit import START_MS, TABLE, Bucket, engine_with_table, store_on


class Stream(ModelPort):
    """A port that keeps what each write changed of each bucket, as the reader of a stream sums."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, lambda: START_MS)
        self.amounts: dict[str, list[Amount]] = {}

    async def call_all(
        self, requests: Sequence[DynamoRequest]
    ) -> list[dict[str, Any] | StoreTrouble]:
        found: list[dict[str, Any] | StoreTrouble] = []
        for request in requests:
            before = self.engine.snapshot.rows
            found += await super().call_all([request])
            self._read(before)
        return found

    def _read(self, before: Any) -> None:
        after = self.engine.snapshot.rows
        for place in {*before, *after}:
            _, pk, sk = place
            if sk == "#STATE" and before.get(place) is not after.get(place):
                images = [_state(rows.get(place)) for rows in (before, after)]
                entity = pk.partition("BUCKET#")[2].partition("#")[0]
                self.amounts.setdefault(entity, []).append(amount_between(*images))

    def used(self, entity: str) -> Amount:
        return sum_amounts(self.amounts.get(entity, []))


def _state(row: Any) -> Any:
    if row is None:
        return NO_STATE
    return state_of({name: thaw(value) for name, value in row.values.items()})


@pytest.mark.parametrize("seed", range(20))
def test_each_write_tells_its_part(seed: int) -> None:
    """Debits and credits of a parent, for itself, by cascade and both ways at once, on one shard or
    several: what the stream tells sums up to what was asked for, and to what came by cascade. One
    way may take what the other gives back."""
    rng = random.Random(seed)
    stream = Stream(engine_with_table())
    store = store_on(port=stream)
    team = Bucket(store, [Limit.per_day("x", 10_000), Limit.per_day("y", 100)], "team")
    own, cascaded = {"x": 0, "y": 0}, {"x": 0, "y": 0}
    for _ in range(60):
        team.now_ms += rng.choice((0, 1, 1000, 600_000))
        act = rng.random()
        if act < 0.2 and team.shards():
            team.split() if act < 0.1 else team.merge_one()
            continue
        is_take = act < 0.6
        asked, child = some_amounts(rng, is_take), some_amounts(rng, is_take)
        demands = [team.demand(**asked), by_cascade(team, child)]
        parts = [(own, asked), (cascaded, child)]
        if rng.random() < 0.5:
            place = rng.randrange(2)
            demand, parts = demands[place], [parts[place]]
        else:
            demand = join_halves(*demands)
        if is_take and not run(store.consume([demand], team.now_ms)).allowed:
            continue
        if not is_take:
            run(store.adjust([demand], team.now_ms))
        for counts, amounts in parts if team.shards() else ():
            for name, amount in amounts.items():
                counts[name] += amount * 1000
    used = stream.used("team")
    assert {name: used.cascaded_milli.get(name, 0) for name in own} == cascaded
    total = {name: own[name] + cascaded[name] for name in own}
    assert {name: used.counters_milli.get(name, 0) for name in own} == total


def some_amounts(rng: random.Random, is_take: bool) -> dict[str, int]:
    signs = [1 if is_take else rng.choice((-1, 1)) for _ in "xy"]
    found = {"x": signs[0] * rng.choice((0, 1, 9, 3000))}
    return found if rng.random() < 0.6 else {**found, "y": signs[1] * rng.randrange(4)}


def by_cascade(team: Bucket, amounts: dict[str, int]) -> Demand:
    line = team.demand(**amounts).amounts
    return Demand(team.key, team.terms, line, cascaded=line)


@pytest.mark.parametrize(("own", "settled"), [(15, 12), (12, 7)])
def test_a_settlement_of_both_ways_tells_what_came_from_the_child(own: int, settled: int) -> None:
    """A team that asked for 15 itself, and for 2 by its key: settled at 12 each, it gives 3 back of
    its own and takes 10 more through the key. Or both cancel out to nothing."""
    clock, stream = FakeClock(), Stream(engine_with_table())
    backend = over_port(stream, TABLE, blocking=True, usage="stream")
    core = Repository(clock=clock, _blocking=True, _backend=backend)
    limits = [Limit.per_day("x", 100)]
    with SyncRateLimiter(SyncRepository(_core=core), limits=limits) as limiter:
        limiter.create_entity("team")
        limiter.create_entity("key", parent_id="team", cascade=True)
        wants = [("team", "r", {"x": own}), ("key", "r", {"x": 2})]
        with limiter.acquire_many(wants) as lease:
            lease.settle(x=settled)
    team, key = stream.used("team"), stream.used("key")
    milli = settled * 1000
    assert (team.counters_milli["x"], team.cascaded_milli["x"]) == (2 * milli, milli)
    assert (key.counters_milli["x"], key.cascaded_milli) == (milli, {})
