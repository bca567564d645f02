"""Whole stacks on a real engine: made, counting from the real bundle, and gone without a trace."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from headgate import Limit, RateLimiter, Repository, SyncRateLimiter, SyncRepository
from headgate.aws.aggregator.s3 import BotoService
from headgate.aws.infra import (
    InfrastructureNotFoundError,
    Port,
    Progress,
    Stack,
    StackOperationError,
    StackOptions,
    cfn_template,
    delete,
    deploy,
    is_current,
    list_stacks,
    status,
    upgrade,
)
from headgate.aws.infra import stack as stack_module
from headgate.aws.infra.stack import remove_bucket
from headgate.core.runtime import run
from proof.size import sized
from tests.aws.aggregator.kit import everything_in, totals
from tests.aws.aggregator.mapping import Mapped, expired
from tests.cli import kit as cli

PATIENCE_S = 240.0
LIMITS = [Limit.per_minute("rpm", 10**6), Limit.per_minute("tpm", 10**8)]
# Ten thousand are a minute's work for the engine; the small number meets every kind of case.
ACQUIRES = sized(600, 10_000, 10_000)
ENTITIES, RESOURCES, CLIENTS = 50, 3, 16
BATCH = sized(200, 2000, 2000)  # a function is given 6 MB, 2000 of such records

Sums = dict[tuple[str, str], dict[str, int]]


def _inventory(port: Port, stack: str) -> dict[str, list[str]]:
    """What there is on the engine that bears the stack's name."""

    def names(service: str, operation: str, part: str, key: str, **params: Any) -> list[str]:
        found = port.call(service, operation, **params).get(part, [])
        return sorted(one[key] for one in found if stack in one[key])

    return {
        "tables": [n for n in port.call("dynamodb", "list_tables")["TableNames"] if stack in n],
        "functions": names("lambda", "list_functions", "Functions", "FunctionName"),
        "sources": names(
            "lambda", "list_event_source_mappings", "EventSourceMappings", "FunctionArn"
        ),
        "buckets": names("s3", "list_buckets", "Buckets", "Name"),
        "queues": [u for u in port.call("sqs", "list_queues").get("QueueUrls", []) if stack in u],
        "logs": names("logs", "describe_log_groups", "logGroups", "logGroupName"),
        "alarms": names("cloudwatch", "describe_alarms", "MetricAlarms", "AlarmName"),
        "roles": names("iam", "list_roles", "Roles", "RoleName"),
        "policies": names("iam", "list_policies", "Policies", "PolicyName", Scope="Local"),
    }


BROKEN = """
  Broken:
    Type: AWS::Logs::LogStream
    Properties: {LogGroupName: of-nobody, LogStreamName: one}
"""


def _deploy_broken(port: Port, patch: pytest.MonkeyPatch, options: StackOptions) -> Any:
    """What a deployment is told whose template has a resource that cannot be made."""
    text = cfn_template().replace("\nOutputs:", f"{BROKEN}\nOutputs:")
    with patch.context() as broken, pytest.raises(StackOperationError) as caught:
        broken.setattr(stack_module, "cfn_template", lambda: text)
        deploy(port, "whole", options)
    return caught.value


