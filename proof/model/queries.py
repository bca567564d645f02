"""Reads of many items and what is asked about tables; indexes are computed, and never late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.stores.dynamodb.client.calls import Rejected
from proof.model import engine, grammar
from proof.model.engine import KEYS, Params, Snapshot, Step, scope_of, table_of
from proof.model.values import Invalid, Row, thaw


def _query(snapshot: Snapshot, params: Params) -> Step:
    table = table_of(snapshot, params)
    index = params.get("IndexName", "")
    if index and params.get("ConsistentRead"):
        raise Invalid("Consistent reads are not supported on global secondary indexes")
    condition = grammar.condition(params["KeyConditionExpression"])
    scope = _scope(params, condition)
    pk, sk = f"{index}PK", f"{index}SK"
    found = [
        row
        for place, row in snapshot.rows.items()
        if place[0] == table
        and pk in row.values
        and sk in row.values
        and condition.holds(row.values, scope)
    ]
    order = [sk, *KEYS]
    found.sort(key=lambda row: _order(row, order))
    if not params.get("ScanIndexForward", True):
        found.reverse()
    return snapshot, _page(found, params, scope, [pk, *order], _projected(snapshot, table, index))


def _scan(snapshot: Snapshot, params: Params) -> Step:
    table = table_of(snapshot, params)
    scope = _scope(params, None)
    found = [row for place, row in snapshot.rows.items() if place[0] == table]
    found.sort(key=lambda row: _order(row, list(KEYS)))
    return snapshot, _page(found, params, scope, list(KEYS), None)


def _scope(params: Params, condition: grammar.Condition | None) -> grammar.Scope:
    parts = [condition] if condition else []
    if "FilterExpression" in params:
        parts.append(grammar.condition(params["FilterExpression"]))
    scope = scope_of(params, *(part.used for part in parts))
    for part in parts:
        for check in part.checks:
            check(scope)
    return scope


def _order(row: Row, names: list[str]) -> list[bytes]:
    return [row.values[name][1].encode() for name in names]


def _page(
    rows: list[Row], params: Params, scope: grammar.Scope, keys: list[str], kept: set[str] | None
) -> dict[str, Any]:
    """A limit counts what was looked at, before the filter."""
    start = params.get("ExclusiveStartKey")
    if start is not None:
        last = {name: value for name, value in Row.of(start).values.items() if name in keys}
        at = [all(row.values[name] == last[name] for name in last) for row in rows]
        if True not in at:
            raise NotImplementedError("a page that begins at an item that is gone")
        rows = rows[at.index(True) + 1 :]
    limit = params.get("Limit")
    read = rows if limit is None else rows[:limit]
    items = read
    if "FilterExpression" in params:
        keep = grammar.condition(params["FilterExpression"]).holds
        items = [row for row in read if keep(row.values, scope)]
    reply: dict[str, Any] = {
        "Items": [
            {
                name: thaw(value)
                for name, value in row.values.items()
                if kept is None or name in kept
            }
            for row in items
        ],
        "Count": len(items),
        "ScannedCount": len(read),
    }
    if limit is not None and len(read) == limit and read:
        reply["LastEvaluatedKey"] = {name: thaw(read[-1].values[name]) for name in keys}
    return reply


def _projected(snapshot: Snapshot, table: str, index: str) -> set[str] | None:
    """The attributes an index holds; None for all."""
    if not index:
        return None
    for made in snapshot.tables[table]["GlobalSecondaryIndexes"]:
        if made["IndexName"] == index:
            if made["Projection"]["ProjectionType"] == "ALL":
                return None
            return {*KEYS, f"{index}PK", f"{index}SK"}
    raise Invalid(f"The table does not have the specified index: {index}")


def _create(snapshot: Snapshot, params: Params) -> Step:
    name = params["TableName"]
    if name in snapshot.tables:
        raise Rejected("ResourceInUseException", f"Table already exists: {name}")
    made: Mapping[str, Any] = {**params, "TableStatus": "ACTIVE"}
    return snapshot.with_tables({**snapshot.tables, name: made}), {"TableDescription": made}


def _describe(snapshot: Snapshot, params: Params) -> Step:
    made = snapshot.tables[table_of(snapshot, params)]
    indexes = [{**index, "IndexStatus": "ACTIVE"} for index in made["GlobalSecondaryIndexes"]]
    return snapshot, {"Table": {**made, "GlobalSecondaryIndexes": indexes}}


def _drop(snapshot: Snapshot, params: Params) -> Step:
    name = table_of(snapshot, params)
    left = {table: made for table, made in snapshot.tables.items() if table != name}
    return snapshot.with_tables(left), {}


def _expiry(snapshot: Snapshot, params: Params) -> Step:
    """Items expire when a test says so, never by themselves."""
    table_of(snapshot, params)
    return snapshot, {"TimeToLiveDescription": {"TimeToLiveStatus": "ENABLED"}}


for _name, _operation in {
    "Query": _query,
    "Scan": _scan,
    "CreateTable": _create,
    "DescribeTable": _describe,
    "DeleteTable": _drop,
    "DescribeTimeToLive": _expiry,
    "UpdateTimeToLive": _expiry,
}.items():
    engine.register(_name, _operation)
