"""Limits as somebody declared them, next to what is stored: what is missing, different or extra.

Values and pure functions only; `apply` reads and writes the store.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.core.levels import Entity, EntityConfig, Level, OnUnavailable, StoredLevel
from headgate.core.limits import DEFAULT_RESOURCE, Limit


@dataclass(frozen=True, slots=True)
class DeclaredLevel:
    """The limits of one level; `on_unavailable` is the system's alone."""

    limits: tuple[Limit, ...]
    on_unavailable: OnUnavailable | None = None


@dataclass(frozen=True, slots=True)
class DeclaredEntity:
    """What is said of an entity; what is not said stays as it is."""

    said: Mapping[str, Any]  # some of name, parent_id, cascade

    def differences(self, entity: Entity) -> dict[str, Any]:
        return {key: value for key, value in self.said.items() if getattr(entity, key) != value}


@dataclass(frozen=True, slots=True)
class Declaration:
    """Everything one file says."""

    levels: Mapping[Level, DeclaredLevel] = field(default_factory=dict)
    entities: Mapping[str, DeclaredEntity] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredState:
    """What the store holds of the same kind."""

    levels: Mapping[Level, StoredLevel]
    entities: Mapping[str, Entity]


class Action(enum.Enum):
    CREATE = "create"
    CHANGE = "change"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class EntityChange:
    action: Action
    entity_id: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LevelChange:
    """One level's limits, before and after; after is empty where they are deleted."""

    action: Action
    level: Level
    before: tuple[Limit, ...]
    after: tuple[Limit, ...]
    rule_before: OnUnavailable | None = None
    rule_after: OnUnavailable | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """What would make the store hold what was declared; `extra` is stored but not declared."""

    entities: tuple[EntityChange, ...]
    levels: tuple[LevelChange, ...]
    extra: tuple[Level, ...]

    def __bool__(self) -> bool:
        return bool(self.entities or self.levels)


def compute_changes(declaration: Declaration, held: StoredState, *, prune: bool = False) -> Changes:
    """The changes, parents before their children; with `prune`, extra levels are deleted."""
    extra = tuple(
        level
        for level, stored in held.levels.items()
        if stored.limits and level not in declaration.levels
    )
    levels = list(_level_changes(declaration, held))
    if prune:
        levels += [_deletion(level, held.levels[level]) for level in extra]
    return Changes(tuple(_entity_changes(declaration, held)), tuple(levels), extra)


def _level_changes(declaration: Declaration, held: StoredState) -> Iterator[LevelChange]:
    for level, wanted in declaration.levels.items():
        stored = held.levels.get(level) or StoredLevel()
        rule = wanted.on_unavailable or stored.on_unavailable
        if _by_name(stored.limits) != _by_name(wanted.limits) or rule is not stored.on_unavailable:
            action = Action.CHANGE if stored.limits else Action.CREATE
            yield LevelChange(
                action, level, stored.limits, wanted.limits, stored.on_unavailable, rule
            )


def _deletion(level: Level, stored: StoredLevel) -> LevelChange:
    return LevelChange(Action.DELETE, level, stored.limits, (), stored.on_unavailable, None)


def _entity_changes(declaration: Declaration, held: StoredState) -> Iterator[EntityChange]:
    for entity_id in _parents_first(declaration.entities):
        wanted = declaration.entities[entity_id]
        entity = held.entities.get(entity_id)
        if entity is None:
            yield EntityChange(Action.CREATE, entity_id, {}, wanted.said)
            continue
        different = wanted.differences(entity)
        if different:
            before = {key: getattr(entity, key) for key in different}
            yield EntityChange(Action.CHANGE, entity_id, before, different)


def _parents_first(entities: Mapping[str, DeclaredEntity]) -> list[str]:
    """A parent that is declared too comes first; a ring is left for the store to refuse."""
    found: dict[str, None] = {}

    for entity_id in entities:
        line: list[str] = []
        wanted: str | None = entity_id
        while wanted in entities and wanted not in found and wanted not in line:
            assert wanted is not None
            line.append(wanted)
            wanted = entities[wanted].said.get("parent_id")
        found.update(dict.fromkeys(reversed(line)))
    return list(found)


def config_after(
    standing: EntityConfig, resource: str, made: Sequence[LevelChange]
) -> EntityConfig:
    """An entity's configuration for a resource as it will be once the changes are made."""
    after = {change.level: change.after for change in made}
    places = {
        "own": Level(standing.entity_id, resource),
        "own_default": Level(standing.entity_id, DEFAULT_RESOURCE),
        "resource": Level(None, resource),
        "system": Level(),
    }
    moved: dict[str, StoredLevel] = {}
    for place, level in places.items():
        if level in after:
            stored: StoredLevel | None = getattr(standing, place)
            moved[place] = replace(stored or StoredLevel(), limits=after[level])
    return replace(standing, **moved)  # type: ignore[arg-type]


def _by_name(limits: Sequence[Limit]) -> dict[str, Limit]:
    return {limit.name: limit for limit in limits}