def test_a_stack_from_beginning_to_end(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    options = StackOptions(
        enable_deletion_protection=True, create_iam_roles=True, tags={"team": "limits"}
    )
    nothing = _inventory(port, "whole")
    error = _deploy_broken(port, monkeypatch, options)
    assert error.resource == "Broken (AWS::Logs::LogStream)"
    assert "does not exist" in error.reason
    assert status(port, "whole").status == "ROLLBACK_COMPLETE"
    assert _inventory(port, "whole") == nothing

    told: list[Progress] = []
    made = deploy(port, "whole", options, report=told.append)  # clears the remains by itself
    assert made.changed
    assert {"Table", "Aggregator", "AggregatorSource"} <= {one.resource for one in told}
    assert is_current(made.stack)
    assert status(port, "whole").tags["team"] == "limits"
    assert "whole" in [one.name for one in list_stacks(port)]
    there = _inventory(port, "whole")
    assert there["tables"] == ["whole"]
    assert there["functions"] == ["whole-aggregator"]
    assert (len(there["sources"]), len(there["buckets"]), len(there["alarms"])) == (1, 2, 6)
    assert there["roles"] == ["whole-admin", "whole-aggregator", "whole-app", "whole-read-only"]
    assert len(there["policies"]) == 4

    assert deploy(port, "whole", options).changed is False
    assert upgrade(port, "whole").changed is False
    larger = StackOptions(lambda_memory=512, enable_deletion_protection=True)
    assert "Broken" in str(error := _deploy_broken(port, monkeypatch, larger))
    assert "as it was before" in str(error)
    assert status(port, "whole").parameters["LambdaMemory"] == "256"
    changed = deploy(port, "whole", larger)
    assert changed.changed
    function = port.call("lambda", "get_function_configuration", FunctionName="whole-aggregator")
    assert function["MemorySize"] == 512
    assert "whole-app" not in _inventory(port, "whole")["roles"]

    _switch_the_aggregator_off_and_on(port, changed.stack)
    archive = status(port, "whole").outputs["ArchiveBucketName"]
    port.call("s3", "put_object", Bucket=archive, Key="audit/x.jsonl.gz", Body=b"line")
    assert delete(port, "whole", confirm="whole", report=told.append).kept_bucket is None
    first_archive = made.stack.outputs["ArchiveBucketName"]
    assert _inventory(port, "whole")["buckets"] == [first_archive]  # of a stack that is no more
    remove_bucket(port, first_archive)
    assert _inventory(port, "whole") == nothing
    with pytest.raises(InfrastructureNotFoundError):
        status(port, "whole")


def _switch_the_aggregator_off_and_on(port: Port, before: Stack) -> None:
    """Without one each process counts; what was archived stays."""
    off = deploy(port, "whole", StackOptions(enable_aggregator=False)).stack
    there = _inventory(port, "whole")
    assert there["functions"] == there["sources"] == there["queues"] == []
    assert there["buckets"] == [before.outputs["ArchiveBucketName"]]
    assert "usage" not in off.url
    with SyncRateLimiter(off.url, limits=LIMITS) as limiter:
        with limiter.acquire("key-1", "gpt-4", {"rpm": 1}):
            pass
    assert _usage(off, "hourly") == {("key-1", "gpt-4"): {"rpm": 1}}
    assert deploy(port, "whole").stack.outputs.keys() == before.outputs.keys()
    assert _inventory(port, "whole")["functions"] == ["whole-aggregator"]


def test_a_stack_by_the_command(port: Port) -> None:
    """And its table counted by a process of one's own."""

    def call(*words: str) -> Any:
        return cli.told(*words, "--region", "us-east-1", "--endpoint", str(port.endpoint))

    options = ("--no-enable-aggregator", "--no-enable-alarms", "--tag", "team=payments")
    made = call("deploy", "own", *options)
    assert made["changed"]
    assert made["url"].startswith("dynamodb://own?")
    assert made["tags"]["team"] == "payments"
    assert not call("deploy", "own", *options)["changed"]
    assert call("status", "own")["status"].endswith("COMPLETE")
    assert "own" in [one["name"] for one in call("list")]
    assert not call("upgrade-stack", "own")["changed"]
    with SyncRepository.open(f"{made['url']}&usage=stream") as repository:
        limiter = SyncRateLimiter(repository, limits=[Limit.per_hour("rph", 100)])
        for _ in range(5):
            with limiter.acquire("key-1", "gpt-4", {"rph": 2}):
                pass
        told = call("aggregate", "own", "--drain")
        assert (told["counted"], told["failures"]) == (5, 0)
        assert limiter.get_usage_summary("key-1", "gpt-4", "hourly").total == {"rph": 10}
        assert call("aggregate", "own", "--drain")["counted"] == 0
    assert call("delete", "own", "--yes")["name"] == "own"
    assert "own" not in [one["name"] for one in call("list")]


def test_the_deployed_function_counts_archives_and_names_what_it_cannot_read(port: Port) -> None:
    options = StackOptions(audit_retention_days=3, enable_alarms=False)
    stack = deploy(port, "counting", options).stack
    function = port.call("lambda", "get_function", FunctionName="counting-aggregator")
    runs = base64.b64decode(function["Configuration"]["CodeSha256"]).hex()
    assert stack.parameters["CodeKey"] == f"aggregator/{runs}.zip"
    _count_what_was_acquired(port, stack)
    _deliver_poison_and_expired_events(port, stack)
    delete(port, "counting", confirm="counting")


def _count_what_was_acquired(port: Port, stack: Stack) -> None:
    """By the engine's own mapping from the stack's stream; then again, shuffled."""
    [source] = _sources(port)
    mapping = {"UUID": source["UUID"], "BatchSize": BATCH}
    port.call("lambda", "update_event_source_mapping", **mapping, Enabled=False)
    asyncio.run(_acquire_all(f"{stack.url}&timeout_ms=60000&connections=32"))
    consumed = _consumed(port, "counting")
    assert sum(counters["rpm"] for counters in consumed.values()) == ACQUIRES
    assert len(consumed) == ENTITIES * RESOURCES
    port.call("lambda", "update_event_source_mapping", **mapping, Enabled=True)
    end_s = time.monotonic() + PATIENCE_S
    while (found := _usage(stack, "daily")) != consumed and time.monotonic() < end_s:
        time.sleep(0.2)
    assert found == _usage(stack, "hourly") == consumed
    _, records = _streamed(stack)
    records = [one for one in records if one["dynamodb"]["Keys"]["SK"]["S"] == "#STATE"]
    random.Random(5).shuffle(records)
    call = _invoked(port)
    for at in range(0, len(records), BATCH):
        plain = json.dumps(records[at : at + BATCH], default=lambda moment: moment.timestamp())
        assert call({"Records": json.loads(plain)}) == {"batchItemFailures": []}
    assert _usage(stack, "daily") == _usage(stack, "hourly") == consumed
    with SyncRepository.open(stack.url) as repository:
        summary = repository.get_usage_summary(resource="model-1", window_type="daily")
    of_one = [counters for place, counters in consumed.items() if place[1] == "model-1"]
    assert summary.total == {name: sum(one[name] for one in of_one) for name in ("rpm", "tpm")}


async def _acquire_all(url: str) -> None:
    async with await Repository.open(url) as repository:
        limiter = RateLimiter(repository, limits=LIMITS)

        async def client(number: int) -> None:
            for at in range(number, ACQUIRES, CLIENTS):
                place = f"user-{at % ENTITIES}", f"model-{at % RESOURCES}"
                async with limiter.acquire(*place, {"rpm": 1, "tpm": 1 + at % 97}) as lease:
                    if at % 5 == 0:
                        await lease.adjust(tpm=2)

        await asyncio.gather(*(client(number) for number in range(CLIENTS)))


def _consumed(port: Port, table: str) -> Sums:
    """What the buckets themselves say: `tc`, in whole tokens, over all shards."""
    found: Sums = {}
    start: dict[str, Any] = {}
    while True:
        page = port.call("dynamodb", "scan", TableName=table, **start)
        for item in page["Items"]:
            if item["SK"]["S"] == "#STATE":
                _, entity_id, resource, _ = item["PK"]["S"].split("#")
                sums = found.setdefault((entity_id, resource), {"rpm": 0, "tpm": 0})
                for name in sums:
                    sums[name] += int(item[f"b_{name}_tc"]["N"]) // 1000
        if "LastEvaluatedKey" not in page:
            return found
        start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}


