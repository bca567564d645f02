"""Options that cannot work are refused with their name, before AWS is asked."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

from headgate import ValidationError
from headgate.aws.infra import StackOptions
from headgate.aws.infra.options import duration_alarm_ms, parse_stack_name

TOPIC = "arn:aws:sns:eu-west-1:123456789012:pager"

BAD: dict[str, list[Any]] = {
    "snapshot_windows": ["", "hourly,", "hourly,hourly", "weekly", ["hourly"]],
    "usage_retention_days": [0, 3651, True, 1.0],
    "audit_retention_days": [-1],
    "pitr_recovery_days": [0, 36],
    "log_retention_days": [31],
    "lambda_timeout": [901],
    "lambda_memory": [127],
    "lambda_duration_threshold_pct": [101],
    "audit_archive_glacier_days": [0],
    "enable_aggregator": ["yes"],
    "enable_tracing": [1],
    "alarm_sns_topic": ["pager", f"{TOPIC}\n"],
    "permission_boundary": ["a b", "arn:aws:iam::1:policy/x"],
    "role_name_format": ["fixed", "{}{}", "{0}", None],
    "policy_name_format": ["a b-{}"],
    "aggregator_role_arn": ["mine", "arn:aws:iam::123456789012:policy/x"],
    "tags": [
        ["a"], {"aws:x": "1"}, {"headgate:stack": "1"}, {"": "1"}, {"a": 1}, {"a" * 129: "1"},
        {"a": "b" * 257}, {f"t{n}": "" for n in range(41)}, {"a": "<b>"},
    ],
}  # fmt: skip
CONTRADICTIONS: list[tuple[str, dict[str, Any]]] = [
    ("create_iam_roles", {"create_iam": False, "create_iam_roles": True}),
    ("aggregator_role_arn", {"create_iam": False}),
    ("alarm_sns_topic", {"enable_alarms": False, "alarm_sns_topic": TOPIC}),
]


@pytest.mark.parametrize(
    ("name", "options"),
    [(name, {name: value}) for name, values in BAD.items() for value in values] + CONTRADICTIONS,
    ids=lambda value: str(value)[:50],
)
def test_a_bad_option_is_named(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        StackOptions(**options)
    assert caught.value.field == name


def test_borders_are_inside() -> None:
    StackOptions(
        snapshot_windows="monthly,hourly,daily",
        usage_retention_days=3650,
        pitr_recovery_days=35,
        lambda_timeout=900,
        lambda_memory=10_240,
        lambda_duration_threshold_pct=100,
        permission_boundary="arn:aws:iam::aws:policy/PowerUserAccess",
        role_name_format="team.{}@x",
        tags={f"t{n}": "" for n in range(40)},
    )
    StackOptions(create_iam=False, enable_aggregator=False)
    StackOptions(permission_boundary="the-boundary")


def test_options_are_values() -> None:
    tags = {"team": "a"}
    options = StackOptions(tags=tags)
    tags["team"] = "b"
    assert options.tags == {"team": "a"}
    with pytest.raises(FrozenInstanceError):
        options.lambda_timeout = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        options.tags["team"] = "c"  # type: ignore[index]


def test_the_alarm_is_a_share_of_the_timeout() -> None:
    assert duration_alarm_ms(StackOptions()) == 48_000
    options = StackOptions(lambda_timeout=1, lambda_duration_threshold_pct=1)
    assert duration_alarm_ms(options) == 10


@pytest.mark.parametrize("name", ["ab", "1ab", "a_b", "a.b", "a" * 51, "abc\n", "", None, 7])
def test_a_bad_stack_name(name: object) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_stack_name(name)
    assert caught.value.field == "stack_name"


def test_names_made_of_it_must_fit() -> None:
    assert parse_stack_name("a" * 50) == "a" * 50
    prefix = "p" * 3
    options = StackOptions(role_name_format=prefix + "{}")
    assert parse_stack_name("a" * 50, options)  # 3 + 50 + 11 is the 64 that a role's name may have
    with pytest.raises(ValidationError, match="longer than the 64"):
        parse_stack_name("a" * 50, StackOptions(role_name_format=prefix + "p{}"))


def test_the_reference_names_every_option_with_its_default() -> None:
    text = (Path(__file__).parents[3] / "docs/reference/stack-options.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| `(.+?)` \|", text, re.MULTILINE))
    wanted = {
        field.name: "{}" if field.name == "tags" else getattr(StackOptions(), field.name)
        for field in fields(StackOptions)
    }
    assert rows.keys() == wanted.keys()
    for name, shown in rows.items():
        assert shown.strip('"') == str(wanted[name]), name
