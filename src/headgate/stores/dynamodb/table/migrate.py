"""Moving a table on from an older schema: one walk per step, page by page, resumable.

A step looks at every item its walk finds and moves those that are of the old shape. Where it is
gets noted in the version record after each page, so a run that was cut short goes on from there.
Moving an item is atomic and does nothing the second time, so two runs at once do no harm either.
While a step is under way `prepare` refuses the table; afterwards its new version is on the table
and on every namespace, where the lookups of older headgates find it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from headgate.stores.dynamodb.catalog.items import (
    RECORD,
    Item,
    as_json,
    json_of,
    number,
    number_of,
    system_key,
)
from headgate.stores.dynamodb.catalog.registry import list_namespaces
from headgate.stores.dynamodb.client.calls import ConditionFailed, DynamoRequest
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.create import (
    MIGRATING_TO,
    SCHEMA,
    SCHEMA_VERSION,
    check_schema,
    noted_version,
    refuse_unknown,
)
from headgate.stores.dynamodb.table.table import Table

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

# There has been one schema so far, so there is no step yet. A change of the schema raises
# SCHEMA_VERSION and appends the step that leads to it.
MIGRATIONS: tuple[Migration, ...] = ()


async def upgrade(
    table: Table, *, dry_run: bool = False, report: Report | None = None
) -> list[MigrationProgress]:
    """The steps the table needed, each done; on a dry run what they would do.

    Whoever wrote the old shape must have stopped. A newer schema is refused. A table whose version
    was never noted, because its first items came before `prepare`, gets one noted here.
    """
    record = await table.get(RECORD) or {}
    noted = noted_version(record)
    if noted is None:
        await refuse_unknown(table)
    version = noted or 0
    check_schema(version)
    needed = [step for step in MIGRATIONS if step.version > version]
    if not needed and version < SCHEMA_VERSION and not dry_run:
        await _finish(table, SCHEMA_VERSION)
    return [await _step(table, step, record, dry_run, report) for step in needed]


async def _step(
    table: Table, step: Migration, record: Item, dry_run: bool, report: Report | None
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
        if report is not None:
            report(progress)
    if not dry_run:
        await _finish(table, step.version)
    if report is not None:
        report(progress)
    return progress


async def _note(table: Table, version: int, position: Item | None) -> None:
    sets = {MIGRATING_TO: number(version), POSITION: as_json(position)}
    await table.write(ask.update(RECORD, sets=sets))


async def _finish(table: Table, version: int) -> None:
    """Every namespace says the new version, then the table does."""
    for namespace in await list_namespaces(table):
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