def _usage(stack: Stack, window: str) -> Sums:
    """Usage over all windows of a type, page by page."""
    found: list[Any] = []
    with SyncRepository.open(f"{stack.url}&timeout_ms=20000") as repository:
        key: str | None = None
        while True:
            rows, key = repository.get_usage_snapshots(limit=1000, next_key=key)
            found += rows
            if key is None:
                return totals(found, window)


def _sources(port: Port) -> list[dict[str, Any]]:
    name = {"FunctionName": "counting-aggregator"}
    found = port.call("lambda", "list_event_source_mappings", **name)
    return list(found["EventSourceMappings"])


def _invoked(port: Port) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The deployed function, called as its event source calls it."""

    def call(event: dict[str, Any]) -> dict[str, Any]:
        payload = json.dumps(event).encode()
        answer = port.call("lambda", "invoke", FunctionName="counting-aggregator", Payload=payload)
        said: dict[str, Any] = json.loads(answer["Payload"].read())
        assert "FunctionError" not in answer, said
        return said

    return call


def _streamed(stack: Stack) -> tuple[str, list[Any]]:
    """All that the table's stream has."""
    service = BotoService(
        "dynamodbstreams", region="us-east-1", endpoint=stack.endpoint, blocking=True
    )
    arn = stack.outputs["StreamArn"]
    found = run(everything_in(service, arn))
    run(service.close())
    return arn, found


