"""The table's shape, and how it comes and goes.

Buckets are in GSI2 to GSI4, which project keys alone: a projected counter would make every acquire
write twice, and put all buckets of a resource on one partition of the index. GSI1 projects all,
because only entities with a parent are in it.

Destroying deletes the table rather than its items: that is one call however much there is, costs no
write units, and is never seen half done. `prepare` makes it again.
"""

from __future__ import annotations

from typing import Any

from headgate.core.errors import Contended, IncompatibleSchemaError
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.items__items_history import TTL
from headgate.stores.dynamodb.client.port import Rejected, Request, TableMissing
from headgate.stores.dynamodb.table.create__versions import check, note_first
from headgate.stores.dynamodb.table.table import Table

POLLS_MAX = 120  # a table with four indexes takes ten seconds or so
PROJECTIONS = {
    schema.GSI1: "ALL",
    schema.GSI2: "KEYS_ONLY",
    schema.GSI3: "KEYS_ONLY",
    schema.GSI4: "KEYS_ONLY",
}
IN_USE = "ResourceInUseException"


def creation(table: str) -> Request:
    """One table for everything: keys, four indexes, a stream of changes, billed by use."""
    names = [schema.PK, schema.SK, *(f"{index}{key}" for index in PROJECTIONS for key in _KEYS)]
    return Request(
        "CreateTable",
        {
            "TableName": table,
            "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [
                {"AttributeName": name, "AttributeType": "S"} for name in names
            ],
            "KeySchema": _key_schema(""),
            "GlobalSecondaryIndexes": [
                {
                    "IndexName": index,
                    "KeySchema": _key_schema(index),
                    "Projection": {"ProjectionType": projection},
                }
                for index, projection in PROJECTIONS.items()
            ],
            "StreamSpecification": {
                "StreamEnabled": True,
                "StreamViewType": "NEW_AND_OLD_IMAGES",
            },
        },
    )


async def prepare(table: Table) -> None:
    """The table exists, with its indexes, expiry and version; one call where it was all there."""
    try:
        if await check(table):
            return
    except TableMissing:
        await _create(table)
    _check_shape(table.name, await _until_active(table))
    await _enable_expiry(table)
    await note_first(table)


async def destroy(table: Table) -> None:
    """The table is gone with everything in it."""
    for attempt in range(POLLS_MAX):
        try:
            await table.call("DeleteTable")
        except TableMissing:
            return
        except Rejected as error:
            if error.code != IN_USE:  # it is being made or deleted: ask again
                raise
        await table.pause(attempt)
    raise Contended(f"the table {table.name} was asked to go and is still there; look again later")


async def _create(table: Table) -> None:
    try:
        await table.port.call(creation(table.name))
    except Rejected as error:
        if error.code != IN_USE:  # somebody else makes it
            raise


async def _until_active(table: Table) -> dict[str, Any]:
    for attempt in range(POLLS_MAX):
        try:
            found: dict[str, Any] = (await table.call("DescribeTable"))["Table"]
        except TableMissing:  # asked for, and not known everywhere yet
            await table.pause(attempt)
            continue
        indexes = found.get("GlobalSecondaryIndexes", [])
        states = [found.get("TableStatus"), *(index.get("IndexStatus") for index in indexes)]
        if all(state in ("ACTIVE", "UPDATING") for state in states):
            return found
        await table.pause(attempt)
    raise Contended(f"the table {table.name} is still being made; nothing is wrong: try again")


async def _enable_expiry(table: Table) -> None:
    found = (await table.call("DescribeTimeToLive")).get("TimeToLiveDescription", {})
    if found.get("TimeToLiveStatus") in ("ENABLED", "ENABLING"):
        return
    wanted = {"AttributeName": TTL, "Enabled": True}
    await table.call("UpdateTimeToLive", TimeToLiveSpecification=wanted)


def _check_shape(name: str, found: dict[str, Any]) -> None:
    """Some other program's table is left alone; one of infrastructure code must have all of it."""
    indexes = {
        index["IndexName"]: _pairs(index) for index in found.get("GlobalSecondaryIndexes", [])
    }
    missing = [i for i in PROJECTIONS if indexes.get(i) != (f"{i}PK", f"{i}SK")]
    if _pairs(found) != (schema.PK, schema.SK) or missing:
        what = f"lacking {', '.join(missing)}" if missing else f"with the keys {_pairs(found)}"
        raise IncompatibleSchemaError(
            f"of another shape: table {name} {what}",
            "tables with PK, SK and GSI1 to GSI4",
            "it was left alone; name another table, or let headgate make it",
        )


_KEYS = ("PK", "SK")


def _key_schema(prefix: str) -> list[dict[str, str]]:
    kinds = zip(_KEYS, ("HASH", "RANGE"), strict=True)
    return [{"AttributeName": f"{prefix}{key}", "KeyType": kind} for key, kind in kinds]


def _pairs(found: dict[str, Any]) -> tuple[str, ...]:
    keys = sorted(found.get("KeySchema", []), key=lambda key: str(key["KeyType"]))
    return tuple(key["AttributeName"] for key in keys)
