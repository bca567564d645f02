"""Usage and audit history in the table; both expire by themselves, or are trimmed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from headgate.core.history import WINDOW_TYPES, AuditEvent, Usage, UsageQuery
from headgate.core.levels__entities import Page
from headgate.stores.dynamodb import ledger__usage as usage
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog import registry as tenants
from headgate.stores.dynamodb.catalog.items import Item, key_of
from headgate.stores.dynamodb.catalog.items__items_history import event_as_item, event_from_item
from headgate.stores.dynamodb.client.port import Request
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.table import Table

Live = Callable[[str, str | None, str | None, int | None], Awaitable[None]]


async def _nothing_live(
    namespace: str, entity_id: str | None, resource: str | None, now_ms: int | None
) -> None:
    return None


class DynamoLedger:
    """`live` asks the buckets to add what history does not hold yet, before usage is read."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.live: Live = _nothing_live

    async def add_usage(
        self, namespace: str, entity_id: str, resource: str, usages: Iterable[Usage]
    ) -> None:
        """One UpdateItem per window, all at once, each sent at most once."""
        await usage.add(self._table, namespace, entity_id, resource, usages)

    async def append(self, namespace: str, event: AuditEvent) -> None:
        kept = await self._table.kept()
        item = event_as_item(namespace, event, self._table.port.now_ms(), kept.audit_ms)
        await self._table.write(ask.put(item))

    async def audit(
        self, namespace: str, entity_id: str, *, limit: int, before: str | None
    ) -> list[AuditEvent]:
        span = ask.begins(schema.AUDIT)
        if before is not None:
            span = ask.below(schema.sk_audit(schema.clipped(before)))
        pk = schema.pk_audit(namespace, schema.clipped(entity_id))  # anybody may ask for anything
        request = ask.query(self._table.name, pk, span, forward=False, limit=limit)
        items = await self._table.every(request, limit)
        return [event_from_item(item) for item in items[:limit]]

    async def usage(self, namespace: str, query: UsageQuery, now_ms: int | None) -> Page:
        await self.live(namespace, query.entity_id, query.resource, now_ms)
        return await usage.found(self._table, namespace, query)

    async def trim(self, *, usage_before_ms: int, audit_before_ms: int) -> int:
        """Rows of every namespace, in whatever state it is."""
        gone = 0
        for namespace in await tenants.every(self._table):
            for window_type in WINDOW_TYPES:
                request = old_usage(self._table.name, namespace.id, window_type, usage_before_ms)
                gone += await self._trim(request, lambda item: True)
            pk, stem = schema.gsi4_pk(namespace.id), schema.pk_audit(namespace.id, "")
            request = ask.query(self._table.name, pk, ask.begins(stem), index=schema.GSI4)
            gone += await self._trim(request, lambda item: _event_ms(item) < audit_before_ms)
        return gone

    async def _trim(self, request: Request, is_old: Callable[[Item], bool]) -> int:
        gone, start = 0, None
        while True:
            items, start = await self._table.page(request, start)
            old = [key_of(item) for item in items if is_old(item)]
            gone += await self._table.delete_all(old)
            if start is None:
                return gone


def old_usage(table: str, namespace: str, window_type: str, before_ms: int) -> Request:
    """The rows of windows that began before a moment."""
    stem = f"{namespace}/USAGE#{window_type}#"
    low = stem + schema.newest_first(before_ms - 1)
    span = ask.between(low, stem + usage.END)
    return ask.query(table, schema.gsi4_pk(namespace), span, index=schema.GSI4)


def _event_ms(item: Item) -> int:
    """When an event happened, from its key; one that does not say is never old."""
    digits = key_of(item)[1].removeprefix(schema.AUDIT).partition("-")[0]
    return int(digits) if digits.isascii() and digits.isdigit() else 10**15
