"""Creating a stack, changing, upgrading and deleting it.

A new stack is created in two steps, because the code of its function is in a bucket of the same
stack: first everything except the function, then the bundle is uploaded and the function created.
If it is interrupted, running it again continues from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import headgate
from headgate.aws.infra.bundle import Bundle, build
from headgate.aws.infra.control_plane import (
    CLOUDFORMATION,
    STACK_TAG,
    VERSION_TAG,
    AwsRefused,
    InfrastructureNotFoundError,
    Port,
    Report,
    Stack,
    StackOperationError,
    change_stack,
    find_stack,
    ignore_progress,
    resources_of,
    status,
    wait_until_at_rest,
)
from headgate.aws.infra.options import (
    CODE_KEY,
    TEMPLATE_VERSION,
    StackOptions,
    cfn_template,
    parameters,
    parse_stack_name,
)
from headgate.core.errors import IncompatibleSchemaError, ValidationError
from headgate.core.runtime import run
from headgate.stores.dynamodb.catalog.retention import AUDIT_DAYS, USAGE_DAYS, USAGE_WINDOWS
from headgate.stores.dynamodb.client.calls import open_port
from headgate.stores.dynamodb.table.create import SCHEMA, check, note_first
from headgate.stores.dynamodb.table.table import Table
from headgate.sync import SyncRepository
from headgate.transport.gates import gate_factory_for

# --------------------------------------------------------------------------------------------------
# Preparing the table of a new stack: the policy of apps does not let them do it.

TIMEOUT_MS = 20_000  # nobody waits for an acquire here, and a new table may be slow to answer


def prepare_table(stack: Stack, options: StackOptions) -> None:
    """Writes the schema's version, the default namespace and the retention of history.

    Every process that opens the table reads them, so an option applies to all processes.
    """
    run(_note_schema(stack))
    with SyncRepository.open(_patient_url(stack)) as repository:
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
    """Upgrades the table to this version's schema; returns the steps that did it."""
    with SyncRepository(_patient_url(stack)) as repository:
        return tuple(repository.upgrade())


def _patient_url(stack: Stack) -> str:
    return f"{stack.url}&timeout_ms={TIMEOUT_MS}"


async def _note_schema(stack: Stack) -> None:
    """CloudFormation created the table and waited for it; only its version is missing."""
    port = open_port(
        region=stack.region, endpoint=stack.endpoint, blocking=True, timeout_ms=TIMEOUT_MS
    )
    try:
        table = Table(port, stack.name, gate_factory_for(None, blocking=True))
        if not await check(table):
            await note_first(table)
    finally:
        await port.close()


