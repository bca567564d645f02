"""`headgate audit list --archived`: events that have expired, from the archive's bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs, urlsplit

from headgate.cli.options__session import Misuse, Session

if TYPE_CHECKING:
    from headgate.core.history import AuditEvent

OUTPUT = "ArchiveBucketName"


class Archive(NamedTuple):
    """Where the archive is, as far as it was said."""

    bucket: str | None
    stack: str | None
    namespace_id: str | None
    region: str | None
    endpoint: str | None


class Asked(NamedTuple):
    """Which of its events."""

    subject: str | None
    start: str | None
    end: str | None
    limit: int
    before: str | None


def read_archived(session: Session, archive: Archive, asked: Asked) -> list[AuditEvent]:
    """A page of them, newest first."""
    from headgate.aws.aggregator.archive import read_archived
    from headgate.aws.aggregator.open import open_objects
    from headgate.core.history import parse_time_ms
    from headgate.core.runtime import run

    start_ms, end_ms = parse_time_ms("start", asked.start), parse_time_ms("end", asked.end)
    place = _completed(session, archive)
    assert place.bucket is not None
    namespace = place.namespace_id or _namespace_id(session)
    objects = open_objects(place.bucket, place.region, place.endpoint, blocking=True)
    try:
        return run(
            read_archived(
                objects,
                namespace,
                entity_id=asked.subject,
                start_ms=start_ms,
                end_ms=end_ms,
                before=asked.before,
                limit=asked.limit,
            )
        )
    finally:
        run(objects.close())


def _completed(session: Session, given: Archive) -> Archive:
    """With what the URL says, and the bucket of the stack that made its table."""
    parts = urlsplit(session.given_url or "")
    options = {name: values[0] for name, values in parse_qs(parts.query).items()}
    ours = parts.scheme == "dynamodb"
    region = given.region or (options.get("region") if ours else None)
    endpoint = given.endpoint or (options.get("endpoint") if ours else None)
    bucket = given.bucket
    if bucket is None:
        bucket = _of_stack(given.stack or (parts.netloc if ours else None), region, endpoint)
    return given._replace(bucket=bucket, region=region, endpoint=endpoint)


def _of_stack(stack: str | None, region: str | None, endpoint: str | None) -> str:
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
