"""`headgate audit list`: who changed what, newest first."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from headgate.cli.output import Rows, show
from headgate.cli.session import Session, pass_session
from headgate.cli.shape import noun


@noun("audit", examples="headgate audit list key-1")
def audit() -> None:
    """Every change of entities, limits and buckets, and who made it."""


@audit.command(
    "list",
    examples="""
    headgate audit list key-1
    headgate audit list --system
    headgate audit list --resource gpt-4 --limit 5 --json
    """,
)
@click.argument("entity_id", metavar="ENTITY", required=False)
@click.option("--system", is_flag=True, help="Changes of the system's defaults.")
@click.option("--resource", "-r", metavar="RESOURCE", help="Changes of a resource's defaults.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=100, show_default=True,
    help="At most so many.", metavar="N",
)  # fmt: skip
@click.option("--after", "start_event_id", metavar="EVENT", help="Go on after that event.")
@pass_session
def list_(
    session: Session,
    entity_id: str | None,
    system: bool,
    resource: str | None,
    limit: int,
    start_event_id: str | None,
) -> None:
    """Changes, newest first."""
    subject = _subject(entity_id, system, resource)
    with session.repository() as repository:
        events = repository.get_audit_events(subject, limit, start_event_id)
    following = events[-1].event_id if len(events) == limit else None
    document = {"items": [asdict(event) for event in events], "next": following}
    rows = [
        (
            event.timestamp, event.action, event.resource, event.principal,
            json.dumps(dict(event.details), ensure_ascii=False),
        )
        for event in events
    ]  # fmt: skip
    table = Rows(("time", "action", "resource", "by", "details"), rows, "no changes")
    show(session, document, table, *([f"more: --after {following}"] if following else []))


def _subject(entity_id: str | None, system: bool, resource: str | None) -> str:
    """What the audit keeps such changes under."""
    if [entity_id is not None, system, resource is not None].count(True) != 1:
        raise click.UsageError("name an entity, or say --system, or --resource NAME: one of them")
    if resource is not None:
        from headgate.names import parse_resource

        return f"$RESOURCE:{parse_resource(resource)}"
    return entity_id or "$SYSTEM"
