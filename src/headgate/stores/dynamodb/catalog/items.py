"""Entities, levels and namespaces as DynamoDB keeps them, and back; flat, integers exact.

Every item of the catalog says in `config_version` which version of its namespace wrote it last.
That is a number no two writes share, so whoever finds it unchanged finds the item unchanged.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from headgate.core.errors import Damaged
from headgate.core.levels__entities import Entity, Level, Mode, Namespace, OnUnavailable, Stored
from headgate.core.limits import Limit
from headgate.stores.dynamodb import schema

Value = dict[str, Any]  # a typed value: {"S": "text"}, {"N": "12"}, {"BOOL": True}
Item = dict[str, Value]
Key = tuple[str, str]  # PK and SK

CONFIG_VERSION = "config_version"
LEVEL_VERSION = "level_version"  # of the system's limits, whose item counts the namespace's version
LIMIT_ORDER = "limit_order"
CHILDREN = "children"

_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().decode


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


def keyed(key: Key) -> Item:
    return {schema.PK: {"S": key[0]}, schema.SK: {"S": key[1]}}


def indexed(index: str, pk: str, sk: str) -> Item:
    return {f"{index}PK": {"S": pk}, f"{index}SK": {"S": sk}}


def in_namespace(namespace: str, pk: str) -> Item:
    """What lets a purge find the item."""
    return indexed(schema.GSI4, schema.gsi4_pk(namespace), schema.gsi4_sk(pk))


def entity_key(namespace: str, entity_id: str) -> Key:
    return schema.pk_entity(namespace, entity_id), schema.sk_meta()


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
        **keyed(key),
        **in_namespace(namespace, key[0]),
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
        parent = schema.gsi1_pk(namespace, entity.parent_id)
        item |= indexed(schema.GSI1, parent, schema.gsi1_sk(entity.id))
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
        )
    except (KeyError, ValueError, TypeError) as error:
        raise unreadable("entity", item, error) from error


def level_as_item(namespace: str, level: Level, stored: Stored) -> Item:
    """A level of a resource or an entity; in the indexes only while it has limits."""
    assert level.resource is not None
    key = level_key(namespace, level)
    item = {
        **keyed(key),
        **in_namespace(namespace, key[0]),
        "resource": text(level.resource),
        CONFIG_VERSION: number(stored.version),
        **limits_as_attributes(stored),
    }
    if level.entity_id is not None:
        item["entity_id"] = text(level.entity_id)
    if stored.limits:
        configs = schema.gsi2_pk_configs(namespace)
        place = schema.gsi2_sk_config(level.resource, level.entity_id)
        item |= indexed(schema.GSI2, configs, place)
        if level.entity_id is not None:
            of_resource = schema.gsi3_pk_entity_config(namespace, level.resource)
            item |= indexed(schema.GSI3, of_resource, level.entity_id)
    return item


def limits_as_attributes(stored: Stored) -> Item:
    """`l_{limit}_cp|ra|rp` in whole tokens and seconds, and what they do not say."""
    found: Item = {}
    for limit in stored.limits:
        found[f"l_{limit.name}_cp"] = number(limit.capacity)
        found[f"l_{limit.name}_ra"] = number(limit.refill_amount)
        found[f"l_{limit.name}_rp"] = number(limit.refill_period_seconds)
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


def level_from_item(item: Item | None, version_in: str = CONFIG_VERSION) -> Stored | None:
    """The level; None where there is none, as in a system item without limits of its own."""
    if item is None or version_in not in item:
        return None
    try:
        names = (text_of(item, LIMIT_ORDER) or "").split()
        rule = text_of(item, "on_unavailable")
        return Stored(
            tuple(_limit(item, name) for name in names),
            number_of(item, version_in),
            OnUnavailable(rule) if rule else None,
            Mode(text_of(item, "mode") or Mode.NORMAL.value),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise unreadable("limit", item, error) from error


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
        raise unreadable("namespace", item, error) from error


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


def unreadable(what: str, item: Mapping[str, Any], error: Exception) -> Damaged:
    return Damaged(
        f"a stored {what} cannot be read ({error!r} in {item.get(schema.PK)} {item.get(schema.SK)})"
        f"; it was written by something else: restore it, or delete that item"
    )


def _limit(item: Item, name: str) -> Limit:
    return Limit(
        name,
        int(item[f"l_{name}_cp"]["N"]),
        int(item[f"l_{name}_ra"]["N"]),
        int(item[f"l_{name}_rp"]["N"]),
        f"l_{name}_so" in item,
    )
