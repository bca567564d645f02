"""Deleting a stack with everything in it, after its name was confirmed."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.aws.infra.control_plane import AwsRefused, Port, StackOperationError
from headgate.aws.infra.inspect import (
    Report,
    change_stack,
    ignore_progress,
    resources_of,
    status,
)
from headgate.core.errors import ValidationError

# --------------------------------------------------------------------------------------------------
# Buckets of S3, which CloudFormation deletes only when there is nothing in them.

OBJECTS_MAX = 1000  # that one call can delete
ROUNDS_MAX = 10_000
MISSING = ("NoSuchBucket", "404")


def empty_bucket(port: Port, bucket: str) -> None:
    """Deletes every object in the bucket, and every version of one."""
    for _ in range(ROUNDS_MAX):
        try:
            page = port.call("s3", "list_object_versions", Bucket=bucket, MaxKeys=OBJECTS_MAX)
        except AwsRefused as error:
            if error.code in MISSING:
                return
            raise
        found = [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
        if not found:
            return
        objects = [{"Key": one["Key"], "VersionId": one["VersionId"]} for one in found]
        answer = port.call(
            "s3", "delete_objects", Bucket=bucket, Delete={"Objects": objects, "Quiet": True}
        )
        if errors := answer.get("Errors"):
            held, why = errors[0].get("Key"), errors[0].get("Message")
            raise _not_emptied(bucket, f"{held}: {why}")
    raise _not_emptied(bucket, f"there is more after {ROUNDS_MAX * OBJECTS_MAX} objects")


def remove_bucket(port: Port, bucket: str) -> None:
    """Deletes the bucket with all that is in it."""
    empty_bucket(port, bucket)
    try:
        port.call("s3", "delete_bucket", Bucket=bucket)
    except AwsRefused as error:
        if error.code not in MISSING:
            raise


def _not_emptied(bucket: str, reason: str) -> StackOperationError:
    what = f"the bucket {bucket} was not emptied"
    return StackOperationError(bucket, what, reason, advice="see what holds it, and run it again")


NO_TABLE = "ResourceNotFoundException"


@dataclass(frozen=True, slots=True)
class Deleted:
    """The stack that was deleted, and the bucket that was kept on purpose."""

    name: str
    kept_bucket: str | None


def delete(
    port: Port,
    name: str,
    *,
    confirm: str,
    keep_archive: bool = False,
    report: Report = ignore_progress,
) -> Deleted:
    """Deletes everything of the stack, except the archive if that is to be kept.

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
        empty_bucket(port, bundles)
    change_stack(port, "delete_stack", found, f"the stack {found.name} was not deleted", report)
    if archive is not None and not keep_archive:
        remove_bucket(port, archive)
    return Deleted(found.name, archive if keep_archive else None)


def _unprotect(port: Port, table: str | None) -> None:
    """Switches deletion protection off: confirming the name is what it asks for."""
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
