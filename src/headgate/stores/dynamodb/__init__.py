"""The DynamoDB store: one table, one conditional write per decision, no server to run."""

from __future__ import annotations

from headgate.core.store import Capabilities
from headgate.stores.catalog import Backend
from headgate.stores.dynamodb.catalog.catalog import DynamoCatalog
from headgate.stores.dynamodb.catalog.expiring import DynamoExpiringRecords
from headgate.stores.dynamodb.catalog.retention import Retention
from headgate.stores.dynamodb.client.calls import DynamoPort, open_port
from headgate.stores.dynamodb.ledger import DynamoLedger, UsageBuffer
from headgate.stores.dynamodb.protocol.item import BUCKETS_MAX, StateCache
from headgate.stores.dynamodb.store import DynamoStore
from headgate.stores.dynamodb.table.table import Table
from headgate.transport.gates import gate_factory_for


def open_dynamodb(
    name: str,
    *,
    region: str | None = None,
    endpoint: str | None = None,
    blocking: bool,
    timeout_ms: int = 2000,
    connections: int = 16,
    strict: bool = False,
    usage: str = "local",
    audit_days: int | None = None,
    usage_days: int | None = None,
    buckets_max: int = BUCKETS_MAX,
) -> Backend:
    """The backend of one table; nothing is contacted yet.

    History is kept for so many days, or for as many as the table itself says.
    """
    port = open_port(
        region=region,
        endpoint=endpoint,
        blocking=blocking,
        timeout_ms=timeout_ms,
        connections=connections,
    )
    retention = Retention(audit_days, usage_days)
    return over_port(
        port, name, blocking=blocking, strict=strict, usage=usage, retention=retention,
        buckets_max=buckets_max,
    )  # fmt: skip


def over_port(
    port: DynamoPort,
    name: str,
    *,
    blocking: bool,
    strict: bool = False,
    usage: str = "local",
    retention: Retention | None = None,
    buckets_max: int = BUCKETS_MAX,
) -> Backend:
    """The same over a port of one's own. It remembers the states of `buckets_max` buckets. Usage is
    counted by each process ("local"), by whoever reads the table's stream ("stream"), or not at all
    ("off")."""
    table = Table(port, name, gate_factory_for(None, blocking=blocking), retention)
    ledger = DynamoLedger(table)
    usage_buffer = UsageBuffer(ledger.add_usage) if usage == "local" else None
    store = DynamoStore(table, StateCache(buckets_max), usage_buffer, strict=strict)
    if usage_buffer is not None:
        ledger.live = usage_buffer.flush
    catalog = DynamoCatalog(table, store.prime)
    capabilities = Capabilities(
        name="dynamodb",
        shared="network",
        atomic="one step" if strict else "undo",
        obeys_clock=True,
        durable=True,
    )
    return Backend(store, catalog, ledger, capabilities, DynamoExpiringRecords(table))
