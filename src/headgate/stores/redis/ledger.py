"""Usage and audit history in Redis: hashes that the decisions count in, and streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headgate.core.history import AuditEvent, Usage, UsageQuery
from headgate.core.levels__entities import Page
from headgate.core.record import HOUR_MS, BucketKey
from headgate.stores.redis import keys__catalog_keys as keys
from headgate.stores.redis import ledger__usage_rows as usage_rows
from headgate.stores.redis import scripts__scan as scan
from headgate.stores.redis.catalog_steps import AUDIT_EVENTS_MAX
from headgate.stores.redis.catalog_text import event_as_text, event_from_text
from headgate.stores.redis.client.port import Port
from headgate.stores.redis.keys import usage as usage_prefix
from headgate.stores.redis.keys import usage_index, usage_parts
from headgate.stores.redis.scripts import load_script

ADD_USAGE = load_script("catalog_add_usage")
ROWS = load_script("catalog_rows")
TRIM_USAGE = load_script("catalog_trim_usage")
TRIM_AUDIT = load_script("catalog_trim_audit")
ROWS_BITE = 8  # a row of a busy month has thousands of fields
EVENTS_BITE = 500
UNVERSIONED = "0"


class RedisLedger:
    """Usage of one entity is found by its index; of all, by a walk over every key."""

    def __init__(self, port: Port) -> None:
        self._port = port

    async def append(self, namespace: str, event: AuditEvent) -> None:
        bound = ("MAXLEN", "~", AUDIT_EVENTS_MAX)
        fields = ("id", event.event_id, "body", event_as_text(event, UNVERSIONED))
        stream = keys.audit(namespace, event.entity_id)
        await self._port.command("XADD", stream, *bound, "*", *fields)

    async def add_usage(
        self, namespace: str, entity_id: str, resource: str, usages: Iterable[Usage]
    ) -> None:
        """Adds hours that were counted elsewhere; days and months are made of them."""
        prefix = usage_prefix(BucketKey(namespace, entity_id, resource))
        rows = usage_index(namespace, entity_id)
        for usage in usages:
            if usage.window_type == "hourly":
                row = f"{prefix}{usage_rows.month_of(usage.window_start_ms)}"
                fields = usage_rows.fields_of(usage)
                await self._port.script(ADD_USAGE, [row, rows], fields)

    async def audit(
        self, namespace: str, entity_id: str, *, limit: int, before: str | None
    ) -> list[AuditEvent]:
        """Newest first; a later page walks over the pages before it, a bite at a time."""
        stream = keys.audit(namespace, entity_id)
        bite = limit if before is None else max(limit, EVENTS_BITE)
        found: list[AuditEvent] = []
        until = "+"
        while len(found) < limit:
            entries = await self._port.command("XREVRANGE", stream, until, "-", "COUNT", bite)
            found += [
                event_from_text(fields[1], entity_id, fields[3])
                for _, fields in entries
                if before is None or fields[1] < before
            ]
            if len(entries) < bite:
                break
            until = "(" + entries[-1][0]
        return found[:limit]

    async def usage(self, namespace: str, query: UsageQuery, now_ms: int | None) -> Page:
        usage_rows.check_cursor(query.cursor)
        names = [
            name
            for name in await self._row_names(namespace, query.entity_id)
            if usage_rows.may_hold(name, query)
        ]
        found = usage_rows.asked(await self._rows(names), query)
        items = tuple(shot for _, shot in found[: query.limit])
        return Page(items, found[query.limit - 1][0] if len(found) > query.limit else None)

    async def trim(self, *, usage_before_ms: int, audit_before_ms: int) -> int:
        """Hours of usage and audit events from before; days and months keep what is left."""
        gone = await self._trim_usage(usage_before_ms)
        for stream in await scan.matching(self._port, keys.EVERY_AUDIT):
            gone += await self._trim_audit(stream, audit_before_ms)
        return gone

    async def _row_names(self, namespace: str, entity_id: str | None) -> list[str]:
        if entity_id is None:
            return await scan.matching(self._port, keys.usage_of(namespace, None))
        return sorted(await self._port.command("SMEMBERS", usage_index(namespace, entity_id)))

    async def _rows(self, names: Sequence[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for bite, rows in await scan.on_all(self._port, ROWS, names, bite=ROWS_BITE):
            found.update(zip(bite, rows, strict=True))
        return found

    async def _trim_usage(self, before_ms: int) -> int:
        first_hour = -(-before_ms // HOUR_MS)  # ceil: an hour that began before the border goes
        old = [
            name
            for name in await scan.matching(self._port, keys.EVERY_USAGE)
            if usage_rows.month_start_ms(usage_parts(name)[1]) < before_ms
        ]
        trimmed = await scan.on_all(self._port, TRIM_USAGE, old, (first_hour,), bite=ROWS_BITE)
        return sum(hours for _, hours in trimmed)

    async def _trim_audit(self, stream: str, before_ms: int) -> int:
        gone, start = 0, "-"
        while start:
            count, start = await self._port.script(
                TRIM_AUDIT, [stream], (before_ms, start, EVENTS_BITE)
            )
            gone += count
        return gone
