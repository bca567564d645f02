"""A catalog and a ledger on a table of their own, with buckets in memory beside them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

from headgate.core.errors import StoreTrouble
from headgate.core.history import WindowUsage, has_uncounted_usage, usage_of
from headgate.core.record import BucketKey, Record
from headgate.core.runtime import run
from headgate.core.store import Backend, Capabilities
from headgate.stores.dynamodb.catalog.catalog import DynamoCatalog
from headgate.stores.dynamodb.client.calls import DynamoPort, DynamoRequest, open_port
from headgate.stores.dynamodb.ledger import DynamoLedger
from headgate.stores.dynamodb.table.table import Table
from headgate.stores.memory.buckets import MemoryStore
from headgate.stores.memory.ledger import MemoryLedger
from headgate.transport.gates import gate_factory_for

NOW_MS = 1_750_000_000_000
CAPABILITIES = Capabilities("dynamodb", "network", "undo", obeys_clock=True, durable=True)

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


class Pending(MemoryLedger):
    """Holds what the buckets of the memory store have used until somebody takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.usages: list[tuple[BucketKey, list[WindowUsage]]] = []

    def count(self, key: BucketKey, record: Record) -> None:
        if has_uncounted_usage(record):
            self.usages.append((key, list(usage_of(record))))


class Buckets(MemoryStore):
    """Buckets in memory whose usage goes to the ledger of the table."""

    def __init__(self, table: Table, ledger: DynamoLedger) -> None:
        self.table = table
        self.pending = Pending()
        self.history = ledger
        super().__init__(ledger=self.pending)
        ledger.live = self.counted

    async def counted(
        self, namespace: str, entity_id: str | None, resource: str | None, now_ms: int | None
    ) -> None:
        self.flush(namespace, entity_id, resource, now_ms)
        usages, self.pending.usages = self.pending.usages, []
        for key, rows in usages:
            await self.history.add_usage(key.namespace, key.entity_id, key.resource, rows)

    def clear(self) -> None:
        self._buckets.clear()

    async def close(self) -> None:
        await self.table.port.close()


class Catalog(DynamoCatalog):
    """Also empties the memory store, as a store in the table would be."""

    def __init__(self, table: Table, buckets: Buckets) -> None:
        super().__init__(table)
        self.table = table
        self.buckets = buckets

    async def purge_namespace(self, namespace_id: str, principal: str | None, now_ms: int) -> int:
        gone = await super().purge_namespace(namespace_id, principal, now_ms)
        return gone + self.buckets.drop_namespace(namespace_id)

    async def destroy(self) -> None:
        self.buckets.clear()
        await super().destroy()


def opened(endpoint: str, *, blocking: bool = True, port: Any = None) -> Backend:
    """A backend on a new table, which `prepare` has yet to make."""
    table = table_at(endpoint, blocking=blocking, port=port)
    ledger = DynamoLedger(table)
    buckets = Buckets(table, ledger)
    return Backend(buckets, Catalog(table, buckets), ledger, CAPABILITIES)


def prepared(endpoint: str, *, blocking: bool = True) -> Backend:
    backend = opened(endpoint, blocking=blocking)
    run(backend.catalog.prepare())
    return backend


def registered(backend: Backend, name: str = "team") -> str:
    return run(backend.catalog.register_namespace(name, "me", NOW_MS)).id


def table_of(backend: Backend) -> Table:
    found: Table = backend.catalog.table  # type: ignore[attr-defined]
    return found


class Watched:
    """A port that lists operations, and does something once before an operation of some name."""

    def __init__(self, port: DynamoPort) -> None:
        self.inner = port
        self.calls: list[str] = []
        self.requests: list[DynamoRequest] = []
        self.rounds = 0
        self.before: dict[str, Callable[[], None]] = {}
        self.after: dict[str, Callable[[], None]] = {}

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


def watching(backend: Backend, endpoint: str) -> tuple[Watched, DynamoCatalog, DynamoLedger]:
    """A second catalog and ledger on the same table, whose calls are counted.

    They know how long history is kept, as who opens a table does.
    """
    port = Watched(port_to(endpoint))
    table = table_at(endpoint, name=table_of(backend).name, port=port)
    table.retention.learn({}, port.now_ms())
    return port, DynamoCatalog(table), DynamoLedger(table)
