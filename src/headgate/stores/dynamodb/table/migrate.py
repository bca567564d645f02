"""Moving a table on from an older schema: one walk per step, page by page, resumable.

A step looks at every item its walk finds and moves those that are of the old shape. Where it is
gets noted in the version record after each page, so a run that was cut short goes on from there.
Moving an item is atomic and does nothing the second time, so two runs at once do no harm either.
While a step is under way `prepare` refuses the table; afterwards its new version is on the table
and on every namespace, where the lookups of older headgates find it.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from headgate.core.bucket import MILLI
from headgate.core.errors import StoreTrouble
from headgate.core.history import WINDOW_TYPES, WindowUsage, parse_time_ms
from headgate.core.limits import SEPARATOR
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog import registry as tenants
from headgate.stores.dynamodb.catalog.items import (
    EVENTS,
    RECORD,
    TTL,
    USAGE_KEPT_MS,
    Item,
    as_json,
    json_of,
    key_of,
    number,
    number_of,
    system_key,
    unreadable_item,
    usage_attributes,
    usage_counters,
    usage_key,
)
from headgate.stores.dynamodb.client.port import (
    ConditionFailed,
    DynamoRequest,
    TransactionCancelled,
)
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.create import MIGRATING_TO, SCHEMA, SCHEMA_VERSION, check_schema
from headgate.stores.dynamodb.table.table import ItemsChanged, Table, contended

# --------------------------------------------------------------------------------------------------
# Schema 0 to 1: usage rows get their window's type into the key.
#
# Before, a row was `#USAGE#{resource}#{start}` with the type in the attribute `window`, so that the
# hour, the day and the month that begin at the same moment shared one row. Its counters were whole
# tokens, in attributes called as the limits are.

MOVES_AT_ONCE = 16
ATTEMPTS_MAX = 8


def usage_walk(table: str) -> DynamoRequest:
    """Every usage row, of either shape."""
    return DynamoRequest(
        "Scan",
        {
            "TableName": table,
            "ConsistentRead": True,
            "FilterExpression": "begins_with(#sk, :usage)",
            "ExpressionAttributeNames": {"#sk": schema.SK},
            "ExpressionAttributeValues": {":usage": {"S": schema.USAGE}},
        },
    )


async def move_usage(table: Table, items: Sequence[Item], dry_run: bool) -> int:
    """The rows among the items whose key lacks the type are under the key that has it."""
    old = [item for item in items if _is_old(item)]
    moves = [move_writes(item, table.port.now_ms()) for item in old]
    if dry_run:
        return len(old)
    for at in range(0, len(moves), MOVES_AT_ONCE):
        await _move(table, moves[at : at + MOVES_AT_ONCE])
    return len(old)


def move_writes(item: Item, now_ms: int) -> list[ask.Write]:
    """What the old row counted is added to the new one, and the old one is gone, in one step."""
    pk, sk = key_of(item)
    namespace, entity_id = pk.partition("/")[0], schema.entity_of_pk(pk)
    resource, start = sk.removeprefix(schema.USAGE).split(SEPARATOR)
    usage = _usage(item, start)
    row = ask.update(
        usage_key(namespace, entity_id, resource, usage),
        sets=usage_attributes(
            namespace, entity_id, resource, usage, now_ms, USAGE_KEPT_MS[usage.window_type]
        ),
        adds=usage_counters(usage),
    )
    return [row, ask.delete((pk, sk), ask.PRESENT)]


async def _move(table: Table, moves: Sequence[list[ask.Write]]) -> None:
    """All at once; what somebody else was in the way of is tried on its own."""
    requests = [ask.transaction(table.name, move, secrets.token_hex(16)) for move in moves]
    outcomes = await table.port.call_all(requests)
    for move, outcome in zip(moves, outcomes, strict=True):
        if isinstance(outcome, TransactionCancelled):
            await _move_alone(table, move)
        elif isinstance(outcome, StoreTrouble):
            raise outcome


async def _move_alone(table: Table, move: list[ask.Write]) -> None:
    old = key_of(move[1]["Delete"]["Key"])
    for attempt in range(ATTEMPTS_MAX):
        if await table.get(old) is None:
            return  # somebody else has moved it
        try:
            await table.transact(move)
            return
        except ItemsChanged:
            await table.pause(attempt)
    raise contended(ATTEMPTS_MAX)


def _is_old(item: Item) -> bool:
    return len(key_of(item)[1].removeprefix(schema.USAGE).split(SEPARATOR)) == 2


def _usage(item: Item, start: str) -> WindowUsage:
    try:
        window_type = item["window"]["S"]
        start_ms = parse_time_ms("window_start", start)
        counters = {
            name: int(value["N"]) * MILLI
            for name, value in item.items()
            if "N" in value and name not in (EVENTS, TTL)
        }
        events = int(item[EVENTS]["N"])
        if window_type not in WINDOW_TYPES or start_ms is None:
            raise ValueError(f"window {window_type!r}")
    except (KeyError, ValueError) as error:
        raise unreadable_item("usage row", item, error) from error
    return WindowUsage(window_type, start_ms, counters, events)


POSITION = "position"


@dataclass(frozen=True, slots=True)
class Migration:
    """A step to a schema: which items to look at, and what to do with a page of them.

    `move` returns how many were of the old shape; on a dry run it changes nothing.
    """

    version: int
    title: str
    walk: Callable[[str], DynamoRequest]
    move: Callable[[Table, Sequence[Item], bool], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class MigrationProgress:
    """How far one step is."""

    version: int
    title: str
    looked_at: int = 0
    moved: int = 0
    done: bool = False


Report = Callable[[MigrationProgress], None]

MIGRATIONS = (Migration(1, "usage rows with their window type in the key", usage_walk, move_usage),)
assert MIGRATIONS[-1].version == SCHEMA_VERSION


def ignore_progress(progress: MigrationProgress) -> None:
    return None


async def upgrade(
    table: Table,
    *,
    dry_run: bool = False,
    report: Report = ignore_progress,
    steps: Sequence[Migration] = MIGRATIONS,
) -> list[MigrationProgress]:
    """The steps the table needed, each done; on a dry run what they would do.

    Whoever wrote the old shape must have stopped. A newer schema is refused.
    """
    record = await table.get(RECORD) or {}
    version = number_of(record, SCHEMA)
    check_schema(version)
    return [
        await _step(table, step, record, dry_run, report)
        for step in steps
        if step.version > version
    ]


async def _step(
    table: Table, step: Migration, record: Item, dry_run: bool, report: Report
) -> MigrationProgress:
    progress = MigrationProgress(step.version, step.title)
    resumes = number_of(record, MIGRATING_TO) == step.version
    start: Item | None = json_of(record, POSITION, None) if resumes else None
    if not dry_run:
        await _note(table, step.version, start)
    request = step.walk(table.name)
    while True:
        items, start = await table.page(request, start)
        moved = await step.move(table, items, dry_run)
        progress = replace(
            progress,
            looked_at=progress.looked_at + len(items),
            moved=progress.moved + moved,
            done=start is None,
        )
        if start is None:
            break
        if not dry_run:
            await _note(table, step.version, start)
        report(progress)
    if not dry_run:
        await _finish(table, step.version)
    report(progress)
    return progress


async def _note(table: Table, version: int, position: Item | None) -> None:
    sets = {MIGRATING_TO: number(version), POSITION: as_json(position)}
    await table.write(ask.update(RECORD, sets=sets))


async def _finish(table: Table, version: int) -> None:
    """Every namespace says the new version, then the table does."""
    for namespace in await tenants.list_every(table):
        stamped = ask.update(
            system_key(namespace.id), sets={SCHEMA: number(version)}, guard=ask.PRESENT
        )
        try:
            await table.write(stamped)
        except ConditionFailed:
            continue  # purged meanwhile
    await table.write(
        ask.update(RECORD, sets={SCHEMA: number(version)}, removes=(MIGRATING_TO, POSITION))
    )
