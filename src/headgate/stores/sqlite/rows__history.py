"""Adding to usage and audit history, inside the transaction of whatever is recorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headgate.core.history import AuditEvent, Usage, audit_event, uncounted, usage_of
from headgate.core.record import BucketKey, Record
from headgate.stores.sqlite.rows import as_json, event_as_row, from_json
from headgate.stores.sqlite.schema__queries import Connection, named_queries

SQL = named_queries("ledger.sql")
USAGE_GET, USAGE_PUT, AUDIT_ADD = SQL["usage_get"], SQL["usage_put"], SQL["audit_add"]


def count(connection: Connection, key: BucketKey, record: Record) -> None:
    """Usage history has all that the record consumed since it was last counted."""
    if uncounted(record):
        add(connection, key, usage_of(record))


def add(connection: Connection, key: BucketKey, usages: Iterable[Usage]) -> None:
    """Usage history has so much more."""
    for usage in usages:
        window = (usage.window_start_ms, usage.window_type)
        where = (key.namespace, *window, key.entity_id, key.resource)
        row = connection.execute(USAGE_GET, where).fetchone()
        counters: dict[str, int] = from_json("usage row", row[0]) if row else {}
        for name, milli in usage.counters_milli.items():
            counters[name] = counters.get(name, 0) + milli
        events = usage.events + (row[1] if row else 0)
        connection.execute(USAGE_PUT, (as_json(counters), events, *where))


def append(connection: Connection, namespace: str, event: AuditEvent) -> None:
    connection.execute(AUDIT_ADD, event_as_row(namespace, event))


def note(
    connection: Connection,
    namespace: str,
    now_ms: int,
    action: str,
    entity_id: str,
    principal: str | None,
    resource: str | None = None,
    **details: Any,
) -> None:
    """The change made in this transaction is in the audit."""
    event = audit_event(now_ms, action, entity_id, principal, resource, **details)
    append(connection, namespace, event)
