"""Documents of the catalog and the audit: what their texts look like, and how they are read and
committed, each in one script.

A text has a first line that scripts read or write, and JSON after it that only Python reads: an
entity's line is its parent and whether it cascades, a level's or plan's the version it was written
at. An entity that refers to a plan has its name in a third line.
JSON is ASCII, so any text a caller gives comes back as it was. What cannot be read is not guessed
at.

A commit compares everything its change was decided on, and writes, moves the version on and appends
the audit event, or does nothing. Writers get in each other's way only where one changes what
another one read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from headgate.admin.documents import (
    plan_as_json,
    plan_from_json,
    stored_as_json,
    stored_from_json,
)
from headgate.core.errors import IncompatibleSchemaError, NamespaceNotFoundError, Unreachable
from headgate.core.history import AuditEvent
from headgate.core.levels import Entity, Mode, Namespace, Plan, StoredLevel
from headgate.core.limits import SEPARATOR
from headgate.stores.records import RecordsChanged, check_active
from headgate.stores.redis import keys
from headgate.stores.redis.client.calls import RedisPort
from headgate.stores.redis.client.commands import Part, Script
from headgate.stores.redis.scripts import load_script

VERSION_HERE = "@"  # a script that commits writes the version in its place

as_json = json.JSONEncoder(separators=(",", ":")).encode


def entity_as_text(entity: Entity) -> str:
    sign = "+" if entity.cascade else "-"
    body = {
        "name": entity.name,
        "metadata": dict(entity.metadata),
        "mode": entity.mode.value,
        "version": entity.version,
        "created_ms": entity.created_ms,
    }
    plan = "" if entity.plan is None else f"\n{entity.plan}"
    return f"{sign}{entity.parent_id or ''}\n{as_json(body)}{plan}"


def entity_from_text(entity_id: str, text: str) -> Entity:
    line, _, rest = text.partition("\n")
    rest, _, plan = rest.partition("\n")
    body = from_json("entity", rest)
    return Entity(
        entity_id,
        body["name"],
        line[1:] or None,
        line[0] == "+",
        body["metadata"],
        Mode(body["mode"]),
        body["version"],
        body["created_ms"],
        plan or None,
    )


def stored_as_text(stored: StoredLevel) -> str:
    """The level, with room for the version that the script will give it."""
    return f"{VERSION_HERE}\n{as_json(stored_as_json(stored))}"


def stored_from_text(text: str) -> StoredLevel:
    version, _, rest = text.partition("\n")
    return stored_from_json({**from_json("limit", rest), "version": int(version)})


def plan_as_text(plan: Plan) -> str:
    """The plan, with room for the version that the script will give it."""
    return f"{VERSION_HERE}\n{as_json(plan_as_json(plan))}"


def plan_from_text(text: str) -> Plan:
    version, _, rest = text.partition("\n")
    return plan_from_json({**from_json("plan", rest), "version": int(version)})


def event_as_text(event: AuditEvent, version: str) -> str:
    """All but the id and whose event it is, which the stream knows."""
    body = [event.timestamp, event.action, event.principal, event.resource, dict(event.details)]
    return f"{version}\n{as_json(body)}"


def event_from_text(event_id: str, entity_id: str, text: str) -> AuditEvent:
    version, _, rest = text.partition("\n")
    timestamp, action, principal, resource, details = from_json("audit event", rest)
    after = details.get("after")
    if isinstance(after, dict) and after.get("version", "") is None:
        after["version"] = int(version)  # only the script that wrote the level knew it
    return AuditEvent(event_id, timestamp, action, entity_id, principal, resource, details)


def namespace_as_text(namespace: Namespace, turn: int) -> str:
    """A namespace and how often its state has changed: of two texts the higher turn is newer."""
    one = namespace
    return as_json([turn, one.id, one.name, one.state, one.created_ms, one.deleted_ms])


def namespace_from_text(text: str) -> tuple[Namespace, int]:
    turn, *values = from_json("namespace", text)
    return Namespace(*values), turn


def from_json(what: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Unreachable(
            f"a stored {what} cannot be read ({error}); it was written by something else: "
            f"restore the data, or give headgate a database of its own"
        ) from error


# --------------------------------------------------------------------------------------------------
# Reading and committing commands of one slot.

SCHEMA_VERSION = 1
AUDIT_EVENTS_MAX = 10_000  # per entity or level; the oldest make room, a few hundred at a time
LOG_EVENTS_MAX = 100_000  # of a namespace, of all entities and levels together

READ = load_script("catalog_read")
COMMIT = load_script("catalog_commit")
LOG_IS_WHOLE = "log"  # of a head: whether the log has the events of before there was one
HEAD_FIELDS = ("schema", "state", "name", "version", "turn", "created_ms", "deleted_ms")

Command = tuple[Part, ...]  # its name, its key, its arguments
CommitGuard = tuple[Part | None, Command]  # what the command replied


def check_schema(found: str | None) -> None:
    """What newer headgates wrote is not touched; what nobody wrote yet is fine."""
    if found is not None and found != str(SCHEMA_VERSION):
        raise IncompatibleSchemaError(
            found, SCHEMA_VERSION, "use the headgate that wrote it, or a newer one"
        )


class NamespaceHead(NamedTuple):
    """What every script replies first: how the namespace stands, and None if there is none."""

    namespace: Namespace | None
    version: int
    turn: int  # how often the state has changed


def head_from_reply(namespace_id: str, reply: Sequence[str | None]) -> NamespaceHead:
    schema, state, name, version, turn, created_ms, deleted_ms = reply
    check_schema(schema)
    found = None
    if state is not None:
        ended_ms = None if deleted_ms is None else int(deleted_ms)
        found = Namespace(namespace_id, name or "", state, int(created_ms or 0), ended_ms)
    return NamespaceHead(found, int(version or 0), int(turn or 0))


def active_version(namespace_id: str, reply: Sequence[str | None]) -> int:
    """The version the namespace is at, if it may be used."""
    found, version, _ = head_from_reply(namespace_id, reply)
    if found is None:
        raise NamespaceNotFoundError(namespace_id)
    check_active(namespace_id, found.state, found.name)
    return version


async def read(port: RedisPort, *commands: Command) -> list[Any]:
    """The replies to commands of one slot, all of one moment."""
    places, args = _pack_commands({}, commands)
    found: list[Any] = await port.script(READ, list(places), args)
    return found


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


def event_writes(
    namespace: str, event: AuditEvent, version: str = VERSION_HERE
) -> tuple[Command, ...]:
    """Appends the event to its subject's stream and to the namespace's log, in the script of the
    change it tells of or by itself."""
    stream, log = keys.audit(namespace, event.entity_id), keys.log(namespace)
    text = event_as_text(event, version)
    fields = ("id", event.event_id, "body", text)
    return (
        ("XADD", stream, "MAXLEN", "~", AUDIT_EVENTS_MAX, "*", *fields),
        ("ZADD", log, 0, log_entry(event.event_id, event.entity_id, text)),
        ("ZREMRANGEBYRANK", log, 0, -(LOG_EVENTS_MAX + 1)),
    )


def log_entry(event_id: str, audit_id: str, text: str) -> str:
    """An event in the log, a sorted set that has every score 0 and so the order of the texts."""
    return f"{event_id}{SEPARATOR}{audit_id}\n{text}"


def event_from_entry(entry: str) -> AuditEvent:
    place, _, text = entry.partition("\n")
    event_id, _, audit_id = place.partition(SEPARATOR)
    return event_from_text(event_id, audit_id, text)


def _pack_commands(
    places: dict[str, int], commands: Sequence[Command]
) -> tuple[dict[str, int], list[Part]]:
    """Commands as the scripts take them off their arguments; keys go by their place in KEYS."""
    args: list[Part] = []
    for name, key, *rest in commands:
        place = places.setdefault(str(key), len(places) + 1)
        args += (len(rest) + 2, name, place, *rest)
    return places, args
