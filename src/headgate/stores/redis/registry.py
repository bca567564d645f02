"""Namespaces. Each has a head beside its data, which says what may be done with it, and an entry in
the registry, which says what there is.

In a cluster the two are on different servers, so no step writes both. The order of the steps is
such that a call that was cut short is finished by calling it again:

    register   head, then registry    (a head nobody knows of is a few bytes, and no name is taken)
    delete     head, then registry    (first it stops being served)
    recover    registry, then head    (first the name is taken, which may fail)
    purge      data, head, then registry (it is listed until all of it is gone)

The head has the last word. Every change of state has a number, its turn, and the registry takes
over only what is newer than what it has, so a slow caller never undoes what came after it.
"""

from __future__ import annotations

from dataclasses import replace

from headgate.core.history import AuditEvent
from headgate.core.levels import Namespace
from headgate.stores.records import ACTIVE, PURGING, RecordsChanged, retry_if_changed
from headgate.stores.redis import keys
from headgate.stores.redis import scripts as scan
from headgate.stores.redis.client.calls import RedisPort
from headgate.stores.redis.documents import (
    HEAD_FIELDS,
    LOG_IS_WHOLE,
    SCHEMA_VERSION,
    Command,
    CommitGuard,
    NamespaceHead,
    check_schema,
    commit,
    event_writes,
    head_from_reply,
    namespace_as_text,
    namespace_from_text,
    read,
)
from headgate.stores.redis.keys import PREFIX

SCHEMA: Command = ("HGET", keys.META, "schema_version")
STREAMS_PER_BATCH = 500
BUCKETS_AND_USAGE = (f"{PREFIX}:b:", f"{PREFIX}:u:")  # an entity's other keys only lead to these


