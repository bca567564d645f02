"""Entities, limits, buckets, namespaces and history as JSON: one form for all who show them.

The REST service, its console, `headgate --json`, exports and audit events use these, and stores
write limits in this form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from headgate.core.history import (
    AuditEvent,
    BucketState,
    UsageSnapshot,
    iso_time,
    iso_time_or_none,
)
from headgate.core.levels import (
    HIDDEN,
    Entity,
    Explanation,
    Mode,
    Namespace,
    OnUnavailable,
    Plan,
    StoredLevel,
)
from headgate.core.limits import Limit
from headgate.core.refill.bucket import MILLI


def limits_as_json(limits: Sequence[Limit]) -> list[dict[str, Any]]:
    return [limit.to_dict() for limit in limits]


def entity_as_json(entity: Entity) -> dict[str, Any]:
    """An entity as audit events and people are told of it: values of metadata whose names begin
    with `$` are not shown."""
    return {
        "id": entity.id,
        "name": entity.name,
        "parent_id": entity.parent_id,
        "cascade": entity.cascade,
        "metadata": {
            name: "<hidden>" if name.startswith(HIDDEN) else value
            for name, value in entity.metadata.items()
        },
        "mode": entity.mode.value,
        "version": entity.version,
        "created_at": iso_time(entity.created_ms),
        "plan": entity.plan,
    }


def stored_as_json(stored: StoredLevel | None) -> dict[str, Any] | None:
    """A level as audit events and stores write it."""
    if stored is None:
        return None
    return {
        "limits": limits_as_json(stored.limits),
        "version": stored.version,
        "on_unavailable": stored.on_unavailable.value if stored.on_unavailable else None,
        "mode": stored.mode.value,
    }


def stored_from_json(values: Mapping[str, Any]) -> StoredLevel:
    rule = values["on_unavailable"]
    return StoredLevel(
        tuple(Limit.from_dict(limit) for limit in values["limits"]),
        values["version"],
        OnUnavailable(rule) if rule else None,
        Mode(values["mode"]),
    )


def plan_as_json(plan: Plan | None) -> dict[str, Any] | None:
    """A plan as audit events and stores write it."""
    if plan is None:
        return None
    return {
        "name": plan.name,
        "limits": limits_as_json(plan.limits),
        "resources": {name: limits_as_json(given) for name, given in plan.resources.items()},
        "version": plan.version,
    }


def listed_plan_as_json(plan: Plan) -> dict[str, Any]:
    """A plan as people are told of it: with how many entities refer to it."""
    return {**(plan_as_json(plan) or {}), "entities": plan.entities}


def plan_from_json(values: Mapping[str, Any]) -> Plan:
    return Plan(
        values["name"],
        tuple(Limit.from_dict(limit) for limit in values["limits"]),
        {
            name: tuple(Limit.from_dict(limit) for limit in given)
            for name, given in values["resources"].items()
        },
        values["version"],
    )


def namespace_as_json(namespace: Namespace) -> dict[str, Any]:
    return {
        "id": namespace.id,
        "name": namespace.name,
        "state": namespace.state,
        "created_at": iso_time_or_none(namespace.created_ms),
        "deleted_at": iso_time_or_none(namespace.deleted_ms),
    }


def bucket_as_json(state: BucketState) -> dict[str, Any]:
    """Whole tokens, rounded down: what can be taken. `resets` is a quota's schedule."""
    return {
        "entity_id": state.entity_id,
        "resource": state.resource,
        "limit": state.limit_name,
        "tokens_remaining": state.available,
        "tokens_capacity": state.capacity,
        "refill_amount": state.refill_amount_milli // MILLI,
        "refill_period_seconds": state.refill_period_ms / 1000,
        "resets": None if state.resets is None else state.resets.to_dict(),
        "reset_at": iso_time_or_none(state.reset_at_ms),
        "total_consumed": state.consumed,
    }


def usage_as_json(snapshot: UsageSnapshot) -> dict[str, Any]:
    return asdict(snapshot)


def event_as_json(event: AuditEvent) -> dict[str, Any]:
    # Not asdict, which would recurse into details: metadata may be nested deeper than it can go.
    return {field.name: getattr(event, field.name) for field in fields(event)}


def next_reset_ms(limit: Limit, now_ms: int) -> int | None:
    """When a quota is reset next, whoever uses it; None for a session and for what is no quota."""
    if limit.resets is None or limit.resets.reset_after is not None:
        return None
    return next(iter(limit.resets.instants(now_ms, 1)), None)


def explanation_as_json(found: Explanation, now_ms: int) -> dict[str, Any]:
    """`reset_at` is the next reset of a quota by the calendar or by cron; a session's is its
    bucket's own."""
    rule = found.on_unavailable
    return {
        "entity_id": found.entity_id,
        "resource": found.resource,
        "plan": found.plan,
        "limits": [
            {
                "limit": given.limit.to_dict(),
                "level": given.level,
                "source": given.source,
                "version": given.version,
                "overrides": list(given.overrides),
                "reset_at": iso_time_or_none(next_reset_ms(given.limit, now_ms)),
            }
            for given in found.limits
        ],
        "mode": found.mode.value,
        "mode_source": found.mode_source,
        "on_unavailable": rule.value if rule else None,
        "version": found.version,
        "nearest": [
            {
                "limit_name": one.given.limit.name,
                "entity_id": one.entity_id,
                "source": one.given.source,
            }
            for one in found.nearest
        ],
        "warnings": list(found.warnings),
        "parents": [explanation_as_json(parent, now_ms) for parent in found.parents],
    }
