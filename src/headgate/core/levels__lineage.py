"""Rules about parents that every catalog applies before it writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headgate.core.errors import EntityNotFoundError, ValidationError, VersionMismatchError
from headgate.core.levels__entities import Entity, Stored

LINEAGE_MAX = 8

GetEntity = Callable[[str], Entity | None]


def lineage(entity_id: str, get: GetEntity) -> list[tuple[str, Entity | None]]:
    """The entity, then its parents while each cascades; at most LINEAGE_MAX of them."""
    found: list[tuple[str, Entity | None]] = []
    wanted: str | None = entity_id
    while wanted is not None and len(found) < LINEAGE_MAX:
        entity = get(wanted)
        found.append((wanted, entity))
        wanted = entity.parent_id if entity is not None and entity.cascade else None
    return found


def check_parent(entity_id: str, parent_id: str | None, get: GetEntity) -> None:
    """A parent must exist, must not descend from its child, and must not lie too deep."""
    ancestor = parent_id
    for depth in range(LINEAGE_MAX):
        if ancestor is None:
            return
        if ancestor == entity_id:
            raise ValidationError(
                "parent_id", parent_id, f"descends from {entity_id}; a parent cannot be below it"
            )
        entity = get(ancestor)
        if entity is None:
            if depth == 0:
                raise EntityNotFoundError(ancestor)
            return
        ancestor = entity.parent_id
    raise ValidationError(
        "parent_id", parent_id, f"has {LINEAGE_MAX} generations above it; attach it higher up"
    )


def changed(entity: Entity, changes: dict[str, Any], expected: int | None) -> Entity:
    """The entity after a guarded change, at its next version."""
    if expected is not None and expected != entity.version:
        raise VersionMismatchError(f"entity {entity.id!r}", expected, entity.version)
    return replace(entity, **changes, version=entity.version + 1)


def updated(stored: Stored | None, changes: dict[str, Any], version: int) -> Stored:
    return replace(stored or Stored(), **changes, version=version)
