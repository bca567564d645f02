"""The options of a stack, checked before AWS is called, and the template they are for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib import resources
from types import MappingProxyType
from typing import Any

from headgate.core.errors import ValidationError
from headgate.core.history import WINDOW_TYPES
from headgate.core.limits import NAMESPACE_ID_LENGTH

DAYS_MAX = 3650
TAGS_MAX = 40  # AWS takes fifty, and ours are among them
LOG_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1827, 3653)
STACK_LENGTH_MAX = 50  # with what is added to it a function's name has 64 at most
ROLE_LENGTH_MAX = 64
POLICY_LENGTH_MAX = 128
LONGEST_ROLE, LONGEST_POLICY = "-aggregator", "-namespace"
TAG_PREFIX = "headgate:"

_STACK = re.compile(r"[a-zA-Z][a-zA-Z0-9\-]{2,}")
_FORMAT = re.compile(r"[\w+=,.@\-]*\{\}[\w+=,.@\-]*", re.ASCII)
_BOUNDARY = re.compile(  # a policy's name or its ARN
    r"[\w+=,.@\-]{1,128}|arn:aws[a-z\-]*:iam::(\d{12}|aws):policy/[\w+=,.@/\-]+", re.ASCII
)
_ROLE_ARN = re.compile(r"arn:aws[a-z\-]*:iam::\d{12}:role/[\w+=,.@/\-]+", re.ASCII)
_TOPIC_ARN = re.compile(r"arn:aws[a-z\-]*:sns:[a-z0-9\-]+:\d{12}:[\w.\-]+", re.ASCII)
_TAG = re.compile(r"[\w .:/=+\-@]*")


@dataclass(frozen=True, slots=True)
class StackOptions:
    """Every choice about a stack; the defaults are those of the template."""

    snapshot_windows: str = "hourly,daily"
    usage_retention_days: int = 90
    audit_retention_days: int = 90
    enable_aggregator: bool = True
    enable_splits: bool = False
    batch_window_s: int = 60
    pitr_recovery_days: int | None = None
    log_retention_days: int = 30
    lambda_timeout: int = 60
    lambda_memory: int = 256
    enable_alarms: bool = True
    alarm_sns_topic: str | None = None
    lambda_duration_threshold_pct: int = 80
    permission_boundary: str | None = None
    role_name_format: str = "{}"
    policy_name_format: str = "{}"
    enable_audit_archival: bool = True
    audit_archive_glacier_days: int = 90
    enable_tracing: bool = False
    create_iam_roles: bool = False
    create_iam: bool = True
    aggregator_role_arn: str | None = None
    enable_deletion_protection: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, reason in self._faults():
            raise ValidationError(name, getattr(self, name), reason)
        object.__setattr__(self, "tags", MappingProxyType(_parse_tags(self.tags)))

    def _faults(self) -> Iterator[tuple[str, str]]:
        """What cannot be as it is, and why; only the first is looked for."""
        text = self.snapshot_windows
        parts = text.split(",") if isinstance(text, str) else []
        if not parts or len(set(parts)) != len(parts) or not set(parts) <= set(WINDOW_TYPES):
            offered = ", ".join(WINDOW_TYPES)
            yield "snapshot_windows", f"must be some of {offered}, each once, joined by commas"
        for name, least, most in _RANGES:
            if not self._is_unset(name) and not _is_whole(getattr(self, name), least, most):
                yield name, f"must be a whole number from {least} to {most}"
        if self.log_retention_days not in LOG_DAYS:
            offered = ", ".join(map(str, LOG_DAYS))
            yield "log_retention_days", f"must be one of {offered}: AWS has no others"
        for name in (one.name for one in fields(self) if one.type == "bool"):
            if not isinstance(getattr(self, name), bool):
                yield name, "must be True or False"
        for name, pattern, what in _TEXTS:
            if not self._is_unset(name) and not _matches(pattern, getattr(self, name)):
                yield name, what
        if self.create_iam_roles and not self.create_iam:
            yield "create_iam_roles", "needs create_iam, whose policies the roles have"
        if self.enable_aggregator and not self.create_iam and self.aggregator_role_arn is None:
            how = "name a role, or set enable_aggregator=False"
            yield "aggregator_role_arn", f"is needed where create_iam is off; {how}"
        if self.alarm_sns_topic is not None and not self.enable_alarms:
            yield "alarm_sns_topic", "is of no use with enable_alarms off"

    def _is_unset(self, name: str) -> bool:
        return name in _OPTIONAL and getattr(self, name) is None


_RANGES = (
    ("usage_retention_days", 1, DAYS_MAX),
    ("audit_retention_days", 1, DAYS_MAX),
    ("audit_archive_glacier_days", 1, DAYS_MAX),
    ("pitr_recovery_days", 1, 35),
    ("log_retention_days", 1, 3653),
    ("batch_window_s", 0, 300),
    ("lambda_timeout", 1, 900),
    ("lambda_memory", 128, 10_240),
    ("lambda_duration_threshold_pct", 1, 100),
)
_TEXTS = (
    ("role_name_format", _FORMAT, "must hold one {} and otherwise letters, digits and + = , . @ -"),
    ("policy_name_format", _FORMAT, "must hold one {} and otherwise letters, digits + = , . @ -"),
    ("permission_boundary", _BOUNDARY, "must be a policy's name or its ARN"),
    ("aggregator_role_arn", _ROLE_ARN, "must be the ARN of a role"),
    ("alarm_sns_topic", _TOPIC_ARN, "must be the ARN of an SNS topic"),
)
_OPTIONAL = ("pitr_recovery_days", "permission_boundary", "aggregator_role_arn", "alarm_sns_topic")


def parse_stack_name(text: object, options: StackOptions | None = None) -> str:
    """The name of a stack and its table; the names made from it must fit too."""
    if not isinstance(text, str) or not _STACK.fullmatch(text) or len(text) > STACK_LENGTH_MAX:
        raise ValidationError(
            "stack_name",
            text,
            f"must be 3 to {STACK_LENGTH_MAX} letters, digits and -, beginning with a letter",
        )
    chosen = options or StackOptions()
    for name, form, longest, most in (
        ("role_name_format", chosen.role_name_format, LONGEST_ROLE, ROLE_LENGTH_MAX),
        ("policy_name_format", chosen.policy_name_format, LONGEST_POLICY, POLICY_LENGTH_MAX),
    ):
        made = form.replace("{}", text + longest)
        if len(made) > most:
            raise ValidationError(
                name, form, f"makes {made!r}, which is longer than the {most} that IAM takes"
            )
    return text


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _parse_tags(tags: object) -> dict[str, str]:
    if not isinstance(tags, Mapping) or len(tags) > TAGS_MAX:
        raise ValidationError("tags", tags, f"must be a mapping of at most {TAGS_MAX} tags")
    for key, value in tags.items():
        if not (_matches(_TAG, key) and _matches(_TAG, value)):
            raise ValidationError("tags", {key: value}, "hold characters that AWS does not take")
        if not 1 <= len(key) <= 128 or len(value) > 256:
            raise ValidationError("tags", {key: value}, "are too long: 128 and 256 characters")
        if key.lower().startswith(("aws:", TAG_PREFIX)):
            raise ValidationError("tags", key, "begins with a prefix that is not yours to use")
    return dict(tags)


# --------------------------------------------------------------------------------------------------
# The CloudFormation template, and options as its parameters.

TEMPLATE_VERSION = 1  # moves when an older stack needs `headgate upgrade`

CODE_KEY = "CodeKey"  # the parameter for where the code is: known only once the stack exists


def cfn_template() -> str:
    """The template, the same for every stack: what differs is in its parameters."""
    return resources.files("headgate.aws.infra").joinpath("template.yaml").read_text("utf-8")


def parameters(options: StackOptions, boundary_arn: str = "") -> dict[str, str]:
    """Every parameter of the template except where the code is.

    The template needs the ARN of a boundary, and only the account can turn a name into one.
    """
    role_prefix, _, role_suffix = options.role_name_format.partition("{}")
    policy_prefix, _, policy_suffix = options.policy_name_format.partition("{}")
    values = {
        "PitrDays": options.pitr_recovery_days or 0,
        "EnableDeletionProtection": options.enable_deletion_protection,
        "EnableAggregator": options.enable_aggregator,
        "SnapshotWindows": options.snapshot_windows,
        "UsageRetentionDays": options.usage_retention_days,
        "EnableSplits": options.enable_splits,
        "BatchWindow": options.batch_window_s,
        "LambdaTimeout": options.lambda_timeout,
        "LambdaMemory": options.lambda_memory,
        "LogRetentionDays": options.log_retention_days,
        "EnableTracing": options.enable_tracing,
        "EnableAuditArchival": options.enable_audit_archival,
        "ArchiveGlacierDays": options.audit_archive_glacier_days,
        "EnableAlarms": options.enable_alarms,
        "AlarmTopicArn": options.alarm_sns_topic or "",
        "DurationAlarmMs": duration_alarm_ms(options),
        "CreateIam": options.create_iam,
        "CreateIamRoles": options.create_iam_roles,
        "AggregatorRoleArn": options.aggregator_role_arn or "",
        "PermissionBoundaryArn": boundary_arn,
        "RoleNamePrefix": role_prefix,
        "RoleNameSuffix": role_suffix,
        "PolicyNamePrefix": policy_prefix,
        "PolicyNameSuffix": policy_suffix,
    }
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
    }


def duration_alarm_ms(options: StackOptions) -> int:
    """The share of the timeout above which a run is too long."""
    return options.lambda_timeout * 1000 * options.lambda_duration_threshold_pct // 100


# --------------------------------------------------------------------------------------------------
# A policy for one namespace, for those who prefer to name it instead of tagging principals.

_ID = re.compile(rf"[a-zA-Z0-9_\-]{{{NAMESPACE_ID_LENGTH}}}")
_TABLE_ARN = re.compile(r"arn:aws[a-z\-]*:dynamodb:[a-z0-9\-]+:\d{12}:table/[a-zA-Z0-9_.\-]{3,255}")

REGISTRY_KEY = "_/SYSTEM#"
USAGE_ATTRIBUTES = (
    "PK", "SK", "GSI2PK", "GSI2SK", "GSI4PK", "GSI4SK", "entity_id", "resource", "window",
    "window_start", "ttl", "total_events", "u_*", "cascaded_events", "c_*",
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
