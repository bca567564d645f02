"""Entities, levels and namespaces as DynamoDB keeps them, and back; flat, integers exact.

Every item of the catalog says in `config_version` which version of its namespace wrote it last.
That is a number no two writes share, so whoever finds it unchanged finds the item unchanged.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headgate.admin.documents import plan_as_json, plan_from_json
from headgate.core.errors import Damaged, IncompatibleSchemaError
from headgate.core.history import (
    AuditEvent,
    UsageSnapshot,
    WindowUsage,
    event_time_ms,
    parse_time_ms,
    snapshot,
    window_around,
    window_time,
)
from headgate.core.levels import Entity, Level, Mode, Namespace, OnUnavailable, Plan, StoredLevel
from headgate.core.limits import SEPARATOR, Limit
from headgate.core.refill.resets import schedule_of
from headgate.stores.dynamodb import schema

Value = dict[str, Any]  # a typed value: {"S": "text"}, {"N": "12"}, {"BOOL": True}
Item = dict[str, Value]
Key = tuple[str, str]  # PK and SK

CONFIG_VERSION = "config_version"
LEVEL_VERSION = "level_version"  # of the system's limits, whose item counts the namespace's version
LIMIT_ORDER = "limit_order"
CHILDREN = "children"
ENTITIES = "entities"  # that refer to a plan
NOTES = "notes"  # of the version record

_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().decode


# Which schema the table has, and what was noted beside it.
RECORD: Key = (schema.pk_system(), schema.VERSION)


def text(value: str) -> Value:
    """Any str, also one that is not Unicode text: that goes as bytes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"B": base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()}
    return {"S": value}


def number(value: int) -> Value:
    return {"N": str(value)}


def as_json(value: Any) -> Value:
    """Nested data in one text: DynamoDB's own numbers would change some of Python's."""
    return {"S": _encode(value)}


def text_of(item: Item, name: str) -> str | None:
    value = item.get(name)
    if value is None:
        return None
    if "B" in value:
        return base64.b64decode(value["B"]).decode("utf-8", "surrogatepass")
    found: str = value["S"]
    return found


def number_of(item: Item, name: str, default: int = 0) -> int:
    value = item.get(name)
    return default if value is None else int(value["N"])


def json_of(item: Item, name: str, default: Any) -> Any:
    value = item.get(name)
    return default if value is None else _decode(value["S"])


def key_of(item: Item) -> Key:
    return item[schema.PK]["S"], item[schema.SK]["S"]


def key_attributes(key: Key) -> Item:
    return {schema.PK: {"S": key[0]}, schema.SK: {"S": key[1]}}


def index_attributes(index: str, pk: str, sk: str) -> Item:
    return {f"{index}PK": {"S": pk}, f"{index}SK": {"S": sk}}


def purge_attributes(namespace: str, pk: str) -> Item:
    """What lets a purge find the item."""
    return index_attributes(schema.GSI4, namespace, pk)


def entity_key(namespace: str, entity_id: str) -> Key:
    return schema.pk_entity(namespace, entity_id), schema.META


def system_key(namespace: str) -> Key:
    return schema.pk_system(namespace), schema.sk_config()


def level_key(namespace: str, level: Level) -> Key:
    if level.entity_id is not None:
        return schema.pk_entity(namespace, level.entity_id), schema.sk_config(level.resource)
    if level.resource is not None:
        return schema.pk_resource(namespace, level.resource), schema.sk_config()
    return system_key(namespace)


