"""What the catalog and the audit hold, as texts and back; what cannot be read is not guessed at.

A text has a first line that scripts read or write, and JSON after it that only Python reads: an
entity's line is its parent and whether it cascades, a level's is the version it was written at.
JSON is ASCII, so any text a caller gives comes back as it was.
"""

from __future__ import annotations

import json
from typing import Any

from headgate.admin.documents import stored_as_json, stored_from_json
from headgate.core.errors import Unreachable
from headgate.core.history import AuditEvent
from headgate.core.levels import Entity, Mode, Namespace, StoredLevel

VERSION_HERE = "@"  # a script that commits writes the version in its place

_decode = json.JSONDecoder().decode
_encode = json.JSONEncoder(separators=(",", ":")).encode


def entity_as_text(entity: Entity) -> str:
    sign = "+" if entity.cascade else "-"
    body = {
        "name": entity.name,
        "metadata": dict(entity.metadata),
        "mode": entity.mode.value,
        "version": entity.version,
        "created_ms": entity.created_ms,
    }
    return f"{sign}{entity.parent_id or ''}\n{_encode(body)}"


def entity_from_text(entity_id: str, text: str) -> Entity:
    line, _, rest = text.partition("\n")
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
    )


def stored_as_text(stored: StoredLevel) -> str:
    """The level, with room for the version that the script will give it."""
    return f"{VERSION_HERE}\n{_encode(stored_as_json(stored))}"


def stored_from_text(text: str) -> StoredLevel:
    version, _, rest = text.partition("\n")
    return stored_from_json({**from_json("limit", rest), "version": int(version)})


def event_as_text(event: AuditEvent, version: str = VERSION_HERE) -> str:
    """All but the id and whose event it is, which the stream knows."""
    body = [event.timestamp, event.action, event.principal, event.resource, dict(event.details)]
    return f"{version}\n{_encode(body)}"


def event_from_text(event_id: str, entity_id: str, text: str) -> AuditEvent:
    version, _, rest = text.partition("\n")
    timestamp, action, principal, resource, details = from_json("audit event", rest)
    after = details.get("after")
    if isinstance(after, dict) and after.get("version", "") is None:
        after["version"] = int(version)  # only the script that wrote the level knew it
    return AuditEvent(event_id, timestamp, action, entity_id, principal, resource, details)


def namespace_as_text(namespace: Namespace, turn: int) -> str:
    """A namespace and how often its state has changed: of two texts the higher turn is newer."""
    return _encode(
        [
            turn,
            namespace.id,
            namespace.name,
            namespace.state,
            namespace.created_ms,
            namespace.deleted_ms,
        ]
    )


def namespace_from_text(text: str) -> tuple[Namespace, int]:
    turn, *values = from_json("namespace", text)
    return Namespace(*values), turn


def as_json(value: Any) -> str:
    return _encode(value)


def from_json(what: str, text: str) -> Any:
    try:
        return _decode(text)
    except ValueError as error:
        raise Unreachable(
            f"a stored {what} cannot be read ({error}); it was written by something else: "
            f"restore the data, or give headgate a database of its own"
        ) from error
