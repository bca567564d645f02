"""Whom new limits would put over them: asked before they are stored, changes nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from headgate.core.errors import ValidationError
from headgate.core.levels__entities import Level
from headgate.core.limits import Limit, parse_limits
from headgate.core.limits__names import (
    DEFAULT_RESOURCE,
    parse_entity_id,
    parse_namespace,
    parse_resource,
)
from headgate.declare.apply import preview
from headgate.declare.declaration import Action, LevelChange

if TYPE_CHECKING:
    from headgate.service.decide.service import Service

OVER_SHOWN_MAX = 100
FIELDS = frozenset({"namespace", "entity_id", "resource", "limits"})


def parse_change(values: object) -> tuple[str, LevelChange]:
    """The namespace, and a level's limits as they would be; no limits: as if deleted."""
    if not isinstance(values, dict) or not values.keys() <= FIELDS:
        raise ValidationError(
            "request", values, f"must be an object of {', '.join(sorted(FIELDS))}"
        )
    listed = values.get("limits")
    if not isinstance(listed, list):
        raise ValidationError("limits", listed, "must be a list")
    limits = parse_limits([Limit.from_dict(one) for one in listed]) if listed else ()
    action = Action.CHANGE if limits else Action.DELETE
    change = LevelChange(action, _level(values), (), limits)
    return parse_namespace(values.get("namespace", "default")), change


def _level(values: dict[str, Any]) -> Level:
    entity_id, resource = values.get("entity_id"), values.get("resource")
    if entity_id is not None:
        entity_id = parse_entity_id(entity_id)
        resource = DEFAULT_RESOURCE if resource is None else resource
    if resource is not None and resource != DEFAULT_RESOURCE:
        resource = parse_resource(resource)
    if entity_id is None and resource == DEFAULT_RESOURCE:
        raise ValidationError("resource", resource, "needs an entity_id")
    return Level(entity_id, resource)


async def previewed(service: Service, namespace: str, change: LevelChange) -> dict[str, Any]:
    room = await service.room(namespace)
    found = await preview(room.home, [change])
    return {
        "over": [asdict(one) for one in found.over[:OVER_SHOWN_MAX]],
        "over_count": len(found.over),
        "looked_at": found.looked_at,
        "whole": found.whole,
    }
