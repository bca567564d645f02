"""Reading and committing commands of one slot, each in one script.

A commit compares everything its change was decided on, and writes, moves the version on and appends
the audit event, or does nothing. Writers get in each other's way only where one changes what
another one read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from headgate.core.errors import IncompatibleSchemaError
from headgate.core.history import AuditEvent
from headgate.stores.records import RecordsChanged, check_active
from headgate.stores.redis import keys
from headgate.stores.redis.catalog_text import event_as_text
from headgate.stores.redis.client.calls import RedisPort, Script
from headgate.stores.redis.scripts import load_script

SCHEMA_VERSION = 1
AUDIT_EVENTS_MAX = 10_000  # per entity or level; the oldest make room, a few hundred at a time

READ = load_script("catalog_read")
COMMIT = load_script("catalog_commit")
HEAD_FIELDS = ("schema", "state", "name", "version", "turn", "created_ms", "deleted_ms")

Part = str | int
Command = tuple[Part, ...]  # its name, its key, its arguments
CommitGuard = tuple[Part | None, Command]  # what the command replied


class RedisNamespaceHead(NamedTuple):
    """What every script replies first: how the namespace stands."""

    state: str | None  # None: there is no such namespace
    name: str
    version: int
    turn: int  # how often the state has changed
    created_ms: int
    deleted_ms: int | None

    @classmethod
    def from_reply(cls, reply: Sequence[str | None]) -> RedisNamespaceHead:
        schema, state, name, version, turn, created_ms, deleted_ms = reply
        check_schema(schema)
        return cls(
            state,
            name or "",
            int(version or 0),
            int(turn or 0),
            int(created_ms or 0),
            None if deleted_ms is None else int(deleted_ms),
        )


def check_schema(found: str | None) -> None:
    """What newer headgates wrote is not touched; what nobody wrote yet is fine."""
    if found is not None and found != str(SCHEMA_VERSION):
        raise IncompatibleSchemaError(
            found, SCHEMA_VERSION, "use the headgate that wrote it, or a newer one"
        )


def active_version(namespace: str, reply: Sequence[str | None]) -> int:
    """The version the namespace is at, if it may be used."""
    head = RedisNamespaceHead.from_reply(reply)
    check_active(namespace, head.state, head.name)
    return head.version


async def read(port: RedisPort, *commands: Command) -> list[Any]:
    """The replies to commands of one slot, all of one moment."""
    places, args = _pack_commands({}, commands)
    replies: list[Any] = await port.script(READ, list(places), args)
    return replies


async def read_active(port: RedisPort, namespace: str, *commands: Command) -> tuple[int, list[Any]]:
    """As `read`, in a namespace that may be used; its version comes first."""
    head = ("HMGET", keys.head(namespace), *HEAD_FIELDS)
    reply, *rest = await read(port, head, *commands)
    return active_version(namespace, reply), rest


async def run_active(
    port: RedisPort, script: Script, namespace: str, names: Sequence[str], args: Sequence[Part]
) -> tuple[int, list[Any]]:
    """The namespace's version and what a script replied besides."""
    reply, *rest = await port.script(script, [keys.head(namespace), *names], args)
    return active_version(namespace, reply), rest


async def commit(
    port: RedisPort,
    home: str,
    guards: Sequence[CommitGuard],
    writes: Sequence[Command],
    *,
    moves: bool,
) -> int:
    """The version of the hash `home` after the writes, which happened all, or it is Changed."""
    places: dict[str, int] = {home: 1}
    args: list[Part] = [int(moves), len(guards)]
    for expected, command in guards:
        args.append("" if expected is None else expected)
        args += _pack_commands(places, (command,))[1]
    args += _pack_commands(places, writes)[1]
    version: int | None = await port.script(COMMIT, list(places), args)
    if version is None:
        raise RecordsChanged
    return version


async def commit_active(
    port: RedisPort, namespace: str, guards: Sequence[CommitGuard], writes: Sequence[Command]
) -> int:
    """As `commit`, in a namespace that is still active; its version moves on."""
    home = keys.head(namespace)
    active: CommitGuard = ("active", ("HGET", home, "state"))
    return await commit(port, home, [active, *guards], writes, moves=True)


def event_write(namespace: str, event: AuditEvent) -> Command:
    """Appends the event, in the script of the change it tells of."""
    stream = keys.audit(namespace, event.entity_id)
    bound = ("MAXLEN", "~", AUDIT_EVENTS_MAX)
    return ("XADD", stream, *bound, "*", "id", event.event_id, "body", event_as_text(event))


def _pack_commands(
    places: dict[str, int], commands: Sequence[Command]
) -> tuple[dict[str, int], list[Part]]:
    """Commands as the scripts take them off their arguments; keys go by their place in KEYS."""
    args: list[Part] = []
    for name, key, *rest in commands:
        place = places.setdefault(str(key), len(places) + 1)
        args += (len(rest) + 2, name, place, *rest)
    return places, args
