"""Usage and audit history in tables; usage is flushed from the buckets before it is read."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.core.history import (
    AuditEvent,
    UsageQuery,
    WindowUsage,
    parse_usage_cursor,
    snapshot,
    usage_cursor,
)
from headgate.core.levels import Page
from headgate.core.record import BucketKey
from headgate.core.runtime import Clock
from headgate.stores.sqlite.bucket_table import BucketScope, BucketTable
from headgate.stores.sqlite.connection import SqlitePort, Work, fetch, write
from headgate.stores.sqlite.rows import (
    INT64_MAX,
    SQL,
    add,
    append,
    clamp,
    event_from_row,
    usage_in_row,
)

FLUSH_BATCH = 200
TRIM_BATCH = 1000
EVENTS_END = "~"  # sorts after every event's id


class SqliteLedger:
    def __init__(self, port: SqlitePort, clock: Clock, table: BucketTable) -> None:
        self._port = port
        self._clock = clock
        self._table = table

    async def append(self, namespace: str, event: AuditEvent) -> None:
        await self._port.call(lambda connection: append(connection, namespace, event))

    async def add_usage(
        self, namespace: str, entity_id: str, resource: str, usages: Iterable[WindowUsage]
    ) -> None:
        """Adds what was counted elsewhere, in one transaction."""
        key, rows = BucketKey(namespace, entity_id, resource), list(usages)
        await self._port.call(lambda connection: add(connection, key, rows))

    async def audit(
        self, namespace: str, entity_id: str | None, *, limit: int, before: str | None
    ) -> list[AuditEvent]:
        if entity_id is None:
            values = (namespace, EVENTS_END if before is None else before, limit)
            rows = await fetch(self._port, SQL["audit_log"], values)
            return [event_from_row(row) for row in rows]
        name = "audit_page" if before is None else "audit_page_before"
        wanted = (namespace, entity_id, *(() if before is None else (before,)), limit)
        return [event_from_row(row) for row in await fetch(self._port, SQL[name], wanted)]

    async def usage(self, namespace: str, query: UsageQuery, now_ms: int | None) -> Page:
        asked = _usage_values(namespace, query)
        await self._flush(BucketScope(namespace, query.entity_id, query.resource), now_ms)
        name = "usage_page" if query.entity_id is None else "usage_page_of_entity"
        rows = await fetch(self._port, SQL[name], asked)
        page = rows[: query.limit]
        items = tuple(
            snapshot(entity_id, resource, _usage_from(start_ms, window_type, *values))
            for start_ms, window_type, entity_id, resource, *values in page
        )
        return Page(items, usage_cursor(*page[-1][:4]) if len(rows) > query.limit else None)

    async def _flush(self, scope: BucketScope, now_ms: int | None) -> None:
        """History holds all that the buckets knew; in batches, so that others get their turn."""
        counted_ms = self._clock() if now_ms is None else now_ms
        after = await self._port.call(self._flush_batch(scope, None, counted_ms))
        while after is not None:
            after = await self._port.call(self._flush_batch(scope, after, counted_ms))

    def _flush_batch(self, scope: BucketScope, after: str | None, now_ms: int) -> Work[str | None]:
        return lambda connection: self._table.flush(connection, scope, after, FLUSH_BATCH, now_ms)

    async def trim(self, *, usage_before_ms: int, audit_before_ms: int) -> int:
        gone = await self._trim("usage_trim", usage_before_ms)
        return gone + await self._trim("audit_trim", audit_before_ms)

    async def _trim(self, query: str, before_ms: int) -> int:
        total, gone = 0, TRIM_BATCH
        while gone == TRIM_BATCH:  # in batches, so that others get their turn
            gone = await write(self._port, SQL[query], (clamp(before_ms), TRIM_BATCH))
            total += gone
        return total


def _usage_from(
    start_ms: int, window_type: str, counters: str, events: int, cascaded: str | None
) -> WindowUsage:
    used, through, through_events = usage_in_row(counters, cascaded)
    return WindowUsage(window_type, start_ms, used, events, through, through_events)


def _usage_values(namespace: str, query: UsageQuery) -> dict[str, int | str | None]:
    after = (INT64_MAX, "", "", "") if query.cursor is None else parse_usage_cursor(query.cursor)
    at_ms, after_type, after_entity, after_resource = after
    return {
        "namespace": namespace,
        "entity_id": query.entity_id,
        "resource": query.resource,
        "window_type": query.window_type,
        "start_ms": clamp(-INT64_MAX if query.start_ms is None else query.start_ms),
        "last_ms": clamp(INT64_MAX if query.end_ms is None else query.end_ms - 1),
        "at_ms": at_ms,
        "after_type": after_type,
        "after_entity": after_entity,
        "after_resource": after_resource,
        "limit": query.limit + 1,
    }
