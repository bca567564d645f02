"""Audit events and usage rows as DynamoDB keeps them, and back.

A usage row has one counter per limit, `u_{limit}`, in millitokens: the prefix keeps a limit that is
called `ttl` or `resource` apart from the row's own attributes. All of a row's names are in its
keys, so pages of usage are found in indexes of keys alone.
"""

from __future__ import annotations

from headgate.core.history import (
    AuditEvent,
    Usage,
    UsageSnapshot,
    event_time_ms,
    iso_time,
    parse_time_ms,
    snapshot,
    window_around,
)
from headgate.core.limits__names import SEPARATOR
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.items import (
    Item,
    Key,
    as_json,
    in_namespace,
    indexed,
    json_of,
    key_of,
    keyed,
    number,
    number_of,
    text,
    text_of,
    unreadable,
)

COUNTER = "u_"
EVENTS = "total_events"
TTL = "ttl"


def event_key(namespace: str, audit_id: str, event_id: str) -> Key:
    return schema.pk_audit(namespace, audit_id), schema.sk_audit(event_id)


def event_as_item(namespace: str, event: AuditEvent, now_ms: int, kept_ms: int) -> Item:
    """The event, to be kept for so long from when it happened or was written."""
    key = event_key(namespace, event.entity_id, event.event_id)
    item = {
        **keyed(key),
        **in_namespace(namespace, key[0]),
        "event_id": text(event.event_id),
        "timestamp": text(event.timestamp),
        "action": text(event.action),
        "entity_id": text(event.entity_id),
        "details": as_json(dict(event.details)),
        TTL: _ttl(max(event_time_ms(event), now_ms) + kept_ms),
    }
    if event.principal is not None:
        item["principal"] = text(event.principal)
    if event.resource is not None:
        item["resource"] = text(event.resource)
    return item


def event_from_item(item: Item) -> AuditEvent:
    try:
        return AuditEvent(
            item["event_id"]["S"],
            item["timestamp"]["S"],
            item["action"]["S"],
            item["entity_id"]["S"],
            text_of(item, "principal"),
            text_of(item, "resource"),
            json_of(item, "details", {}),
        )
    except (KeyError, ValueError) as error:
        raise unreadable("audit event", item, error) from error


def usage_key(namespace: str, entity_id: str, resource: str, usage: Usage) -> Key:
    start = iso_time(usage.window_start_ms)
    sk = schema.sk_usage(resource, usage.window_type, start)
    return schema.pk_entity(namespace, entity_id), sk


def usage_attributes(
    namespace: str, entity_id: str, resource: str, usage: Usage, now_ms: int, kept_ms: int
) -> Item:
    """What a usage row says besides its keys and counters; it is kept for so long after its end."""
    window_type, start_ms = usage.window_type, usage.window_start_ms
    of_resource = schema.gsi2_pk_resource(namespace, resource)
    place = schema.gsi2_sk_usage(window_type, start_ms, entity_id)
    whole = schema.gsi4_sk_usage(namespace, window_type, start_ms, entity_id, resource)
    _, end_ms = window_around(window_type, start_ms)
    return {
        **indexed(schema.GSI2, of_resource, place),
        **indexed(schema.GSI4, schema.gsi4_pk(namespace), whole),
        "entity_id": text(entity_id),
        "resource": text(resource),
        "window": text(window_type),
        "window_start": text(iso_time(start_ms)),
        TTL: _ttl(max(end_ms, now_ms) + kept_ms),
    }


def usage_counters(usage: Usage) -> Item:
    """What is added to a usage row."""
    counters = {f"{COUNTER}{name}": number(milli) for name, milli in usage.counters_milli.items()}
    return {**counters, EVENTS: number(usage.events)}


def usage_from_item(item: Item) -> UsageSnapshot:
    pk, sk = key_of(item)
    row = schema.parse_usage_sk(sk)
    counters = {
        name.removeprefix(COUNTER): number_of(item, name)
        for name in item
        if name.startswith(COUNTER)
    }
    usage = Usage(row.window_type, start_ms_of(row), counters, number_of(item, EVENTS))
    return snapshot(schema.entity_of_pk(pk), row.resource, usage)


def usage_cursor(key: Key) -> str:
    """Sorts newest window first, then by type and names; the order of pages."""
    row = schema.parse_usage_sk(key[1])
    order = schema.newest_first(start_ms_of(row))
    return SEPARATOR.join((order, row.window_type, schema.entity_of_pk(key[0]), row.resource))


def start_ms_of(row: schema.UsageSk) -> int:
    start_ms = parse_time_ms("window_start", row.window_start)
    assert start_ms is not None
    return start_ms


def _ttl(time_ms: int) -> dict[str, str]:
    """Whole seconds, rounded up: nothing goes before its time."""
    return number(-(-time_ms // 1000))
