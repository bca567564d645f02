"""Usage as the scripts count it, and as it is asked for.

A row is a hash of one bucket and one month, with fields `hour:limit` (net millitokens) and `hour:`
(admitted demands). Every window lies within one month, so each row yields its windows alone.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headgate.core.errors import ValidationError
from headgate.core.history import (
    WINDOW_TYPES,
    Usage,
    UsageQuery,
    UsageSnapshot,
    snapshot,
    window_around,
)
from headgate.core.limits__names import SEPARATOR
from headgate.core.record import HOUR_MS, BucketKey
from headgate.stores.redis import keys

MONTH_MS_MAX = 31 * 24 * HOUR_MS
CURSOR_BASE = 10**14  # cursors sort newest first, as the pages do


@dataclass(slots=True)
class Window:
    """What a row says of one window."""

    counters_milli: dict[str, int] = field(default_factory=dict)
    events: int = 0


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
    year, place = divmod(month, 12)
    days = _days_before_year(year) - _days_before_year(1970)
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    lengths = (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30)
    return (days + sum(lengths[:place])) * 24 * HOUR_MS


def month_of(time_ms: int) -> int:
    """The month of a moment, counted from January of year 0."""
    moment = datetime.datetime.fromtimestamp(time_ms // 1000, datetime.UTC)
    return moment.year * 12 + moment.month - 1


def fields_of(usage: Usage) -> list[str | int]:
    """An hour's fields and what to add to each, in turn."""
    stem = f"{usage.window_start_ms // HOUR_MS}:"
    found: list[str | int] = [stem, usage.events]
    for limit, milli in usage.counters_milli.items():
        found += (stem + limit, milli)
    return found


def windows(fields: Sequence[str], window_types: Sequence[str]) -> Iterator[Usage]:
    """What a row (fields and values in turn) says of each window in which something happened."""
    found: dict[tuple[str, int], Window] = {}
    for name, value in zip(fields[0::2], fields[1::2], strict=True):
        hour, _, limit = name.partition(":")
        for window_type in window_types:
            start_ms, _ = window_around(window_type, int(hour) * HOUR_MS)
            window = found.setdefault((window_type, start_ms), Window())
            if limit:
                counted = window.counters_milli.get(limit, 0)
                window.counters_milli[limit] = counted + int(value)
            else:
                window.events += int(value)
    for (window_type, start_ms), window in found.items():
        counters = {limit: milli for limit, milli in window.counters_milli.items() if milli}
        if counters or window.events:
            yield Usage(window_type, start_ms, counters, window.events)


def asked(rows: Mapping[str, Sequence[str]], query: UsageQuery) -> list[tuple[str, UsageSnapshot]]:
    """The snapshots a query is about, each with its cursor, in the order of pages."""
    types = WINDOW_TYPES if query.window_type is None else (query.window_type,)
    found = []
    for row, fields in rows.items():
        key, _ = keys.usage_parts(row)
        for usage in windows(fields, types):
            cursor = _cursor(key, usage)
            if _within(usage, query) and (query.cursor is None or cursor > query.cursor):
                found.append((cursor, snapshot(key.entity_id, key.resource, usage)))
    return sorted(found, key=lambda pair: pair[0])


def check_cursor(text: str | None) -> None:
    if text is None:
        return
    parts = text.split(SEPARATOR)
    if len(parts) != 4 or not (parts[0].isascii() and parts[0].isdigit()):
        raise ValidationError("cursor", text, "is not one that a usage query returned")


def _within(usage: Usage, query: UsageQuery) -> bool:
    return (query.start_ms is None or usage.window_start_ms >= query.start_ms) and (
        query.end_ms is None or usage.window_start_ms < query.end_ms
    )


def _cursor(key: BucketKey, usage: Usage) -> str:
    start = f"{CURSOR_BASE - usage.window_start_ms:015d}"
    return SEPARATOR.join((start, usage.window_type, key.entity_id, key.resource))


def _days_before_year(year: int) -> int:
    before = year - 1
    return 365 * year + before // 4 - before // 100 + before // 400
