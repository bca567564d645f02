"""Usage and audit history in Redis: hashes that the decisions count in, and streams."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from headgate.core.history import (
    WINDOW_TYPES,
    AuditEvent,
    UsageQuery,
    UsageSnapshot,
    WindowUsage,
    event_border,
    parse_usage_cursor,
    snapshot,
    usage_cursor,
    window_around,
)
from headgate.core.levels import Page
from headgate.core.limits import SEPARATOR
from headgate.core.record import HOUR_MS, BucketKey
from headgate.stores.records import RecordsChanged
from headgate.stores.redis import keys
from headgate.stores.redis.client.calls import RedisPort
from headgate.stores.redis.documents import (
    LOG_IS_WHOLE,
    CommitGuard,
    commit,
    event_from_entry,
    event_from_text,
    event_writes,
    log_entry,
    read,
)
from headgate.stores.redis.encoding import ONES, TOKEN_MILLI, hour_args
from headgate.stores.redis.scripts import load_script, matching_keys, on_all

# --------------------------------------------------------------------------------------------------
# Usage as the scripts count it, and as it is asked for.
#
# A row is a hash of one bucket and one month, with fields `hour:limit` (net millitokens) and
# `hour:` (admitted demands), and `hour:>limit` and `hour:>` for the part that came by cascade.
# `hour:!limit#limit` counts demands of one token of each of its limits, besides: the usual demand
# costs the server one addition instead of one more than it has limits.
# Every window lies within one month, so each row yields its windows alone.

CASCADED = ">"  # no limit's name begins with it

MONTH_MS_MAX = 31 * 24 * HOUR_MS


def may_hold(row: str, query: UsageQuery) -> bool:
    """Whether the row's name lets it answer the query."""
    key, month = keys.usage_parts(row)
    start_ms = month_start_ms(month)
    return (
        query.resource in (None, key.resource)
        and (query.end_ms is None or start_ms < query.end_ms)
        and (query.start_ms is None or start_ms + MONTH_MS_MAX > query.start_ms)
    )


