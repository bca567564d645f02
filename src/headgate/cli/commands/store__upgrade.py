"""`headgate upgrade`: a store of an older schema is moved on, step by step."""

from __future__ import annotations

from typing import Any

import click

from headgate.cli.options import verb
from headgate.cli.options__session import Session, pass_session
from headgate.cli.output import Rows, progress, show

FIELDS = ("version", "title", "looked_at", "moved", "done")


@verb(
    "upgrade",
    examples="""
    headgate upgrade --dry-run
    headgate upgrade
    headgate -u 'dynamodb://headgate?region=eu-west-1' upgrade --create
    """,
)
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would be done.")
@click.option("--create", is_flag=True, help="Make the store's table first, where it is missing.")
@pass_session
def upgrade(session: Session, dry_run: bool, create: bool) -> None:
    """Move a store on from an older schema. One that was cut short goes on where it was."""
    if create and dry_run:
        raise click.UsageError("--create makes something, --dry-run nothing; choose one")
    with session.repository() as repository, progress(session, "upgrading") as step:
        if create:
            repository.create_table()
        steps = repository.upgrade(
            dry_run=dry_run, report=lambda progress: step(progress.looked_at, None)
        )
    document = {"dry_run": dry_run, "steps": [_as_document(one) for one in steps]}
    rows = [[one[name] for name in FIELDS] for one in document["steps"]]  # type: ignore[attr-defined]
    show(
        session,
        document,
        Rows((">version", "step", ">looked at", ">moved", "done"), rows, "the store is up to date"),
    )


def _as_document(step: Any) -> dict[str, Any]:
    return {name: getattr(step, name, None) for name in FIELDS}
