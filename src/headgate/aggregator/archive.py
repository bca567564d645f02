"""The archive of audit events: what expires in the table becomes a line of a file in S3.

    audit/namespace={id}/year={yyyy}/month={mm}/day={dd}/{first}-{last}-{digest}.jsonl.gz

The day is the event's own. An object is named after the stream records it holds and its bytes
depend on nothing else, so a batch that is delivered again writes the same object again. Where
batches overlap, an event is in two objects; readers take it once, by its id.
"""

from __future__ import annotations

import datetime
import gzip
import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from headgate.aggregator.objects import Objects
from headgate.aggregator.records import Expired
from headgate.desk import parse_page
from headgate.errors import Damaged
from headgate.history import DAY_MS, AuditEvent, event_time_ms
from headgate.names import parse_namespace_id

SHEET_BYTES_MAX = 64 * 1024 * 1024  # a batch of a stream has a tenth of that
OBJECTS_MAX = 100_000  # looked through for one question
LINE_FIELDS = ("event_id", "timestamp", "action", "entity_id", "principal", "resource", "details")


class Sheet(NamedTuple):
    """An object of the archive, and which stream records it holds."""

    name: str
    body: bytes
    sequences: tuple[int, ...]


def sheets_of(expired: Iterable[Expired]) -> list[Sheet]:
    """One object per namespace and day."""
    days: dict[str, dict[int, Expired]] = {}
    for one in expired:
        folder = f"{_home(one.namespace)}{_day_folder(event_time_ms(one.event))}"
        days.setdefault(folder, {})[one.sequence] = one
    return [_sheet(folder, [held[at] for at in sorted(held)]) for folder, held in days.items()]


def _sheet(folder: str, held: Sequence[Expired]) -> Sheet:
    sequences = tuple(one.sequence for one in held)
    digest = hashlib.sha256(" ".join(map(str, sequences)).encode()).hexdigest()[:12]
    name = f"{folder}{sequences[0]}-{sequences[-1]}-{digest}.jsonl.gz"
    lines = "".join(f"{_line(one)}\n" for one in held)
    return Sheet(name, gzip.compress(lines.encode(), mtime=0), sequences)


def _line(one: Expired) -> str:
    fields = {name: getattr(one.event, name) for name in LINE_FIELDS}
    fields["details"] = dict(one.event.details)
    return json.dumps({"namespace": one.namespace, **fields}, separators=(",", ":"))


async def read_archived(
    objects: Objects,
    namespace: str,
    *,
    entity_id: str | None = None,
    start_ms: int | None = None,
    end_ms: int | None = None,
    before: str | None = None,
    limit: int = 100,
) -> list[AuditEvent]:
    """Archived events, newest first, each once: of one subject if named, from `start_ms` until
    before `end_ms`, older than the event `before`. It reads day by day, no further than needed."""
    parse_namespace_id(namespace)
    parse_page(limit)
    days: dict[str, list[str]] = {}
    for name in await objects.names(_home(namespace), OBJECTS_MAX):
        day = name.rpartition("/")[0].removeprefix(_home(namespace))
        if name.endswith(".jsonl.gz") and _may_hold(day, start_ms, end_ms):
            days.setdefault(day, []).append(name)
    found: list[AuditEvent] = []
    for day in sorted(days, reverse=True):
        events: dict[str, AuditEvent] = {}
        for name in days[day]:
            held = events_in(name, await objects.get(name))
            events.update((event.event_id, event) for event in held)
        found += [
            events[event_id]
            for event_id in sorted(events, reverse=True)
            if entity_id in (None, events[event_id].entity_id)
            and (before is None or event_id < before)
            and _is_within(events[event_id], start_ms, end_ms)
        ]
        if len(found) >= limit:
            break
    return found[:limit]


def events_in(name: str, body: bytes) -> list[AuditEvent]:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as packed:
            text = packed.read(SHEET_BYTES_MAX + 1)
        if len(text) > SHEET_BYTES_MAX:
            raise ValueError(f"it holds more than {SHEET_BYTES_MAX} bytes")
        return [_event(json.loads(line)) for line in text.decode().splitlines()]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise Damaged(
            f"the archive's object {name} cannot be read ({error!r}); it was written by something "
            f"else, or is cut short: move it out of the archive"
        ) from error


def _event(fields: dict[str, Any]) -> AuditEvent:
    return AuditEvent(*(fields[name] for name in LINE_FIELDS))


def _home(namespace: str) -> str:
    return f"audit/namespace={namespace}/"


def _day_folder(time_ms: int) -> str:
    day = datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC)
    return f"year={day.year:04d}/month={day.month:02d}/day={day.day:02d}/"


def _may_hold(day: str, start_ms: int | None, end_ms: int | None) -> bool:
    parts = [part.partition("=")[2] for part in day.split("/")]
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        return False
    try:
        date = datetime.datetime(*map(int, parts), tzinfo=datetime.UTC)  # type: ignore[arg-type,misc]
    except ValueError:
        return False
    begin_ms = int(date.timestamp()) * 1000
    after = start_ms is None or begin_ms + DAY_MS > start_ms
    return after and (end_ms is None or begin_ms < end_ms)


def _is_within(event: AuditEvent, start_ms: int | None, end_ms: int | None) -> bool:
    at_ms = event_time_ms(event)
    return (start_ms is None or at_ms >= start_ms) and (end_ms is None or at_ms < end_ms)
