"""Options that cannot work are refused with their name, before AWS is asked; the template is sound,
makes the store's own table, and says what the options say."""

from __future__ import annotations

import json
import re
from dataclasses import FrozenInstanceError, fields
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from headgate import ValidationError
from headgate.aws.aggregator.process import settings_from
from headgate.aws.infra import TEMPLATE_VERSION, StackOptions, cfn_template, parameters
from headgate.aws.infra.options import duration_alarm_ms, parse_stack_name
from headgate.aws.infra.stack import CAPABILITIES
from headgate.stores.dynamodb.catalog.items import TTL
from headgate.stores.dynamodb.table.create import creation
from tests.aws.infra.rendering import Rendered, read
from tests.python import run_python

TOPIC = "arn:aws:sns:eu-west-1:123456789012:pager"
ROLE = "arn:aws:iam::123456789012:role/mine"
BODY_MAX = 51_200  # bytes that CloudFormation takes without a bucket


def test_cfn_lint_has_nothing_to_say() -> None:
    path = str(resources.files("headgate.aws.infra").joinpath("template.yaml"))
    done = run_python("-c", "from cfnlint.runner import main; main()", path)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_the_table_is_the_one_the_store_makes() -> None:
    wanted = dict(creation("limits").params)
    found = dict(Rendered().resources["Table"]["Properties"])
    stream = wanted.pop("StreamSpecification")
    assert stream.pop("StreamEnabled") is True  # CloudFormation says it by having the property
    assert found.pop("StreamSpecification") == stream
    assert found.pop("TimeToLiveSpecification") == {"AttributeName": TTL, "Enabled": True}
    assert found.pop("PointInTimeRecoverySpecification") == {"PointInTimeRecoveryEnabled": False}
    assert found.pop("DeletionProtectionEnabled") is False
    assert found == wanted


def test_it_is_small_enough_to_be_sent_as_it_is_and_cloudformation_reads_it() -> None:
    text = cfn_template()
    assert len(text.encode()) < BODY_MAX
    assert CAPABILITIES == ["CAPABILITY_NAMED_IAM"]
    assert not re.search(r"&\w+$|\*private", text, re.MULTILINE)  # CloudFormation has no anchors
    assert max(map(len, text.splitlines())) <= 100


def test_versions_options_and_their_defaults_are_the_same() -> None:
    declared = {k: str(v.get("Default", "")) for k, v in read()["Parameters"].items()}
    assert declared == {**parameters(StackOptions()), "CodeBucket": "", "CodeKey": ""}
    assert read()["Metadata"]["headgate"]["TemplateVersion"] == TEMPLATE_VERSION
    assert read()["Outputs"]["TemplateVersion"]["Value"] == str(TEMPLATE_VERSION)


def test_every_option_changes_something() -> None:
    """But for what is noted in the table, or on the stack, instead."""
    changed: dict[str, Any] = {
        "snapshot_windows": "monthly",
        "enable_aggregator": False,
        "enable_splits": True,
        "pitr_recovery_days": 35,
        "log_retention_days": 7,
        "batch_window_s": 5,
        "lambda_timeout": 30,
        "lambda_memory": 512,
        "enable_alarms": False,
        "alarm_sns_topic": TOPIC,
        "lambda_duration_threshold_pct": 50,
        "role_name_format": "team-{}",
        "policy_name_format": "{}-v1",
        "enable_audit_archival": False,
        "audit_archive_glacier_days": 30,
        "enable_tracing": True,
        "create_iam_roles": True,
        "aggregator_role_arn": ROLE,
        "enable_deletion_protection": True,
        "usage_retention_days": 7,
    }
    noted = {"audit_retention_days", "tags", "permission_boundary", "create_iam"}
    assert {field.name for field in fields(StackOptions)} == changed.keys() | noted
    plain = Rendered().resources
    for name, value in changed.items():
        assert Rendered(StackOptions(**{name: value})).resources != plain, name


def test_the_function_understands_its_environment() -> None:
    options = StackOptions(snapshot_windows="daily,monthly", usage_retention_days=7)
    function = Rendered(options).resources["Aggregator"]["Properties"]
    environment = dict(function["Environment"]["Variables"])
    environment["HEADGATE_ARCHIVE_BUCKET"] = "the-archive"
    settings = settings_from(environment)
    assert settings.table == "limits"
    assert settings.windows == ("daily", "monthly")
    assert settings.retention_ms == 7 * 86_400_000
    assert settings.split is False  # or its role would refuse
    assert function["Handler"] == "headgate.aws.aggregator.lambda_handler.handle"
    split = Rendered(StackOptions(enable_splits=True)).resources["Aggregator"]["Properties"]
    assert split["Environment"]["Variables"]["HEADGATE_SPLIT"] == "on"


