"""Limits as somebody declared them, next to what is stored: what is missing, different or extra;
making a store hold them, and saying first whom that would put over a limit.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.admin.reports import PAGE_MAX, live_buckets, pages
from headgate.core.errors import ValidationError
from headgate.core.history import parse_principal
from headgate.core.levels import (
    Entity,
    EntityConfig,
    Level,
    OnUnavailable,
    Plan,
    StoredLevel,
    parents_first,
    resolve,
)
from headgate.core.limits import DEFAULT_RESOURCE, Limit
from headgate.core.record import BucketKey, Record, cell_of
from headgate.core.refill.bucket import MILLI
from headgate.repository import Repository


@dataclass(frozen=True, slots=True)
class PlanLevel:
    """Where a plan has limits: for a resource, or (None) for every one."""

    plan: str
    resource: str | None = None


DeclaredLevel = Level | PlanLevel


@dataclass(frozen=True, slots=True)
class Declaration:
    """Everything one file says.

    Of an entity it says some of name, parent_id, cascade and plan; what is not said stays as it is.
    """

    levels: Mapping[DeclaredLevel, StoredLevel] = field(default_factory=dict)
    entities: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    plans: Sequence[str] = ()  # that are to be there, also without limits


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
    level: DeclaredLevel
    before: tuple[Limit, ...]
    after: tuple[Limit, ...]
    rule_before: OnUnavailable | None = None
    rule_after: OnUnavailable | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """What would make the store hold what was declared; `extra` is stored but not declared."""

    entities: tuple[EntityChange, ...]
    levels: tuple[LevelChange, ...]
    extra: tuple[DeclaredLevel, ...]

    def __bool__(self) -> bool:
        return bool(self.entities or self.levels)


def compute_changes(
    declaration: Declaration,
    levels: Mapping[DeclaredLevel, StoredLevel],
    entities: Mapping[str, Entity],
    *,
    prune: bool = False,
) -> Changes:
    """What to change of these stored levels and entities, parents before their children; with
    `prune`, extra levels are deleted."""
    extra = {
        level: stored
        for level, stored in levels.items()
        if stored.limits and level not in declaration.levels
    }
    changes = list(_level_changes(declaration, levels))
    if prune:
        changes += [
            LevelChange(Action.DELETE, level, stored.limits, (), stored.on_unavailable, None)
            for level, stored in extra.items()
        ]
    return Changes(tuple(_entity_changes(declaration, entities)), tuple(changes), tuple(extra))


def _level_changes(
    declaration: Declaration, levels: Mapping[DeclaredLevel, StoredLevel]
) -> Iterator[LevelChange]:
    for name in declaration.plans:
        place = PlanLevel(name)
        if place not in levels and place not in declaration.levels:
            yield LevelChange(Action.CREATE, place, (), ())
    for level, wanted in declaration.levels.items():
        stored = levels.get(level) or StoredLevel()
        rule = wanted.on_unavailable or stored.on_unavailable
        if set(stored.limits) != set(wanted.limits) or rule is not stored.on_unavailable:
            action = Action.CHANGE if stored.limits else Action.CREATE
            yield LevelChange(
                action, level, stored.limits, wanted.limits, stored.on_unavailable, rule
            )


def _entity_changes(
    declaration: Declaration, entities: Mapping[str, Entity]
) -> Iterator[EntityChange]:
    parents = {name: said.get("parent_id") for name, said in declaration.entities.items()}
    for entity_id in parents_first(parents):
        said = declaration.entities[entity_id]
        entity = entities.get(entity_id)
        if entity is None:
            yield EntityChange(Action.CREATE, entity_id, {}, said)
            continue
        different = {key: value for key, value in said.items() if getattr(entity, key) != value}
        if different:
            before = {key: getattr(entity, key) for key in different}
            yield EntityChange(Action.CHANGE, entity_id, before, different)


def config_after(
    standing: EntityConfig,
    resource: str,
    made: Sequence[LevelChange],
    assigned: Mapping[str, Plan | None],
) -> EntityConfig:
    """An entity's configuration for a resource as it will be once the changes are made, and those
    entities are on these plans."""
    after = {change.level: change.after for change in made}
    plan = assigned.get(standing.entity_id, standing.plan)
    if plan is not None:
        of_plan, of_both = PlanLevel(plan.name), PlanLevel(plan.name, resource)
        given = {resource: after.get(of_both, plan.limits_for(resource))}
        plan = replace(plan, limits=after.get(of_plan, plan.limits), resources=given)
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
    return replace(standing, **moved, plan=plan)  # type: ignore[arg-type]


BUCKETS_LOOKED_AT_MAX = 100_000
LEVELS_MAX = 100_000

Report = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class OverLimit:
    """A live bucket that has more in use than a limit's new capacity; amounts in whole tokens."""

    entity_id: str
    resource: str
    limit_name: str
    in_use: int
    capacity_before: int
    capacity_after: int


@dataclass(frozen=True, slots=True)
class Preview:
    """Who would be over a limit, of the buckets that were looked at; `whole` if that were all."""

    over: tuple[OverLimit, ...]
    looked_at: int
    whole: bool


async def plan_changes(
    repository: Repository, declaration: Declaration, *, prune: bool = False
) -> Changes:
    """What applying the declaration would change now."""
    namespace = await repository.configs.namespace_id()
    catalog = repository.backend.catalog
    levels: dict[DeclaredLevel, StoredLevel] = {
        level: stored
        for level in [one async for one in stored_levels(repository)]
        if (stored := await catalog.get_stored(namespace, level)) is not None
    }
    async for plans in pages(functools.partial(repository.list_plans, PAGE_MAX)):
        for plan in plans:
            levels |= plan_levels(plan)
    entities = {
        entity_id: entity
        for entity_id in declaration.entities
        if (entity := await repository.get_entity(entity_id)) is not None
    }
    return compute_changes(declaration, levels, entities, prune=prune)