class RedisRegistry:
    """The part of Records that is about namespaces."""

    def __init__(self, port: RedisPort) -> None:
        self._port = port

    async def pause(self, attempt: int) -> None:
        """A server does one commit after the other, so whoever lost may try again at once."""

    async def find_namespace(self, name: str) -> Namespace | None:
        schema, text = await read(self._port, SCHEMA, ("HGET", keys.NAMES, name))
        check_schema(schema)
        return None if text is None else namespace_from_text(text)[0]

    async def get_namespace(self, namespace_id: str) -> Namespace | None:
        head = await self._head(namespace_id)
        if head.namespace is not None:
            return head.namespace
        entry = await self._entry(namespace_id)
        # Without its head there is nothing left but to purge it, maybe once more.
        return None if entry is None else replace(entry[0], state=PURGING)

    async def namespaces(self) -> list[Namespace]:
        schema, texts = await read(self._port, SCHEMA, ("HVALS", keys.IDS))
        check_schema(schema)
        return [namespace_from_text(text)[0] for text in texts]

    async def transition(
        self, before: Namespace | None, after: Namespace, event: AuditEvent | None
    ) -> Namespace:
        told = [] if event is None else list(event_writes(after.id, event))
        if before is None:
            return await self._register(after, told)
        head, entry = await self._head(after.id), await self._entry(after.id)
        turn = max(head.turn, 0 if entry is None else entry[1]) + 1
        found = head.namespace
        if found is None:  # its data is gone, and with the entry its name is free
            await self._unregister(after.id)
            raise RecordsChanged
        if found.state != before.state:
            if before.state != ACTIVE:
                raise RecordsChanged
            # The registry says active, the head does not: somebody was cut short between the two.
            after = replace(before, state=found.state, deleted_ms=found.deleted_ms)
            told = []
        if after.state == ACTIVE and (await self._enter(after, turn)).id != after.id:
            raise RecordsChanged
        home = keys.head(after.id)
        guards: list[CommitGuard] = [
            (found.state, ("HGET", home, "state")),
            (head.turn, ("HGET", home, "turn")),
        ]
        writes = [*_head_writes(after, turn), *told]
        await commit(self._port, home, guards, writes, moves=after.state == ACTIVE)
        if after.state != ACTIVE:
            await self._enter(after, turn)
        return after

    async def purge(self, namespace_id: str) -> int:
        gone = await self._purge_entities(namespace_id) + await self._purge_audit(namespace_id)
        entities, levels = keys.entities(namespace_id), keys.levels(namespace_id)
        counts: list[int] = await read(self._port, ("HLEN", entities), ("HLEN", levels))
        texts = keys.expiring(namespace_id), keys.expiring_ends(namespace_id)
        await self._port.command(
            "UNLINK", entities, levels, *texts, keys.index(namespace_id), keys.head(namespace_id)
        )
        await retry_if_changed(lambda: self._unregister(namespace_id), self.pause)
        return gone + sum(counts) + 1

    async def _register(self, made: Namespace, told: list[Command]) -> Namespace:
        home = keys.head(made.id)
        whole: Command = ("HSET", home, LOG_IS_WHOLE, 1)  # no event is older than the log
        await commit(self._port, home, [], [*_head_writes(made, 0), whole, *told], moves=False)
        if (await self._enter(made, 0)).id != made.id:  # somebody else registered it meanwhile
            await self._port.command(
                "UNLINK", home, keys.log(made.id), keys.audit(made.id, "$SYSTEM")
            )
            raise RecordsChanged
        return made

    async def _head(self, namespace_id: str) -> NamespaceHead:
        [reply] = await read(self._port, ("HMGET", keys.head(namespace_id), *HEAD_FIELDS))
        return head_from_reply(namespace_id, reply)

    async def _entry(self, namespace_id: str) -> tuple[Namespace, int] | None:
        """The namespace and its turn as the registry knows them."""
        [text] = await read(self._port, ("HGET", keys.IDS, namespace_id))
        return None if text is None else namespace_from_text(text)

    async def _enter(self, namespace: Namespace, turn: int) -> Namespace:
        """The registry knows the namespace as it is at this turn; whoever has its name now."""
        return await retry_if_changed(lambda: self._try_to_enter(namespace, turn), self.pause)

    async def _try_to_enter(self, namespace: Namespace, turn: int) -> Namespace:
        name_of: Command = ("HGET", keys.NAMES, namespace.name)
        entry_of: Command = ("HGET", keys.IDS, namespace.id)
        held, known = await read(self._port, name_of, entry_of)
        holder = None if held is None else namespace_from_text(held)[0]
        rival = holder if holder is not None and holder.id != namespace.id else None
        if rival is not None and namespace.state == ACTIVE:
            return rival
        if known is not None and namespace_from_text(known)[1] >= turn:
            return namespace
        text = namespace_as_text(namespace, turn)
        writes: list[Command] = [
            ("HSETNX", keys.META, "schema_version", SCHEMA_VERSION),
            ("HSET", keys.IDS, namespace.id, text),
        ]
        if namespace.state == ACTIVE:
            writes.append(("HSET", keys.NAMES, namespace.name, text))
        elif rival is None:
            writes.append(("HDEL", keys.NAMES, namespace.name))
        guards: list[CommitGuard] = [(held, name_of), (known, entry_of)]
        await commit(self._port, keys.META, guards, writes, moves=False)
        return namespace

    async def _unregister(self, namespace_id: str) -> None:
        """The registry no longer knows the namespace."""
        entry = await self._entry(namespace_id)
        if entry is None:
            return
        name = entry[0].name
        [held] = await read(self._port, ("HGET", keys.NAMES, name))
        guards: list[CommitGuard] = [(held, ("HGET", keys.NAMES, name))]
        writes: list[Command] = [("HDEL", keys.IDS, namespace_id)]
        if held is not None and namespace_from_text(held)[0].id == namespace_id:
            writes.append(("HDEL", keys.NAMES, name))
        await commit(self._port, keys.META, guards, writes, moves=False)

    async def _purge_entities(self, namespace_id: str) -> int:
        names = await scan.matching_keys(self._port, keys.entity_keys(namespace_id))
        counted = [name for name in names if name.startswith(BUCKETS_AND_USAGE)]
        others = [name for name in names if not name.startswith(BUCKETS_AND_USAGE)]
        await scan.unlink(self._port, others)
        return await scan.unlink(self._port, counted)

    async def _purge_audit(self, namespace_id: str) -> int:
        gone = 0
        streams = await scan.matching_keys(self._port, keys.audit(namespace_id, "*"))
        for at in range(0, len(streams), STREAMS_PER_BATCH):
            batch = streams[at : at + STREAMS_PER_BATCH]
            gone += sum(await read(self._port, *[("XLEN", stream) for stream in batch]))
            await scan.unlink(self._port, batch)
        await self._port.command("UNLINK", keys.log(namespace_id))
        return gone


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
