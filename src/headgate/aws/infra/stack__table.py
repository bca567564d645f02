"""The table of a new stack made ready for apps, whose policy lets them change none of this."""

from __future__ import annotations

from typing import Any

from headgate.aws.infra.inspect import Stack
from headgate.aws.infra.options import StackOptions
from headgate.core.runtime import run
from headgate.stores.dynamodb.catalog.items__retention import AUDIT_DAYS, USAGE_DAYS, USAGE_WINDOWS
from headgate.stores.dynamodb.client.port import open_port
from headgate.stores.dynamodb.table.create__versions import SCHEMA, check, note_first
from headgate.stores.dynamodb.table.table import Table
from headgate.sync_admin__sync_repository import SyncRepository
from headgate.transport.gates import pace_for

TIMEOUT_MS = 20_000  # nobody waits for an acquire here, and a new table may be slow to answer


def make_ready(stack: Stack, options: StackOptions) -> None:
    """The table knows its schema, the default namespace, and how long history is kept.

    Every process that opens it reads that, so an option holds for all of them.
    """
    run(_note_schema(stack))
    with SyncRepository.open(_patient(stack)) as repository:
        found = repository.get_version_record()
        notes = {name: value for name, value in found.items() if name != SCHEMA}
        kept = {
            AUDIT_DAYS: options.audit_retention_days,
            USAGE_DAYS: options.usage_retention_days,
            USAGE_WINDOWS: options.snapshot_windows,
        }
        if notes != {**notes, **kept}:
            repository.set_version_record({**notes, **kept})


def upgrade_table(stack: Stack) -> tuple[Any, ...]:
    """The steps that moved the table on to this headgate's schema."""
    repository = SyncRepository(_patient(stack))
    try:
        return tuple(repository.upgrade())
    finally:
        repository.close()


def _patient(stack: Stack) -> str:
    return f"{stack.url}&timeout_ms={TIMEOUT_MS}"


async def _note_schema(stack: Stack) -> None:
    """CloudFormation made the table and waited for it; what is missing is its version."""
    port = open_port(
        region=stack.region, endpoint=stack.endpoint, blocking=True, timeout_ms=TIMEOUT_MS
    )
    try:
        table = Table(port, stack.name, pace_for(None, blocking=True))
        if not await check(table):
            await note_first(table)
    finally:
        await port.close()
