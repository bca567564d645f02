"""Deleting a stack with everything in it, once its name was said twice."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.aws.infra.inspect import CLOUDFORMATION, events, resources_of, status
from headgate.aws.infra.inspect__watching import Report, silently, until_at_rest
from headgate.aws.infra.port import Port
from headgate.aws.infra.port__trouble import AwsRefused
from headgate.aws.infra.remove__buckets import empty, remove
from headgate.core.errors import ValidationError

NO_TABLE = "ResourceNotFoundException"


@dataclass(frozen=True, slots=True)
class Deleted:
    """What is gone, and what was left on purpose."""

    name: str
    kept_bucket: str | None


def delete(
    port: Port,
    name: str,
    *,
    confirm: str,
    keep_archive: bool = False,
    report: Report = silently,
) -> Deleted:
    """Nothing of the stack is left, but for the archive if that is to be kept.

    `confirm` must be the stack's name: the table goes with every limit, entity and balance.
    """
    found = status(port, name)
    if confirm != found.name:
        raise ValidationError(
            "confirm", confirm, f"is not {found.name!r}; repeat the name to delete all of it"
        )
    resources = resources_of(port, found.id)
    archive = resources.get("ArchiveBucket")
    _unprotect(port, resources.get("Table"))
    if bundles := resources.get("BundleBucket"):
        empty(port, bundles)
    seen = {event.id for event in events(port, found.id, set())}
    port.call(CLOUDFORMATION, "delete_stack", StackName=found.id)
    until_at_rest(port, found.id, f"the stack {found.name} was not deleted", seen, report)
    if archive is not None and not keep_archive:
        remove(port, archive)
    return Deleted(found.name, archive if keep_archive else None)


def _unprotect(port: Port, table: str | None) -> None:
    """The name was said twice: that is what the protection waits for."""
    if table is None:
        return
    try:
        described = port.call("dynamodb", "describe_table", TableName=table)["Table"]
    except AwsRefused as error:
        if error.code != NO_TABLE:
            raise
        return
    if described.get("DeletionProtectionEnabled"):
        port.call("dynamodb", "update_table", TableName=table, DeletionProtectionEnabled=False)
