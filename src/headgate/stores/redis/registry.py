"""Namespaces. Each has a head beside its data, which says what may be done with it, and an entry in
the registry, which says what there is.

In a cluster the two are on different servers, so no step writes both. The order of the steps is
such that a call that was cut short is finished by calling it again:

    register   head, then registry    (a head nobody knows of is a few bytes, and no name is taken)
    delete     head, then registry    (first it stops being served)
    recover    registry, then head    (first the name is taken, which may fail)
    purge      head, data, head gone, then registry (it is listed until all of it is gone)

The head has the last word. Every change of state has a number, its turn, and the registry takes
over only what is newer than what it has, so a slow caller never undoes what came after it.
"""

from __future__ import annotations

from dataclasses import asdict, replace

from headgate.core.errors import NamespaceNotFoundError, NamespaceStateError
from headgate.core.history import audit_event
from headgate.core.levels import Namespace
from headgate.core.limits import new_namespace_id
from headgate.stores.redis import keys
from headgate.stores.redis import scripts as scan
from headgate.stores.redis.catalog_steps import (
    HEAD_FIELDS,
    SCHEMA_VERSION,
    Command,
    CommitGuard,
    RedisNamespaceHead,
    check_schema,
    commit,
    event_write,
    read,
    retry_if_changed,
)
from headgate.stores.redis.catalog_text import namespace_as_text, namespace_from_text
from headgate.stores.redis.client.calls import RedisPort
from headgate.stores.redis.keys import PREFIX

PURGING = "purging"  # a namespace that is half gone can be purged again but not recovered

SCHEMA: Command = ("HGET", keys.META, "schema_version")


async def get_active(port: RedisPort, name: str) -> Namespace | None:
    found = await _get_named(port, name)
    return None if found is None else found[0]


async def list_namespaces(port: RedisPort, state: str) -> list[Namespace]:
    """Those of a state; one that is being purged counts as deleted."""
    schema, texts = await read(port, SCHEMA, ("HVALS", keys.IDS))
    check_schema(schema)
    found = [namespace_from_text(text)[0] for text in texts]
    shown = ("deleted", PURGING) if state == "deleted" else (state,)
    return sorted((one for one in found if one.state in shown), key=lambda one: (one.name, one.id))


async def register(port: RedisPort, name: str, principal: str | None, now_ms: int) -> Namespace:
    found = await get_active(port, name)
    if found is not None:
        return found
    made = Namespace(new_namespace_id(), name, "active", now_ms)
    event = audit_event(now_ms, "namespace_registered", "$SYSTEM", principal,
                        before=None, after=asdict(made))  # fmt: skip
    writes: list[Command] = [*_head_writes(made, 0), event_write(made.id, event)]
    await commit(port, keys.head(made.id), [], writes, moves=False)
    holder = await _enter(port, made, 0)
    if holder.id != made.id:  # somebody else registered it meanwhile
        await port.command("UNLINK", keys.head(made.id), keys.audit(made.id, "$SYSTEM"))
    return holder


@retry_if_changed
async def delete(port: RedisPort, name: str, principal: str | None, now_ms: int) -> Namespace:
    named = await _get_named(port, name)
    if named is None:
        raise NamespaceNotFoundError(name)
    found, entered = named
    head = await _head(port, found.id)
    turn = max(head.turn, entered) + 1
    if head.state == "active":
        after = replace(found, state="deleted", deleted_ms=now_ms)
        event = audit_event(now_ms, "namespace_deleted", "$SYSTEM", principal,
                            before=asdict(found), after=asdict(after))  # fmt: skip
        await _change_state(port, head, after, turn, event_write(found.id, event))
    elif head.state is not None:  # half done by somebody before
        after = replace(found, state=head.state, deleted_ms=head.deleted_ms)
        await _change_state(port, head, after, turn)
    else:
        await unregister(port, found.id)
        raise NamespaceNotFoundError(name)
    await _enter(port, after, turn)
    return after


@retry_if_changed
async def recover(port: RedisPort, namespace: str, principal: str | None, now_ms: int) -> Namespace:
    head, turn = await _get_unused(port, namespace, "there is nothing to recover")
    if head.state == PURGING:
        raise NamespaceStateError(head.name, PURGING, "part of it is gone; purge it again")
    after = Namespace(namespace, head.name, "active", head.created_ms)
    holder = await _enter(port, after, turn)
    if holder.id != namespace:
        raise NamespaceStateError(
            head.name, "registered again since", "delete that one first, then recover this id"
        )
    before = replace(after, state=head.state or "deleted", deleted_ms=head.deleted_ms)
    event = audit_event(now_ms, "namespace_recovered", "$SYSTEM", principal,
                        before=asdict(before), after=asdict(after))  # fmt: skip
    await _change_state(port, head, after, turn, event_write(namespace, event), moves=True)
    return after


@retry_if_changed
async def begin_purge(port: RedisPort, namespace: str) -> None:
    """From now on the namespace cannot be recovered."""
    head, turn = await _get_unused(port, namespace, "delete_namespace comes before purge_namespace")
    after = Namespace(namespace, head.name, PURGING, head.created_ms, head.deleted_ms)
    await _change_state(port, head, after, turn)
    await _enter(port, after, turn)


@retry_if_changed
async def unregister(port: RedisPort, namespace: str) -> bool:
    """The registry no longer knows the namespace; whether it did."""
    [text] = await read(port, ("HGET", keys.IDS, namespace))
    if text is None:
        return False
    name = namespace_from_text(text)[0].name
    [held] = await read(port, ("HGET", keys.NAMES, name))
    guards: list[CommitGuard] = [(held, ("HGET", keys.NAMES, name))]
    writes: list[Command] = [("HDEL", keys.IDS, namespace)]
    if held is not None and namespace_from_text(held)[0].id == namespace:
        writes.append(("HDEL", keys.NAMES, name))
    await commit(port, keys.META, guards, writes, moves=False)
    return True


