"""Entities, limits, buckets, namespaces and history as JSON: one form for all who show them.

The REST service, its console, `headgate --json` and exports use these. Catalogs put entities and
limits into audit events, too, so those forms are made below the stores, in `headgate.core.store`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from headgate.core.bucket import MILLI
from headgate.core.history import AuditEvent, BucketState, UsageSnapshot, iso_time_or_none
from headgate.core.levels import Explanation, Namespace
from headgate.core.store import entity_as_json, limits_as_json, stored_as_json

__all__ = [
    "bucket_as_json",
    "entity_as_json",
    "event_as_json",
    "explanation_as_json",
    "limits_as_json",
    "namespace_as_json",
    "stored_as_json",
    "usage_as_json",
]


def namespace_as_json(namespace: Namespace) -> dict[str, Any]:
    return {
        "id": namespace.id,
        "name": namespace.name,
        "state": namespace.state,
        "created_at": iso_time_or_none(namespace.created_ms),
        "deleted_at": iso_time_or_none(namespace.deleted_ms),
    }


def bucket_as_json(state: BucketState) -> dict[str, Any]:
    """Whole tokens, rounded down: what can be taken."""
    return {
        "entity_id": state.entity_id,
        "resource": state.resource,
        "limit": state.limit_name,
        "tokens_remaining": state.available,
        "tokens_capacity": state.capacity,
        "refill_amount": state.refill_amount_milli // MILLI,
        "refill_period_seconds": state.refill_period_ms / 1000,
        "total_consumed": state.consumed,
    }


def usage_as_json(snapshot: UsageSnapshot) -> dict[str, Any]:
    return asdict(snapshot)


def event_as_json(event: AuditEvent) -> dict[str, Any]:
    return asdict(event)


def explanation_as_json(found: Explanation) -> dict[str, Any]:
    rule = found.on_unavailable
    return {
        "entity_id": found.entity_id,
        "resource": found.resource,
        "limits": [{**asdict(given), "overrides": list(given.overrides)} for given in found.limits],
        "mode": found.mode.value,
        "mode_source": found.mode_source,
        "on_unavailable": rule.value if rule else None,
        "version": found.version,
        "parents": [explanation_as_json(parent) for parent in found.parents],
    }
