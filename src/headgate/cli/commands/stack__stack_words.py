"""What `headgate deploy` says of each option of a stack."""

from __future__ import annotations

TOLD = {
    "snapshot_windows": "Some of hourly, daily, monthly.",
    "usage_retention_days": "How long usage rows are kept.",
    "audit_retention_days": "How long audit events are kept.",
    "enable_aggregator": "Count usage from the stream, with a function.",
    "enable_splits": "Let the aggregator split hot buckets.",
    "enable_refill": "Let the aggregator store what was refilled.",
    "batch_window_s": "How long changes are collected before they are counted.",
    "pitr_recovery_days": "Point-in-time recovery, 1 to 35 days.",
    "log_retention_days": "Of the function's log.",
    "lambda_timeout": "Seconds.",
    "lambda_memory": "MB.",
    "enable_alarms": "On errors, duration, lag, dead letters, throttles.",
    "alarm_sns_topic": "ARN of a topic that alarms tell.",
    "lambda_duration_threshold_pct": "Of the timeout, above which a run is too long.",
    "permission_boundary": "A policy's name or ARN, for every role made.",
    "role_name_format": "With {} for the name.",
    "policy_name_format": "With {} for the name.",
    "enable_audit_archival": "Audit events go to S3 when they expire.",
    "audit_archive_glacier_days": "Then they move on to Glacier.",
    "enable_tracing": "X-Ray for the function.",
    "create_iam_roles": "Roles with the app, read-only and admin policies.",
    "create_iam": "Policies, and the aggregator's role.",
    "aggregator_role_arn": "A role of your own for the aggregator.",
    "enable_deletion_protection": "AWS refuses to delete the table.",
}
