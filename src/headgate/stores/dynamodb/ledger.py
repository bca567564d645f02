"""Usage and audit history in the table; both expire by themselves, or are trimmed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from headgate.core.errors import ValidationError
from headgate.core.history import (
    WINDOW_TYPES,
    AuditEvent,
    UsageQuery,
    WindowUsage,
    event_border,
)
from headgate.core.levels import Page
from headgate.core.limits import SEPARATOR
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.items import (
    Item,
    Key,
    event_as_item,
    event_from_item,
    key_of,
    start_ms_of,
    usage_attributes,
    usage_counters,
    usage_cursor,
    usage_from_item,
    usage_key,
)
from headgate.stores.dynamodb.catalog.registry import list_namespaces
from headgate.stores.dynamodb.client.calls import DynamoRequest
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.table import Table

# --------------------------------------------------------------------------------------------------
# Usage rows: adding to them, and finding pages of them.
#
# The rows of one entity are read where they are, and are up to date. Those of a resource or of a
# whole namespace are found page by page in an index, which answers a moment late: it sorts each
# window type newest first, so a page is at most three short queries and a batch of its rows.

END = "~"  # sorts after everything a key can hold
UNORDERED_EVENTS_MAX = 50_000  # of older headgates, that a page of the audit log looks at


def addition(
    table: str,
    namespace: str,
    entity_id: str,
    resource: str,
    usage: WindowUsage,
    now_ms: int,
    kept_ms: int,
) -> DynamoRequest:
    row = ask.update(
        usage_key(namespace, entity_id, resource, usage),
        sets=usage_attributes(namespace, entity_id, resource, usage, now_ms, kept_ms),
        adds=usage_counters(usage),
    )
    return ask.single_write(table, row, credit=True)


def index_queries(table: str, namespace: str, query: UsageQuery) -> list[DynamoRequest]:
    """One per window type that can hold something of the page."""
    index, pk, stem = schema.GSI4, namespace, f"{namespace}/USAGE"
    if query.resource is not None:
        index, pk = schema.GSI2, schema.pk_resource(namespace, query.resource)
        stem = "USAGE"
    types = WINDOW_TYPES if query.window_type is None else (query.window_type,)
    spans = [(_low(f"{stem}#{one}", one, query), _high(f"{stem}#{one}", query)) for one in types]
    limit = query.limit + 2  # one more tells of a next page, one may be the cursor's own
    return [
        ask.query(table, pk, ask.between(low, high), index=index, limit=limit)
        for low, high in spans
        if low <= high
    ]


def _entity_query(table: str, namespace: str, entity_id: str, query: UsageQuery) -> DynamoRequest:
    """The rows of one entity, at least those that are asked for."""
    stem = schema.USAGE if query.resource is None else f"{schema.USAGE}{query.resource}#"
    if query.resource is not None and query.window_type is not None:
        stem += f"{query.window_type}#"
    return ask.query(table, schema.pk_entity(namespace, entity_id), ask.begins(stem))


def _page(keys: Sequence[Key], query: UsageQuery) -> tuple[list[Key], str | None]:
    placed = sorted((usage_cursor(key), key) for key in keys)
    if query.cursor is not None:
        placed = [pair for pair in placed if pair[0] > query.cursor]
    page = placed[: query.limit]
    return [key for _, key in page], page[-1][0] if len(placed) > query.limit else None


def _is_in_query(key: Key, query: UsageQuery) -> bool:
    row = schema.parse_usage_sk(key[1])
    start_ms = start_ms_of(row)
    return (
        query.window_type in (None, row.window_type)
        and (query.start_ms is None or start_ms >= query.start_ms)
        and (query.end_ms is None or start_ms < query.end_ms)
    )


def _low(stem: str, window_type: str, query: UsageQuery) -> str:
    """The newest key of a type that may be on the page: by time, and not before the cursor."""
    low = f"{stem}#"
    if query.end_ms is not None:
        low += schema.newest_first(query.end_ms - 1)
    if query.cursor is None:
        return low
    order, of_type, entity_id, resource = query.cursor.split(SEPARATOR)
    if window_type > of_type:
        return max(low, f"{stem}#{order}#")
    if window_type < of_type:
        return max(low, f"{stem}#{order}{schema.NEXT}")
    names = entity_id if query.resource is not None else f"{entity_id}#{resource}"
    return max(low, f"{stem}#{order}#{names}")


def _high(stem: str, query: UsageQuery) -> str:
    if query.start_ms is None:
        return f"{stem}#{END}"
    return f"{stem}#{schema.newest_first(query.start_ms)}#{END}"


def _check_cursor(cursor: str | None) -> None:
    if cursor is None:
        return
    parts = cursor.split(SEPARATOR)
    if len(parts) != 4 or not (parts[0].isascii() and parts[0].isdigit()) or len(cursor) > 500:
        raise ValidationError("cursor", cursor, "is not one that a usage query returned")


Live = Callable[[str, str | None, str | None, int | None], Awaitable[None]]


class DynamoLedger:
    """`live` asks the buckets to add what history does not hold yet, before usage is read."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.live: Live | None = None

    async def add_usage(
        self, namespace: str, entity_id: str, resource: str, usages: Iterable[WindowUsage]
    ) -> None:
        """Each window's row holds so much more, all at once; what got no answer is not added twice.

        A window type that the table does not keep has no rows.
        """
        table = self._table
        kept_ms, now_ms = (await table.periods()).usage_ms, table.port.now_ms()
        requests = [
            addition(table.name, namespace, entity_id, resource, usage, now_ms, kept_ms[kind])
            for usage in usages
            if (kind := usage.window_type) in kept_ms
        ]
        if requests:
            await table.together(*requests)

    async def append(self, namespace: str, event: AuditEvent) -> None:
        periods = await self._table.periods()
        item = event_as_item(namespace, event, self._table.port.now_ms(), periods.audit_ms)
        await self._table.write(ask.put(item))

    async def audit(
        self, namespace: str, entity_id: str | None, *, limit: int, before: str | None
    ) -> list[AuditEvent]:
        if entity_id is None:
            return await self._log(namespace, limit, before)
        span = ask.begins(schema.AUDIT)
        if before is not None:
            span = ask.below(schema.sk_audit(schema.clip_cursor(before)))
        pk = schema.pk_audit(
            namespace, schema.clip_cursor(entity_id)
        )  # anybody may ask for anything
        request = ask.query(self._table.name, pk, span, forward=False, limit=limit)
        items = await self._table.every(request, limit)
        return [event_from_item(item) for item in items[:limit]]

    async def _log(self, namespace: str, limit: int, before: str | None) -> list[AuditEvent]:
        """Of every subject: keys from the namespace's index, which answers a moment late, then the
        events. Some may have expired since, so the index is asked until the page is full."""
        found: list[AuditEvent] = []
        while len(found) < limit:
            wanted = limit - len(found)
            keys = await self._log_keys(namespace, wanted, before)
            items = await self._table.get_all(keys)
            found += [event_from_item(items[key]) for key in keys if key in items]
            if len(keys) < wanted:
                break
            before = schema.parse_audit_sk(keys[-1][1])
        return found

    async def _log_keys(self, namespace: str, limit: int, before: str | None) -> list[Key]:
        """The newest so many, in order. Older headgates indexed events by subject: those have no
        order there, so all of them are looked at until they have expired."""
        table, end = self._table, END if before is None else schema.clip_cursor(before)
        stem = schema.gsi4_sk_audit(namespace, "")
        span, by_subject = ask.between(stem, stem + end), ask.begins(schema.pk_audit(namespace, ""))
        requests = (
            ask.query(
                table.name, namespace, span, index=schema.GSI4, forward=False, limit=limit + 1
            ),
            ask.query(table.name, namespace, by_subject, index=schema.GSI4),
        )
        in_order, of_subjects = await table.together(*requests)
        listed = await table.rest(requests[0], in_order, limit + 1)
        listed += await table.rest(requests[1], of_subjects, UNORDERED_EVENTS_MAX)
        keys = [key_of(item) for item in listed]
        keys.sort(key=lambda key: schema.parse_audit_sk(key[1]), reverse=True)
        return [key for key in keys if before is None or schema.parse_audit_sk(key[1]) < before][
            :limit
        ]

    async def usage(self, namespace: str, query: UsageQuery, now_ms: int | None) -> Page:
        """Newest window first, then by type, entity and resource."""
        if self.live is not None:
            await self.live(namespace, query.entity_id, query.resource, now_ms)
        _check_cursor(query.cursor)
        table = self._table
        if query.entity_id is not None:
            found = await table.every(_entity_query(table.name, namespace, query.entity_id, query))
            rows = {key_of(item): item for item in found}
            keys, cursor = _page([key for key in rows if _is_in_query(key, query)], query)
        else:
            requests = index_queries(table.name, namespace, query)
            replies = await table.together(*requests) if requests else []
            listed: list[Item] = []
            for request, reply in zip(requests, replies, strict=True):
                listed += await table.rest(request, reply, query.limit + 2)
            keys, cursor = _page([key_of(item) for item in listed], query)
            rows = await table.get_all(keys)
        return Page(tuple(usage_from_item(rows[key]) for key in keys if key in rows), cursor)

    async def trim(self, *, usage_before_ms: int, audit_before_ms: int) -> int:
        """Rows of every namespace, in whatever state it is."""
        gone = 0
        for namespace in await list_namespaces(self._table):
            for window_type in WINDOW_TYPES:
                request = old_usage(self._table.name, namespace.id, window_type, usage_before_ms)
                gone += await self._trim(request, lambda item: True)
            for request in old_events(self._table.name, namespace.id, audit_before_ms):
                gone += await self._trim(request, lambda item: _event_ms(item) < audit_before_ms)
        return gone

    async def _trim(self, request: DynamoRequest, is_old: Callable[[Item], bool]) -> int:
        gone, start = 0, None
        while True:
            items, start = await self._table.page(request, start)
            old = [key_of(item) for item in items if is_old(item)]
            gone += await self._table.delete_all(old)
            if start is None:
                return gone


def old_usage(table: str, namespace: str, window_type: str, before_ms: int) -> DynamoRequest:
    """The rows of windows that began before a moment."""
    stem = f"{namespace}/USAGE#{window_type}#"
    low = stem + schema.newest_first(before_ms - 1)
    span = ask.between(low, stem + END)
    return ask.query(table, namespace, span, index=schema.GSI4)


def old_events(table: str, namespace: str, before_ms: int) -> list[DynamoRequest]:
    """The events from before a moment, and those of older headgates, which are in no order."""
    stem = schema.gsi4_sk_audit(namespace, "")
    spans = (
        ask.between(stem, stem + event_border(before_ms)),
        ask.begins(schema.pk_audit(namespace, "")),
    )
    return [ask.query(table, namespace, span, index=schema.GSI4) for span in spans]


def _event_ms(item: Item) -> int:
    """When an event happened, from its key; one that does not say is never old."""
    digits = key_of(item)[1].removeprefix(schema.AUDIT).partition("-")[0]
    return int(digits) if digits.isascii() and digits.isdigit() else 10**15