def month_start_ms(month: int) -> int:
    """When the month begins that is so many after January of year 0."""
    moment = datetime.datetime(month // 12, month % 12 + 1, 1, tzinfo=datetime.UTC)
    return int(moment.timestamp()) * 1000


def windows(fields: Sequence[str], window_types: Sequence[str]) -> Iterator[WindowUsage]:
    """What a row (fields and values in turn) says of each window in which something happened."""
    found: dict[tuple[str, int], Counter[str]] = {}
    for name, value in zip(fields[0::2], fields[1::2], strict=True):
        hour, _, limit = name.partition(":")
        for window_type in window_types:
            start_ms, _ = window_around(window_type, int(hour) * HOUR_MS)
            counted = found.setdefault((window_type, start_ms), Counter())
            if limit.startswith(ONES):
                counted[""] += int(value)
                for one in limit.removeprefix(ONES).split(SEPARATOR):
                    counted[one] += TOKEN_MILLI * int(value)
            else:
                counted[limit] += int(value)
    for (window_type, start_ms), counted in found.items():
        events = counted.pop("", 0)
        cascaded_events = counted.pop(CASCADED, 0)
        used: dict[str, int] = {}
        cascaded: dict[str, int] = {}
        for limit, milli in counted.items():
            if milli:
                through = limit.startswith(CASCADED)
                (cascaded if through else used)[limit.removeprefix(CASCADED)] = milli
        if used or events or cascaded:
            yield WindowUsage(window_type, start_ms, used, events, cascaded, cascaded_events)


def matching_usage(
    rows: Mapping[str, Sequence[str]], query: UsageQuery
) -> list[tuple[str, UsageSnapshot]]:
    """The snapshots a query is about, each with its cursor, in the order of pages."""
    types = WINDOW_TYPES if query.window_type is None else (query.window_type,)
    found = []
    for row, fields in rows.items():
        key, _ = keys.usage_parts(row)
        for usage in windows(fields, types):
            cursor = usage_cursor(
                usage.window_start_ms, usage.window_type, key.entity_id, key.resource
            )
            if (
                (query.start_ms is None or usage.window_start_ms >= query.start_ms)
                and (query.end_ms is None or usage.window_start_ms < query.end_ms)
                and (query.cursor is None or cursor > query.cursor)
            ):
                found.append((cursor, snapshot(key.entity_id, key.resource, usage)))
    return sorted(found, key=lambda pair: pair[0])


ADD_USAGE = load_script("catalog_add_usage")
ROWS = load_script("catalog_rows")
TRIM_USAGE = load_script("catalog_trim_usage")
TRIM_AUDIT = load_script("catalog_trim_audit")
ROWS_PER_BATCH = 8  # a row of a busy month has thousands of fields
EVENTS_PER_BATCH = 500
UNVERSIONED = "0"


class RedisLedger:
    """Usage of one entity is found by its index; of all, by a walk over every key."""

    def __init__(self, port: RedisPort) -> None:
        self._port = port

    async def append(self, namespace: str, event: AuditEvent) -> None:
        home, writes = keys.head(namespace), event_writes(namespace, event, UNVERSIONED)
        await commit(self._port, home, [], writes, moves=False)

    async def add_usage(
        self, namespace: str, entity_id: str, resource: str, usages: Iterable[WindowUsage]
    ) -> None:
        """Adds hours that were counted elsewhere; days and months are made of them."""
        prefix = keys.usage(BucketKey(namespace, entity_id, resource))
        rows = keys.usage_index(namespace, entity_id)
        for usage in usages:
            if usage.window_type == "hourly":
                _, month, stem = hour_args(usage.window_start_ms)
                added: list[str | int] = [stem, usage.events]
                for limit, milli in usage.counters_milli.items():
                    added += (stem + limit, milli)
                for limit, milli in usage.cascaded_milli.items():
                    added += (stem + CASCADED + limit, milli)
                if usage.cascaded_events:
                    added += (stem + CASCADED, usage.cascaded_events)
                await self._port.script(ADD_USAGE, [f"{prefix}{month}", rows], added)

    async def audit(
        self, namespace: str, entity_id: str | None, *, limit: int, before: str | None
    ) -> list[AuditEvent]:
        """Of everybody in one or two calls; of one subject a later page walks over those before it,
        a batch at a time."""
        if entity_id is None:
            return await self._log(namespace, limit, before)
        stream = keys.audit(namespace, entity_id)
        batch_size = limit if before is None else max(limit, EVENTS_PER_BATCH)
        found: list[AuditEvent] = []
        until = "+"
        while len(found) < limit:
            entries = await self._port.command("XREVRANGE", stream, until, "-", "COUNT", batch_size)
            found += [
                event_from_text(fields[1], entity_id, fields[3])
                for _, fields in entries
                if before is None or fields[1] < before
            ]
            if len(entries) < batch_size:
                break
            until = "(" + entries[-1][0]
        return found[:limit]

    async def _log(self, namespace: str, limit: int, before: str | None) -> list[AuditEvent]:
        [is_whole] = await read(self._port, ("HGET", keys.head(namespace), LOG_IS_WHOLE))
        if not is_whole:
            await self._fill_log(namespace)
        end = "+" if before is None else f"({before}"
        span = (keys.log(namespace), end, "-", "LIMIT", 0, limit)
        entries = await self._port.command("ZREVRANGEBYLEX", *span)
        return [event_from_entry(entry) for entry in entries]

    async def _fill_log(self, namespace: str) -> None:
        """The log has the events of before there was one; once per namespace.

        An entry is the same text whoever makes it, so several may do this at once.
        """
        log = keys.log(namespace)
        for stream in await matching_keys(self._port, keys.audit(namespace, "*")):
            start, audit_id = "-", keys.audit_id(stream)
            while start:
                entries = await self._port.command(
                    "XRANGE", stream, start, "+", "COUNT", EVENTS_PER_BATCH
                )
                members = [log_entry(fields[1], audit_id, fields[3]) for _, fields in entries]
                if members:
                    added = [part for member in members for part in (0, member)]
                    await self._port.command("ZADD", log, *added)
                start = f"({entries[-1][0]}" if len(entries) == EVENTS_PER_BATCH else ""
        home = keys.head(namespace)
        marked = ("HSET", home, LOG_IS_WHOLE, 1)
        found: CommitGuard = ("active", ("HGET", home, "state"))
        with suppress(RecordsChanged):  # a namespace that is deleted is filled again next time
            await commit(self._port, home, [found], [marked], moves=False)

    async def usage(self, namespace: str, query: UsageQuery, now_ms: int | None) -> Page:
        if query.cursor is not None:
            parse_usage_cursor(query.cursor)
        names = [
            name
            for name in await self._row_names(namespace, query.entity_id)
            if may_hold(name, query)
        ]
        found = matching_usage(await self._rows(names), query)
        items = tuple(shot for _, shot in found[: query.limit])
        return Page(items, found[query.limit - 1][0] if len(found) > query.limit else None)

    async def trim(self, *, usage_before_ms: int, audit_before_ms: int) -> int:
        """Hours of usage and audit events from before; days and months keep what is left."""
        gone = await self._trim_usage(usage_before_ms)
        for stream in await matching_keys(self._port, keys.EVERY_AUDIT):
            gone += await self._trim_audit(stream, audit_before_ms)
        for log in await matching_keys(self._port, keys.EVERY_LOG):
            border = f"({event_border(audit_before_ms)}"
            await self._port.command("ZREMRANGEBYLEX", log, "-", border)
        return gone

    async def _row_names(self, namespace: str, entity_id: str | None) -> list[str]:
        if entity_id is None:
            return await matching_keys(self._port, keys.usage_of_namespace(namespace))
        return sorted(await self._port.command("SMEMBERS", keys.usage_index(namespace, entity_id)))

    async def _rows(self, names: Sequence[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for batch, rows in await on_all(self._port, ROWS, names, batch_size=ROWS_PER_BATCH):
            found.update(zip(batch, rows, strict=True))
        return found

    async def _trim_usage(self, before_ms: int) -> int:
        first_hour = -(-before_ms // HOUR_MS)  # ceil: an hour that began before the border goes
        old = [
            name
            for name in await matching_keys(self._port, keys.EVERY_USAGE)
            if month_start_ms(keys.usage_parts(name)[1]) < before_ms
        ]
        trimmed = await on_all(
            self._port, TRIM_USAGE, old, (first_hour,), batch_size=ROWS_PER_BATCH
        )
        return sum(hours for _, hours in trimmed)

    async def _trim_audit(self, stream: str, before_ms: int) -> int:
        gone, start = 0, "-"
        while start:
            count, start = await self._port.script(
                TRIM_AUDIT, [stream], (before_ms, start, EVENTS_PER_BATCH)
            )
            gone += count
        return gone
