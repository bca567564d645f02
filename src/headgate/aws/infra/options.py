"""The options of a stack, checked before AWS is called."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from headgate.core.errors import ValidationError
from headgate.core.history import WINDOW_TYPES

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
_NAME = re.compile(r"[\w+=,.@\-]{1,128}", re.ASCII)
_POLICY_ARN = re.compile(r"arn:aws[a-z\-]*:iam::(\d{12}|aws):policy/[\w+=,.@/\-]+", re.ASCII)
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
        _check_windows(self.snapshot_windows)
        for name, least, most in _RANGES:
            _check_range(name, getattr(self, name), least, most)
        if self.log_retention_days not in LOG_DAYS:
            offered = ", ".join(map(str, LOG_DAYS))
            raise _invalid(
                self, "log_retention_days", f"must be one of {offered}: AWS has no others"
            )
        for name in (one.name for one in fields(self) if one.type == "bool"):
            if not isinstance(getattr(self, name), bool):
                raise _invalid(self, name, "must be True or False")
        for name, pattern, what in _TEXTS:
            _check_text(name, getattr(self, name), pattern, what)
        self._check_access()
        object.__setattr__(self, "tags", MappingProxyType(_parse_tags(self.tags)))

    def _check_access(self) -> None:
        boundary = self.permission_boundary
        if boundary is not None and not (
            _matches(_NAME, boundary) or _matches(_POLICY_ARN, boundary)
        ):
            raise _invalid(self, "permission_boundary", "must be a policy's name or its ARN")
        if self.create_iam_roles and not self.create_iam:
            raise _invalid(
                self, "create_iam_roles", "needs create_iam, whose policies the roles have"
            )
        if self.enable_aggregator and not self.create_iam and self.aggregator_role_arn is None:
            raise _invalid(
                self,
                "aggregator_role_arn",
                "is needed where create_iam is off; name a role, or set enable_aggregator=False",
            )
        if self.alarm_sns_topic is not None and not self.enable_alarms:
            raise _invalid(self, "alarm_sns_topic", "is of no use with enable_alarms off")


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
    ("aggregator_role_arn", _ROLE_ARN, "must be the ARN of a role"),
    ("alarm_sns_topic", _TOPIC_ARN, "must be the ARN of an SNS topic"),
)
_OPTIONAL = ("pitr_recovery_days", "aggregator_role_arn", "alarm_sns_topic")


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


def _check_windows(text: object) -> None:
    parts = text.split(",") if isinstance(text, str) else []
    if not parts or len(set(parts)) != len(parts) or not set(parts) <= set(WINDOW_TYPES):
        offered = ", ".join(WINDOW_TYPES)
        raise ValidationError(
            "snapshot_windows", text, f"must be some of {offered}, each once, joined by commas"
        )


def _check_range(name: str, value: object, least: int, most: int) -> None:
    if value is None and name in _OPTIONAL:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValidationError(name, value, f"must be a whole number from {least} to {most}")


def _check_text(name: str, value: object, pattern: re.Pattern[str], what: str) -> None:
    if value is None and name in _OPTIONAL:
        return
    if not _matches(pattern, value):
        raise ValidationError(name, value, what)


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


def _invalid(options: StackOptions, name: str, reason: str) -> ValidationError:
    return ValidationError(name, getattr(options, name), reason)
