"""How full buckets are, so that a browser can go on from there by itself.

A gauge is a level at a moment and a rate: between two looks the browser moves it on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType

from headgate.core.errors import ValidationError
from headgate.core.levels import Level
from headgate.core.limits import (
    DEFAULT_NAMESPACE,
    DEFAULT_RESOURCE,
    LIMITS_MAX,
    RESOURCE_LENGTH_MAX,
    parse_resource,
)
from headgate.core.record import BucketKey, LimitCell, Record, cells_of
from headgate.core.store import Sharded
from headgate.declare.apply import Action, DeclaredLevel, LevelChange, PlanLevel, preview
from headgate.service.decide.namespaces import NamespaceService
from headgate.service.decide.problems import invalid
from headgate.service.decide.request_bodies import (
    EntityId,
    Namespace,
    PlanName,
    RequestBody,
    check_values,
    parse_body,
)
from headgate.service.decide.service import Service
from headgate.service.http.calls import LimitBody, limits_of

FOUND_MAX = 200
SHOWN_MAX = 24

BucketRef = tuple[str, str]  # entity, resource


async def find_buckets(ns: NamespaceService) -> list[BucketRef]:
    """Buckets of the store, FOUND_MAX at most, the emptiest first: what other processes use shows
    too."""
    namespace = await ns.configs.namespace_id()
    page = await ns.backend.store.find(namespace, limit=FOUND_MAX)
    seen = await ns.backend.store.peek(page.items, ns._store_ms())
    ranked = [
        (_fullness(record, seen.now_ms), (key.entity_id, key.resource))
        for key, record in zip(page.items, seen.records, strict=True)
        if record is not None
    ]
    return [place for _, place in sorted(ranked)]


async def gauges_of(
    ns: NamespaceService, places: Sequence[BucketRef]
) -> tuple[int, list[dict[str, Any]]]:
    """The store's time, and the buckets as they are then; those that are not there are left out."""
    namespace = await ns.configs.namespace_id()
    keys = [BucketKey(namespace, *place) for place in places]
    seen = await ns.backend.store.peek(keys, ns._store_ms())
    shown = [
        {
            "entity": key.entity_id,
            "resource": key.resource,
            "limits": levels_of(record, seen.now_ms),
        }
        for key, record in zip(keys, seen.records, strict=True)
        if record is not None
    ]
    return seen.now_ms, shown


def levels_of(record: Record, now_ms: int) -> list[dict[str, Any]]:
    return [
        {
            "name": cell.spec.name,
            "level_milli": cell.level_milli(now_ms),
            "capacity_milli": cell.spec.capacity_milli,
            "amount_milli": cell.spec.rate.amount_milli,
            "period_ms": cell.spec.rate.period_ms,
            **_window_of(cell, now_ms),
        }
        for cell in cells_of(record)
    ]


def _window_of(cell: LimitCell, now_ms: int) -> dict[str, Any]:
    """Of a quota, which schedule it has, and in how long it is reset."""
    resets = cell.spec.rate.resets
    if resets is None:
        return {}
    told: dict[str, Any] = {"resets": resets.to_dict()}
    reset_at_ms = cell.reset_at_ms(now_ms)
    if reset_at_ms is not None:  # a session that nobody has begun has no window
        told["reset_in_ms"] = reset_at_ms - now_ms
    return told


def _fullness(record: Record, now_ms: int) -> float:
    return min(
        (cell.level_milli(now_ms) / cell.spec.capacity_milli for cell in cells_of(record)),
        default=1.0,
    )


# --------------------------------------------------------------------------------------------------
# How buckets are divided in the store, where it divides any; looked at only when asked.

LOOKED_AT_MAX = 40  # buckets; each costs a read


async def shards_of(service: Service, namespace: str) -> dict[str, Any]:
    """The buckets in the most parts first; `sharding` says whether the store divides at all."""
    ns = await service.namespace(namespace)
    store: Any = ns.home.backend.store
    if not hasattr(store, "shards"):
        return {"sharding": False, "buckets": [], "whole": True}
    page = await store.find(await ns.configs.namespace_id(), limit=LOOKED_AT_MAX)
    found = [await _bucket(store, key) for key in page.items]
    shown = [one for one in found if one["shards"]]
    return {
        "sharding": True,
        "buckets": sorted(shown, key=lambda one: -len(one["shards"])),
        "whole": page.cursor is None,
    }


async def _bucket(store: Sharded, key: BucketKey) -> dict[str, Any]:
    now_ms, shards = await store.shards(key, None)
    shown = [
        {
            "number": shard.number,
            "depth": shard.depth,
            "parts": 1 << shard.depth,  # it has one of so many
            "written_per_s": shard.written_per_s,
            "limits": levels_of(shard.record, now_ms),
        }
        for shard in shards
    ]
    return {"entity": key.entity_id, "resource": key.resource, "shards": shown}


# --------------------------------------------------------------------------------------------------
# Whom new limits would put over them: asked before they are stored, changes nothing.

OVER_SHOWN_MAX = 100


class PreviewBody(RequestBody):
    """A level and its limits as they would be; no limits: as if they were deleted."""

    limits: Annotated[list[LimitBody], Meta(max_length=LIMITS_MAX)]
    namespace: Namespace | UnsetType = UNSET
    entity_id: EntityId | None = None
    resource: Annotated[str, Meta(min_length=1, max_length=RESOURCE_LENGTH_MAX)] | None = None
    plan: PlanName | None = None


def parse_change(values: object) -> tuple[str, LevelChange]:
    """The namespace, and the change of a level's limits that is asked about."""
    body = parse_body(values, PreviewBody)
    check_values(values, PreviewBody)
    try:
        limits = tuple(limits_of(body.limits)) if body.limits else ()
        level = _level(body.entity_id, body.resource, body.plan)
    except ValidationError as error:
        raise invalid(error.field, error.reason) from None
    change = LevelChange(Action.CHANGE if limits else Action.DELETE, level, (), limits)
    return DEFAULT_NAMESPACE if body.namespace is UNSET else body.namespace, change


def _level(entity_id: str | None, resource: str | None, plan: str | None) -> DeclaredLevel:
    if plan is not None:
        if entity_id is not None:
            raise ValidationError("plan", plan, "is a level apart; leave the entity_id out")
        return PlanLevel(plan, None if resource is None else parse_resource(resource))
    if entity_id is not None and resource is None:
        resource = DEFAULT_RESOURCE
    if resource is not None and resource != DEFAULT_RESOURCE:
        resource = parse_resource(resource)
    if entity_id is None and resource == DEFAULT_RESOURCE:
        raise ValidationError("resource", resource, "needs an entity_id")
    return Level(entity_id, resource)


async def preview_change(service: Service, namespace: str, change: LevelChange) -> dict[str, Any]:
    ns = await service.namespace(namespace)
    found = await preview(ns.home, [change])
    return {
        "over": [asdict(one) for one in found.over[:OVER_SHOWN_MAX]],
        "over_count": len(found.over),
        "looked_at": found.looked_at,
        "whole": found.whole,
    }