async def exists(port: RedisPort, namespace: str) -> bool:
    return (await _head(port, namespace)).state is not None


async def _head(port: RedisPort, namespace: str) -> RedisNamespaceHead:
    [reply] = await read(port, ("HMGET", keys.head(namespace), *HEAD_FIELDS))
    return RedisNamespaceHead.from_reply(reply)


async def _get_named(port: RedisPort, name: str) -> tuple[Namespace, int] | None:
    """The active namespace of that name, and its turn, as the registry knows them."""
    schema, text = await read(port, SCHEMA, ("HGET", keys.NAMES, name))
    check_schema(schema)
    return None if text is None else namespace_from_text(text)


async def _get_unused(
    port: RedisPort, namespace: str, advice: str
) -> tuple[RedisNamespaceHead, int]:
    """The head of a namespace that is not in use, and a turn newer than all before."""
    head = await _head(port, namespace)
    if head.state is None:
        raise NamespaceNotFoundError(namespace)
    if head.state == "active":
        raise NamespaceStateError(head.name, head.state, advice)
    [text] = await read(port, ("HGET", keys.IDS, namespace))
    entered = 0 if text is None else namespace_from_text(text)[1]
    return head, max(head.turn, entered) + 1


async def _change_state(
    port: RedisPort,
    head: RedisNamespaceHead,
    after: Namespace,
    turn: int,
    *more: Command,
    moves: bool = False,
) -> None:
    """The head says the new state, if it still is as it was read."""
    home = keys.head(after.id)
    guards: list[CommitGuard] = [
        (head.state, ("HGET", home, "state")),
        (head.turn, ("HGET", home, "turn")),
    ]
    await commit(port, home, guards, [*_head_writes(after, turn), *more], moves=moves)


@retry_if_changed
async def _enter(port: RedisPort, namespace: Namespace, turn: int) -> Namespace:
    """The registry knows the namespace as it is at this turn; whoever has its name now."""
    name_of: Command = ("HGET", keys.NAMES, namespace.name)
    entry_of: Command = ("HGET", keys.IDS, namespace.id)
    held, known = await read(port, name_of, entry_of)
    holder = None if held is None else namespace_from_text(held)[0]
    rival = holder if holder is not None and holder.id != namespace.id else None
    if rival is not None and namespace.state == "active":
        return rival
    if known is not None and namespace_from_text(known)[1] >= turn:
        return namespace
    text = namespace_as_text(namespace, turn)
    writes: list[Command] = [
        ("HSETNX", keys.META, "schema_version", SCHEMA_VERSION),
        ("HSET", keys.IDS, namespace.id, text),
    ]
    if namespace.state == "active":
        writes.append(("HSET", keys.NAMES, namespace.name, text))
    elif rival is None:
        writes.append(("HDEL", keys.NAMES, namespace.name))
    await commit(port, keys.META, [(held, name_of), (known, entry_of)], writes, moves=False)
    return namespace


def _head_writes(namespace: Namespace, turn: int) -> list[Command]:
    home = keys.head(namespace.id)
    deleted_ms = namespace.deleted_ms
    return [
        ("HSETNX", home, "version", 0),
        ("HSET", home, "schema", SCHEMA_VERSION, "turn", turn),
        ("HSET", home, "state", namespace.state, "name", namespace.name),
        ("HSET", home, "created_ms", namespace.created_ms),
        ("HDEL", home, "deleted_ms")
        if deleted_ms is None
        else ("HSET", home, "deleted_ms", deleted_ms),
    ]


# --------------------------------------------------------------------------------------------------
# The end of a namespace, and of everything.

STREAMS_PER_BATCH = 500
RECORDS = (f"{PREFIX}:b:", f"{PREFIX}:u:")  # the rest of an entity's keys only lead to these


async def purge(port: RedisPort, namespace: str) -> int:
    """How many records went; a purge that was cut short is finished by the next."""
    if not await exists(port, namespace):
        if await unregister(port, namespace):  # cut short before its last step
            return 1
        raise NamespaceNotFoundError(namespace)
    await begin_purge(port, namespace)
    gone = await _purge_entities(port, namespace) + await _purge_audit(port, namespace)
    entities, levels = keys.entities(namespace), keys.levels(namespace)
    people_count, levels_count = await read(port, ("HLEN", entities), ("HLEN", levels))
    texts = keys.expiring(namespace), keys.expiring_ends(namespace)
    await port.command(
        "UNLINK", entities, levels, *texts, keys.index(namespace), keys.head(namespace)
    )
    await unregister(port, namespace)
    return gone + int(people_count) + int(levels_count) + 1


async def destroy(port: RedisPort) -> None:
    await scan.unlink(port, await scan.matching_keys(port, keys.EVERYTHING))


async def _purge_entities(port: RedisPort, namespace: str) -> int:
    names = await scan.matching_keys(port, keys.entity_keys(namespace))
    records = [name for name in names if name.startswith(RECORDS)]
    await scan.unlink(port, [name for name in names if not name.startswith(RECORDS)])
    return await scan.unlink(port, records)


async def _purge_audit(port: RedisPort, namespace: str) -> int:
    gone = 0
    streams = await scan.matching_keys(port, keys.audit_of_namespace(namespace))
    for at in range(0, len(streams), STREAMS_PER_BATCH):
        batch_size = streams[at : at + STREAMS_PER_BATCH]
        gone += sum(await read(port, *[("XLEN", stream) for stream in batch_size]))
        await scan.unlink(port, batch_size)
    return gone
