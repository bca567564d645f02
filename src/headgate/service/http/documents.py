"""What operators are shown, as JSON documents."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from headgate.admin.reports import BucketState
from headgate.core.bucket import MILLI
from headgate.core.history import AuditEvent, UsageSnapshot
from headgate.core.levels import Entity, Explanation, Namespace
from headgate.core.limits import Limit
from headgate.service.decide.bodies import iso_time
from headgate.service.decide.rules import Rule
from headgate.service.keys.key import Key
from headgate.service.policies.watch import PolicyStatus


def limit_json(limit: Limit) -> dict[str, Any]:
    return {**limit.to_dict(), "soft": limit.soft}


def limits_json(limits: list[Limit]) -> dict[str, Any]:
    return {"limits": [limit_json(limit) for limit in limits]}


def entity_json(entity: Entity) -> dict[str, Any]:
    return {
        "id": entity.id,
        "name": entity.name,
        "parent_id": entity.parent_id,
        "cascade": entity.cascade,
        "metadata": dict(entity.metadata),
        "mode": entity.mode.value,
        "version": entity.version,
        "created_at": iso_time(entity.created_ms),
    }


def namespace_json(found: Namespace) -> dict[str, Any]:
    return {
        "id": found.id,
        "name": found.name,
        "state": found.state,
        "created_at": iso_time(found.created_ms),
        "deleted_at": iso_time(found.deleted_ms),
    }


def bucket_json(state: BucketState) -> dict[str, Any]:
    """Whole tokens, rounded down: what can be taken."""
    return {
        "entity_id": state.entity_id,
        "resource": state.resource,
        "limit": state.limit_name,
        "tokens_remaining": state.tokens_milli // MILLI,
        "tokens_capacity": state.capacity_milli // MILLI,
        "refill_amount": state.refill_amount_milli // MILLI,
        "refill_period_seconds": state.refill_period_ms / 1000,
        "total_consumed": state.total_consumed_milli // MILLI,
    }


def usage_json(snapshot: UsageSnapshot) -> dict[str, Any]:
    return {**asdict(snapshot), "counters": dict(snapshot.counters)}


def event_json(event: AuditEvent) -> dict[str, Any]:
    return {**asdict(event), "details": dict(event.details)}


def explanation_json(found: Explanation) -> dict[str, Any]:
    return {
        "entity_id": found.entity_id,
        "resource": found.resource,
        "limits": [
            {
                "limit": limit_json(given.limit),
                "source": given.source,
                "overrides": list(given.overrides),
            }
            for given in found.limits
        ],
        "mode": found.mode.value,
        "mode_source": found.mode_source,
        "on_unavailable": found.on_unavailable.value if found.on_unavailable else None,
        "parents": [explanation_json(parent) for parent in found.parents],
    }


def rule_json(rule: Rule | None) -> dict[str, Any] | None:
    if rule is None:
        return None
    return {"name": rule.name, "level": rule.level, "shadow": rule.shadow}


def key_json(key: Key) -> dict[str, Any]:
    """A key without its secret, which is nowhere, and without its digest."""
    return {
        "id": key.id,
        "name": key.name,
        "scopes": sorted(key.grant.scopes),
        "namespace": key.grant.namespace,
        "entity_prefix": key.grant.entity_prefix,
        "created_at": iso_time(key.created_ms),
        "created_by": key.created_by,
        "revoked_at": iso_time(key.revoked_ms),
    }


def policy_status_json(standing: PolicyStatus) -> dict[str, Any]:
    trouble = standing.trouble
    return {
        "loaded_at": iso_time(standing.loaded_ms),
        "loads": standing.loads,
        "failures": standing.failures,
        "trouble": None if trouble is None else str(trouble.broken),
        "restart_needed": standing.restart_needed,
    }
