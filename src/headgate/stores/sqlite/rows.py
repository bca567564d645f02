"""Rows of the database as headgate's values, and back; what cannot be read is not guessed at."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from headgate.admin.documents import (
    plan_as_json,
    plan_from_json,
    stored_as_json,
    stored_from_json,
)
from headgate.core.errors import Damaged
from headgate.core.history import (
    AuditEvent,
    WindowUsage,
    add_counters,
    event_time_ms,
    has_uncounted_usage,
    usage_of,
)
from headgate.core.levels import Entity, Mode, Namespace, Plan, StoredLevel
from headgate.core.limits import Spec
from headgate.core.record import (
    CASCADED,
    CELLS,
    EVENTS,
    HOUR,
    STRIDE,
    TERMS,
    BucketKey,
    Cascaded,
    Record,
    Terms,
    full_at_ms,
)
from headgate.stores.sqlite.schema import SqliteTransaction, named_queries

INT64_MAX = 2**63 - 1
WORDINGS_MAX = 4096

Row = tuple[Any, ...]

_decode = json.JSONDecoder().decode
# The same for text without space around it, as ours is.
_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
as_json = json.JSONEncoder(separators=(",", ":")).encode


class TermsCodec:
    """Terms as text and back; both ways are remembered, so a warm path parses no terms.

    Terms are told apart by identity, which is what the decision asks for first: a bucket kept
    under the very terms of a demand needs no comparing.
    """

    def __init__(self) -> None:
        self._terms: dict[str, Terms] = {}
        self._texts: dict[int, tuple[Terms, str]] = {}

    def text(self, terms: Terms) -> str:
        known = self._texts.get(id(terms))
        if known is None:  # an entry keeps its terms alive, so their id is theirs alone
            known = (terms, _terms_as_text(terms))
            _bounded(self._texts)[id(terms)] = known
        return known[1]

    def terms(self, text: str) -> Terms:
        terms = self._terms.get(text)
        if terms is None:
            terms = _terms_from_text(text)
            _bounded(self._terms)[text] = terms
        return terms

    def record(self, row: Row, wanted: Terms | None = None) -> Record:
        """The record of (terms, hour, events, cells, cascaded); under `wanted` itself if it says
        the same."""
        text, hour, events, cells_text, cascaded_text = row
        try:
            same = wanted is not None and self.text(wanted) == text
            terms = wanted if same and wanted is not None else self.terms(text)
            cells, end = _scan(cells_text, 0)
            if end != len(cells_text):
                raise ValueError("there is more than one value in its cells")
            if len(cells) != STRIDE * len(terms.specs):
                raise ValueError(f"{len(cells)} cells for {len(terms.specs)} limits")
            cascaded = None if cascaded_text is None else _cascaded_from_text(cascaded_text)
        except (ValueError, TypeError, IndexError, StopIteration, OverflowError) as error:
            raise unreadable_row("bucket", error) from error
        return (terms, hour, events, cascaded, *cells)

    def row(self, record: Record) -> Row:
        """(terms, hour, events, uncounted, full_at_ms, cells, cascaded)."""
        full_ms = full_at_ms(record)
        cascaded = record[CASCADED]
        return (
            self.text(record[TERMS]),
            record[HOUR],
            record[EVENTS],
            has_uncounted_usage(record),
            full_ms if full_ms is None or full_ms < INT64_MAX else INT64_MAX,
            str(list(record[CELLS:])),  # a list of ints prints as JSON
            None if cascaded is None else as_json(cascaded),
        )


def names(key: BucketKey) -> tuple[str, str, str]:
    return key.namespace, key.entity_id, key.resource


def unreadable_row(what: str, error: Exception) -> Damaged:
    return Damaged(
        f"a stored {what} cannot be read ({error}); the row was written by something else: "
        f"restore the file, or forget that {what}"
    )


def clamp(value: int) -> int:
    """The nearest integer that SQLite can hold."""
    return max(-INT64_MAX, min(INT64_MAX, value))


def namespace_from_row(row: Row) -> Namespace:
    return Namespace(*row[:5])


def entity_as_row(namespace: str, entity: Entity) -> Row:
    body = {
        "name": entity.name,
        "cascade": entity.cascade,
        "metadata": dict(entity.metadata),
        "mode": entity.mode.value,
        "created_ms": entity.created_ms,
    }
    return namespace, entity.id, entity.parent_id, entity.plan, entity.version, as_json(body)


def entity_from_row(row: Row) -> Entity:
    entity_id, parent_id, plan, version, text = row
    body = from_json("entity", text)
    return Entity(
        entity_id,
        body["name"],
        parent_id,
        body["cascade"],
        body["metadata"],
        Mode(body["mode"]),
        version,
        body["created_ms"],
        plan,
    )


def stored_as_text(stored: StoredLevel) -> str:
    return as_json(stored_as_json(stored))


def stored_from_text(text: str) -> StoredLevel:
    return stored_from_json(from_json("limit", text))


def plan_as_text(plan: Plan) -> str:
    return as_json(plan_as_json(plan))


def plan_from_row(row: Row) -> Plan:
    """Of (body, how many entities refer to it)."""
    text, entities = row
    return replace(plan_from_json(from_json("plan", text)), entities=entities)


def event_as_row(namespace: str, event: AuditEvent) -> Row:
    body = [event.timestamp, event.action, event.principal, event.resource, dict(event.details)]
    time_ms = event_time_ms(event)
    return namespace, event.entity_id, event.event_id, clamp(time_ms), as_json(body)


def event_from_row(row: Row) -> AuditEvent:
    event_id, entity_id, text = row
    timestamp, action, principal, resource, details = from_json("audit event", text)
    return AuditEvent(event_id, timestamp, action, entity_id, principal, resource, details)


def from_json(what: str, text: str) -> Any:
    try:
        return _decode(text)
    except (ValueError, TypeError) as error:
        raise unreadable_row(what, error) from error


def _terms_as_text(terms: Terms) -> str:
    core = len(terms.core.specs)
    specs = [spec.as_row() for spec in terms.specs]
    return as_json([terms.version, terms.own, core, specs, terms.core.sources])


def _terms_from_text(text: str) -> Terms:
    version, own, core_count, listed, sources = _decode(text)
    specs = tuple(Spec(*values) for values in listed)
    core = Terms(specs[:core_count], version, own=own, sources=tuple(sources))
    return core.extend(specs[core_count:])


def _cascaded_from_text(text: str) -> Cascaded:
    events, counters = _decode(text)
    return int(events), {str(name): int(milli) for name, milli in dict(counters).items()}


def _bounded(cache: dict[Any, Any]) -> dict[Any, Any]:
    if len(cache) >= WORDINGS_MAX:
        cache.clear()
    return cache


# --------------------------------------------------------------------------------------------------
# Adding to usage and audit history, inside the transaction of whatever is recorded.

SQL = named_queries("ledger.sql")
USAGE_GET, USAGE_PUT, AUDIT_ADD = SQL["usage_get"], SQL["usage_put"], SQL["audit_add"]


def count(connection: SqliteTransaction, key: BucketKey, record: Record) -> None:
    """Usage history has all that the record consumed since it was last counted."""
    if has_uncounted_usage(record):
        add(connection, key, usage_of(record))


def add(connection: SqliteTransaction, key: BucketKey, usages: Iterable[WindowUsage]) -> None:
    """Usage history has so much more."""
    for usage in usages:
        window = (usage.window_start_ms, usage.window_type)
        where = (key.namespace, *window, key.entity_id, key.resource)
        row = connection.execute(USAGE_GET, where).fetchone() or ("{}", 0, None)
        counters, cascaded, cascaded_events = usage_in_row(row[0], row[2])
        add_counters(counters, usage.counters_milli)
        add_counters(cascaded, usage.cascaded_milli)
        cascaded_events += usage.cascaded_events
        through = as_json([cascaded_events, cascaded]) if cascaded or cascaded_events else None
        values = (as_json(counters), usage.events + row[1], through)
        connection.execute(USAGE_PUT, (*values, *where))


def usage_in_row(counters: str, cascaded: str | None) -> tuple[dict[str, int], dict[str, int], int]:
    """The counters of a row, and the counters and events that came by cascade."""
    used = from_json("usage row", counters)
    if cascaded is None:
        return used, {}, 0
    try:
        events, through = _cascaded_from_text(cascaded)
    except (ValueError, TypeError, OverflowError) as error:
        raise unreadable_row("usage row", error) from error
    return used, through, events


def append(connection: SqliteTransaction, namespace: str, event: AuditEvent) -> None:
    connection.execute(AUDIT_ADD, event_as_row(namespace, event))
