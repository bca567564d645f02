"""The CloudFormation template as text, and options as its parameters."""

from __future__ import annotations

from importlib import resources

from headgate.aws.infra.options import StackOptions

TEMPLATE_VERSION = 1  # moves when an older stack needs `headgate upgrade`

# What can be known only when a stack is made: where its code lies.
CODE_BUCKET, CODE_KEY = "CodeBucket", "CodeKey"


def cfn_template() -> str:
    """The template, the same for every stack: what differs is in its parameters."""
    return resources.files("headgate.aws.infra").joinpath("template.yaml").read_text("utf-8")


def parameters(options: StackOptions, boundary_arn: str = "") -> dict[str, str]:
    """Every parameter of the template but for where the code lies.

    The template takes a boundary by its ARN, which only the account can make of a name.
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
        "EnableRefill": _switch(options.enable_refill),
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
