"""What a ledger holds: usage per window and audit events."""

from __future__ import annotations

import datetime
import itertools
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.core.errors import ValidationError
from headgate.core.limits import SEPARATOR, parse_config_resource, parse_entity_id, parse_resource
from headgate.core.record import (
    CASCADED,
    CELLS,
    CONSUMED,
    COUNTED,
    EVENTS,
    HOUR,
    HOUR_MS,
    STRIDE,
    TERMS,
    Record,
    after_clock_step,
)
from headgate.core.refill.bucket import MILLI
from headgate.core.refill.resets import Resets

WINDOW_TYPES = ("hourly", "daily", "monthly")
DAY_MS = 24 * HOUR_MS
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
TIME_MS_MAX = 253_402_300_799_999  # the last moment of the year 9999

_sequence = itertools.count()


@dataclass(frozen=True, slots=True)
class UsageSnapshot:
    """Net consumption of one entity on one resource in one window, in whole tokens.

    `counters` and `total_events` are all that its bucket consumed. The part of them that came by
    cascade is `from_children`: what its children, and theirs, used through it.
    """

    entity_id: str
    resource: str
    window_start: str
    window_end: str
    window_type: str
    counters: Mapping[str, int]
    total_events: int
    from_children: Mapping[str, int] = field(default_factory=dict)
    events_from_children: int = 0

    @property
    def own(self) -> dict[str, int]:
        """What was asked for the entity itself, by limit; over all entities each unit once."""
        # Where one took what the other gave back, nothing is left among the counters.
        own = dict(self.counters)
        add_counters(own, {name: -amount for name, amount in self.from_children.items()})
        return nonzero(own)

    @property
    def own_events(self) -> int:
        """Admitted demands that asked for the entity itself."""
        return self.total_events - self.events_from_children


@dataclass(frozen=True, slots=True)
class UsageSummary:
    """Totals and averages over the snapshots a query found.

    Each unit counts once, for the entity that asked for it. `from_children` is the roll-up of one
    entity: what its children, and theirs, used through it. Over several entities there is none
    (None): what cascades is in it once for every parent.
    """

    snapshot_count: int
    total: Mapping[str, int]
    average: Mapping[str, float]
    total_events: int
    min_window_start: str | None
    max_window_start: str | None
    from_children: Mapping[str, int] | None = None
    events_from_children: int | None = None


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """Which snapshots: newest window first, at most `limit`, continued by `cursor`."""

    entity_id: str | None = None
    resource: str | None = None
    window_type: str | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    limit: int = 100
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One change: who did what to whom, with what was there before and after."""

    event_id: str
    timestamp: str
    action: str
    entity_id: str
    principal: str | None
    resource: str | None
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Which events of a log: those of a subject, an action, a principal and a resource where these
    are named, from `start_ms` until before `end_ms`."""

    entity_id: str | None = None
    action: str | None = None
    principal: str | None = None
    resource: str | None = None
    start_ms: int | None = None
    end_ms: int | None = None

    def matches(self, event: AuditEvent) -> bool:
        at_ms = event_time_ms(event)
        return (
            self.entity_id in (None, event.entity_id)
            and self.action in (None, event.action)
            and self.principal in (None, event.principal)
            and self.resource in (None, event.resource)
            and (self.start_ms is None or at_ms >= self.start_ms)
            and (self.end_ms is None or at_ms < self.end_ms)
        )


@dataclass(frozen=True, slots=True)
class BucketState:
    """One limit of one bucket at one moment; `tokens_milli` is the level then.

    `reset_at_ms` is when it is full if nobody takes from it; None if never, or if it is full.
    `resets` is a quota's schedule, and `reset_at_ms` then its next reset.
    """

    entity_id: str
    resource: str
    limit_name: str
    tokens_milli: int
    last_refill_ms: int
    capacity_milli: int
    refill_amount_milli: int
    refill_period_ms: int
    total_consumed_milli: int
    resets: Resets | None = None
    reset_at_ms: int | None = None

    @property
    def available(self) -> int:
        """Whole tokens that can be taken; negative in debt."""
        return self.tokens_milli // MILLI

    @property
    def capacity(self) -> int:
        """Whole tokens that the limit holds at most."""
        return self.capacity_milli // MILLI

    @property
    def consumed(self) -> int:
        """Whole tokens that were taken so far, less those given back."""
        return self.total_consumed_milli // MILLI


