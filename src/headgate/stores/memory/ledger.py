"""Usage and audit history in memory; the oldest rows make room."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from heapq import nlargest
from itertools import islice

from headgate.core.history import (
    AuditEvent,
    UsageQuery,
    UsageSnapshot,
    WindowUsage,
    add_counters,
    event_time_ms,
    has_uncounted_usage,
    snapshot,
    usage_cursor,
    usage_of,
)
from headgate.core.levels import Page
from headgate.core.record import BucketKey, Record

USAGE_ROWS_MAX = 200_000
AUDIT_EVENTS_MAX = 100_000

Live = Callable[[str, str | None, str | None, int | None], None]
UsageKey = tuple[int, str, str, str, str]  # start, type, namespace, entity, resource
Entry = tuple[str, AuditEvent]  # of the audit: its namespace, and what happened there


class UsageTotal:
    """Counters and events, and the part of both that came by cascade: None where nothing did."""

    __slots__ = ("cascaded", "cascaded_events", "counters", "events")

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        self.events = 0
        self.cascaded: dict[str, int] | None = None
        self.cascaded_events = 0


class MemoryLedger:
    """`live` asks the buckets for what history does not hold yet."""

    def __init__(self, *, usage_rows_max: int = USAGE_ROWS_MAX) -> None:
        self._usage_rows_max = usage_rows_max  # 0: no usage is kept
        self.live: Live = lambda namespace, entity_id, resource, now_ms: None
        self._usage: dict[UsageKey, UsageTotal] = {}
        self._audit: deque[Entry] = deque(maxlen=AUDIT_EVENTS_MAX)
        self._lock = threading.RLock()

    def count(self, key: BucketKey, record: Record) -> None:
        """Adds what the record consumed since it was last counted."""
        if self._usage_rows_max and has_uncounted_usage(record):
            self._add(key, usage_of(record))

    async def add_usage(
        self, namespace: str, entity_id: str, resource: str, usages: Iterable[WindowUsage]
    ) -> None:
        """Adds what was counted elsewhere."""
        self._add(BucketKey(namespace, entity_id, resource), usages)

    def _add(self, key: BucketKey, usages: Iterable[WindowUsage]) -> None:
        with self._lock:
            for usage in usages:
                row = (
                    usage.window_start_ms, usage.window_type,
                    key.namespace, key.entity_id, key.resource,
                )  # fmt: skip
                total = self._usage.get(row) or self._usage.setdefault(row, UsageTotal())
                # Added in place: garbage that is collected in the middle may end a lease on this
                # thread, and so come in here again.
                total.events += usage.events
                total.cascaded_events += usage.cascaded_events
                add_counters(total.counters, usage.counters_milli)
                if usage.cascaded_milli:
                    if total.cascaded is None:
                        total.cascaded = {}
                    add_counters(total.cascaded, usage.cascaded_milli)
            if len(self._usage) > self._usage_rows_max:
                # many at once: the head of a dict is slow to find while it is full of holes
                for old in list(islice(self._usage, max(1, self._usage_rows_max // 16))):
                    self._usage.pop(old, None)

    async def append(self, namespace: str, event: AuditEvent) -> None:
        with self._lock:
            self._audit.append((namespace, event))

    async def audit(
        self, namespace: str, entity_id: str | None, *, limit: int, before: str | None
    ) -> list[AuditEvent]:
        with self._lock:
            events = list(self._audit)
        found = (
            event
            for where, event in events
            if where == namespace
            and entity_id in (None, event.entity_id)
            and (before is None or event.event_id < before)
        )
        return nlargest(limit, found, key=lambda event: event.event_id)

    async def usage(self, namespace: str, query: UsageQuery, now_ms: int | None) -> Page:
        self.live(namespace, query.entity_id, query.resource, now_ms)
        with self._lock:
            rows = sorted(
                (row for row in list(self._usage) if _is_in_query(row, namespace, query)),
                key=_cursor,
            )
            if query.cursor is not None:
                rows = [row for row in rows if _cursor(row) > query.cursor]
            page = rows[: query.limit]
            items = tuple(_snapshot(row, self._usage[row]) for row in page)
        return Page(items, _cursor(page[-1]) if len(rows) > query.limit else None)

    async def trim(self, *, usage_before_ms: int, audit_before_ms: int) -> int:
        return self._drop(
            lambda row: row[0] < usage_before_ms,
            lambda entry: event_time_ms(entry[1]) < audit_before_ms,
        )

    def clear(self) -> None:
        with self._lock:
            self._usage.clear()
            self._audit.clear()

    def drop_namespace(self, namespace: str) -> int:
        return self._drop(lambda row: row[2] == namespace, lambda entry: entry[0] == namespace)

    def _drop(self, is_old: Callable[[UsageKey], bool], is_past: Callable[[Entry], bool]) -> int:
        with self._lock:
            rows = [row for row in list(self._usage) if is_old(row)]
            for row in rows:
                self._usage.pop(row, None)
            events = [entry for entry in self._audit if not is_past(entry)]
            gone = len(rows) + len(self._audit) - len(events)
            self._audit = deque(events, maxlen=AUDIT_EVENTS_MAX)
        return gone


def _is_in_query(row: UsageKey, namespace: str, query: UsageQuery) -> bool:
    start_ms, window_type, where, entity_id, resource = row
    return (
        where == namespace
        and query.entity_id in (None, entity_id)
        and query.resource in (None, resource)
        and query.window_type in (None, window_type)
        and (query.start_ms is None or start_ms >= query.start_ms)
        and (query.end_ms is None or start_ms < query.end_ms)
    )


def _snapshot(row: UsageKey, total: UsageTotal) -> UsageSnapshot:
    start_ms, window_type, _, entity_id, resource = row
    usage = WindowUsage(
        window_type, start_ms, total.counters, total.events, total.cascaded or {},
        total.cascaded_events,
    )  # fmt: skip
    return snapshot(entity_id, resource, usage)


def _cursor(row: UsageKey) -> str:
    return usage_cursor(row[0], row[1], row[3], row[4])
