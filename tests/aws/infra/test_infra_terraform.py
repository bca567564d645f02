"""The Terraform module makes what the template makes, under the same names."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import hcl2
import pytest

from headgate.aws.infra import StackOptions
from tests.aws.infra.rendering import ARCHIVE_ARN, TABLE_ARN, Rendered, plain, read

MODULE = Path(__file__).parents[3] / "infra/terraform"
PLACES = {
    "table_arn": TABLE_ARN,
    "archive_arn": ARCHIVE_ARN,
    "log_arn": "<AggregatorLog.Arn>",
    "queue_arn": "<DeadLetters.Arn>",
}

COUNTERPARTS = {
    "Table": "aws_dynamodb_table.this",
    "Aggregator": "aws_lambda_function.aggregator",
    "AggregatorSource": "aws_lambda_event_source_mapping.aggregator",
    "DeadLetters": "aws_sqs_queue.dead_letters",
    "AggregatorLog": "aws_cloudwatch_log_group.aggregator",
    "ArchiveBucket": "aws_s3_bucket.archive",
    "AggregatorRole": "aws_iam_role.aggregator",
    **{f"{who}Role": "aws_iam_role.this" for who in ("App", "ReadOnly", "Admin")},
    **{f"{who}Policy": "aws_iam_policy.this" for who in ("App", "ReadOnly", "Admin", "Namespace")},
}
SENT_DIRECTLY = {"BundleBucket"}  # Terraform gives Lambda the file itself


def _module() -> dict[str, Any]:
    whole: dict[str, Any] = {"resource": {}, "variable": {}, "locals": {}}
    for path in sorted(MODULE.glob("*.tf")):
        parsed = hcl2.loads(path.read_text())
        for block in parsed.get("resource", []):
            for kind, named in block.items():
                for name, body in named.items():
                    whole["resource"][f"{_bare(kind)}.{_bare(name)}"] = body
        for block in parsed.get("variable", []):
            whole["variable"] |= {_bare(name): body for name, body in block.items()}
        for block in parsed.get("locals", []):
            whole["locals"] |= {_bare(name): body for name, body in block.items()}
    return whole


def _bare(name: str) -> str:
    return name.strip('"')


@pytest.fixture(scope="module")
def module() -> dict[str, Any]:
    return _module()


def test_every_resource_has_a_counterpart(module: dict[str, Any]) -> None:
    alarms = {n for n, r in read()["Resources"].items() if r["Type"] == "AWS::CloudWatch::Alarm"}
    assert read()["Resources"].keys() == COUNTERPARTS.keys() | SENT_DIRECTLY | alarms
    for address in {*COUNTERPARTS.values(), "aws_cloudwatch_metric_alarm.this"}:
        assert address in module["resource"], address
    parts = {a for a in module["resource"] if a.startswith(("aws_s3_bucket_", "aws_iam_role_p"))}
    assert set(module["resource"]) == {
        *COUNTERPARTS.values(), *parts, "aws_cloudwatch_metric_alarm.this",
    }  # fmt: skip


def test_alarms_are_the_same(module: dict[str, Any]) -> None:
    text = (MODULE / "alarms.tf").read_text()
    wanted = [
        r["Properties"]
        for r in Rendered().resources.values()
        if r["Type"] == "AWS::CloudWatch::Alarm"
    ]
    for alarm in wanted:
        name = alarm["AlarmName"].removeprefix("limits-")
        block = re.search(rf"^    {re.escape(name)} = \{{(.*?)^    \}}", text, re.M | re.S)
        assert block, name
        for said in (alarm["MetricName"], alarm["Namespace"], alarm["Statistic"]):
            assert f'"{said}"' in block[1], (name, said)
        found = {"period": 300, "evaluation_periods": 1, "threshold": 0}
        found |= {k: int(v) for k, v in re.findall(r"(\w+) += (\d+)$", block[1], re.M)}
        assert found["period"] == alarm["Period"], name
        assert found["evaluation_periods"] == alarm["EvaluationPeriods"], name
        if name != "aggregator-duration":  # which is a share of the timeout
            assert found["threshold"] == alarm["Threshold"], name
    assert len(re.findall(r"^    [a-z-]+ = \{$", text, re.M)) == len(wanted)


def test_names_are_the_same() -> None:
    text = "\n".join(path.read_text() for path in MODULE.glob("*.tf"))
    for said in (
        '"${var.name}-aggregator"',
        '"${var.name}-dead-letters"',
        '"/aws/lambda/${local.aggregator}"',
        'replace(var.role_name_format, "{}", "${var.name}-${each.key}")',
        'replace(var.policy_name_format, "{}", "${var.name}-${each.key}")',
        'alarm_name          = "${var.name}-${each.key}"',
    ):
        assert said in text, said


def test_the_function_and_its_source_are_the_same() -> None:
    text = (MODULE / "main.tf").read_text()
    rendered = Rendered().resources
    function = rendered["Aggregator"]["Properties"]
    for name in function["Environment"]["Variables"]:
        assert re.search(rf"^ +{name} +=", text, re.M), name
    assert f'"{function["Handler"]}"' in text
    assert f'"{function["Runtime"]}"' in text
    source = rendered["AggregatorSource"]["Properties"]
    for ours, theirs in {
        "BatchSize": "batch_size",
        "MaximumRetryAttempts": "maximum_retry_attempts",
        "MaximumRecordAgeInSeconds": "maximum_record_age_in_seconds",
    }.items():
        assert re.search(rf"^  {theirs} += {source[ours]}$", text, re.M), theirs
    for said in ("ReportBatchItemFailures", "#STATE", "#AUDIT#", "TRIM_HORIZON"):
        assert said in text


def test_variables_are_the_options_with_their_defaults(module: dict[str, Any]) -> None:
    names = {field.name for field in fields(StackOptions)}
    assert set(module["variable"]) == names | {"name", "bundle_path"}
    options = StackOptions()
    for name in names - {"tags"}:
        default = module["variable"][name]["default"]
        found = _bare(default) if isinstance(default, str) else default
        wanted = getattr(options, name)
        assert found == ("null" if wanted is None and found == "null" else wanted), name


def test_statements_are_the_same() -> None:
    text = (MODULE / "statements.json.tftpl").read_text()
    for name, value in PLACES.items():
        text = text.replace(f"${{{name}}}", value)
    found = json.loads(text.replace("$${", "${"))
    counting, alone = Rendered(), Rendered(StackOptions(enable_aggregator=False))
    full = Rendered(StackOptions(enable_splits=True, enable_tracing=True))

    def sids(rendered: Rendered, who: str, *names: str) -> list[dict[str, Any]]:
        return [plain(s) for s in rendered.statements(who) if s["Sid"] in names]

    assert found == {
        "app": sids(counting, "AppPolicy", "Read", "Balances"),
        "usage": sids(alone, "AppPolicy", "Usage"),
        "read_only": sids(counting, "ReadOnlyPolicy", "Read"),
        "archive": sids(counting, "ReadOnlyPolicy", "Archive", "ArchiveList"),
        "admin": sids(counting, "AdminPolicy", "Read", "Write"),
        "namespace": sids(counting, "NamespacePolicy", "Read", "Balances"),
        "namespace_usage": sids(alone, "NamespacePolicy", "Usage"),
        "aggregator": sids(
            counting, "AggregatorRole", "Stream", "Read", "Usage", "Log", "DeadLetters"
        ),
        "aggregator_split": sids(full, "AggregatorRole", "Balances"),
        "aggregator_archive": sids(full, "AggregatorRole", "Archive"),
        "aggregator_trace": sids(full, "AggregatorRole", "Trace"),
    }
    listed = sum(len(full.statements(f"{who}Policy")) for who in ("App", "ReadOnly", "Admin"))
    assert listed == 2 + 3 + 4  # a statement more, and the module lacks it


def test_the_table_is_the_same(module: dict[str, Any]) -> None:
    wanted = Rendered(StackOptions(pitr_recovery_days=7)).resources["Table"]["Properties"]
    body = module["resource"]["aws_dynamodb_table.this"]
    assert _bare(body["billing_mode"]) == wanted["BillingMode"]
    assert [_bare(body["hash_key"]), _bare(body["range_key"])] == [
        key["AttributeName"] for key in wanted["KeySchema"]
    ]
    assert _bare(body["stream_view_type"]) == wanted["StreamSpecification"]["StreamViewType"]
    assert body["stream_enabled"] is True
    [ttl] = body["ttl"]
    assert _bare(ttl["attribute_name"]) == wanted["TimeToLiveSpecification"]["AttributeName"]
    assert ttl["enabled"] is True
    text = (MODULE / "main.tf").read_text()
    indexes = dict(re.findall(r'(GSI\d) = "(\w+)"', text))
    assert indexes == {
        one["IndexName"]: one["Projection"]["ProjectionType"]
        for one in wanted["GlobalSecondaryIndexes"]
    }
    for one in wanted["GlobalSecondaryIndexes"]:  # which the module makes of their names
        keys = [key["AttributeName"] for key in one["KeySchema"]]
        assert keys == [f"{one['IndexName']}PK", f"{one['IndexName']}SK"]
    assert '"${global_secondary_index.key}PK"' in text
    assert '"${global_secondary_index.key}SK"' in text
    names = ["PK", "SK", *(f"GSI{n}{key}" for n in range(1, 5) for key in ("PK", "SK"))]
    assert [one["AttributeName"] for one in wanted["AttributeDefinitions"]] == names
    assert (
        'concat(["PK", "SK"], flatten([for n in range(1, 5) : ["GSI${n}PK", "GSI${n}SK"]]))' in text
    )
    [pitr] = body["point_in_time_recovery"]
    assert set(pitr) >= {"enabled", "recovery_period_in_days"}
    assert wanted["PointInTimeRecoverySpecification"]["RecoveryPeriodInDays"] == "7"


def test_buckets_queue_and_log_are_the_same(module: dict[str, Any]) -> None:
    rendered, held = Rendered().resources, module["resource"]
    queue = rendered["DeadLetters"]["Properties"]
    mine = held["aws_sqs_queue.dead_letters"]
    assert mine["message_retention_seconds"] == queue["MessageRetentionPeriod"]
    assert mine["sqs_managed_sse_enabled"] is queue["SqsManagedSseEnabled"] is True
    block = held["aws_s3_bucket_public_access_block.archive"]
    wanted = rendered["ArchiveBucket"]["Properties"]["PublicAccessBlockConfiguration"]
    snake = {re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower(): on for name, on in wanted.items()}
    assert {name: block[name] for name in snake} == snake
    rules = rendered["ArchiveBucket"]["Properties"]["LifecycleConfiguration"]["Rules"]
    mine_rules = held["aws_s3_bucket_lifecycle_configuration.archive"]["rule"]
    assert [_bare(rule["id"]) for rule in mine_rules] == [rule["Id"] for rule in rules]
    [moved] = mine_rules[0]["transition"]
    assert _bare(moved["storage_class"]) == rules[0]["Transitions"][0]["StorageClass"]
    assert _bare(mine_rules[0]["filter"][0]["prefix"]) == rules[0]["Prefix"]
    gone = mine_rules[1]["abort_incomplete_multipart_upload"][0]["days_after_initiation"]
    assert gone == rules[1]["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"]


OF_TERRAFORM = {"count", "for_each", "depends_on", "lifecycle", "dynamic", "content", "labels"}


def _given(body: Any) -> Iterator[str]:
    """Every argument and block a resource's body names, at any depth."""
    if isinstance(body, list):
        for part in body:
            yield from _given(part)
    if not isinstance(body, dict):
        return
    for name, value in body.items():
        if name.startswith("__"):  # where the parser found it
            continue
        if name == "dynamic":
            for block in value:
                for inner, parts in block.items():
                    yield _bare(inner)
                    yield from _given(parts["content"])
            continue
        if name not in OF_TERRAFORM:
            yield name
        if not (name in ("variables", "tags") or isinstance(value, str)):
            yield from _given(value)


def test_every_argument_is_one_the_provider_knows(module: dict[str, Any]) -> None:
    """As its schema was when tools/provider_names.py last read it."""
    known = json.loads((Path(__file__).parent / "provider_names.json").read_text())
    looked_at = 0
    for address, body in module["resource"].items():
        schema = known["resources"][address.partition(".")[0]]
        given = set(_given(body))
        assert given <= set(schema["names"]), (address, given - set(schema["names"]))
        assert set(schema["required"]) <= given, (address, set(schema["required"]) - given)
        looked_at += len(given)
    assert looked_at > 80
    assert int(known["version"].split(".")[0]) >= 6


@pytest.mark.skipif(shutil.which("terraform") is None, reason="terraform is not installed")
def test_terraform_reads_it_and_finds_it_tidy() -> None:
    done = subprocess.run(
        ["terraform", "fmt", "-check", "-diff", str(MODULE)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
