"""What the commands say of a thing, as JSON and as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.admin.reports import BucketState
from headgate.cli.output import OutputTable, amount
from headgate.core.bucket import MILLI
from headgate.core.decision import LimitStatus
from headgate.core.history import iso_time
from headgate.core.levels import Entity, Explanation, Namespace
from headgate.core.limits import Limit
from headgate.core.store import entity_as_json, limits_as_json

LIMIT_COLUMNS = ("limit", ">capacity", ">refill", "per", "soft")


def entity_document(entity: Entity) -> dict[str, Any]:
    return {**entity_as_json(entity), "created_at": iso_time(entity.created_ms)}


def entity_rows(entities: Sequence[Entity]) -> OutputTable:
    return OutputTable(
        ("entity", "name", "parent", "cascade", "mode"),
        [
            (one.id, one.name, one.parent_id, "yes" if one.cascade else "", one.mode.value)
            for one in entities
        ],
        "no entities",
    )


def limits_document(limits: Sequence[Limit]) -> list[dict[str, Any]]:
    return limits_as_json(limits)


def limit_rows(limits: Sequence[Limit]) -> OutputTable:
    return OutputTable(
        LIMIT_COLUMNS,
        [
            (
                one.name, amount(one.capacity), amount(one.refill_amount),
                f"{one.refill_period_seconds} s", "soft" if one.soft else "",
            )
            for one in limits
        ],
        "no limits stored there",
    )  # fmt: skip


def bucket_document(state: BucketState) -> dict[str, Any]:
    return {
        "entity_id": state.entity_id,
        "resource": state.resource,
        "limit": state.limit_name,
        "available": state.tokens_milli // MILLI,
        "capacity": state.capacity_milli // MILLI,
        "consumed": state.total_consumed_milli // MILLI,
    }


def bucket_rows(states: Sequence[BucketState]) -> OutputTable:
    return OutputTable(
        ("resource", "limit", ">available", ">capacity", ">consumed"),
        [
            (
                state.resource, state.limit_name, amount(state.tokens_milli // MILLI),
                amount(state.capacity_milli // MILLI), amount(state.total_consumed_milli // MILLI),
            )
            for state in states
        ],
        "no buckets in use",
    )  # fmt: skip


def status_rows(statuses: Sequence[LimitStatus]) -> OutputTable:
    return OutputTable(
        ("entity", "resource", "limit", ">asked", ">available", ">capacity", "from", ""),
        [
            (
                one.entity_id, one.resource, one.limit_name, amount(one.requested),
                amount(one.available), amount(one.limit.capacity), one.source,
                "exceeded" if one.exceeded else "",
            )
            for one in statuses
        ],
    )  # fmt: skip


def namespace_document(namespace: Namespace) -> dict[str, Any]:
    deleted_ms = namespace.deleted_ms
    return {
        "id": namespace.id,
        "name": namespace.name,
        "state": namespace.state,
        "created_at": iso_time(namespace.created_ms),
        "deleted_at": None if deleted_ms is None else iso_time(deleted_ms),
    }


def namespace_rows(namespaces: Sequence[Namespace], empty: str) -> OutputTable:
    return OutputTable(
        ("name", "id", "state", "created", "deleted"),
        [tuple(namespace_document(one)[key] for key in NAMESPACE_KEYS) for one in namespaces],
        empty,
    )


NAMESPACE_KEYS = ("name", "id", "state", "created_at", "deleted_at")


def explanation_document(explanation: Explanation) -> dict[str, Any]:
    rule = explanation.on_unavailable
    return {
        "entity_id": explanation.entity_id,
        "resource": explanation.resource,
        "limits": [
            {
                **given.limit.to_dict(),
                "level": given.level,
                "source": given.source,
                "version": given.version,
                "overrides": list(given.overrides),
            }
            for given in explanation.limits
        ],
        "on_unavailable": rule.value if rule else None,
        "mode": explanation.mode.value,
        "mode_source": explanation.mode_source or None,
        "version": explanation.version,
        "parents": [explanation_document(parent) for parent in explanation.parents],
    }
