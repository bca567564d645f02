"""Namespaces: two records of the registry and a system item beside the data, always of one mind.

    #NAMESPACE#{name}   the active namespace of that name; a name is taken while it is there
    #NSID#{id}          the namespace, in whatever state
    {id}/SYSTEM#        what every lookup reads: the state again, and the configuration's version

They change together in one transaction, so a call that was cut short has changed nothing, or all.
"""

from __future__ import annotations

from headgate.core.history import AuditEvent
from headgate.core.levels import Namespace
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.items import (
    CONFIG_VERSION,
    LEVEL_VERSION,
    RECORD,
    Item,
    Key,
    event_as_item,
    key_attributes,
    key_of,
    namespace_as_attributes,
    namespace_from_item,
    number,
    purge_attributes,
    system_key,
    text,
)
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.create import (
    SCHEMA,
    SCHEMA_VERSION,
    check_schema,
    noted_version,
)
from headgate.stores.dynamodb.table.requests import Write
from headgate.stores.dynamodb.table.table import Table
from headgate.stores.records import ACTIVE, DELETED, PURGING, retry_if_changed

PASSES_MAX = 8  # of a purge


class DynamoRegistry:
    """The part of Records that is about namespaces."""

    def __init__(self, table: Table) -> None:
        self._table = table

    async def pause(self, attempt: int) -> None:
        await self._table.pause(attempt)

    async def find_namespace(self, name: str) -> Namespace | None:
        """The active namespace of that name, in a table whose schema this headgate knows."""
        key = name_key(name)
        found = await self._table.get_all((key, RECORD))
        check_schema(noted_version(found.get(RECORD, {})) or 0)
        return namespace_from_item(found[key]) if key in found else None

    async def get_namespace(self, namespace_id: str) -> Namespace | None:
        item = await self._table.get(id_key(namespace_id))
        return None if item is None else namespace_from_item(item)

    async def namespaces(self) -> list[Namespace]:
        return await list_namespaces(self._table)

    async def transition(
        self, before: Namespace | None, after: Namespace, event: AuditEvent | None
    ) -> Namespace:
        if before is None:
            writes = [
                ask.put(_entry(id_key(after.id), after), ask.ABSENT),
                ask.put(_system(after), ask.ABSENT),
            ]
        else:
            writes = _state_writes(before, after)
        name = name_key(after.name)
        if after.state == ACTIVE:
            writes.append(ask.put(_entry(name, after), ask.ABSENT))
        elif before is not None and before.state == ACTIVE:
            writes.append(ask.delete(name, ask.if_one_of("namespace_id", after.id)))
        await self._table.transact([*writes, *await self._event_writes(after.id, event)])
        return after

    async def purge(self, namespace_id: str) -> int:
        """Everything that the namespace's index leads to goes, then the namespace itself.

        The index answers a moment late, so it is asked again until it leads to nothing. What
        somebody with an old cache writes after that is a bucket, and expires by itself.
        """
        total = 0
        for attempt in range(PASSES_MAX):
            gone = await self._purge_pass(namespace_id)
            total += gone
            if not gone:
                break
            await self.pause(attempt)
        home = system_key(namespace_id)
        system = await self._table.get(home) or {}
        guard = ask.if_one_of("state", DELETED, PURGING)
        end = [ask.delete(home, guard), ask.delete(id_key(namespace_id), guard)]
        await retry_if_changed(lambda: self._table.transact(end), self.pause)
        return total + 1 + (LEVEL_VERSION in system)

    async def _purge_pass(self, namespace_id: str) -> int:
        request = ask.query(self._table.name, namespace_id, index=schema.GSI4)
        home = system_key(namespace_id)
        gone, start = 0, None
        while True:
            items: list[Item]
            items, start = await self._table.page(request, start)
            gone += await self._table.delete_all([k for k in map(key_of, items) if k != home])
            if start is None:
                return gone

    async def _event_writes(self, namespace_id: str, event: AuditEvent | None) -> list[Write]:
        if event is None:
            return []
        kept_ms = (await self._table.periods()).audit_ms
        now_ms = self._table.port.now_ms()
        return [ask.put(event_as_item(namespace_id, event, now_ms, kept_ms))]


async def list_namespaces(table: Table) -> list[Namespace]:
    """All of them, in whatever state."""
    request = ask.query(table.name, schema.pk_system(), ask.begins(schema.NSID))
    return [namespace_from_item(item) for item in await table.every(request)]


def name_key(name: str) -> Key:
    return schema.pk_system(), schema.sk_namespace(name)


def id_key(namespace_id: str) -> Key:
    return schema.pk_system(), schema.sk_nsid(namespace_id)


def _entry(key: Key, namespace: Namespace) -> Item:
    return {**key_attributes(key), **namespace_as_attributes(namespace)}


def _system(namespace: Namespace) -> Item:
    key = system_key(namespace.id)
    return {
        **_entry(key, namespace),
        **purge_attributes(namespace.id, key[0]),
        CONFIG_VERSION: number(0),
        SCHEMA: number(SCHEMA_VERSION),
    }


def _state_writes(before: Namespace, after: Namespace) -> list[Write]:
    """The registry and the namespace itself say the new state, if they still say the old."""
    sets: Item = {"state": text(after.state)}
    removes = []
    if after.deleted_ms is None:
        removes.append("deleted_ms")
    else:
        sets["deleted_ms"] = number(after.deleted_ms)
    guard = ask.if_one_of("state", before.state)
    adds = {CONFIG_VERSION: number(1)} if after.state == ACTIVE else None
    return [
        ask.update(id_key(after.id), sets=sets, removes=removes, guard=guard),
        ask.update(system_key(after.id), sets=sets, adds=adds, removes=removes, guard=guard),
    ]
