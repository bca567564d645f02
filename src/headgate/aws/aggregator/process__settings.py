"""What the aggregator is told by its environment, parsed once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from headgate.core.errors import ValidationError
from headgate.core.history import DAY_MS, WINDOW_TYPES

TABLE, WINDOWS, RETENTION = "HEADGATE_TABLE", "HEADGATE_WINDOWS", "HEADGATE_USAGE_RETENTION_DAYS"
ARCHIVE, SPLIT, REFILL = "HEADGATE_ARCHIVE_BUCKET", "HEADGATE_SPLIT", "HEADGATE_REFILL"
LOG_LEVEL = "HEADGATE_LOG_LEVEL"
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
    refill: bool = False
    log_level: str = "INFO"


def settings_from(environment: Mapping[str, str]) -> Settings:
    """The settings; a ValidationError names the variable that is wrong."""
    table = environment.get(TABLE, "")
    if not _TABLE.fullmatch(table):
        raise ValidationError(TABLE, table, "must name the table whose stream is read")
    bucket = environment.get(ARCHIVE) or None
    if bucket is not None and not _BUCKET.fullmatch(bucket):
        raise ValidationError(ARCHIVE, bucket, "is no name of an S3 bucket; leave it out for none")
    return Settings(
        table,
        parse_windows(environment.get(WINDOWS, "hourly,daily")),
        _days(environment.get(RETENTION, "90")) * DAY_MS,
        bucket,
        _switch(environment, SPLIT, "on"),
        _switch(environment, REFILL, "off"),
        _one_of(LOG_LEVEL, environment.get(LOG_LEVEL, "INFO").upper(), LEVELS),
    )


def parse_windows(text: str) -> tuple[str, ...]:
    """Window types as in "hourly,daily", each once."""
    windows = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for window in windows:
        _one_of(WINDOWS, window, WINDOW_TYPES)
    return windows


def _days(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) <= DAYS_MAX):
        raise ValidationError(RETENTION, text, f"must be whole days, 1 to {DAYS_MAX}")
    return int(text)


def _switch(environment: Mapping[str, str], name: str, default: str) -> bool:
    return _one_of(name, environment.get(name, default), ("on", "off")) == "on"


def _one_of(name: str, value: str, values: tuple[str, ...]) -> str:
    if value not in values:
        raise ValidationError(name, value, f"must be one of {', '.join(values)}")
    return value
