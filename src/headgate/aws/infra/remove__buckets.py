"""Buckets of S3, which CloudFormation deletes only when there is nothing in them."""

from __future__ import annotations

from headgate.aws.infra.port import Port
from headgate.aws.infra.port__trouble import AwsRefused, StackOperationError

OBJECTS_MAX = 1000  # that one call can delete
ROUNDS_MAX = 10_000
MISSING = ("NoSuchBucket", "404")


def empty(port: Port, bucket: str) -> None:
    """No object is left in the bucket, nor a version of one."""
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


def remove(port: Port, bucket: str) -> None:
    """The bucket is gone with all that was in it."""
    empty(port, bucket)
    try:
        port.call("s3", "delete_bucket", Bucket=bucket)
    except AwsRefused as error:
        if error.code not in MISSING:
            raise


def _not_emptied(bucket: str, reason: str) -> StackOperationError:
    what = f"the bucket {bucket} was not emptied"
    return StackOperationError(bucket, what, reason, advice="see what holds it, and run it again")
