"""The schema's version: noted in the table, and on every namespace, which each lookup reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.core.errors import IncompatibleSchemaError
from headgate.stores.dynamodb.catalog.items import Item, as_json, json_of, number, number_of
from headgate.stores.dynamodb.catalog.items__retention import NOTES, RECORD
from headgate.stores.dynamodb.client.port import ConditionFailed, Request
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.table import Table

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


async def found_version(table: Table) -> int | None:
    """The version the table is at; None where it was never noted. Refuses one half upgraded."""
    record = await table.get(RECORD) or {}
    table.retention.learn(record, table.port.now_ms())
    if MIGRATING_TO in record:
        raise IncompatibleSchemaError(
            f"{number_of(record, SCHEMA)}, half upgraded to {number_of(record, MIGRATING_TO)}",
            SCHEMA_VERSION,
            "`headgate upgrade` is under way or was cut short; run it again to finish it",
        )
    return number_of(record, SCHEMA) if SCHEMA in record else None


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
    scan = {"TableName": table.name, "Limit": 1, "ConsistentRead": True}
    items, _ = await table.page(Request("Scan", scan))
    if items and await found_version(table) is None:
        raise _outdated(0)
    wanted = number(SCHEMA_VERSION)
    guard = ask.Guard("attribute_not_exists(#v)", {"#v": SCHEMA})
    try:
        await table.write(ask.update(RECORD, sets={SCHEMA: wanted}, guard=guard))
    except ConditionFailed:
        await check(table)  # somebody else has noted it


async def get_record(table: Table) -> Mapping[str, Any]:
    record: Item = await table.get(RECORD) or {}
    version = number_of(record, SCHEMA, SCHEMA_VERSION)
    return {**json_of(record, NOTES, {}), SCHEMA: version}


async def set_notes(table: Table, values: Mapping[str, Any]) -> None:
    written = {NOTES: as_json(dict(values))}
    await table.write(ask.update(RECORD, sets=written))
    table.retention.learn(written, table.port.now_ms())


def _outdated(found: int) -> IncompatibleSchemaError:
    return IncompatibleSchemaError(
        found, SCHEMA_VERSION, "`headgate upgrade` moves the table on; try it with --dry-run first"
    )
