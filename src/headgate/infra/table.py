"""The table of a new stack made ready for apps, whose policy lets them change none of this."""

from __future__ import annotations

from typing import Any

from headgate.bridge import run
from headgate.infra.looking import Stack
from headgate.port import pace_for
from headgate.stores.dynamodb.port import open_port
from headgate.stores.dynamodb.table import Table
from headgate.stores.dynamodb.versions import SCHEMA, check, note_first
from headgate.sync_repository import SyncRepository

AUDIT_DAYS = "audit_retention_days"


def make_ready(stack: Stack, *, audit_days: int) -> None:
    """The table knows its schema, the default namespace, and how long audit events are kept."""
    run(_note_schema(stack))
    with SyncRepository.open(stack.url) as repository:
        found = repository.get_version_record()
        notes = {name: value for name, value in found.items() if name != SCHEMA}
        repository.set_version_record({**notes, AUDIT_DAYS: audit_days})


def upgrade_table(stack: Stack) -> tuple[Any, ...]:
    """The steps that moved the table on to this headgate's schema."""
    repository = SyncRepository(stack.url)
    try:
        return tuple(repository.upgrade())
    finally:
        repository.close()


async def _note_schema(stack: Stack) -> None:
    """CloudFormation made the table and waited for it; what is missing is its version."""
    port = open_port(region=stack.region, endpoint=stack.endpoint, blocking=True)
    try:
        table = Table(port, stack.name, pace_for(None, blocking=True))
        if not await check(table):
            await note_first(table)
    finally:
        await port.close()