def plan_levels(plan: Plan) -> dict[DeclaredLevel, StoredLevel]:
    """What a plan gives, level by level."""
    return {
        PlanLevel(plan.name, resource): StoredLevel(plan.limits_for(resource), plan.version)
        for resource in (None, *plan.resources)
    }


async def stored_levels(repository: Repository) -> AsyncIterator[Level]:
    """Where limits may be stored: the system, resources, then entities."""
    yield Level()
    of_entities = await repository.list_resources_with_entity_configs()
    seen = 1
    for resource in sorted({*await repository.list_resources_with_defaults(), *of_entities}):
        if resource != DEFAULT_RESOURCE:
            yield Level(None, resource)
    for resource in of_entities:
        listing = functools.partial(repository.list_entities_with_custom_limits, resource, PAGE_MAX)
        async for ids in pages(listing):
            seen += len(ids)
            if seen > LEVELS_MAX:
                raise ValidationError(
                    "levels", seen, f"are more than {LEVELS_MAX}; move them by namespace"
                )
            for entity_id in ids:
                yield Level(entity_id, resource)


async def apply_changes(
    repository: Repository,
    wanted: Changes,
    principal: str | None,
    report: Report = lambda done: None,
) -> int:
    """How many changes were made. Made again, it has nothing to do; cut short, it goes on."""
    parse_principal(principal)
    plans = [change for change in wanted.levels if isinstance(change.level, PlanLevel)]
    others = [change for change in wanted.levels if not isinstance(change.level, PlanLevel)]
    changes: list[EntityChange | LevelChange] = [*plans, *wanted.entities, *others]
    for done, change in enumerate(changes, start=1):
        if isinstance(change, LevelChange):
            await _apply_level(repository, change, principal)
        elif change.action is Action.CREATE:
            await repository.create_entity(change.entity_id, principal=principal, **change.after)
        else:
            await repository._change_entity(change.entity_id, change.after, principal)
        report(done)
    return len(changes)


async def _apply_level(repository: Repository, change: LevelChange, principal: str | None) -> None:
    level = change.level
    if isinstance(level, PlanLevel):
        await repository.set_plan(level.plan, change.after, level.resource, principal)
    elif change.action is Action.DELETE:
        await repository._delete_level(level, principal)
    else:
        rule = {"on_unavailable": change.rule_after} if change.rule_after else {}
        await repository._change_level(level, {"limits": change.after, **rule}, principal)


async def preview(
    repository: Repository,
    wanted: Sequence[LevelChange],
    report: Report = lambda done: None,
    *,
    entities: Sequence[EntityChange] = (),
) -> Preview:
    """Buckets in use that the changes would leave with more taken than they may hold. Of entities
    their plans are looked at."""
    assigned = await _assigned_plans(repository, entities)
    over: list[OverLimit] = []
    looked_at = 0
    seen: set[str] = set()
    for scope in _scopes(wanted, assigned):
        async for key, record, now_ms in live_buckets(repository, *scope):
            if key.text in seen:
                continue
            if looked_at >= BUCKETS_LOOKED_AT_MAX:
                return Preview(tuple(over), looked_at, False)
            seen.add(key.text)
            looked_at += 1
            over += await _over_limits(repository, wanted, assigned, key, record, now_ms)
            report(looked_at)
    return Preview(tuple(over), looked_at, True)


async def _assigned_plans(
    repository: Repository, entities: Sequence[EntityChange]
) -> dict[str, Plan | None]:
    """The plans that entities are to be on, as they are stored now."""
    found: dict[str, Plan | None] = {}
    for change in entities:
        if "plan" in change.after:
            name = change.after["plan"]
            stored = None if name is None else await repository.get_plan(name) or Plan(name)
            found[change.entity_id] = stored
    return found


def _scopes(
    wanted: Sequence[LevelChange], assigned: Mapping[str, Plan | None]
) -> list[tuple[str | None, str | None]]:
    """Which buckets the changes can reach, as (entity, resource); None is every one."""
    places = {
        (
            None if isinstance(change.level, PlanLevel) else change.level.entity_id,
            None if change.level.resource == DEFAULT_RESOURCE else change.level.resource,
        )
        for change in wanted
    }
    places |= {(entity_id, None) for entity_id in assigned}
    if (None, None) in places:
        return [(None, None)]
    return sorted(
        places,
        key=lambda scope: (scope[0] or "", scope[1] or ""),
    )


async def _over_limits(
    repository: Repository,
    wanted: Sequence[LevelChange],
    assigned: Mapping[str, Plan | None],
    key: BucketKey,
    record: Record,
    now_ms: int,
) -> list[OverLimit]:
    lookup = await repository.backend.catalog.lookup(key.namespace, key.entity_id, key.resource)
    standing = config_after(lookup.lineage[0], key.resource, wanted, assigned)
    found = []
    for limit in resolve(standing, key.resource).limits:
        cell = cell_of(record, limit.name)
        if cell is None or limit.soft:
            continue
        in_use = cell.spec.capacity_milli - cell.level_milli(now_ms)
        if in_use > limit.capacity * MILLI and limit.spec != cell.spec:
            before = cell.spec.capacity_milli // MILLI
            found.append(
                OverLimit(
                    key.entity_id, key.resource, limit.name,
                    -(-in_use // MILLI), before, limit.capacity,
                )
            )  # fmt: skip
    return found
