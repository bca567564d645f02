"""`headgate audit list`: who changed what, newest first."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import click

from headgate.admin.documents import event_as_json
from headgate.cli.options import Misuse, Session, command_group, pass_session
from headgate.cli.output import OutputTable, show

if TYPE_CHECKING:
    from headgate.core.history import AuditEvent

# --------------------------------------------------------------------------------------------------
# `headgate audit list --archived`: events that have expired, from the archive's bucket.

OUTPUT = "ArchiveBucketName"


class ArchiveLocation(NamedTuple):
    """Where the archive is, as far as it was said."""

    bucket: str | None
    stack: str | None
    namespace_id: str | None
    region: str | None
    endpoint: str | None


class ArchiveQuery(NamedTuple):
    """Which of its events."""

    subject: str | None
    start: str | None
    end: str | None
    limit: int
    before: str | None


def read_archived(
    session: Session, archive: ArchiveLocation, query: ArchiveQuery
) -> list[AuditEvent]:
    """A page of them, newest first."""
    from headgate.aws.aggregator.archive import read_archived
    from headgate.aws.aggregator.open import open_objects
    from headgate.core.history import parse_time_ms
    from headgate.core.runtime import run

    start_ms, end_ms = parse_time_ms("start", query.start), parse_time_ms("end", query.end)
    location = _complete_location(session, archive)
    assert location.bucket is not None
    namespace = location.namespace_id or _namespace_id(session)
    objects = open_objects(location.bucket, location.region, location.endpoint, blocking=True)
    try:
        return run(
            read_archived(
                objects,
                namespace,
                entity_id=query.subject,
                start_ms=start_ms,
                end_ms=end_ms,
                before=query.before,
                limit=query.limit,
            )
        )
    finally:
        run(objects.close())


def _complete_location(session: Session, given: ArchiveLocation) -> ArchiveLocation:
    """With what the URL says, and the bucket of the stack that made its table."""
    parts = urlsplit(session.given_url or "")
    options = {name: values[0] for name, values in parse_qs(parts.query).items()}
    ours = parts.scheme == "dynamodb"
    region = given.region or (options.get("region") if ours else None)
    endpoint = given.endpoint or (options.get("endpoint") if ours else None)
    bucket = given.bucket
    if bucket is None:
        bucket = _stack_bucket(given.stack or (parts.netloc if ours else None), region, endpoint)
    return given._replace(bucket=bucket, region=region, endpoint=endpoint)


def _stack_bucket(stack: str | None, region: str | None, endpoint: str | None) -> str:
    from headgate.aws import infra

    if stack is None:
        raise Misuse(
            "no archive is named",
            "neither --bucket nor --stack is given, and the store is no table of a stack",
            "give --bucket NAME; `headgate status STACK` shows it as ArchiveBucketName",
        )
    found = infra.status(infra.open_port(region=region, endpoint=endpoint), stack)
    bucket = found.outputs.get(OUTPUT)
    if bucket is None:
        raise Misuse(
            f"the stack {stack} has no archive",
            "it was made without enable_audit_archival, or without an aggregator",
            f"headgate deploy {stack} --enable-audit-archival, or name another with --bucket",
        )
    return bucket


def _namespace_id(session: Session) -> str:
    """The archive is sorted by it: names can be given away again."""
    from headgate.core.errors import NamespaceNotFoundError

    with session.repository() as repository:
        found = repository.get_namespace(session.namespace_name)
    if found is None:
        raise NamespaceNotFoundError(session.namespace_name)
    return found.id


KEYS_NAMESPACE = "headgate.keys"  # where the service keeps keys and what becomes of them


def archive_options(command: Any) -> Any:
    """Where the archive is, and what of it is asked for."""
    for option in (
        click.option("--endpoint", metavar="URL", help="Another address than AWS's own."),
        click.option("--region", metavar="NAME", help="Of the archive; else the store's."),
        click.option("--namespace-id", metavar="ID", help="Where the store itself is gone."),
        click.option("--stack", metavar="NAME", help="The stack whose archive it is."),
        click.option("--bucket", metavar="NAME", help="The archive; else that of the stack."),
        click.option("--end", metavar="TIME", help="Archived events from before then."),
        click.option("--start", metavar="TIME", help="Archived events from then on: ISO 8601."),
    ):
        command = option(command)
    return command


@command_group("audit", examples="headgate audit list key-1")
def audit() -> None:
    """Every change of entities, limits, buckets, policies and keys, and who made it."""


@audit.command(
    "list",
    examples="""
    headgate audit list key-1
    headgate audit list --system
    headgate audit list --keys
    headgate audit list --resource gpt-4 --limit 5 --json
    headgate audit list --archived --start 2026-01-01 --end 2026-02-01
    headgate audit list key-1 --archived --bucket my-archive --namespace-id aBcDeFgHiJk
    """,
)
@click.argument("entity_id", metavar="ENTITY", required=False)
@click.option("--system", is_flag=True, help="Changes of the system's defaults.")
@click.option("--resource", "-r", metavar="RESOURCE", help="Changes of a resource's defaults.")
@click.option(
    "--keys",
    is_flag=True,
    help="Changes of API keys: of the service's key file, or of one by its id.",
)
@click.option("--policies", is_flag=True, help="Changes of the service's policy file.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=100, show_default=True,
    help="At most so many.", metavar="N",
)  # fmt: skip
@click.option("--after", "start_event_id", metavar="EVENT", help="Go on after that event.")
@click.option("--archived", is_flag=True, help="Those that have expired, from S3; of anybody too.")
@archive_options
@pass_session
def list_(
    session: Session,
    /,
    entity_id: str | None,
    system: bool,
    resource: str | None,
    keys: bool,
    policies: bool,
    limit: int,
    start_event_id: str | None,
    archived: bool,
    start: str | None,
    end: str | None,
    **archive: str | None,
) -> None:
    """Changes, newest first."""
    if keys:
        session = replace(session, namespace=KEYS_NAMESPACE)
    of_file = keys and entity_id is None
    subject = _subject(entity_id, system, resource, policies, of_file, needed=not archived)
    if archived:
        events = read_archived(
            session,
            ArchiveLocation(**archive),
            ArchiveQuery(subject, start, end, limit, start_event_id),
        )
    else:
        _refuse_unused(start=start, end=end, **archive)
        assert subject is not None
        with session.repository() as repository:
            events = repository.get_audit_events(subject, limit, start_event_id)
    following = events[-1].event_id if len(events) == limit else None
    document = {"items": [event_as_json(event) for event in events], "next": following}
    rows = [
        (
            event.timestamp, event.entity_id, event.action, event.resource, event.principal,
            json.dumps(dict(event.details), ensure_ascii=False),
        )
        for event in events
    ]  # fmt: skip
    table = OutputTable(("time", "of", "action", "resource", "by", "details"), rows, "no changes")
    show(session, document, table, *([f"more: --after {following}"] if following else []))


def _refuse_unused(**options: str | None) -> None:
    for name, value in options.items():
        if value is not None:
            word = "--" + name.replace("_", "-")
            raise Misuse(
                f"{word} is for the archive alone", "--archived is not given", "add --archived"
            )


def _subject(
    entity_id: str | None,
    system: bool,
    resource: str | None,
    policies: bool,
    keys: bool,
    *,
    needed: bool,
) -> str | None:
    """What the audit keeps such changes under; None for everybody's, where that can be asked."""
    given = [entity_id is not None, system, resource is not None, policies, keys].count(True)
    if not given and not needed:
        return None
    if given != 1:
        raise click.UsageError(
            "name an entity, or say --system, --policies, --keys, or --resource NAME: one of them"
        )
    if resource is not None:
        from headgate.core.limits import parse_resource

        return f"$RESOURCE:{parse_resource(resource)}"
    return entity_id or ("$POLICIES" if policies else "$KEYS" if keys else "$SYSTEM")
