"""The end of a namespace: everything that its index leads to, then the namespace itself.

The index answers a moment late, so it is asked again until it leads to nothing. What somebody with
an old cache writes after that is a bucket, and expires by itself.
"""

from __future__ import annotations

from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.items import LEVEL_VERSION, Item, key_of, system_key
from headgate.stores.dynamodb.catalog.records import repeated
from headgate.stores.dynamodb.catalog.registry import DELETED, PURGING, begin_purge, id_key
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.table import Table

PASSES_MAX = 8


async def purge(table: Table, namespace: str) -> int:
    """How many records went; a purge that was cut short is finished by the next."""
    await begin_purge(table, namespace)
    total = 0
    for attempt in range(PASSES_MAX):
        gone = await _pass(table, namespace)
        total += gone
        if not gone:
            break
        await table.pause(attempt)
    system = await table.get(system_key(namespace)) or {}
    await _end(table, namespace)
    return total + 1 + (LEVEL_VERSION in system)


async def _pass(table: Table, namespace: str) -> int:
    request = ask.query(table.name, schema.gsi4_pk(namespace), index=schema.GSI4)
    home = system_key(namespace)
    gone, start = 0, None
    while True:
        items: list[Item]
        items, start = await table.page(request, start)
        keys = [key for key in map(key_of, items) if key != home]
        gone += await table.delete_all(keys)
        if start is None:
            return gone


@repeated
async def _end(table: Table, namespace: str) -> None:
    guard = ask.having("state", DELETED, PURGING)
    await table.transact(
        [
            ask.delete(system_key(namespace), guard),
            ask.delete(id_key(namespace), guard),
        ]
    )
