"""The table's shape, and how it comes and goes.

Buckets are in GSI2 to GSI4, which project keys alone: a projected counter would make every acquire
write twice, and put all buckets of a resource on one partition of the index. GSI1 projects all,
because only entities with a parent are in it.

Destroying deletes the table rather than its items: that is one call however much there is, costs no
write units, and is never seen half done. `prepare` makes it again.
"""

from __future__ import annotations

import contextlib
from typing import Any

from headgate.core.errors import Contended, IncompatibleSchemaError
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.items import (
    RECORD,
    TTL,
    ForeignTableError,
    Item,
    namespace_from_item,
    number,
    number_of,
    refuse_foreign,
)
from headgate.stores.dynamodb.client.calls import (
    ConditionFailed,
    DynamoRequest,
    Rejected,
    TableMissing,
)
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.table import Table

# --------------------------------------------------------------------------------------------------
# The schema's version: noted in the table, and on every namespace, which each lookup reads.

SCHEMA_VERSION = 1
SCHEMA = "schema_version"
MIGRATING_TO = "migrating_to"


def check_schema(found: int) -> None:
    """What a newer headgate wrote is not touched; 0 is what says nothing about itself."""
    if found > SCHEMA_VERSION:
        raise IncompatibleSchemaError(
            found,
            f"up to {SCHEMA_VERSION}",
            "a newer headgate has upgraded this table; update this one, nothing was changed",
        )


def noted_version(record: Item) -> int | None:
    """The version that the record tells of, None where it tells of none; a record that another
    program wrote is refused."""
    refuse_foreign(record)
    return number_of(record, SCHEMA) if SCHEMA in record else None


async def refuse_unknown(table: Table) -> None:
    """Raises where a table without a version has items, but no namespace: headgate registers one
    before it writes anything else."""
    request = ask.query(table.name, schema.pk_system(), ask.begins(schema.NSID))
    registered, _ = await table.page(request)
    for item in registered:
        namespace_from_item(item)
    if not registered and await is_in_use(table):
        raise ForeignTableError("of another program: neither a version nor a namespace is in it")


async def is_in_use(table: Table) -> bool:
    """Whether anything is in the table."""
    scan = {"TableName": table.name, "Limit": 1, "ConsistentRead": True}
    items, _ = await table.page(DynamoRequest("Scan", scan))
    return bool(items)


async def found_version(table: Table) -> int | None:
    """The version the table is at; None where it was never noted. Refuses one half upgraded."""
    record = await table.get(RECORD) or {}
    version = noted_version(record)
    table.retention.learn(record, table.port.now_ms())
    if MIGRATING_TO in record:
        raise IncompatibleSchemaError(
            f"{version}, half upgraded to {number_of(record, MIGRATING_TO)}",
            SCHEMA_VERSION,
            "`headgate upgrade` is under way or was cut short; run it again to finish it",
        )
    return version


async def check(table: Table) -> bool:
    """Whether the table is ready for this headgate; False where its version was never noted."""
    version = await found_version(table)
    if version is None:
        return False
    check_schema(version)
    if version < SCHEMA_VERSION:
        raise _outdated(version)
    return True


async def note_first(table: Table) -> None:
    """A table without a version gets this one, if it is empty; else it is older than versions."""
    if await is_in_use(table) and await found_version(table) is None:
        await refuse_unknown(table)
        raise _outdated(0)
    wanted = number(SCHEMA_VERSION)
    guard = ask.WriteCondition("attribute_not_exists(#v)", {"#v": SCHEMA})
    try:
        await table.write(ask.update(RECORD, sets={SCHEMA: wanted}, guard=guard))
    except ConditionFailed:
        await check(table)  # somebody else has noted it


def _outdated(found: int) -> IncompatibleSchemaError:
    return IncompatibleSchemaError(
        found, SCHEMA_VERSION, "`headgate upgrade` moves the table on; try it with --dry-run first"
    )


POLLS_MAX = 120  # a table with four indexes takes ten seconds or so
PROJECTIONS = {
    schema.GSI1: "ALL",
    schema.GSI2: "KEYS_ONLY",
    schema.GSI3: "KEYS_ONLY",
    schema.GSI4: "KEYS_ONLY",
}
IN_USE = "ResourceInUseException"


def creation(table: str) -> DynamoRequest:
    """One table for everything: keys, four indexes, a stream of changes, billed by use."""
    names = [schema.PK, schema.SK, *(f"{index}{key}" for index in PROJECTIONS for key in _KEYS)]
    return DynamoRequest(
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
        try:
            await table.port.call(creation(table.name))
        except Rejected as error:
            if error.code != IN_USE:  # somebody else makes it
                raise
    _check_shape(table.name, await _until_active(table))
    expiry = (await table.call("DescribeTimeToLive")).get("TimeToLiveDescription", {})
    if expiry.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
        wanted = {"AttributeName": TTL, "Enabled": True}
        await table.call("UpdateTimeToLive", TimeToLiveSpecification=wanted)
    await note_first(table)


async def destroy(table: Table) -> None:
    """The table is gone with everything in it, unless another program's version is in it."""
    with contextlib.suppress(TableMissing):
        noted_version(await table.get(RECORD) or {})
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
