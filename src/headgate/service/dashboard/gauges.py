"""How full buckets are, so that a browser can go on from there by itself.

A gauge is a level at a moment and a rate: between two looks the browser moves it on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headgate.core.record import BucketKey, Record, cells_of
from headgate.service.dashboard.window import Place

if TYPE_CHECKING:
    from headgate.service.decide.namespaces import Room

FOUND_MAX = 200
SHOWN_MAX = 24


async def found_in(room: Room) -> list[Place]:
    """Buckets of the store, FOUND_MAX at most, the emptiest first: what other processes use shows
    too."""
    namespace = await room.configs.namespace_id()
    page = await room.backend.store.find(namespace, limit=FOUND_MAX)
    seen = await room.backend.store.peek(page.items, room._store_ms())
    ranked = [
        (_fullness(record, seen.now_ms), (key.entity_id, key.resource))
        for key, record in zip(page.items, seen.records, strict=True)
        if record is not None
    ]
    return [place for _, place in sorted(ranked)]


async def gauges_of(room: Room, places: Sequence[Place]) -> tuple[int, list[dict[str, Any]]]:
    """The store's time, and the buckets as they are then; those that are not there are left out."""
    namespace = await room.configs.namespace_id()
    keys = [BucketKey(namespace, *place) for place in places]
    seen = await room.backend.store.peek(keys, room._store_ms())
    shown = [
        {
            "entity": key.entity_id,
            "resource": key.resource,
            "limits": limits_of(record, seen.now_ms),
        }
        for key, record in zip(keys, seen.records, strict=True)
        if record is not None
    ]
    return seen.now_ms, shown


def limits_of(record: Record, now_ms: int) -> list[dict[str, Any]]:
    return [
        {
            "name": cell.spec.name,
            "level_milli": cell.level_milli(now_ms),
            "capacity_milli": cell.spec.capacity_milli,
            "amount_milli": cell.spec.rate.amount_milli,
            "period_ms": cell.spec.rate.period_ms,
        }
        for cell in cells_of(record)
    ]


def _fullness(record: Record, now_ms: int) -> float:
    return min(
        (cell.level_milli(now_ms) / cell.spec.capacity_milli for cell in cells_of(record)),
        default=1.0,
    )