def entity_as_item(namespace: str, entity: Entity, config_version: int, children: int) -> Item:
    key = entity_key(namespace, entity.id)
    item = {
        **key_attributes(key),
        **purge_attributes(namespace, key[0]),
        "entity_id": text(entity.id),
        "cascade": {"BOOL": entity.cascade},
        "metadata": as_json(dict(entity.metadata)),
        "mode": text(entity.mode.value),
        "version": number(entity.version),
        "created_ms": number(entity.created_ms),
        CHILDREN: number(children),
        CONFIG_VERSION: number(config_version),
    }
    if entity.name is not None:
        item["name"] = text(entity.name)
    if entity.parent_id is not None:
        item["parent_id"] = text(entity.parent_id)
        parent = schema.pk_parent(namespace, entity.parent_id)
        item |= index_attributes(schema.GSI1, parent, schema.gsi1_sk(entity.id))
    if entity.plan is not None:
        item["plan"] = text(entity.plan)
        item |= index_attributes(schema.GSI3, schema.pk_plan(namespace, entity.plan), entity.id)
    return item


def entity_from_item(item: Item) -> Entity:
    try:
        return Entity(
            item["entity_id"]["S"],
            text_of(item, "name"),
            text_of(item, "parent_id"),
            item["cascade"]["BOOL"],
            json_of(item, "metadata", {}),
            Mode(text_of(item, "mode") or Mode.NORMAL.value),
            number_of(item, "version", 1),
            number_of(item, "created_ms"),
            text_of(item, "plan"),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise unreadable_item("entity", item, error) from error


def plan_key(namespace: str, name: str) -> Key:
    return schema.pk_plan(namespace, name), schema.sk_config()


def plan_as_item(namespace: str, plan: Plan, config_version: int, entities: int) -> Item:
    """All that a plan gives in one item, which counts the entities that refer to it."""
    key = plan_key(namespace, plan.name)
    return {
        **key_attributes(key),
        **purge_attributes(namespace, key[0]),
        **index_attributes(
            schema.GSI2, schema.gsi2_pk_configs(namespace), schema.gsi2_sk_plan(plan.name)
        ),
        "body": as_json(plan_as_json(plan)),
        ENTITIES: number(entities),
        CONFIG_VERSION: number(config_version),
    }


def plan_from_item(item: Item) -> Plan:
    try:
        plan = plan_from_json(json_of(item, "body", None))
        return replace(plan, entities=number_of(item, ENTITIES))
    except (KeyError, ValueError, TypeError) as error:
        raise unreadable_item("plan", item, error) from error


def level_as_item(namespace: str, level: Level, stored: StoredLevel) -> Item:
    """A level of a resource or an entity; in the indexes only while it has limits or a switch."""
    assert level.resource is not None
    key = level_key(namespace, level)
    item = {
        **key_attributes(key),
        **purge_attributes(namespace, key[0]),
        "resource": text(level.resource),
        CONFIG_VERSION: number(stored.version),
        **limits_as_attributes(stored),
    }
    if level.entity_id is not None:
        item["entity_id"] = text(level.entity_id)
    if stored.is_listed:
        configs = schema.gsi2_pk_configs(namespace)
        place = schema.gsi2_sk_config(level.resource, level.entity_id)
        item |= index_attributes(schema.GSI2, configs, place)
        if level.entity_id is not None:
            of_resource = schema.gsi3_pk_entity_config(namespace, level.resource)
            item |= index_attributes(schema.GSI3, of_resource, level.entity_id)
    return item


def limits_as_attributes(stored: StoredLevel) -> Item:
    """`l_{limit}_cp|ra|rp` in whole tokens and seconds, and what they do not say; `_rs` is the
    schedule of a quota, which has no refill."""
    found: Item = {}
    for limit in stored.limits:
        found[f"l_{limit.name}_cp"] = number(limit.capacity)
        if limit.resets is None:
            found[f"l_{limit.name}_ra"] = number(limit.refill_amount)
            found[f"l_{limit.name}_rp"] = number(limit.refill_period_seconds)
        else:
            found[f"l_{limit.name}_rs"] = text(limit.resets.text)
        if limit.soft:
            found[f"l_{limit.name}_so"] = {"BOOL": True}
    if stored.limits:
        found[LIMIT_ORDER] = text(" ".join(limit.name for limit in stored.limits))
    if stored.on_unavailable is not None:
        found["on_unavailable"] = text(stored.on_unavailable.value)
    if stored.mode is not Mode.NORMAL:
        found["mode"] = text(stored.mode.value)
    return found


def is_limit_attribute(name: str) -> bool:
    return name.startswith("l_") or name in (LIMIT_ORDER, "on_unavailable", "mode")


def level_from_item(item: Item | None, version_in: str = CONFIG_VERSION) -> StoredLevel | None:
    """The level; None where there is none, as in a system item without limits of its own."""
    if item is None or version_in not in item:
        return None
    try:
        names = (text_of(item, LIMIT_ORDER) or "").split()
        rule = text_of(item, "on_unavailable")
        return StoredLevel(
            tuple(_limit(item, name) for name in names),
            number_of(item, version_in),
            OnUnavailable(rule) if rule else None,
            Mode(text_of(item, "mode") or Mode.NORMAL.value),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise unreadable_item("limit", item, error) from error


def namespace_from_item(item: Item) -> Namespace:
    try:
        return Namespace(
            item["namespace_id"]["S"],
            item["name"]["S"],
            item["state"]["S"],
            number_of(item, "created_ms"),
            number_of(item, "deleted_ms") if "deleted_ms" in item else None,
        )
    except (KeyError, ValueError, TypeError) as error:
        refuse_foreign(item)
        raise unreadable_item("namespace", item, error) from error


def namespace_as_attributes(namespace: Namespace) -> Item:
    found = {
        "namespace_id": text(namespace.id),
        "name": text(namespace.name),
        "state": text(namespace.state),
        "created_ms": number(namespace.created_ms),
    }
    if namespace.deleted_ms is not None:
        found["deleted_ms"] = number(namespace.deleted_ms)
    return found


def unreadable_item(what: str, item: Mapping[str, Any], error: Exception) -> Damaged:
    return Damaged(
        f"a stored {what} cannot be read ({error!r} in {item.get(schema.PK)} {item.get(schema.SK)})"
        f"; it was written by something else: restore it, or delete that item"
    )


class ForeignTableError(IncompatibleSchemaError):
    """The table is another program's; nothing was changed."""

    title = "the table belongs to another program"

    def __init__(self, found: str) -> None:
        super().__init__(
            found,
            "only what headgate itself wrote",
            "give the URL of another table, and headgate makes it (headgate upgrade --create); "
            "this one belongs to another program and was left as it is",
        )


def refuse_foreign(item: Item) -> None:
    """Raises where zae-limiter wrote the item, or whoever else says its schema in words.

    zae-limiter calls keys, indexes and these items what headgate calls them, so a table of its own
    looks right from outside. What is inside has other attributes and other numbers.
    """
    schema_version = item.get("schema_version", {})
    if "client_min_version" in item:
        version = text_of(item, "lambda_version") or text_of(item, "updated_by") or "?"
        raise ForeignTableError(f"{text_of(item, 'schema_version')} of zae-limiter {version}")
    if "namespace_name" in item:
        raise ForeignTableError("of zae-limiter")
    if schema_version and "N" not in schema_version:
        raise ForeignTableError(f"{schema_version} of another program")


def _limit(item: Item, name: str) -> Limit:
    capacity, soft = int(item[f"l_{name}_cp"]["N"]), f"l_{name}_so" in item
    schedule = text_of(item, f"l_{name}_rs")
    if schedule is not None:
        return Limit(name, capacity, 0, 1, soft, schedule_of(schedule))
    amount, period_s = int(item[f"l_{name}_ra"]["N"]), int(item[f"l_{name}_rp"]["N"])
    return Limit(name, capacity, amount, period_s, soft)


# --------------------------------------------------------------------------------------------------
# Audit events and usage rows as DynamoDB keeps them, and back.
#
# A usage row has one counter per limit, `u_{limit}`, in millitokens: the prefix keeps a limit that
# is called `ttl` or `resource` apart from the row's own attributes. The part that came by cascade
# is in `c_{limit}` and `cascaded_events`, where there is one. All of a row's names are in its keys,
# so pages of usage are found in indexes of keys alone.

COUNTER, CASCADED = "u_", "c_"
EVENTS, CASCADED_EVENTS = "total_events", "cascaded_events"
TTL = "ttl"


def event_key(namespace: str, audit_id: str, event_id: str) -> Key:
    return schema.pk_audit(namespace, audit_id), schema.sk_audit(event_id)


def event_as_item(namespace: str, event: AuditEvent, now_ms: int, kept_ms: int) -> Item:
    """The event, to be kept for so long from when it happened or was written."""
    key = event_key(namespace, event.entity_id, event.event_id)
    item = {
        **key_attributes(key),
        **index_attributes(schema.GSI4, namespace, schema.gsi4_sk_audit(namespace, event.event_id)),
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
        raise unreadable_item("audit event", item, error) from error


def usage_key(namespace: str, entity_id: str, resource: str, usage: WindowUsage) -> Key:
    start = window_time(usage.window_start_ms)
    sk = schema.sk_usage(resource, usage.window_type, start)
    return schema.pk_entity(namespace, entity_id), sk


def usage_attributes(
    namespace: str, entity_id: str, resource: str, usage: WindowUsage, now_ms: int, kept_ms: int
) -> Item:
    """What a usage row says besides its keys and counters; it is kept for so long after its end."""
    window_type, start_ms = usage.window_type, usage.window_start_ms
    of_resource = schema.pk_resource(namespace, resource)
    place = schema.gsi2_sk_usage(window_type, start_ms, entity_id)
    whole = schema.gsi4_sk_usage(namespace, window_type, start_ms, entity_id, resource)
    _, end_ms = window_around(window_type, start_ms)
    return {
        **index_attributes(schema.GSI2, of_resource, place),
        **index_attributes(schema.GSI4, namespace, whole),
        "entity_id": text(entity_id),
        "resource": text(resource),
        "window": text(window_type),
        "window_start": text(window_time(start_ms)),
        TTL: _ttl(max(end_ms, now_ms) + kept_ms),
    }


def usage_counters(usage: WindowUsage) -> Item:
    """What is added to a usage row."""
    found = {f"{COUNTER}{name}": number(milli) for name, milli in usage.counters_milli.items()}
    found[EVENTS] = number(usage.events)
    for name, milli in usage.cascaded_milli.items():
        found[f"{CASCADED}{name}"] = number(milli)
    if usage.cascaded_events:
        found[CASCADED_EVENTS] = number(usage.cascaded_events)
    return found


def usage_from_item(item: Item) -> UsageSnapshot:
    pk, sk = key_of(item)
    row = schema.parse_usage_sk(sk)
    usage = WindowUsage(
        row.window_type,
        start_ms_of(row),
        _counters_of(item, COUNTER),
        number_of(item, EVENTS),
        _counters_of(item, CASCADED),
        number_of(item, CASCADED_EVENTS),
    )
    return snapshot(schema.last_name(pk), row.resource, usage)


def _counters_of(item: Item, prefix: str) -> dict[str, int]:
    return {
        name.removeprefix(prefix): number_of(item, name) for name in item if name.startswith(prefix)
    }


def usage_cursor(key: Key) -> str:
    """Sorts newest window first, then by type and names; the order of pages."""
    row = schema.parse_usage_sk(key[1])
    order = schema.newest_first(start_ms_of(row))
    return SEPARATOR.join((order, row.window_type, schema.last_name(key[0]), row.resource))


def start_ms_of(row: schema.UsageSk) -> int:
    start_ms = parse_time_ms("window_start", row.window_start)
    assert start_ms is not None
    return start_ms


def _ttl(time_ms: int) -> dict[str, str]:
    """Whole seconds, rounded up: nothing goes before its time."""
    return number(-(-time_ms // 1000))
