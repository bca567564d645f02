"""A namespace as lines of JSON, out of one store and into another: plans, entities, limits, usage.

Buckets stay behind: in the new store everybody begins with full ones. A file begins with a line of
the kind `headgate` and ends with one of the kind `end` that counts the others, so a file that was
cut off is known for one before anything is written.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from headgate.admin.documents import (
    entity_as_json,
    plan_as_json,
    plan_from_json,
    stored_as_json,
    usage_as_json,
)
from headgate.admin.operations import parse_entity
from headgate.admin.plans import parse_plan_limits
from headgate.admin.reports import PAGE_MAX, pages
from headgate.core.errors import ValidationError
from headgate.core.history import WindowUsage, parse_time_ms, parse_window_type, window_around
from headgate.core.levels import Entity, Level, Mode, OnUnavailable, Plan
from headgate.core.limits import (
    Limit,
    parse_amount,
    parse_config_resource,
    parse_entity_id,
    parse_limit_name,
    parse_limits,
    parse_plan_name,
    parse_resource,
)
from headgate.core.refill.bucket import MILLI
from headgate.declare.apply import stored_levels
from headgate.repository import Repository
from headgate.stores.plans import check_plan_size

FORMAT = 1
LINE_BYTES_MAX = 128 * 1024  # a plan with all the limits it may have, names of any length
COUNTERS_MAX = 64
# Those that a store does not make. Only of an entity that is on a plan a line says so, and the end
# counts plans where there are some: an export without any can be read by who knows none.
ENTITY_FIELDS = ("id", "name", "parent_id", "cascade", "mode")

PLAN_FIELDS = ("name", "limits", "resources")

ExportLine = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ExportedLevel:
    """What one level held."""

    level: Level
    limits: tuple[Limit, ...]
    on_unavailable: OnUnavailable | None
    mode: Mode


class ExportedUsage(NamedTuple):
    """What one bucket consumed in one window; exports of older versions do not tell how much of it
    came from children."""

    entity_id: str
    resource: str
    usage: WindowUsage
    tells_cascaded: bool = True


ExportedItem = Plan | Entity | ExportedLevel | ExportedUsage


async def export_lines(repository: Repository, *, usage: bool = True) -> AsyncIterator[ExportLine]:
    """Every line of an export: plans, entities, then levels, then usage, newest window first."""
    yield {
        "kind": "headgate",
        "format": FORMAT,
        "namespace": repository.namespace_name,
        "store": repository.capabilities.name,
    }
    counts = {"plan": 0, "entity": 0, "level": 0, "usage": 0}
    async for line in _lines(repository, usage):
        counts[line["kind"]] += 1
        yield line
    yield {"kind": "end", **_shown_counts(counts)}


def _shown_counts(counts: Mapping[str, int]) -> dict[str, int]:
    return {kind: count for kind, count in counts.items() if count or kind != "plan"}


async def _lines(repository: Repository, usage: bool) -> AsyncIterator[ExportLine]:
    async for plans in pages(lambda cursor: repository.list_plans(PAGE_MAX, cursor)):
        for plan in plans:
            shown = plan_as_json(plan) or {}
            yield {"kind": "plan", **{name: shown[name] for name in PLAN_FIELDS}}
    async for entities in pages(lambda cursor: repository.list_entities(PAGE_MAX, cursor)):
        for entity in entities:
            shown = entity_as_json(entity)
            yield {
                "kind": "entity",
                **{name: shown[name] for name in ENTITY_FIELDS},
                **({} if entity.plan is None else {"plan": entity.plan}),
                "metadata": dict(entity.metadata),  # whole: nothing of it may get lost on the way
            }
    namespace = await repository.configs.namespace_id()
    async for level in stored_levels(repository):
        stored = await repository.backend.catalog.get_stored(namespace, level)
        if stored is not None:
            shown = stored_as_json(stored) or {}
            yield {
                "kind": "level",
                "entity_id": level.entity_id,
                "resource": level.resource,
                **{name: shown[name] for name in ("limits", "on_unavailable", "mode")},
            }
    if usage:
        async for shots in pages(
            lambda cursor: repository.get_usage_snapshots(limit=PAGE_MAX, next_key=cursor)
        ):
            for shot in shots:
                yield {"kind": "usage", **usage_as_json(shot)}


class LineError(ValidationError):
    """A line of an export that cannot be used."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__("line", number, reason)


