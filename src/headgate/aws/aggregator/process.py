"""Processes a batch of stream records: parses, counts and archives them, and reports failures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.aws.aggregator.archive import archive_objects
from headgate.aws.aggregator.hot_shards import ShardSplitter
from headgate.aws.aggregator.records import Change, ExpiredEvent, parse_record, sequence_text
from headgate.aws.aggregator.rows import rows_of, write_rows
from headgate.aws.aggregator.s3 import S3Objects
from headgate.core.errors import Damaged, StoreTrouble, ValidationError
from headgate.core.history import DAY_MS, WINDOW_TYPES
from headgate.stores.dynamodb.table.table import Table

# --------------------------------------------------------------------------------------------------
# The settings of the aggregator, from environment variables.

TABLE, WINDOWS, RETENTION = "HEADGATE_TABLE", "HEADGATE_WINDOWS", "HEADGATE_USAGE_RETENTION_DAYS"
ARCHIVE, SPLIT, LOG_LEVEL = "HEADGATE_ARCHIVE_BUCKET", "HEADGATE_SPLIT", "HEADGATE_LOG_LEVEL"
DAYS_MAX = 36_500
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

_TABLE = re.compile(r"[a-zA-Z0-9_.\-]{3,255}")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9]")


@dataclass(frozen=True, slots=True)
class Settings:
    table: str
    windows: tuple[str, ...] = ("hourly", "daily")
    retention_ms: int = 90 * DAY_MS
    archive_bucket: str | None = None
    split: bool = True
    log_level: str = "INFO"


def settings_from(environment: Mapping[str, str]) -> Settings:
    """The settings; a ValidationError names the variable that is wrong."""
    table = environment.get(TABLE, "")
    if not _TABLE.fullmatch(table):
        raise ValidationError(TABLE, table, "must name the table whose stream is read")
    bucket = environment.get(ARCHIVE) or None
    if bucket is not None and not _BUCKET.fullmatch(bucket):
        raise ValidationError(ARCHIVE, bucket, "is no name of an S3 bucket; leave it out for none")
    windows = [part.strip() for part in environment.get(WINDOWS, "hourly,daily").split(",")]
    return Settings(
        table,
        tuple(dict.fromkeys(_one_of(WINDOWS, window, WINDOW_TYPES) for window in windows)),
        _days(environment.get(RETENTION, "90")) * DAY_MS,
        bucket,
        _one_of(SPLIT, environment.get(SPLIT, "on"), ("on", "off")) == "on",
        _one_of(LOG_LEVEL, environment.get(LOG_LEVEL, "INFO").upper(), LEVELS),
    )


def _days(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) <= DAYS_MAX):
        raise ValidationError(RETENTION, text, f"must be whole days, 1 to {DAYS_MAX}")
    return int(text)


def _one_of(name: str, value: str, values: tuple[str, ...]) -> str:
    if value not in values:
        raise ValidationError(name, value, f"must be one of {', '.join(values)}")
    return value


Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class RecordFailure:
    """A record that was not processed; if `permanent`, trying again will not help."""

    sequence: str  # as the stream gave it; empty where it gave none
    why: str
    unreadable: bool
    permanent: bool = False


@dataclass(slots=True)
class BatchReport:
    """The outcome of a batch."""

    records: int = 0
    counted: int = 0  # changes of buckets that are in their rows now
    archived: int = 0
    rows: int = 0
    held_already: int = 0  # rows that had all of it before
    writes: int = 0  # to the table, whether or not their condition held
    splits: int = 0
    failures: list[RecordFailure] = field(default_factory=list)

    @property
    def is_relevant(self) -> bool:
        """Whether there was anything in it for this program."""
        return bool(self.counted or self.archived or self.failures)


class Aggregator:
    """Processes batches of one table's stream; a batch may come again, whole or in part."""

    def __init__(self, table: Table, settings: Settings, objects: S3Objects | None = None) -> None:
        self.table = table
        self._settings = settings
        self._objects = objects
        self._splits = ShardSplitter(table, enabled=settings.split)

    async def process(self, records: Records) -> BatchReport:
        """Every record is processed or among the failures; none stops another."""
        report = BatchReport(records=len(records))
        changes, expired, texts = _parse_records(records, report)
        await self._count(changes, texts, report)
        await self._archive(expired, texts, report)
        if self._splits.enabled:
            report.splits = await self._splits.divide(self._splits.rates.hot(changes))
        return report

    async def close(self) -> None:
        if self._objects is not None:
            await self._objects.close()
        await self.table.port.close()

    async def _count(
        self, changes: list[Change], texts: dict[int, str], report: BatchReport
    ) -> None:
        rows = rows_of(changes, self._settings.windows)
        written = await write_rows(self.table, rows, self._settings.retention_ms)
        report.rows, report.writes = written.rows, written.writes
        report.held_already = written.held_already
        report.counted = len(changes) - len(written.failed)
        report.failures += [
            RecordFailure(texts[at], written.failed[at], False, at in written.permanent)
            for at in sorted(written.failed)
        ]

    async def _archive(
        self, expired: list[ExpiredEvent], texts: dict[int, str], report: BatchReport
    ) -> None:
        if self._objects is None:
            return
        for name, body, sequences in archive_objects(expired):
            try:
                await self._objects.put(name, body)
                report.archived += len(sequences)
            except StoreTrouble as error:
                report.failures += [
                    RecordFailure(texts[at], str(error), unreadable=False) for at in sequences
                ]


def _parse_records(
    records: Records, report: BatchReport
) -> tuple[list[Change], list[ExpiredEvent], dict[int, str]]:
    """Changes and expired events, each once; a record that cannot be read is a failure."""
    found: dict[int, Change | ExpiredEvent] = {}
    texts: dict[int, str] = {}
    for record in records:
        try:
            one = parse_record(record)
        except Damaged as error:
            failure = RecordFailure(sequence_text(record), str(error), True, permanent=True)
            report.failures.append(failure)
            continue
        if one is not None:
            found[one.sequence] = one
            texts[one.sequence] = sequence_text(record)
    changes = [one for one in found.values() if isinstance(one, Change)]
    expired = [one for one in found.values() if isinstance(one, ExpiredEvent)]
    return changes, expired, texts