@dataclass(frozen=True, slots=True)
class EntityCapacity:
    entity_id: str
    capacity: int
    available: int


@dataclass(frozen=True, slots=True)
class ResourceCapacity:
    """What one limit of a resource holds over all entities that have a bucket."""

    resource: str
    limit_name: str
    total_capacity: int
    total_available: int
    utilization_pct: float
    entities: tuple[EntityCapacity, ...]


@dataclass(frozen=True, slots=True)
class WindowUsage:
    """What one bucket consumed in one window, and the part of it that came by cascade; amounts in
    millitokens."""

    window_type: str
    window_start_ms: int
    counters_milli: Mapping[str, int]
    events: int
    cascaded_milli: Mapping[str, int] = field(default_factory=dict)
    cascaded_events: int = 0


def has_uncounted_usage(record: Record) -> bool:
    """Whether the record knows of consumption that usage history does not have yet."""
    return bool(record[EVENTS] or record[CASCADED]) or any(
        record[at + CONSUMED] != record[at + COUNTED] for at in range(CELLS, len(record), STRIDE)
    )


def usage_of(record: Record) -> Iterator[WindowUsage]:
    """What to add to usage history, once per window type."""
    counters: dict[str, int] = {}
    at = CELLS
    for spec in record[TERMS].specs:
        consumed = record[at + CONSUMED] - record[at + COUNTED]
        if consumed:
            counters[spec.name] = consumed
        at += STRIDE
    cascaded_events, cascaded = record[CASCADED] or (0, {})
    yield from windows_of_hour(
        record[HOUR], counters, record[EVENTS], nonzero(cascaded), cascaded_events
    )


def windows_of_hour(
    hour: int,
    counters: Mapping[str, int],
    events: int,
    cascaded: Mapping[str, int],
    cascaded_events: int,
) -> Iterator[WindowUsage]:
    """What was used in an hour, for the windows of each type that it is in."""
    for window_type in WINDOW_TYPES:
        start_ms, _ = window_around(window_type, hour * HOUR_MS)
        yield WindowUsage(window_type, start_ms, counters, events, cascaded, cascaded_events)


def nonzero(counters: Mapping[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in counters.items() if amount}


def add_counters(found: dict[str, int], more: Mapping[str, int]) -> None:
    """Adds the counters to those found. No call comes between reading one and writing it: after a
    call garbage may be collected, which may end a lease and so add to the same."""
    for name, amount in more.items():
        if name in found:
            found[name] += amount
        else:
            found[name] = amount


def mark_counted(record: Record, now_ms: int) -> Record:
    """The record once usage history holds all it knows; counting goes on in the hour of now.

    Stores call this when the hour is another than the record's, so a clock that was set back by
    more than an hour is noticed here, at no cost for other decisions.
    """
    cells = list(record)
    cells[HOUR] = now_ms // HOUR_MS
    cells[EVENTS] = 0
    cells[CASCADED] = None
    for at in range(CELLS, len(cells), STRIDE):
        cells[at + COUNTED] = cells[at + CONSUMED]
    return after_clock_step(tuple(cells), now_ms)


def window_around(window_type: str, time_ms: int) -> tuple[int, int]:
    """Start and end of the UTC window that holds a moment."""
    if window_type == "hourly":
        start_ms = time_ms // HOUR_MS * HOUR_MS
        return start_ms, start_ms + HOUR_MS
    if window_type == "daily":
        start_ms = time_ms // DAY_MS * DAY_MS
        return start_ms, start_ms + DAY_MS
    moment = datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC)
    start = datetime.datetime(moment.year, moment.month, 1, tzinfo=datetime.UTC)
    following = (start + datetime.timedelta(days=32)).replace(day=1)
    return int(start.timestamp()) * 1000, int(following.timestamp()) * 1000