CAPABILITIES = ["CAPABILITY_NAMED_IAM"]
BUNDLES = "BundleBucketName"
NOTHING_TO_DO = "No updates are to be performed"
DEAD_STATUSES = ("ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "REVIEW_IN_PROGRESS")


@dataclass(frozen=True, slots=True)
class Deployed:
    """A stack, whether anything was changed, and the steps that upgraded its table."""

    stack: Stack
    changed: bool
    table_steps: tuple[Any, ...] = ()


def deploy(
    port: Port,
    name: str,
    options: StackOptions | None = None,
    *,
    report: Report = ignore_progress,
) -> Deployed:
    """Creates or changes a stack to have these options and this version's code."""
    chosen = options or StackOptions()
    parse_stack_name(name, chosen)
    bundle = build() if chosen.enable_aggregator else None
    found = _find_usable(port, name, report)
    wanted = parameters(chosen, _boundary_arn(port, chosen.permission_boundary))
    tags = _tags(chosen.tags)
    if found is None:
        result = Deployed(_create(port, name, wanted, tags, report), True)
    else:
        wanted[CODE_KEY] = _upload_bundle(port, found, bundle)
        if bundle is None and (bucket := found.outputs.get(BUNDLES)):
            empty_bucket(port, bucket)  # it goes with the function, whose code Lambda has
        result = _update(port, found, wanted, tags, report)
    done = _deploy_code(port, result, bundle, report)
    prepare_table(done.stack, chosen)
    return done


def upgrade(port: Port, name: str, *, report: Report = ignore_progress) -> Deployed:
    """Brings a stack to this version's template and code, and its table to this version's schema.
    Its options stay."""
    found = status(port, name)
    check_version(found)
    _check_at_rest(found)
    known = parameters(StackOptions()).keys() | {CODE_KEY, "CodeBucket"}
    wanted = {key: value for key, value in found.parameters.items() if key in known}
    bundle = build() if wanted.get("EnableAggregator", "true") == "true" else None
    wanted[CODE_KEY] = _upload_bundle(port, found, bundle)
    done = _update(port, found, wanted, _tags(found.tags), report)
    done = _deploy_code(port, done, bundle, report)
    steps = upgrade_table(done.stack)
    return replace(done, changed=done.changed or bool(steps), table_steps=steps)


def is_current(stack: Stack) -> bool:
    """Whether an upgrade would change nothing: same template, same code."""
    if stack.template_version != TEMPLATE_VERSION:
        return False
    on = stack.parameters.get("EnableAggregator") == "true"
    return not on or stack.parameters.get(CODE_KEY) == build().key


def check_version(stack: Stack) -> None:
    """Refuses to change a stack that a newer headgate has changed."""
    version = stack.template_version
    if version is not None and version > TEMPLATE_VERSION:
        raise IncompatibleSchemaError(
            f"{version} (of the stack {stack.name}, made by headgate {stack.headgate_version})",
            f"up to {TEMPLATE_VERSION}",
            "update this headgate; nothing was changed",
        )


def _find_usable(port: Port, name: str, report: Report) -> Stack | None:
    """The stack to change; None to create one. Removes what a failed attempt left."""
    found = find_stack(port, name)
    if found is None:
        return None
    if STACK_TAG not in found.tags:
        raise InfrastructureNotFoundError(name, "a stack of that name is not one of headgate's")
    if found.status in DEAD_STATUSES:  # it holds nothing, and AWS can only delete it
        change_stack(port, "delete_stack", found, f"removing what was left of {name}", report)
        return None
    _check_at_rest(found)
    check_version(found)
    return found


def _create(
    port: Port, name: str, wanted: Mapping[str, str], tags: Mapping[str, str], report: Report
) -> Stack:
    made = port.call(CLOUDFORMATION, "create_stack", StackName=name, **_request(wanted, tags))
    at_rest = wait_until_at_rest(
        port, made["StackId"], f"the stack {name} was not made", set(), report
    )
    if at_rest is None:
        raise InfrastructureNotFoundError(name, "the stack was deleted while it was being made")
    return at_rest


def _update(
    port: Port, stack: Stack, wanted: Mapping[str, str], tags: Mapping[str, str], report: Report
) -> Deployed:
    what = f"the stack {stack.name} was not changed"
    try:
        at_rest = change_stack(port, "update_stack", stack, what, report, **_request(wanted, tags))
    except AwsRefused as error:
        if NOTHING_TO_DO not in error.message:
            raise
        return Deployed(stack, False)
    if at_rest is None:
        raise InfrastructureNotFoundError(stack.name, "the stack was deleted meanwhile")
    return Deployed(at_rest, True)


def _deploy_code(port: Port, done: Deployed, bundle: Bundle | None, report: Report) -> Deployed:
    """Lets the function run this bundle, if there is one. A new stack has a bucket only now."""
    stack = done.stack
    key = _upload_bundle(port, stack, bundle)
    if bundle is None or key == stack.parameters.get(CODE_KEY):
        return done
    return _update(port, stack, {**stack.parameters, CODE_KEY: key}, stack.tags, report)


def _upload_bundle(port: Port, stack: Stack, bundle: Bundle | None) -> str:
    """Uploads the bundle if the stack has a bucket; returns the key of the code it should run."""
    if bundle is None:
        return ""
    before = stack.parameters.get(CODE_KEY, "")
    if (bucket := stack.outputs.get(BUNDLES)) is None:
        return before
    if before != bundle.key:
        port.call("s3", "put_object", Bucket=bucket, Key=bundle.key, Body=bundle.content)
    return bundle.key


def _boundary_arn(port: Port, boundary: str | None) -> str:
    if boundary is None or boundary.startswith("arn:"):
        return boundary or ""
    me = port.call("sts", "get_caller_identity")
    partition = me["Arn"].split(":")[1]
    return f"arn:{partition}:iam::{me['Account']}:policy/{boundary}"


def _request(wanted: Mapping[str, str], tags: Mapping[str, str]) -> dict[str, Any]:
    pairs = [{"ParameterKey": key, "ParameterValue": value} for key, value in wanted.items()]
    return {
        "TemplateBody": cfn_template(),
        "Parameters": pairs,
        "Capabilities": CAPABILITIES,
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }


def _tags(own: Mapping[str, str]) -> dict[str, str]:
    return {**own, STACK_TAG: "1", VERSION_TAG: headgate.__version__}


def _check_at_rest(stack: Stack) -> None:
    if stack.is_in_progress:
        raise StackOperationError(
            stack.name,
            f"the stack {stack.name} was left alone",
            f"it is {stack.status}: somebody else is changing it",
            advice="wait until `headgate status` shows that it rests",
        )


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