def read_lines(lines: Iterable[bytes]) -> Iterable[ExportedItem]:
    """What the lines hold, each checked; the last must be the end that counts them all."""
    counts = {"plan": 0, "entity": 0, "level": 0, "usage": 0}
    ended = False
    number = 0
    for number, raw in enumerate(lines, start=1):
        line = _decode_line(number, raw)
        kind = line.pop("kind", None)
        if ended:
            raise LineError(number, "follows the end of the export; import one export at a time")
        if number == 1:
            _check_header(kind, line)
        elif kind == "end":
            ended = True
            found = _shown_counts(counts)
            if line != found:
                raise LineError(number, f"counts {line}, but there were {found}; export it again")
        else:
            yield _parse_line(number, kind, line)
            counts[kind] += 1
    if not ended:
        raise LineError(number, "is the last, but not an end: the file was cut off; export again")


def _decode_line(number: int, raw: bytes) -> ExportLine:
    if len(raw) > LINE_BYTES_MAX:
        raise LineError(number, f"is longer than {LINE_BYTES_MAX} bytes")
    try:
        line = json.loads(raw)
    except ValueError as error:
        raise LineError(number, f"is not JSON: {error}") from error
    if not isinstance(line, dict):
        raise LineError(number, "is not a JSON object")
    return line


def _check_header(kind: object, line: Mapping[str, Any]) -> None:
    if kind != "headgate":
        raise LineError(1, "does not begin an export; `headgate export` writes one")
    if line.get("format") != FORMAT:
        raise LineError(1, f"is of format {line.get('format')!r}; this headgate reads {FORMAT}")


def _parse_line(number: int, kind: object, line: ExportLine) -> ExportedItem:
    reader = READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise LineError(number, f"is of the unknown kind {kind!r}")
    try:
        return reader(line)
    except KeyError as error:
        raise LineError(number, f"has no {error}") from error
    except (ValidationError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise LineError(number, f"cannot be used: {error}") from error


def _entity(line: ExportLine) -> Entity:
    if line["metadata"] is None:
        raise ValueError("metadata is a mapping; {} says nothing")
    entity = parse_entity(
        line["id"], line["name"], line["parent_id"], line["cascade"], line["metadata"],
        line.get("plan"),
    )  # fmt: skip
    return replace(entity, mode=Mode(line["mode"]))


def _plan(line: ExportLine) -> Plan:
    plan = plan_from_json({**line, "version": 0})
    check_plan_size(plan)
    for limits in (plan.limits, *plan.resources.values()):
        parse_plan_limits(limits)
    if not all(plan.resources.values()):
        raise ValueError("a resource without limits of its own is not named")
    resources = {parse_resource(name): limits for name, limits in plan.resources.items()}
    return replace(plan, name=parse_plan_name(plan.name), resources=resources)


def _level(line: ExportLine) -> ExportedLevel:
    whose, on = line["entity_id"], line["resource"]
    level = Level(
        None if whose is None else parse_entity_id(whose),
        None if on is None else (parse_config_resource(on) if whose else parse_resource(on)),
    )
    if level.entity_id is not None and level.resource is None:
        raise ValueError("limits of an entity are for a resource or _default_")
    limits = [Limit.from_dict(one) for one in line["limits"]]
    rule = line["on_unavailable"]
    return ExportedLevel(
        level,
        parse_limits(limits) if limits else (),
        None if rule is None else OnUnavailable(rule),
        Mode(line["mode"]),
    )


def _usage(line: ExportLine) -> ExportedUsage:
    window_type = parse_window_type(line["window_type"])
    start_ms = parse_time_ms("window_start", line["window_start"])
    if window_type is None or start_ms is None:
        raise ValueError("a window has a type and a start")
    if window_around(window_type, start_ms)[0] != start_ms:
        raise ValueError(f"{line['window_start']} is not where a window of that type starts")
    return ExportedUsage(
        parse_entity_id(line["entity_id"]),
        parse_resource(line["resource"]),
        WindowUsage(
            window_type,
            start_ms,
            _counters("counters", line["counters"]),
            parse_amount("total_events", line["total_events"]),
            _counters("from_children", line.get("from_children", {})),  # absent in older exports
            parse_amount("events_from_children", line.get("events_from_children", 0)),
        ),
        "from_children" in line,
    )


def _counters(field: str, counters: object) -> dict[str, int]:
    """Millitokens by limit."""
    if not isinstance(counters, dict) or len(counters) > COUNTERS_MAX:
        raise ValueError(f"{field} must be a mapping of at most {COUNTERS_MAX}")
    for name, amount in counters.items():
        parse_limit_name(name)
        parse_amount(name, abs(amount) if type(amount) is int else amount)  # credits may outweigh
    return {name: amount * MILLI for name, amount in counters.items() if amount}


READERS: dict[str, Callable[[ExportLine], ExportedItem]] = {
    "plan": _plan,
    "entity": _entity,
    "level": _level,
    "usage": _usage,
}
