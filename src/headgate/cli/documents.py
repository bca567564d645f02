"""What the commands say of a thing as a table; as JSON it is in `headgate.admin.documents`."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.admin.documents import namespace_as_json
from headgate.cli.output import OutputTable, amount
from headgate.core.decision import LimitStatus
from headgate.core.history import BucketState
from headgate.core.levels import Entity, Namespace
from headgate.core.limits import Limit

LIMIT_COLUMNS = ("limit", ">capacity", ">refill", "per", "soft")


def entity_rows(entities: Sequence[Entity]) -> OutputTable:
    return OutputTable(
        ("entity", "name", "parent", "cascade", "mode"),
        [
            (one.id, one.name, one.parent_id, "yes" if one.cascade else "", one.mode.value)
            for one in entities
        ],
        "no entities",
    )


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


def bucket_rows(states: Sequence[BucketState]) -> OutputTable:
    return OutputTable(
        ("resource", "limit", ">available", ">capacity", ">consumed"),
        [
            (
                state.resource, state.limit_name, amount(state.available),
                amount(state.capacity), amount(state.consumed),
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


def namespace_rows(namespaces: Sequence[Namespace], empty: str) -> OutputTable:
    return OutputTable(
        ("name", "id", "state", "created", "deleted"),
        [tuple(namespace_as_json(one)[key] for key in NAMESPACE_KEYS) for one in namespaces],
        empty,
    )


NAMESPACE_KEYS = ("name", "id", "state", "created_at", "deleted_at")