def test_the_filter_names_buckets_and_expired_audit_events() -> None:
    def patterns(**options: Any) -> list[Any]:
        source = Rendered(StackOptions(**options)).resources["AggregatorSource"]["Properties"]
        return [json.loads(one["Pattern"]) for one in source["FilterCriteria"]["Filters"]]

    buckets = {"dynamodb": {"Keys": {"SK": {"S": ["#STATE"]}}}}
    expired, *others = patterns()[1:]
    assert patterns()[0] == buckets
    assert others == []
    assert expired["dynamodb"]["Keys"]["SK"]["S"] == [{"prefix": "#AUDIT#"}]
    assert expired["eventName"] == ["REMOVE"]
    assert expired["userIdentity"]["principalId"] == ["dynamodb.amazonaws.com"]
    assert patterns(enable_audit_archival=False) == [buckets]


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        (
            {"enable_aggregator": False},
            "Aggregator AggregatorSource AggregatorRole AggregatorLog DeadLetters BundleBucket "
            "ArchiveBucket ErrorsAlarm DurationAlarm IteratorAgeAlarm DeadLettersAlarm",
        ),
        ({"enable_audit_archival": False}, "ArchiveBucket"),
        (
            {"enable_alarms": False},
            "ErrorsAlarm DurationAlarm IteratorAgeAlarm DeadLettersAlarm WriteThrottlesAlarm "
            "ReadThrottlesAlarm",
        ),
        ({"aggregator_role_arn": ROLE}, "AggregatorRole"),
        (
            {"create_iam": False, "aggregator_role_arn": ROLE},
            "AggregatorRole AppPolicy ReadOnlyPolicy AdminPolicy NamespacePolicy",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_switched_off_is_not_there(options: dict[str, Any], gone: str) -> None:
    before, after = Rendered().resources, Rendered(StackOptions(**options)).resources
    assert before.keys() - after.keys() == set(gone.split())
    assert after.keys() <= before.keys()
    assert {"Table"} <= after.keys()


def test_what_is_switched_on_is_there() -> None:
    roles = {"AppRole", "ReadOnlyRole", "AdminRole"}
    rendered = Rendered(StackOptions(create_iam_roles=True), PermissionBoundaryArn="arn:b")
    assert rendered.resources.keys() - Rendered().resources.keys() == roles
    for name in (*roles, "AggregatorRole"):
        assert rendered.resources[name]["Properties"]["PermissionsBoundary"] == "arn:b"
        assert "PermissionsBoundary" not in Rendered().resources["AggregatorRole"]["Properties"]
    traced = Rendered(StackOptions(enable_tracing=True)).resources
    assert traced["Aggregator"]["Properties"]["TracingConfig"] == {"Mode": "Active"}
    plain = Rendered().resources["Aggregator"]["Properties"]["TracingConfig"]
    assert plain == {"Mode": "PassThrough"}
    alarmed = Rendered(StackOptions(alarm_sns_topic=TOPIC))
    alarms = [r for r in alarmed.resources.values() if r["Type"] == "AWS::CloudWatch::Alarm"]
    assert len(alarms) == 6
    for alarm in alarms:
        assert alarm["Properties"]["AlarmActions"] == [alarmed.parameters["AlarmTopicArn"]]


def test_names_follow_their_formats() -> None:
    options = StackOptions(
        role_name_format="pb-{}-x", policy_name_format="{}.p", create_iam_roles=True
    )
    found = Rendered(options).resources
    assert found["AppRole"]["Properties"]["RoleName"] == "pb-limits-app-x"
    assert found["AggregatorRole"]["Properties"]["RoleName"] == "pb-limits-aggregator-x"
    assert found["NamespacePolicy"]["Properties"]["ManagedPolicyName"] == "limits-namespace.p"


def test_until_the_code_is_there_so_is_no_function() -> None:
    found = Rendered(CodeKey="").resources
    assert {"BundleBucket", "AggregatorRole", "DeadLetters"} <= found.keys()
    assert not {"Aggregator", "AggregatorSource", "ErrorsAlarm"} & found.keys()
    own = Rendered(CodeBucket="mine", CodeKey="k").resources
    assert "BundleBucket" not in own
    assert own["Aggregator"]["Properties"]["Code"] == {"S3Bucket": "mine", "S3Key": "k"}


def test_buckets_are_private_and_the_archive_grows_cold() -> None:
    found = Rendered(StackOptions(audit_archive_glacier_days=45)).resources
    for name in ("BundleBucket", "ArchiveBucket"):
        blocks = found[name]["Properties"]["PublicAccessBlockConfiguration"]
        assert len(blocks) == 4
        assert all(blocks.values())
    rules = found["ArchiveBucket"]["Properties"]["LifecycleConfiguration"]["Rules"]
    moved = [rule["Transitions"] for rule in rules if rule.get("Prefix") == "audit/"]
    assert moved == [[{"StorageClass": "GLACIER", "TransitionInDays": "45"}]]
    assert found["ArchiveBucket"]["DeletionPolicy"] == "RetainExceptOnCreate"


# --------------------------------------------------------------------------------------------------
# The options themselves.

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
