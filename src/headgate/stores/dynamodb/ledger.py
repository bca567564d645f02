"""Usage and audit history in the table; both expire by themselves, or are trimmed. And what this
process has consumed that history does not hold yet."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence

from headgate.core.decision import Demand
from headgate.core.errors import PartlyApplied, StoreTrouble, Unreachable, ValidationError
from headgate.core.history import (
    WINDOW_TYPES,
    AuditEvent,
    UsageQuery,
    WindowUsage,
    add_counters,
    event_border,
    nonzero,
    windows_of_hour,
)
from headgate.core.levels import Page
from headgate.core.limits import SEPARATOR
from headgate.core.record import HOUR_MS, BucketKey
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
from headgate.stores.dynamodb.client.calls import DynamoRequest, NotApplied
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.table import Table

_log = logging.getLogger("headgate.dynamodb")

# --------------------------------------------------------------------------------------------------
# Usage rows: adding to them, and finding pages of them.
#
# The rows of one entity are read where they are, and are up to date. Those of a resource or of a
# whole namespace are found page by page in an index, which answers a moment late: it sorts each
# window type newest first, so a page is at most three short queries and a batch of its rows.

ADDS_MAX = 5  # of the rows that are left, once others of the same usage were added
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
        Trouble that may not have been applied has added to none of them.

        A window type that the table does not keep has no rows.
        """
        table = self._table
        try:
            kept_ms = (await table.periods()).usage_ms
        except Unreachable as lost:
            raise NotApplied(f"{lost}; it was a read, so nothing was changed") from lost
        now_ms = table.port.now_ms()
        requests = [
            addition(table.name, namespace, entity_id, resource, usage, now_ms, kept_ms[kind])
            for usage in usages
            if (kind := usage.window_type) in kept_ms
        ]
        if requests:
            await self._add_rows(requests)

    async def _add_rows(self, requests: Sequence[DynamoRequest]) -> None:
        """Once one of them was added, the others must be: those that certainly were not are tried
        again, or the windows of a bucket would tell different things."""
        table, has_added = self._table, False
        unknown: StoreTrouble | None = None
        for attempt in range(ADDS_MAX):
            outcomes = await table.port.call_all(requests)
            troubles = [one for one in outcomes if isinstance(one, StoreTrouble)]
            has_added = has_added or len(troubles) < len(outcomes)
            unknown = next((one for one in troubles if one.maybe_applied), unknown)
            unsent = [one for one in troubles if not one.maybe_applied]
            if not unsent:
                break
            if not has_added and unknown is None:
                raise unsent[0]
            requests = [
                request
                for request, outcome in zip(requests, outcomes, strict=True)
                if isinstance(outcome, StoreTrouble) and not outcome.maybe_applied
            ]
            unknown = PartlyApplied(unsent[0]) if attempt == ADDS_MAX - 1 else unknown
            await table.pause(attempt)
        if unknown is not None:
            raise unknown

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


# --------------------------------------------------------------------------------------------------
# What this process has consumed and usage history does not hold yet.
#
# History is kept by whoever reads the table's stream. Where nobody does, each process adds what it
# took itself: before usage is read, when it closes, and when it holds much. A process that dies
# takes with it what it had not added; the buckets themselves lose nothing.

HOURS_MAX = 2000  # of buckets held; beyond it the oldest go to history, as many as come

Add = Callable[[str, str, str, Iterable[WindowUsage]], Awaitable[None]]


# What one bucket consumed in an hour, the part of it that came by cascade, and the admitted demands
# of both.
HeldUsage = tuple[dict[str, int], dict[str, int], list[int]]


class UsageBuffer:
    """`add` tells history of some windows of a bucket."""

    def __init__(self, add: Add) -> None:
        self._add = add
        self.hours_max = HOURS_MAX
        self._lock = threading.Lock()
        self.held: dict[tuple[str, int], HeldUsage] = {}

    def count(self, demands: Sequence[Demand], now_ms: int, events: int) -> None:
        """Adds what these demands consumed."""
        for demand in demands:
            place = demand.key.text, now_ms // HOUR_MS
            amounts = demand.counted or demand.amounts
            with self._lock:
                counters, cascaded, count = self.held.setdefault(place, ({}, {}, [0, 0]))
                count[0] += events
                for spec, amount in zip(demand.terms.specs, amounts, strict=True):
                    if amount is not None:
                        counters[spec.name] = counters.get(spec.name, 0) + amount
                if demand.cascaded is not None:
                    count[1] += events if demand.is_cascaded else 0
                    add_counters(cascaded, dict(demand.cascades()))

    async def shed(self, count: int) -> None:
        """Makes room for so many more where much is held: the oldest goes to history.

        Before a decision, not after it: what was taken must be reported whatever comes of this.
        """
        if len(self.held) < self.hours_max:
            return
        oldest = list(itertools.islice(self.held, count))
        try:
            for text, hour in oldest:
                await self._send(BucketKey.from_text(text), hour)
        except StoreTrouble:  # history may lose what nobody could tell it; there is no room for it
            with self._lock:
                for place in oldest:
                    self.held.pop(place, None)

    async def flush(
        self,
        namespace: str | None = None,
        entity_id: str | None = None,
        resource: str | None = None,
        now_ms: int | None = None,  # a ledger's `live` may be told
    ) -> None:
        """All that is held of what is asked for is in history, each bit added once. What certainly
        was not added stays held, and whoever asked is told of the trouble."""
        for text, hour in list(self.held):
            key = BucketKey.from_text(text)
            if (
                namespace in (None, key.namespace)
                and entity_id in (None, key.entity_id)
                and resource in (None, key.resource)
            ):
                await self._send(key, hour)

    async def leave(self) -> None:
        """The last flush. A history that cannot be told is no trouble of whoever closes."""
        try:
            await self.flush()
        except StoreTrouble as trouble:
            lost = len(self.held) + trouble.maybe_applied
            _log.warning("usage of %d bucket hours is lost: %s", lost, trouble)

    async def _send(self, key: BucketKey, hour: int) -> None:
        with self._lock:
            held = self.held.pop((key.text, hour), None)
        if held is None:
            return
        counters, cascaded, (events, cascaded_events) = held
        used, through = nonzero(counters), nonzero(cascaded)
        if used or through or events:
            usages = windows_of_hour(hour, used, events, through, cascaded_events)
            try:
                await self._add(key.namespace, key.entity_id, key.resource, usages)
            except StoreTrouble as trouble:
                if not trouble.maybe_applied:
                    self._hold_again((key.text, hour), held)
                raise

    def _hold_again(self, place: tuple[str, int], held: HeldUsage) -> None:
        """Beside what was counted meanwhile."""
        counters, cascaded, events = held
        with self._lock:
            more, more_cascaded, more_events = self.held.setdefault(place, ({}, {}, [0, 0]))
            add_counters(more, counters)
            add_counters(more_cascaded, cascaded)
            more_events[:] = [sum(pair) for pair in zip(more_events, events, strict=True)]
