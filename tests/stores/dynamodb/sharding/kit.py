"""Stores on the model of DynamoDB, and a bucket that a test divides as it likes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from headgate.core.decision import Demand, Verdict
from headgate.core.limits import Limit
from headgate.core.record import BucketKey, LimitCell, Terms, cell_of
from headgate.core.runtime import run
from headgate.stores.dynamodb import over_port
from headgate.stores.dynamodb.protocol.flow import run_flow
from headgate.stores.dynamodb.protocol.item import ItemState
from headgate.stores.dynamodb.sharding.pool import read_shards
from headgate.stores.dynamodb.sharding.split import can_merge, merge_request
from headgate.stores.dynamodb.store import DynamoStore
from headgate.stores.dynamodb.table.create import creation
from proof.model.engine import Engine
from proof.model.port import ModelPort
from tests.stores.dynamodb.catalog.kit import TABLE, Watched

START_MS = 1_767_225_600_000
_entities = itertools.count()


def engine_with_table() -> Engine:
    engine = Engine()
    engine.apply(creation(TABLE))
    return engine


def store_on(engine: Engine | None = None, port: Any = None, **options: Any) -> DynamoStore:
    """The store of one process, on a table of its own unless it is given one; its port is watched
    unless it brings its own."""
    found = port or Watched(ModelPort(engine or engine_with_table(), lambda: START_MS))
    made = over_port(found, TABLE, blocking=True, **{"usage": "off", **options}).store
    assert isinstance(made, DynamoStore)
    return made


def spent(store: DynamoStore) -> int:
    """How many calls a store made since it was last asked."""
    port = store._port
    assert isinstance(port, Watched)
    count, port.calls = len(port.calls), []
    return count


class Bucket:
    """One bucket of a store, that a test divides as it likes; amounts in whole tokens."""

    def __init__(self, store: DynamoStore, limits: Sequence[Limit], entity_id: str = "") -> None:
        self.store = store
        self.key = BucketKey("n" * 11, entity_id or f"e{next(_entities)}", "r")
        self.terms = Terms(tuple(limit.spec for limit in limits), 1)
        self.now_ms = START_MS

    def seen_by(self, store: DynamoStore) -> Bucket:
        """The same bucket, as another process knows it."""
        twin = Bucket(store, [], self.key.entity_id)
        twin.terms, twin.now_ms = self.terms, self.now_ms
        return twin

    def demand(self, **amounts: int) -> Demand:
        line = tuple(
            amounts[spec.name] * 1000 if spec.name in amounts else None for spec in self.terms.specs
        )
        return Demand(self.key, self.terms, line)

    def take(self, **amounts: int) -> Verdict:
        return run(self.store.consume([self.demand(**amounts)], self.now_ms))

    def check(self, **amounts: int) -> Verdict:
        demand = self.demand(**amounts)
        return run(self.store.peek([self.key], self.now_ms)).verdict([demand])

    def adjust(self, **amounts: int) -> None:
        run(self.store.adjust([self.demand(**amounts)], self.now_ms))

    def shards(self) -> list[ItemState]:
        known = self.store._cache.open(self.key)
        flow = read_shards(self.store._table.name, known, self.now_ms)
        return run(run_flow(self.store._port, flow))

    def cells(self, name: str) -> list[LimitCell]:
        found = [cell_of(seen.record, name) for seen in self.shards()]
        assert None not in found
        return [cell for cell in found if cell]

    def levels(self, name: str = "x") -> list[int]:
        return [cell.level_milli(self.now_ms) for cell in self.cells(name)]

    def level(self, name: str = "x") -> int:
        return sum(self.levels(name))

    def consumed(self, name: str = "x") -> int:
        return sum(cell.consumed_milli for cell in self.cells(name))

    def split(self, shard: int = 0) -> bool:
        [seen] = [seen for seen in self.shards() if seen.shard == shard]
        known = self.store._cache.open(self.key)
        return run(run_flow(self.store._port, self.store._taker.split(known, seen, self.now_ms)))

    def split_to(self, count: int) -> None:
        while len(self.shards()) < count:
            shards = self.shards()
            self.split(min(shards, key=lambda seen: (seen.depth, seen.shard)).shard)
        assert len(self.shards()) == count

    def merge_one(self) -> bool:
        by_number = {seen.shard: seen for seen in self.shards()}
        for child in sorted(by_number, reverse=True):
            # A shard's number without its highest bit is the shard it was split from.
            elder = by_number[child - (1 << (child.bit_length() - 1))] if child else None
            if elder is not None and can_merge(elder, by_number[child]):
                request = merge_request(
                    self.store._table.name, self.key, elder, by_number[child], self.now_ms
                )
                run(self.store._port.call(request))
                self.store._cache.drop(self.key)
                return True
        return False
