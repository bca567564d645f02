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

from headgate.core.errors import StoreTrouble
from headgate.core.runtime import run
from headgate.stores.catalog import Backend
from headgate.stores.dynamodb import over_port
from headgate.stores.dynamodb.client.calls import DynamoPort, DynamoRequest, open_port
from headgate.stores.dynamodb.store import DynamoStore
from headgate.stores.dynamodb.table.table import Table
from headgate.transport.gates import gate_factory_for
from proof.model.engine import Engine
from proof.model.port import ModelPort

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
    assert isinstance(backend.store, DynamoStore)
    return backend.store._table


def engine_of(backend: Backend) -> Engine:
    port = table_of(backend).port
    assert isinstance(port, ModelPort)
    return port.engine


def items_of(backend: Backend, namespace: str) -> list[Any]:
    """Everything in the table that has to do with a namespace."""
    rows = engine_of(backend).snapshot.rows.values()
    return [item for item in map(str, rows) if namespace in item]