def _deliver_poison_and_expired_events(port: Port, stack: Stack) -> None:
    """Real records of the stack's own stream, delivered to the function as AWS would."""
    with SyncRepository.open(f"{stack.url}&timeout_ms=20000") as repository:
        repository.create_entity("key-1", principal="ada")
        repository.set_limits("key-1", LIMITS, principal="ada")
        events = repository.get_audit_events("key-1", 10)
        namespace = repository.get_namespace("default")
        assert namespace is not None
        limiter = SyncRateLimiter(repository)
        for _ in range(4):
            with limiter.acquire("key-1", "gpt-4", {"rpm": 1}):
                pass
        _expire_oldest(port, "counting", f"{namespace.id}/AUDIT#key-1")
        bad = {"PK": {"S": f"{namespace.id}/BUCKET#bad#r#0"}, "SK": {"S": "#STATE"}}
        port.call("dynamodb", "put_item", TableName="counting", Item={**bad, "rf": {"N": "1"}})
        for _ in range(3):
            with limiter.acquire("key-1", "gpt-4", {"rpm": 1}):
                pass
    [source] = _sources(port)
    arn, records = _streamed(stack)
    inbox = BotoService("sqs", region="us-east-1", endpoint=stack.endpoint, blocking=True)
    queue = stack.outputs["DeadLettersUrl"]
    delivery = Mapped(
        _invoked(port), inbox, queue, arn,
        [json.loads(one["Pattern"]) for one in source["FilterCriteria"]["Filters"]],
        retries_max=source["MaximumRetryAttempts"],
    )  # fmt: skip
    delivery.deliver([expired(record, time.time()) for record in records])
    for window in ("hourly", "daily"):
        assert _usage(stack, window)["key-1", "gpt-4"] == {"rpm": 7}
    [message] = run(inbox.call("receive_message", QueueUrl=queue))["Messages"]
    run(inbox.close())
    [poison] = [r for r in records if r["dynamodb"]["Keys"]["PK"] == bad["PK"]]
    place = json.loads(message["Body"])["DDBStreamBatchInfo"]
    assert place["startSequenceNumber"] == poison["dynamodb"]["SequenceNumber"]
    listed = cli.told("audit", "list", "--archived", "--url", stack.url)["items"]
    assert [one["event_id"] for one in listed] == [events[-1].event_id]


def _expire_oldest(port: Port, table: str, pk: str) -> None:
    """Its end, three days from now by the stack's option, is brought forward; TTL deletes it."""
    found = port.call(
        "dynamodb", "query", TableName=table, KeyConditionExpression="PK = :pk",
        ExpressionAttributeValues={":pk": {"S": pk}},
    )["Items"]  # fmt: skip
    ends_s = [int(item["ttl"]["N"]) - time.time() for item in found]
    assert all(3 * 86_400 - 600 < end_s <= 3 * 86_400 + 60 for end_s in ends_s), ends_s
    gone = {**found[0], "ttl": {"N": "1700000000"}}
    port.call("dynamodb", "put_item", TableName=table, Item=gone)
    key = {name: gone[name] for name in ("PK", "SK")}
    port.call("dynamodb", "delete_item", TableName=table, Key=key)
