"""Namespaces: two records of the registry and a system item beside the data, always of one mind.

    #NAMESPACE#{name}   the active namespace of that name; a name is taken while it is there
    #NSID#{id}          the namespace, in whatever state
    {id}/SYSTEM#        what every lookup reads: the state again, and the configuration's version

They change together in one transaction, so a call that was cut short has changed nothing, or all.
"""

from __future__ import annotations

from dataclasses import asdict, replace

from headgate.core.errors import NamespaceNotFoundError, NamespaceStateError
from headgate.core.history import AuditEvent, audit_event
from headgate.core.levels import Namespace
from headgate.core.limits import new_namespace_id
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
    number_of,
    purge_attributes,
    system_key,
    text,
)
from headgate.stores.dynamodb.catalog.records import retry_if_changed
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.create import SCHEMA, SCHEMA_VERSION, check_schema
from headgate.stores.dynamodb.table.requests import Write
from headgate.stores.dynamodb.table.table import Table

ACTIVE, DELETED = "active", "deleted"
PURGING = "purging"  # a namespace that is half gone can be purged again but not recovered


async def get_active(table: Table, name: str) -> Namespace | None:
    """The active namespace of that name, in a table whose schema this headgate knows."""
    key = name_key(name)
    found = await table.get_all((key, RECORD))
    check_schema(number_of(found.get(RECORD, {}), SCHEMA))
    return namespace_from_item(found[key]) if key in found else None


async def list_namespaces(table: Table, state: str) -> list[Namespace]:
    """Those of a state by name; one that is half purged counts as deleted."""
    shown = (DELETED, PURGING) if state == DELETED else (state,)
    found = [one for one in await list_every(table) if one.state in shown]
    return sorted(found, key=lambda one: (one.name, one.id))


async def list_every(table: Table) -> list[Namespace]:
    request = ask.query(table.name, schema.pk_system(), ask.begins(schema.NSID))
    return [namespace_from_item(item) for item in await table.every(request)]


@retry_if_changed
async def register(table: Table, name: str, principal: str | None, now_ms: int) -> Namespace:
    found = await get_active(table, name)
    if found is not None:
        return found
    made = Namespace(new_namespace_id(), name, ACTIVE, now_ms)
    event = audit_event(now_ms, "namespace_registered", "$SYSTEM", principal,
                        before=None, after=asdict(made))  # fmt: skip
    writes = [
        ask.put(_entry(name_key(name), made), ask.ABSENT),
        ask.put(_entry(id_key(made.id), made), ask.ABSENT),
        ask.put(_system(made), ask.ABSENT),
        await _event_write(table, made.id, event),
    ]
    await table.transact(writes)
    return made


@retry_if_changed
async def delete(table: Table, name: str, principal: str | None, now_ms: int) -> Namespace:
    found = await get_active(table, name)
    if found is None:
        raise NamespaceNotFoundError(name)
    after = replace(found, state=DELETED, deleted_ms=now_ms)
    event = audit_event(now_ms, "namespace_deleted", "$SYSTEM", principal,
                        before=asdict(found), after=asdict(after))  # fmt: skip
    writes = [
        ask.delete(name_key(name), ask.if_one_of("namespace_id", found.id)),
        *_state_writes(after, (ACTIVE,)),
        await _event_write(table, found.id, event),
    ]
    await table.transact(writes)
    return after


@retry_if_changed
async def recover(table: Table, namespace: str, principal: str | None, now_ms: int) -> Namespace:
    found = await get_unused(table, namespace, "there is nothing to recover")
    if found.state == PURGING:
        raise NamespaceStateError(found.name, PURGING, "part of it is gone; purge it again")
    if await get_active(table, found.name) is not None:
        raise NamespaceStateError(
            found.name, "registered again since", "delete that one first, then recover this id"
        )
    after = replace(found, state=ACTIVE, deleted_ms=None)
    event = audit_event(now_ms, "namespace_recovered", "$SYSTEM", principal,
                        before=asdict(found), after=asdict(after))  # fmt: skip
    writes = [
        ask.put(_entry(name_key(after.name), after), ask.ABSENT),
        *_state_writes(after, (DELETED,), moves=1),
        await _event_write(table, namespace, event),
    ]
    await table.transact(writes)
    return after


@retry_if_changed
async def begin_purge(table: Table, namespace: str) -> Namespace:
    """From now on the namespace cannot be recovered."""
    found = await get_unused(table, namespace, "delete_namespace comes before purge_namespace")
    if found.state != PURGING:
        await table.transact(_state_writes(replace(found, state=PURGING), (DELETED,)))
    return found


async def get_unused(table: Table, namespace: str, advice: str) -> Namespace:
    """A namespace that is deleted, or half gone."""
    item = await table.get(id_key(namespace))
    if item is None:
        raise NamespaceNotFoundError(namespace)
    found = namespace_from_item(item)
    if found.state == ACTIVE:
        raise NamespaceStateError(found.name, found.state, advice)
    return found


def name_key(name: str) -> Key:
    return schema.pk_system(), schema.sk_namespace(name)


def id_key(namespace: str) -> Key:
    return schema.pk_system(), schema.sk_nsid(namespace)


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


def _state_writes(after: Namespace, before: tuple[str, ...], moves: int = 0) -> list[Write]:
    """The registry and the namespace itself say the new state, if they still say the old."""
    sets: Item = {"state": text(after.state)}
    removes = []
    if after.deleted_ms is None:
        removes.append("deleted_ms")
    else:
        sets["deleted_ms"] = number(after.deleted_ms)
    guard = ask.if_one_of("state", *before)
    adds = {CONFIG_VERSION: number(moves)} if moves else None
    return [
        ask.update(id_key(after.id), sets=sets, removes=removes, guard=guard),
        ask.update(system_key(after.id), sets=sets, adds=adds, removes=removes, guard=guard),
    ]


async def _event_write(table: Table, namespace: str, event: AuditEvent) -> Write:
    periods = await table.periods()
    return ask.put(event_as_item(namespace, event, table.port.now_ms(), periods.audit_ms))


# --------------------------------------------------------------------------------------------------
# The end of a namespace: everything that its index leads to, then the namespace itself.
#
# The index answers a moment late, so it is asked again until it leads to nothing. What somebody
# with an old cache writes after that is a bucket, and expires by itself.

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


@retry_if_changed
async def _end(table: Table, namespace: str) -> None:
    guard = ask.if_one_of("state", DELETED, PURGING)
    await table.transact(
        [
            ask.delete(system_key(namespace), guard),
            ask.delete(id_key(namespace), guard),
        ]
    )
