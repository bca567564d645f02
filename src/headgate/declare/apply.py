"""Making a store hold what was declared, and saying first whom that would put over a limit."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.admin.reports import PAGE_MAX, live_buckets, pages
from headgate.core.bucket import MILLI
from headgate.core.errors import ValidationError
from headgate.core.levels import Entity, Level, StoredLevel, resolve
from headgate.core.limits import DEFAULT_RESOURCE
from headgate.core.record import BucketKey, Record, cell_of
from headgate.declare.declaration import (
    Action,
    Changes,
    Declaration,
    EntityChange,
    LevelChange,
    StoredState,
    compute_changes,
    config_after,
)
from headgate.repository import Repository

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


async def read_stored(
    repository: Repository, declaration: Declaration | None = None
) -> StoredState:
    """Every level with limits, and the entities that a declaration names."""
    namespace = await repository.configs.namespace_id()
    catalog = repository.backend.catalog
    levels: dict[Level, StoredLevel] = {}
    for level in [one async for one in stored_levels(repository)]:
        stored = await catalog.get_stored(namespace, level)
        if stored is not None:
            levels[level] = stored
    entities: dict[str, Entity] = {}
    for entity_id in declaration.entities if declaration else ():
        entity = await repository.get_entity(entity_id)
        if entity is not None:
            entities[entity_id] = entity
    return StoredState(levels, entities)


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


async def plan_changes(
    repository: Repository, declaration: Declaration, *, prune: bool = False
) -> Changes:
    """What applying the declaration would change now."""
    return compute_changes(declaration, await read_stored(repository, declaration), prune=prune)


async def apply_changes(
    repository: Repository,
    wanted: Changes,
    principal: str | None,
    report: Report = lambda done: None,
) -> int:
    """How many changes were made. Made again, it has nothing to do; cut short, it goes on."""
    changes: list[EntityChange | LevelChange] = [*wanted.entities, *wanted.levels]
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
    if change.action is Action.DELETE:
        await repository._delete_level(change.level, principal)
        return
    changes: dict[str, Any] = {"limits": change.after}
    if change.rule_after is not None:
        changes["on_unavailable"] = change.rule_after
    await repository._change_level(change.level, changes, principal)


async def preview(
    repository: Repository, wanted: Sequence[LevelChange], report: Report = lambda done: None
) -> Preview:
    """Buckets in use that the changes would leave with more taken than they may hold."""
    over: list[OverLimit] = []
    looked_at = 0
    seen: set[str] = set()
    for scope in _scopes(wanted):
        async for key, record, now_ms in live_buckets(repository, *scope):
            if key.text in seen:
                continue
            if looked_at >= BUCKETS_LOOKED_AT_MAX:
                return Preview(tuple(over), looked_at, False)
            seen.add(key.text)
            looked_at += 1
            over += await _over_limits(repository, wanted, key, record, now_ms)
            report(looked_at)
    return Preview(tuple(over), looked_at, True)


def _scopes(wanted: Sequence[LevelChange]) -> list[tuple[str | None, str | None]]:
    """Which buckets the changes can reach, as (entity, resource); None is every one."""
    levels = {change.level for change in wanted}
    if Level() in levels:
        return [(None, None)]
    return sorted(
        {
            (level.entity_id, None if level.resource == DEFAULT_RESOURCE else level.resource)
            for level in levels
        },
        key=lambda scope: (scope[0] or "", scope[1] or ""),
    )


async def _over_limits(
    repository: Repository,
    wanted: Sequence[LevelChange],
    key: BucketKey,
    record: Record,
    now_ms: int,
) -> list[OverLimit]:
    lookup = await repository.backend.catalog.lookup(key.namespace, key.entity_id, key.resource)
    standing = config_after(lookup.lineage[0], key.resource, wanted)
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