def snapshot(entity_id: str, resource: str, usage: WindowUsage) -> UsageSnapshot:
    start_ms, end_ms = window_around(usage.window_type, usage.window_start_ms)
    return UsageSnapshot(
        entity_id,
        resource,
        window_time(start_ms),
        window_time(end_ms),
        usage.window_type,
        {name: milli // MILLI for name, milli in usage.counters_milli.items()},
        usage.events,
        {name: milli // MILLI for name, milli in usage.cascaded_milli.items()},
        usage.cascaded_events,
    )


def summarize(snapshots: Iterable[UsageSnapshot], *, one_entity: bool = False) -> UsageSummary:
    """Totals of what was asked for the entities themselves.

    Over several entities, a window in which a parent was only used through is left out: it would
    add nothing to the total, and pull the average down. Of one entity, all its windows count.
    """
    shots = [shot for shot in snapshots if one_entity or shot.own or shot.own_events]
    total: dict[str, int] = {}
    from_children: dict[str, int] = {}
    for shot in shots:
        add_counters(total, shot.own)
        add_counters(from_children, shot.from_children)
    count = len(shots)
    starts = sorted(shot.window_start for shot in shots)
    return UsageSummary(
        count,
        total,
        {name: amount / count for name, amount in total.items()},
        sum(shot.own_events for shot in shots),
        starts[0] if starts else None,
        starts[-1] if starts else None,
        from_children if one_entity else None,
        sum(shot.events_from_children for shot in shots) if one_entity else None,
    )


def parse_window_type(window_type: str | None, named: str = "window_type") -> str | None:
    """`named` is what the caller calls it."""
    if window_type is not None and window_type not in WINDOW_TYPES:
        raise ValidationError(named, window_type, f"must be one of {', '.join(WINDOW_TYPES)}")
    return window_type


def audit_event(
    now_ms: int,
    action: str,
    entity_id: str,
    principal: str | None,
    resource: str | None = None,
    **details: Any,
) -> AuditEvent:
    """An event whose id sorts by time, then by order within a process, and is unique."""
    event_id = f"{now_ms:013d}-{next(_sequence) % 0x1000000:06x}-{secrets.token_hex(4)}"
    return AuditEvent(event_id, iso_time(now_ms), action, entity_id, principal, resource, details)


PRINCIPAL_LENGTH_MAX = 256
# Control characters, and halves of surrogate pairs, which no encoding of text can hold.
_NOT_IN_A_PRINCIPAL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def parse_principal(principal: object) -> str | None:
    """Who makes a change, as the audit may name them; None for nobody in particular."""
    if principal is None:
        return None
    if not isinstance(principal, str):
        reason = f"must be a str that names who makes the change, not {type(principal).__name__}"
        raise ValidationError("principal", principal, reason)
    if not 1 <= len(principal) <= PRINCIPAL_LENGTH_MAX:
        raise ValidationError(
            "principal", principal,
            f"has {len(principal)} characters; 1 to {PRINCIPAL_LENGTH_MAX} are allowed",
        )  # fmt: skip
    found = _NOT_IN_A_PRINCIPAL.search(principal)
    if found is not None:
        raise ValidationError(
            "principal", principal,
            f"has the character U+{ord(found[0]):04X} at position {found.start()}; "
            f"control characters and unpaired surrogates are not allowed",
        )  # fmt: skip
    return principal


def valid_principal(text: str) -> str:
    """The same for a name that nobody chose for the audit, such as a user's or a file's: what
    cannot stay is a question mark, and what is too long is cut."""
    return _NOT_IN_A_PRINCIPAL.sub("?", text)[:PRINCIPAL_LENGTH_MAX]


def event_time_ms(event: AuditEvent) -> int:
    return int(event.event_id.split("-", 1)[0])


EVENT_TIME_MS_MAX = 10**13 - 1  # what the thirteen digits of an id can tell
ACTION_PATTERN = re.compile(r"[a-z][a-z_]{0,63}")
_CURSOR = re.compile(r"[0-9]{13}(-[0-9a-f]{6}-[0-9a-f]{8})?")
_SUBJECT = re.compile(r"\$[A-Z]{1,20}(:(?P<resource>.*))?", re.DOTALL)


def event_border(time_ms: int) -> str:
    """What sorts after the ids of all events before a moment, and before all others."""
    return f"{min(max(time_ms, 0), EVENT_TIME_MS_MAX):013d}"


def parse_audit_cursor(field: str, cursor: object) -> str | None:
    """An event's id, or the border that a page ended at; older events follow it."""
    if cursor is None or (isinstance(cursor, str) and _CURSOR.fullmatch(cursor)):
        return cursor
    reason = "is neither an event's id nor the cursor that a page of the audit log returned"
    raise ValidationError(field, cursor, reason)


def parse_audit_subject(subject: object) -> str:
    """An entity's id, or a name such as `$SYSTEM`, `$RESOURCE:gpt-4` or `$ACCESS`."""
    found = _SUBJECT.fullmatch(subject) if isinstance(subject, str) else None
    if found is None:
        return parse_entity_id(subject)
    if found["resource"] is not None:
        parse_resource(found["resource"])
    return found[0]


def parse_action(action: object) -> str | None:
    """The action of an event, such as `limits_set`."""
    if action is None or (isinstance(action, str) and ACTION_PATTERN.fullmatch(action)):
        return action
    raise ValidationError("action", action, "is none that events have, e.g. limits_set")


def iso_time(time_ms: int) -> str:
    """A moment as ISO 8601, always with milliseconds."""
    moment = EPOCH + datetime.timedelta(milliseconds=time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def iso_time_or_none(time_ms: int | None) -> str | None:
    """The same; None where there is no moment, or none that has a date of four digits."""
    return iso_time(time_ms) if time_ms is not None and 0 <= time_ms <= TIME_MS_MAX else None


def window_time(time_ms: int) -> str:
    """Where a window begins or ends, without milliseconds: stores keep usage under this text."""
    return f"{iso_time(time_ms)[:19]}Z"


def parse_time_ms(field: str, text: object) -> int | None:
    """A moment given as ISO 8601 text, a datetime or milliseconds."""
    if text is None or type(text) is int:
        return text
    try:
        moment = (
            text if isinstance(text, datetime.datetime) else datetime.datetime.fromisoformat(text)  # type: ignore[arg-type]
        )
    except (TypeError, ValueError) as error:
        raise ValidationError(field, text, "is not ISO 8601, e.g. 2026-01-31T00:00:00Z") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return (moment - EPOCH) // datetime.timedelta(milliseconds=1)


def parse_audit_query(
    entity_id: str | None,
    action: str | None,
    principal: str | None,
    resource: str | None,
    start_time: object,
    end_time: object,
) -> AuditQuery:
    """The filters of an audit log as a caller gives them."""
    return AuditQuery(
        None if entity_id is None else parse_audit_subject(entity_id),
        parse_action(action),
        parse_principal(principal),
        None if resource is None else parse_config_resource(resource),
        parse_time_ms("start_time", start_time),
        parse_time_ms("end_time", end_time),
    )


# --------------------------------------------------------------------------------------------------
# Cursors of usage queries. They sort as the pages do: newest first, then by names.

CURSOR_BASE = 10**14


def usage_cursor(start_ms: int, window_type: str, entity_id: str, resource: str) -> str:
    return SEPARATOR.join((f"{CURSOR_BASE - start_ms:015d}", window_type, entity_id, resource))


def parse_usage_cursor(text: str) -> tuple[int, str, str, str]:
    """The window's start and type, the entity and the resource that a cursor stands for."""
    parts = text.split(SEPARATOR)
    if len(parts) != 4 or not (parts[0].isascii() and parts[0].isdigit()):
        raise ValidationError("cursor", text, "is not one that a usage query returned")
    return CURSOR_BASE - int(parts[0][:15]), parts[1], parts[2], parts[3]
