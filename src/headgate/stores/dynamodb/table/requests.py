"""Requests to one table as values; every attribute goes by a placeholder, so none is reserved."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.items import CONFIG_VERSION, Item, Key, key_attributes, number
from headgate.stores.dynamodb.client.calls import DynamoRequest

Write = dict[str, dict[str, Any]]  # one part of a transaction, but for the table's name


@dataclass(frozen=True, slots=True)
class WriteCondition:
    """What must hold for a write to happen."""

    text: str
    names: Mapping[str, str] = field(default_factory=dict)
    values: Item = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Part of the sort keys under one partition key."""

    text: str
    values: Item


ABSENT = WriteCondition("attribute_not_exists(#PK)", {"#PK": schema.PK})
PRESENT = WriteCondition("attribute_exists(#PK)", {"#PK": schema.PK})


def if_unchanged(item: Item | None) -> WriteCondition:
    """The item is as it was read: not there, or not written since."""
    if item is None:
        return ABSENT
    seen = item.get(CONFIG_VERSION, number(0))
    return WriteCondition("#seen = :seen", {"#seen": CONFIG_VERSION}, {":seen": seen})


def if_one_of(name: str, *values: str) -> WriteCondition:
    """An attribute is one of some texts."""
    places = {f":is{at}": {"S": value} for at, value in enumerate(values)}
    return WriteCondition(f"#is IN ({', '.join(places)})", {"#is": name}, places)


def if_both(first: WriteCondition, second: WriteCondition) -> WriteCondition:
    names = {**first.names, **second.names}
    return WriteCondition(
        f"{first.text} AND {second.text}", names, {**first.values, **second.values}
    )


def put(item: Item, guard: WriteCondition | None = None) -> Write:
    return {"Put": {"Item": item, **_condition_params(guard)}}


def delete(key: Key, guard: WriteCondition | None = None) -> Write:
    return {"Delete": {"Key": key_attributes(key), **_condition_params(guard)}}


def update(
    key: Key,
    *,
    sets: Item | None = None,
    adds: Item | None = None,
    removes: Iterable[str] = (),
    guard: WriteCondition | None = None,
) -> Write:
    """Some attributes set, some counted up, some gone."""
    names: dict[str, str] = {}
    values: Item = {}

    def placed(attribute: str, value: dict[str, Any] | None = None) -> tuple[str, str]:
        place = str(len(names))
        names[f"#n{place}"] = attribute
        if value is not None:
            values[f":v{place}"] = value
        return f"#n{place}", f":v{place}"

    clauses = {
        "SET": [" = ".join(placed(*pair)) for pair in (sets or {}).items()],
        "ADD": [" ".join(placed(*pair)) for pair in (adds or {}).items()],
        "REMOVE": [placed(attribute)[0] for attribute in removes],
    }
    expression = " ".join(f"{verb} {', '.join(parts)}" for verb, parts in clauses.items() if parts)
    condition = guard or WriteCondition("")
    found: dict[str, Any] = {
        "Key": key_attributes(key),
        "UpdateExpression": expression,
        "ExpressionAttributeNames": {**names, **condition.names},
        "ExpressionAttributeValues": {**values, **condition.values},
    }
    if condition.text:
        found["ConditionExpression"] = condition.text
    return {"Update": {name: value for name, value in found.items() if value}}


def single_write(table: str, write: Write, *, credit: bool = False) -> DynamoRequest:
    """One part on its own: PutItem, UpdateItem or DeleteItem."""
    [(verb, params)] = write.items()
    return DynamoRequest(f"{verb}Item", {"TableName": table, **params}, credit)


def transaction(table: str, writes: Sequence[Write]) -> DynamoRequest:
    """All of the writes or none; the same request sent again happens once, by its token."""
    parts = [
        {verb: {"TableName": table, **params}} for write in writes for verb, params in write.items()
    ]
    params = {"TransactItems": parts, "ClientRequestToken": secrets.token_hex(16)}
    return DynamoRequest("TransactWriteItems", params)


def get(table: str, key: Key) -> DynamoRequest:
    return DynamoRequest(
        "GetItem", {"TableName": table, "Key": key_attributes(key), "ConsistentRead": True}
    )


def batch_get(table: str, keys: Sequence[Key]) -> DynamoRequest:
    """At most 100 items, each as it is now."""
    wanted = {"Keys": [key_attributes(key) for key in keys], "ConsistentRead": True}
    return DynamoRequest("BatchGetItem", {"RequestItems": {table: wanted}})


def batch_delete(table: str, keys: Sequence[Key]) -> DynamoRequest:
    """At most 25 items."""
    parts = [{"DeleteRequest": {"Key": key_attributes(key)}} for key in keys]
    return DynamoRequest("BatchWriteItem", {"RequestItems": {table: parts}})


def begins(prefix: str) -> KeyRange:
    return KeyRange("begins_with(#sk, :sk)", {":sk": {"S": prefix}})


def between(low: str, high: str) -> KeyRange:
    """Both ends included."""
    return KeyRange("#sk BETWEEN :sk AND :to", {":sk": {"S": low}, ":to": {"S": high}})


def above(low: str) -> KeyRange:
    return KeyRange("#sk > :sk", {":sk": {"S": low}})


def below(high: str) -> KeyRange:
    return KeyRange("#sk < :sk", {":sk": {"S": high}})


def query(
    table: str,
    pk: str,
    span: KeyRange | None = None,
    *,
    index: str = "",
    forward: bool = True,
    limit: int | None = None,
    only_sk: str | None = None,
) -> DynamoRequest:
    """Items of one partition in order; an index answers a moment late, the table at once.

    `only_sk` leaves out items of an index whose sort key in the table is another.
    """
    names = {"#pk": f"{index}PK"}
    values: Item = {":pk": {"S": pk}}
    condition = "#pk = :pk"
    if span is not None:
        names["#sk"] = f"{index}SK"
        values |= span.values
        condition += f" AND {span.text}"
    params: dict[str, Any] = {"TableName": table, "KeyConditionExpression": condition}
    params |= {"IndexName": index} if index else {"ConsistentRead": True}
    if not forward:
        params["ScanIndexForward"] = False
    if limit is not None:
        params["Limit"] = limit
    if only_sk is not None:
        names["#only"] = schema.SK
        values[":only"] = {"S": only_sk}
        params["FilterExpression"] = "#only = :only"
    params |= {"ExpressionAttributeNames": names, "ExpressionAttributeValues": values}
    return DynamoRequest("Query", params)


def _condition_params(guard: WriteCondition | None) -> dict[str, Any]:
    if guard is None:
        return {}
    found = {
        "ConditionExpression": guard.text,
        "ExpressionAttributeNames": dict(guard.names),
        "ExpressionAttributeValues": guard.values,
    }
    return {name: value for name, value in found.items() if value}
