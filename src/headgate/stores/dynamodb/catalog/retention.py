"""How long history is kept: as the URL says, else as the table's own record says, else long.

`headgate deploy` notes the stack's options in the table's version record. Whoever opens the table
reads that record anyway; a process that runs for long looks again now and then, so a changed
option reaches it without a restart. What was written before keeps the end it was given.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from headgate.core.history import DAY_MS, WINDOW_TYPES
from headgate.stores.dynamodb.catalog.items import NOTES, RECORD, Item, Key, json_of

AUDIT_DAYS, USAGE_DAYS = "audit_retention_days", "usage_retention_days"
USAGE_WINDOWS = "snapshot_windows"

AUDIT_KEPT_MS = 400 * DAY_MS
USAGE_KEPT_MS = {"hourly": 100 * DAY_MS, "daily": 800 * DAY_MS, "monthly": 3700 * DAY_MS}
DAYS_MAX = 36_500
REFRESH_MS = 300_000

Get = Callable[[Key], Awaitable[Item | None]]


class RetentionPeriods(NamedTuple):
    """For how long; a window type that `usage_ms` does not name is not kept at all."""

    audit_ms: int = AUDIT_KEPT_MS
    usage_ms: Mapping[str, int] = USAGE_KEPT_MS


class Retention:
    """The periods of one table. What the URL gave goes before what the table's record says."""

    def __init__(self, audit_days: int | None = None, usage_days: int | None = None) -> None:
        self._audit_days = audit_days
        self._usage_days = usage_days
        self._kept: RetentionPeriods | None = None
        self._read_ms = 0

    async def periods(self, get: Get, now_ms: int) -> RetentionPeriods:
        """What holds now; the record is read where nobody has done so for a while."""
        for key in self.due(now_ms):
            return self.learn(await get(key) or {}, now_ms)
        assert self._kept is not None
        return self._kept

    def due(self, now_ms: int) -> tuple[Key, ...]:
        """The record's key where it is to be read, for whoever reads something anyway."""
        fresh = self._kept is not None and now_ms - self._read_ms < REFRESH_MS
        return () if fresh else (RECORD,)

    def learn(self, record: Item, now_ms: int) -> RetentionPeriods:
        """What the table's version record says, below what the URL said."""
        notes = json_of(record, NOTES, {})
        audit_days = self._audit_days or _days(notes, AUDIT_DAYS)
        usage_days = self._usage_days or _days(notes, USAGE_DAYS)
        usage_ms = USAGE_KEPT_MS
        if usage_days is not None:
            usage_ms = dict.fromkeys(WINDOW_TYPES, usage_days * DAY_MS)
        self._kept = RetentionPeriods(
            AUDIT_KEPT_MS if audit_days is None else audit_days * DAY_MS,
            {window: usage_ms[window] for window in _windows(notes)},
        )
        self._read_ms = now_ms
        return self._kept


def _days(notes: Mapping[str, Any], name: str) -> int | None:
    """None for what nobody noted, and for what is no number of days."""
    found = notes.get(name)
    return found if type(found) is int and 0 < found <= DAYS_MAX else None


def _windows(notes: Mapping[str, Any]) -> tuple[str, ...]:
    noted = notes.get(USAGE_WINDOWS)
    found = set(noted.split(",")) if isinstance(noted, str) else set()
    return tuple(one for one in WINDOW_TYPES if one in found) or WINDOW_TYPES
