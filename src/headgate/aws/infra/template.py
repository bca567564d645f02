"""The CloudFormation template as text, and options as its parameters."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

from headgate.aws.infra.options import StackOptions
from headgate.core.errors import ValidationError
from headgate.core.limits import NAMESPACE_ID_LENGTH

TEMPLATE_VERSION = 1  # moves when an older stack needs `headgate upgrade`

# Where the code is: known only once the stack exists.
CODE_BUCKET, CODE_KEY = "CodeBucket", "CodeKey"


def cfn_template() -> str:
    """The template, the same for every stack: what differs is in its parameters."""
    return resources.files("headgate.aws.infra").joinpath("template.yaml").read_text("utf-8")


def parameters(options: StackOptions, boundary_arn: str = "") -> dict[str, str]:
    """Every parameter of the template except where the code is.

    The template needs the ARN of a boundary, and only the account can turn a name into one.
    """
    role_prefix, _, role_suffix = options.role_name_format.partition("{}")
    policy_prefix, _, policy_suffix = options.policy_name_format.partition("{}")
    return {
        "PitrDays": str(options.pitr_recovery_days or 0),
        "EnableDeletionProtection": _switch(options.enable_deletion_protection),
        "EnableAggregator": _switch(options.enable_aggregator),
        "SnapshotWindows": options.snapshot_windows,
        "UsageRetentionDays": str(options.usage_retention_days),
        "EnableSplits": _switch(options.enable_splits),
        "BatchWindow": str(options.batch_window_s),
        "LambdaTimeout": str(options.lambda_timeout),
        "LambdaMemory": str(options.lambda_memory),
        "LogRetentionDays": str(options.log_retention_days),
        "EnableTracing": _switch(options.enable_tracing),
        "EnableAuditArchival": _switch(options.enable_audit_archival),
        "ArchiveGlacierDays": str(options.audit_archive_glacier_days),
        "EnableAlarms": _switch(options.enable_alarms),
        "AlarmTopicArn": options.alarm_sns_topic or "",
        "DurationAlarmMs": str(duration_alarm_ms(options)),
        "CreateIam": _switch(options.create_iam),
        "CreateIamRoles": _switch(options.create_iam_roles),
        "AggregatorRoleArn": options.aggregator_role_arn or "",
        "PermissionBoundaryArn": boundary_arn,
        "RoleNamePrefix": role_prefix,
        "RoleNameSuffix": role_suffix,
        "PolicyNamePrefix": policy_prefix,
        "PolicyNameSuffix": policy_suffix,
    }


def duration_alarm_ms(options: StackOptions) -> int:
    """The share of the timeout above which a run is too long."""
    return options.lambda_timeout * 1000 * options.lambda_duration_threshold_pct // 100


def _switch(on: bool) -> str:
    return "true" if on else "false"


# --------------------------------------------------------------------------------------------------
# A policy for one namespace, for those who prefer to name it instead of tagging principals.

_ID = re.compile(rf"[a-zA-Z0-9_\-]{{{NAMESPACE_ID_LENGTH}}}")
_TABLE_ARN = re.compile(r"arn:aws[a-z\-]*:dynamodb:[a-z0-9\-]+:\d{12}:table/[a-zA-Z0-9_.\-]{3,255}")

REGISTRY_KEY = "_/SYSTEM#"
USAGE_ATTRIBUTES = (
    "PK", "SK", "GSI2PK", "GSI2SK", "GSI4PK", "GSI4SK", "entity_id", "resource", "window",
    "window_start", "ttl", "total_events", "u_*",
)  # fmt: skip


def namespace_policy(
    table_arn: str, namespace_id: str, *, counts_usage: bool = False
) -> dict[str, Any]:
    """Lets apps acquire in one namespace and see no other; `counts_usage` without an aggregator.

    It allows the same as the template's NamespacePolicy for a principal with that tag.
    """
    if not isinstance(namespace_id, str) or not _ID.fullmatch(namespace_id):
        raise ValidationError(
            "namespace_id", namespace_id,
            "must be the 11 characters that `headgate namespace show` calls its id, not its name",
        )  # fmt: skip
    if not isinstance(table_arn, str) or not _TABLE_ARN.fullmatch(table_arn):
        raise ValidationError("table_arn", table_arn, "must be the ARN of a table")
    every = [namespace_id, f"{namespace_id}/*", REGISTRY_KEY]
    balances = [f"{namespace_id}/BUCKET#*", f"{namespace_id}/ONCE#*"]
    read = ["dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:Query"]
    write = ["dynamodb:UpdateItem", "dynamodb:PutItem", "dynamodb:DeleteItem"]
    statements = [
        _allow("Read", read, [table_arn, f"{table_arn}/index/*"], every),
        _allow("Balances", write, table_arn, balances),
    ]
    if counts_usage:
        usage = _allow("Usage", ["dynamodb:UpdateItem"], table_arn, [f"{namespace_id}/ENTITY#*"])
        condition = usage["Condition"]
        condition["Null"]["dynamodb:Attributes"] = "false"
        condition["ForAllValues:StringLike"]["dynamodb:Attributes"] = list(USAGE_ATTRIBUTES)
        statements.append(usage)
    return {"Version": "2012-10-17", "Statement": statements}


def _allow(
    sid: str, actions: list[str], resource: str | list[str], keys: list[str]
) -> dict[str, Any]:
    return {
        "Sid": sid,
        "Effect": "Allow",
        "Action": actions,
        "Resource": resource,
        "Condition": {
            "Null": {"dynamodb:LeadingKeys": "false"},
            "ForAllValues:StringLike": {"dynamodb:LeadingKeys": keys},
        },
    }
