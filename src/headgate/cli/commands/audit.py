"""`headgate audit list`: who changed what, newest first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import click

from headgate.admin.documents import event_as_json
from headgate.cli.options import combine, command_group, limit_option
from headgate.cli.output import Columns, Output, table_of
from headgate.cli.session import Misuse, Session
from headgate.core.errors import NamespaceNotFoundError
from headgate.core.history import AuditEvent, AuditQuery, parse_audit_cursor, parse_audit_query
from headgate.core.runtime import run

BUCKET_OUTPUT = "ArchiveBucketName"  # of a stack
KEYS_NAMESPACE = "headgate.keys"  # where the service keeps keys and their history
EVENT_COLUMNS: Columns = {
    "time": "timestamp", "of": "entity_id", "action": "action", "resource": "resource",
    "by": "principal", "details": lambda event: _shown_details(event["details"]),
}  # fmt: skip

filter_options = combine(
    click.option("--resource", "-r", metavar="RESOURCE", help="Changes that are about a resource."),
    click.option("--action", metavar="ACTION", help="Of one kind, such as limits_set."),
    click.option("--by", metavar="NAME", help="Changes that somebody made, such as cli:ann."),
    click.option("--start", metavar="TIME", help="From then on: ISO 8601."),
    click.option("--end", metavar="TIME", help="From before then."),
)
archive_options = combine(
    click.option("--bucket", metavar="NAME", help="The archive (default: that of the stack)."),
    click.option("--stack", metavar="NAME", help="The stack whose archive it is."),
    click.option("--namespace-id", metavar="ID", help="Needed if the store itself is gone."),
    click.option("--region", metavar="NAME", help="Of the archive (default: the store's)."),
    click.option("--endpoint", metavar="URL", help="Another address than AWS's own."),
)


def _shown_details(details: Mapping[str, Any]) -> str:
    """As JSON; of two sides of a change only what differs."""
    before, after = details.get("before"), details.get("after")
    if isinstance(before, dict) and isinstance(after, dict):
        names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        sides = {"before": before, "after": after}
        changed = {
            side: {name: values[name] for name in names if name in values}
            for side, values in sides.items()
        }
        details = {**details, **changed}
    return json.dumps(details, ensure_ascii=False)


@command_group("headgate audit list key-1")
def audit() -> None:
    """Every change of entities, limits, buckets, policies and keys, and who made it."""


@audit.action("""
    headgate audit list
    headgate audit list key-1
    headgate audit list --by cli:ann --start 2026-01-01 --end 2026-02-01
    headgate audit list --action limits_set --resource gpt-4 --limit 5 --json
    headgate audit list --system
    headgate audit list --keys
    headgate audit list --refused
    headgate audit list --archived --start 2026-01-01 --end 2026-02-01
    headgate audit list key-1 --archived --bucket my-archive --namespace-id aBcDeFgHiJk
""")
@click.argument("entity_id", metavar="ENTITY", required=False)
@click.option("--system", is_flag=True, help="Changes of the system's defaults.")
@click.option(
    "--keys",
    is_flag=True,
    help="Changes of API keys: all of the service's key file, or of one by its id.",
)
@click.option("--policies", is_flag=True, help="Changes of the service's policy file.")
@click.option("--refused", is_flag=True, help="Keys that were denied what they asked for.")
@filter_options
@limit_option
@click.option("--after", metavar="EVENT", help="Continue after that event.")
@click.option("--archived", is_flag=True, help="Expired events, from S3.")
@archive_options
def list_(
    session: Session,
    /,
    entity_id: str | None,
    system: bool,
    keys: bool,
    policies: bool,
    refused: bool,
    resource: str | None,
    action: str | None,
    by: str | None,
    start: str | None,
    end: str | None,
    limit: int,
    after: str | None,
    archived: bool,
    **archive: str | None,
) -> Output:
    """List changes, newest first: all of the namespace, or what the options ask for."""
    if keys:
        session.namespace = KEYS_NAMESPACE
    # The names that such changes are recorded under.
    subjects = {
        entity_id: entity_id is not None,
        "$SYSTEM": system,
        "$POLICIES": policies,
        "$ACCESS": refused,
        "$KEYS": keys and entity_id is None,
    }
    given = [name for name, is_given in subjects.items() if is_given]
    if len(given) > 1:
        raise click.UsageError(
            "name an entity, or say --system, --policies, --refused or --keys: one of them"
        )
    cursor = parse_audit_cursor("--after", after)
    query = parse_audit_query(given[0] if given else None, action, by, resource, start, end)
    if archived:
        events = _read_archived(session, query, limit, cursor, archive)
        following = events[-1].event_id if len(events) == limit else None
    else:
        for name, value in archive.items():
            if value is not None:
                word = "--" + name.replace("_", "-")
                raise Misuse(
                    f"{word} is for the archive alone", "--archived is not given", "add --archived"
                )
        if keys and session.is_service:
            raise Misuse(
                "--keys is for stores",
                "a service lets nobody into the namespace that has the history of its keys",
                "give the store's own URL, e.g. --url redis://…",
            )
        events, following = session.repository.list_audit_events(
            query.entity_id, action=action, principal=by, resource=resource, start_time=start,
            end_time=end, limit=limit, next_key=cursor,
        )  # fmt: skip
    items = [event_as_json(event) for event in events]
    more = f"more: --after {following}" if following else None
    table = table_of(items, EVENT_COLUMNS, "no changes")
    return Output({"items": items, "next": following}, table, more)


# --------------------------------------------------------------------------------------------------
# Events that have expired, from the archive's bucket.


def _read_archived(
    session: Session,
    query: AuditQuery,
    limit: int,
    before: str | None,
    archive: Mapping[str, str | None],
) -> list[AuditEvent]:
    """A page of them, newest first; the store's URL tells what is not given of the archive."""
    from headgate.aws.aggregator.archive import read_archived
    from headgate.aws.aggregator.open import open_objects

    region, endpoint, stack = archive["region"], archive["endpoint"], archive["stack"]
    url = urlsplit(session.given_url or "")
    if url.scheme == "dynamodb":
        options = {name: values[0] for name, values in parse_qs(url.query).items()}
        region, endpoint = region or options.get("region"), endpoint or options.get("endpoint")
        stack = stack or url.netloc
    bucket = archive["bucket"] or _stack_bucket(stack, region, endpoint)
    objects = open_objects(bucket, region, endpoint, blocking=True)
    try:
        return run(
            read_archived(
                objects,
                archive["namespace_id"] or _namespace_id(session),
                query,
                before=before,
                limit=limit,
            )
        )
    finally:
        run(objects.close())


def _stack_bucket(stack: str | None, region: str | None, endpoint: str | None) -> str:
    from headgate.aws import infra

    if stack is None:
        raise Misuse(
            "no archive is named",
            "neither --bucket nor --stack is given, and the store is no table of a stack",
            "give --bucket NAME; `headgate status STACK` shows it as ArchiveBucketName",
        )
    found = infra.status(infra.open_port(region=region, endpoint=endpoint), stack)
    bucket = found.outputs.get(BUCKET_OUTPUT)
    if bucket is None:
        raise Misuse(
            f"the stack {stack} has no archive",
            "it was made without enable_audit_archival, or without an aggregator",
            f"headgate deploy {stack} --enable-audit-archival, or name another with --bucket",
        )
    return bucket


def _namespace_id(session: Session) -> str:
    """The archive is sorted by id, because a name may be given to another namespace later."""
    found = session.repository.get_namespace(session.namespace_name)
    if found is None:
        raise NamespaceNotFoundError(session.namespace_name)
    return found.id
