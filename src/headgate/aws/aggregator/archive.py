"""The archive of audit events: an event that expires in the table becomes a line of a file in S3.

    audit/namespace={id}/year={yyyy}/month={mm}/day={dd}/{first}-{last}-{digest}.jsonl.gz

The day is that of the event. An object is named after the stream records it holds and its bytes
depend on nothing else, so a batch that is delivered again writes the same object again. Where
batches overlap, an event is in two objects; readers count it once, by its id.
"""

from __future__ import annotations

import datetime
import gzip
import hashlib
import io
import json
from collections.abc import Iterable, Iterator

from headgate.admin.documents import event_as_json
from headgate.admin.reports import parse_page
from headgate.aws.aggregator.records import ExpiredEvent
from headgate.aws.aggregator.s3 import S3Objects
from headgate.core.errors import Damaged
from headgate.core.history import DAY_MS, AuditEvent, AuditQuery, event_time_ms
from headgate.core.limits import parse_namespace_id

OBJECT_BYTES_MAX = 64 * 1024 * 1024  # ten times as much as a batch of a stream
OBJECTS_MAX = 100_000  # of one day
FOLDERS_MAX = 1000  # years of a namespace, months of a year, days of a month
PARTS = ("year", "month", "day")
EVERYTHING = AuditQuery()
LINE_FIELDS = ("event_id", "timestamp", "action", "entity_id", "principal", "resource", "details")


def archive_objects(expired: Iterable[ExpiredEvent]) -> Iterator[tuple[str, bytes, list[int]]]:
    """One object per namespace and day: its name, its bytes and the stream records it holds."""
    days: dict[str, dict[int, ExpiredEvent]] = {}
    for one in expired:
        day = datetime.datetime.fromtimestamp(event_time_ms(one.event) / 1000, datetime.UTC)
        folder = f"year={day.year:04d}/month={day.month:02d}/day={day.day:02d}/"
        days.setdefault(_namespace_folder(one.namespace) + folder, {})[one.sequence] = one
    for folder, held in days.items():
        sequences = sorted(held)
        digest = hashlib.sha256(" ".join(map(str, sequences)).encode()).hexdigest()[:12]
        name = f"{folder}{sequences[0]}-{sequences[-1]}-{digest}.jsonl.gz"
        events = [
            {"namespace": held[at].namespace, **event_as_json(held[at].event)} for at in sequences
        ]
        lines = "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in events)
        yield name, gzip.compress(lines.encode(), mtime=0), sequences


async def read_archived(
    objects: S3Objects,
    namespace: str,
    query: AuditQuery = EVERYTHING,
    *,
    before: str | None = None,
    limit: int = 100,
) -> list[AuditEvent]:
    """Archived events that a query is about, newest first, each once, older than the event
    `before`. It reads day by day, no further than needed."""
    parse_namespace_id(namespace)
    parse_page(limit)
    until_ms = _search_end_ms(query.end_ms, before)
    found: list[AuditEvent] = []
    todo = [(_namespace_folder(namespace), 0)]
    while todo and len(found) < limit:
        folder, depth = todo.pop()
        if depth == len(PARTS):
            found += [
                event
                for event in await _read_day(objects, folder)
                if query.matches(event) and (before is None or event.event_id < before)
            ]
            continue
        for inner in await objects.folders(folder, FOLDERS_MAX):  # the newest comes last, and next
            span = _span_ms(inner, depth)
            if span is not None and _can_overlap(span, query.start_ms, until_ms):
                todo.append((inner, depth + 1))
    return found[:limit]


async def _read_day(objects: S3Objects, folder: str) -> list[AuditEvent]:
    """The events of one day, newest first, each once."""
    events: dict[str, AuditEvent] = {}
    for name in await objects.names(folder, OBJECTS_MAX):
        if name.endswith(".jsonl.gz"):
            held = parse_events(name, await objects.get(name))
            events.update((event.event_id, event) for event in held)
    return [events[event_id] for event_id in sorted(events, reverse=True)]


def _search_end_ms(end_ms: int | None, before: str | None) -> int | None:
    """The end of the search: `end_ms`, or the time with which the id `before` begins."""
    digits = (before or "").partition("-")[0]
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 15:
        return end_ms
    until_ms = int(digits) + 1
    return until_ms if end_ms is None else min(end_ms, until_ms)


def parse_events(name: str, body: bytes) -> list[AuditEvent]:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as packed:
            text = packed.read(OBJECT_BYTES_MAX + 1)
        if len(text) > OBJECT_BYTES_MAX:
            raise ValueError(f"it holds more than {OBJECT_BYTES_MAX} bytes")
        lines = map(json.loads, text.decode().splitlines())
        return [AuditEvent(*(line[name] for name in LINE_FIELDS)) for line in lines]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise Damaged(
            f"the archive's object {name} cannot be read ({error!r}); it was written by something "
            f"else, or is cut short: move it out of the archive"
        ) from error


def _namespace_folder(namespace: str) -> str:
    return f"audit/namespace={namespace}/"


def _span_ms(folder: str, depth: int) -> tuple[int, int] | None:
    """When the year, month or day of a folder begins and ends; None if it is no such folder."""
    parts = folder.rstrip("/").split("/")[-1 - depth :]
    texts = [part.removeprefix(f"{name}=") for name, part in zip(PARTS, parts, strict=False)]
    if not all(text.isascii() and text.isdigit() and len(text) <= 4 for text in texts):
        return None
    year, month, day = (*map(int, texts), *(0,) * (2 - depth))
    try:
        begin = datetime.datetime(year, month or 1, day or 1, tzinfo=datetime.UTC)
    except ValueError:
        return None
    begin_ms = int(begin.timestamp()) * 1000
    return begin_ms, begin_ms + DAY_MS * (1 if day else 31 if month else 366)


def _can_overlap(span: tuple[int, int], start_ms: int | None, end_ms: int | None) -> bool:
    after = start_ms is None or span[1] > start_ms
    return after and (end_ms is None or span[0] < end_ms)
