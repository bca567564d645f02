"""Ports that are watched, tables on the engine, and backends on the model of DynamoDB.

The model answers as the engine does (`proof/model/test_agrees.py`), and a hundred times as fast. So
the contract and whatever is about connections runs on the engine, and everything else here.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

from headgate.core.decision import Demand, Verdict
from headgate.core.errors import StoreTrouble
from headgate.core.limits import Limit
from headgate.core.record import BucketKey, LimitCell, Terms, cell_of
from headgate.core.runtime import run
from headgate.repository import open_backend
from headgate.stores.catalog import Backend
from headgate.stores.dynamodb import over_port
from headgate.stores.dynamodb.catalog.items import TTL
from headgate.stores.dynamodb.client.calls import DynamoPort, DynamoRequest, open_port, run_flow
from headgate.stores.dynamodb.protocol.item import ItemState
from headgate.stores.dynamodb.sharding.pool import read_shards
from headgate.stores.dynamodb.sharding.split import can_merge, merge_request
from headgate.stores.dynamodb.store import DynamoStore
from headgate.stores.dynamodb.table import create as table_making
from headgate.stores.dynamodb.table.create import creation
from headgate.stores.dynamodb.table.table import Table
from headgate.transport.gates import gate_factory_for
from proof.model.engine import Engine, ModelPort

NOW_MS = 1_750_000_000_000
TABLE = "limits"

_numbers = itertools.count()


def table_name() -> str:
    return f"headgate-{os.getpid()}-{next(_numbers)}"


def port_to(endpoint: str, *, blocking: bool = True) -> DynamoPort:
    return open_port(region="us-east-1", endpoint=endpoint, blocking=blocking, timeout_ms=10_000)


def table_at(
    endpoint: str, *, name: str | None = None, blocking: bool = True, port: Any = None
) -> Table:
    found = port or port_to(endpoint, blocking=blocking)
    return Table(found, name or table_name(), gate_factory_for(None, blocking=blocking))


class Watched:
    """A port that lists operations, and does something once before an operation of some name."""

    def __init__(self, port: DynamoPort) -> None:
        self.inner = port
        self.calls: list[str] = []
        self.requests: list[DynamoRequest] = []
        self.rounds = 0
        self.before: dict[str, Callable[[], Any]] = {}
        self.after: dict[str, Callable[[], Any]] = {}

    def now_ms(self) -> int:
        return self.inner.now_ms()

    async def call(self, request: DynamoRequest) -> dict[str, Any]:
        self._note(request)
        self.rounds += 1
        reply = await self.inner.call(request)
        act = self.after.pop(request.operation, None)
        if act is not None:
            act()
        return reply

    async def call_all(
        self, requests: Sequence[DynamoRequest]
    ) -> list[dict[str, Any] | StoreTrouble]:
        for request in requests:
            self._note(request)
        self.rounds += 1
        return await self.inner.call_all(requests)

    async def close(self) -> None:
        await self.inner.close()

    def _note(self, request: DynamoRequest) -> None:
        act = self.before.pop(request.operation, None)
        if act is not None:
            act()
        self.calls.append(request.operation)
        self.requests.append(request)


class YieldingPort(ModelPort):
    """Lets other tasks go on before and after every call, as a port with a network does."""

    async def call(self, request: DynamoRequest) -> dict[str, Any]:
        await asyncio.sleep(0)
        try:
            return await super().call(request)
        finally:
            await asyncio.sleep(0)


def model_port(backend: Backend | None = None) -> ModelPort:
    """A way to a model of its own, or to the one that the backend is on."""
    return ModelPort(Engine() if backend is None else engine_of(backend), lambda: NOW_MS)


def prepared(port: Any = None, **options: Any) -> Backend:
    """A blocking backend whose table is there; on a model of its own unless it has a port."""
    backend = over_port(port or model_port(), TABLE, blocking=True, **options)
    run(backend.catalog.prepare())
    return backend


def registered(backend: Backend, name: str = "team") -> str:
    return run(backend.catalog.register_namespace(name, "me", NOW_MS)).id


def table_of(backend: Backend) -> Table:
    return backend.store._table


def engine_of(backend: Backend) -> Engine:
    port = table_of(backend).port
    return port.engine


def items_of(backend: Backend, namespace: str) -> list[Any]:
    """Everything in the table that has to do with a namespace."""
    rows = engine_of(backend).snapshot.rows.values()
    return [item for item in map(str, rows) if namespace in item]


# A backend on a table of its own, whose items do not expire: its time is the test's.


def fresh_table(endpoint: str) -> str:
    """A new table that keeps items whose time is over by the engine's clock."""
    name = table_name()
    table = table_at(endpoint, name=name)
    run(table_making.prepare(table))
    expiry = {"AttributeName": TTL, "Enabled": False}
    run(table.call("UpdateTimeToLive", TimeToLiveSpecification=expiry))
    run(table.port.close())
    return name


def opened(
    endpoint: str, *, blocking: bool = True, name: str | None = None, options: str = ""
) -> Backend:
    found = name or fresh_table(endpoint)
    url = f"dynamodb://{found}?region=us-east-1&endpoint={endpoint}&timeout_ms=10000{options}"
    return open_backend(url, blocking=blocking)


# Stores on the model of DynamoDB, and a bucket that a test divides as it likes.

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
    return over_port(found, TABLE, blocking=True, **{"usage": "off", **options}).store


def spent(store: DynamoStore) -> int:
    """How many calls a store made since it was last asked."""
    port = store._port
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


def divided(store: DynamoStore, *limits: Limit, shards: int = 4) -> Bucket:
    """A new bucket in so many shards."""
    bucket = Bucket(store, limits)
    bucket.take(**{limits[0].name: 0})
    bucket.split_to(shards)
    return bucket
