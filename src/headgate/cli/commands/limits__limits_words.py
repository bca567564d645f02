"""Declared changes in words: a plan, a diff, a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headgate.cli.output import Rows
from headgate.cli.output__text import amount, counted
from headgate.core.levels__entities import Level
from headgate.core.limits import Limit
from headgate.core.limits__names import DEFAULT_RESOURCE
from headgate.core.store import limits_as_json
from headgate.declare.apply import Preview
from headgate.declare.declaration import Action, Changes, EntityChange, LevelChange

SIGNS = {Action.CREATE: "+", Action.CHANGE: "~", Action.DELETE: "-"}


def named(level: Level) -> str:
    if level.entity_id is None:
        return "system" if level.resource is None else f"resource {level.resource}"
    on = "everything" if level.resource == DEFAULT_RESOURCE else level.resource
    return f"entity {level.entity_id} on {on}"


def changes_document(changes: Changes, found: Preview | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "entities": [_entity_document(change) for change in changes.entities],
        "levels": [_level_document(change) for change in changes.levels],
        "not_declared": [_place(level) for level in changes.extra],
    }
    if found is not None:
        told["over"] = [
            {
                "entity_id": one.entity_id,
                "resource": one.resource,
                "limit": one.limit_name,
                "in_use": one.in_use,
                "capacity_before": one.capacity_before,
                "capacity_after": one.capacity_after,
            }
            for one in found.over
        ]
        told["buckets_looked_at"] = found.looked_at
        told["all_buckets"] = found.whole
    return told


def _entity_document(change: EntityChange) -> dict[str, Any]:
    return {
        "action": change.action.value,
        "entity_id": change.entity_id,
        "before": dict(change.before),
        "after": dict(change.after),
    }


def _level_document(change: LevelChange) -> dict[str, Any]:
    return {
        "action": change.action.value,
        **_place(change.level),
        "before": limits_as_json(change.before),
        "after": limits_as_json(change.after),
        "on_unavailable": change.rule_after.value if change.rule_after else None,
    }


def _place(level: Level) -> dict[str, Any]:
    return {"entity_id": level.entity_id, "resource": level.resource}


def plan_parts(changes: Changes, found: Preview) -> list[str | Rows]:
    """What apply would do, and to whom."""
    if not changes:
        return ["nothing to change"]
    parts: list[str | Rows] = [
        f"{SIGNS[change.action]} entity {change.entity_id}{_said(change.after)}"
        for change in changes.entities
    ]
    for change in changes.levels:
        parts.append(f"{SIGNS[change.action]} {named(change.level)}")
        parts += [f"    {line}" for line in _limit_lines(change)]
    parts.append("")
    if not found.over:
        parts.append(f"none of {found.looked_at} buckets in use would be over its limit")
    else:
        parts.append(f"{counted(len(found.over), 'limit')} of buckets in use would be over:")
        parts.append(_over_rows(found))
    if not found.whole:
        parts.append(f"only the first {found.looked_at} buckets were looked at")
    return parts


def _over_rows(found: Preview) -> Rows:
    return Rows(
        ("entity", "resource", "limit", ">in use", ">capacity now", ">then"),
        [
            (
                one.entity_id, one.resource, one.limit_name, amount(one.in_use),
                amount(one.capacity_before), amount(one.capacity_after),
            )
            for one in found.over
        ],
    )  # fmt: skip


def diff_lines(changes: Changes) -> list[str]:
    """`-` is in the store, `+` is in the file."""
    lines: list[str] = []
    for entity_change in changes.entities:
        head = f"entity {entity_change.entity_id}"
        if entity_change.before:
            lines.append(f"- {head}{_said(entity_change.before)}")
        lines.append(f"+ {head}{_said(entity_change.after)}")
    for change in changes.levels:
        lines.append(f"  {named(change.level)}")
        lines += _limit_lines(change)
    lines += [
        f"- {named(level)} (not in the file; limits apply --prune)" for level in changes.extra
    ]
    return lines or ["file and store are alike"]


def _limit_lines(change: LevelChange) -> list[str]:
    before, after = _by_name(change.before), _by_name(change.after)
    lines = []
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) == after.get(name):
            continue
        if name in before:
            lines.append(f"- {_shown(before[name])}")
        if name in after:
            lines.append(f"+ {_shown(after[name])}")
    if change.rule_before is not change.rule_after and change.rule_after is not None:
        lines.append(f"+ on_unavailable {change.rule_after.value}")
    return lines


def _shown(limit: Limit) -> str:
    return f"{limit}{' soft' if limit.soft else ''}"


def _by_name(limits: Sequence[Limit]) -> dict[str, Limit]:
    return {limit.name: limit for limit in limits}


def _said(values: Mapping[str, Any]) -> str:
    return "".join(f"  {key.removesuffix('_id')}={value}" for key, value in values.items())
