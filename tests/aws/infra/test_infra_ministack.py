"""A whole stack on a real engine: made, counting from the real bundle, and gone without a trace."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from headgate import Limit, RateLimiter, Repository, SyncRateLimiter, SyncRepository
from headgate.aws.aggregator.consumer import Stream
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
    open_port,
    status,
    upgrade,
)
from headgate.aws.infra import inspect as watching
from headgate.aws.infra import stack as stack_module
from headgate.aws.infra.remove import remove_bucket
from headgate.cli.app import cli
from headgate.core.runtime import run
from tests.aws.aggregator.mapping import Mapped, expired
from tests.aws.infra import cloud
from tests.stores.dynamodb import engine

PATIENCE_S = 120.0
LIMITS = [Limit.per_minute("rpm", 10_000), Limit.per_minute("tpm", 1_000_000)]


@pytest.fixture(scope="module")
def port() -> Iterator[Port]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in engine.CREDENTIALS.items():
            patch.setenv(name, value)
        patch.setattr(watching, "POLL_MS", 50)
        with cloud.running() as running:
            yield open_port(region="us-east-1", endpoint=running.endpoint)


def _until(found: Callable[[], Any], wanted: Any) -> Any:
    """What is found once it is as wanted; the function runs when the engine gets to it."""
    end_s = time.monotonic() + PATIENCE_S
    while (now := found()) != wanted and time.monotonic() < end_s:
        time.sleep(0.5)
    return now


def _inventory(port: Port) -> dict[str, list[str]]:
    def names(service: str, operation: str, part: str, key: str, **params: Any) -> list[str]:
        return sorted(one[key] for one in port.call(service, operation, **params).get(part, []))

    return {
        "tables": port.call("dynamodb", "list_tables")["TableNames"],
        "functions": names("lambda", "list_functions", "Functions", "FunctionName"),
        "sources": names("lambda", "list_event_source_mappings", "EventSourceMappings", "UUID"),
        "buckets": names("s3", "list_buckets", "Buckets", "Name"),
        "queues": port.call("sqs", "list_queues").get("QueueUrls", []),
        "logs": names("logs", "describe_log_groups", "logGroups", "logGroupName"),
        "alarms": names("cloudwatch", "describe_alarms", "MetricAlarms", "AlarmName"),
        "roles": names("iam", "list_roles", "Roles", "RoleName"),
        "policies": names("iam", "list_policies", "Policies", "PolicyName", Scope="Local"),
    }


def _usage(stack: Stack) -> dict[tuple[str, str], dict[str, int]]:
    with SyncRepository.open(stack.url) as repository, SyncRateLimiter(repository) as limiter:
        rows, rest = limiter.get_usage_snapshots(limit=1000)
    assert rest is None
    sums: dict[tuple[str, str], Counter[str]] = {}
    for one in rows:  # an hour may end in the middle of a test
        sums.setdefault((one.entity_id, one.window_type), Counter()).update(one.counters)
    return {place: dict(counters) for place, counters in sums.items()}


def test_a_stack_from_beginning_to_end(port: Port) -> None:
    nothing = _inventory(port)
    told: list[Progress] = []
    options = StackOptions(
        enable_deletion_protection=True, create_iam_roles=True, tags={"team": "limits"}
    )
    made = deploy(port, "whole", options, report=told.append)
    assert made.changed
    assert {"Table", "Aggregator", "AggregatorSource"} <= {one.resource for one in told}
    assert is_current(made.stack)
    assert status(port, "whole").tags["team"] == "limits"
    assert [one.name for one in list_stacks(port)] == ["whole"]

    there = _inventory(port)
    assert there["tables"] == ["whole"]
    assert there["functions"] == ["whole-aggregator"]
    assert len(there["sources"]) == 1
    assert len(there["buckets"]) == 2
    assert len(there["alarms"]) == 6
    assert there["roles"] == ["whole-admin", "whole-aggregator", "whole-app", "whole-read-only"]
    assert len(there["policies"]) == 4

    assert deploy(port, "whole", options).changed is False
    assert upgrade(port, "whole").changed is False
    changed = deploy(
        port, "whole", StackOptions(lambda_memory=512, enable_deletion_protection=True)
    )
    assert changed.changed
    function = port.call("lambda", "get_function_configuration", FunctionName="whole-aggregator")
    assert function["MemorySize"] == 512
    assert "whole-app" not in _inventory(port)["roles"]

    archive = changed.stack.outputs["ArchiveBucketName"]
    port.call("s3", "put_object", Bucket=archive, Key="audit/x.jsonl.gz", Body=b"line")
    gone = delete(port, "whole", confirm="whole", report=told.append)
    assert gone.kept_bucket is None
    assert _inventory(port) == nothing
    assert list_stacks(port) == []
    with pytest.raises(InfrastructureNotFoundError):
        status(port, "whole")


def test_the_function_counts_what_was_acquired(port: Port) -> None:
    stack = deploy(port, "counting", StackOptions(snapshot_windows="hourly,monthly")).stack
    wanted: dict[str, dict[str, int]] = {}
    with SyncRateLimiter(stack.url, limits=LIMITS) as limiter:
        for number in range(300):
            entity, tokens = f"key-{number % 7}", 1 + number % 13
            with limiter.acquire(entity, "gpt-4", {"rpm": 1, "tpm": tokens}) as lease:
                lease.adjust(tpm=2)
            counted = wanted.setdefault(entity, {"rpm": 0, "tpm": 0})
            counted["rpm"] += 1
            counted["tpm"] += tokens + 2
    everything = {
        (entity, kind): c for entity, c in wanted.items() for kind in ("hourly", "monthly")
    }
    assert _until(lambda: _usage(stack), everything) == everything
    function = port.call("lambda", "get_function", FunctionName="counting-aggregator")
    runs = base64.b64decode(function["Configuration"]["CodeSha256"]).hex()
    assert stack.parameters["CodeKey"] == f"aggregator/{runs}.zip"
    given_up = port.call("sqs", "receive_message", QueueUrl=stack.outputs["DeadLettersUrl"])
    assert given_up.get("Messages", []) == []
    delete(port, "counting", confirm="counting")


def test_the_function_answers_for_each_record_and_archives_what_expired(port: Port) -> None:
    """Invoked as the event source would: this engine has no partial batches of its own."""
    stack = deploy(port, "partial").stack
    good = _expired("1", "AAAAAAAAAAA/AUDIT#key-1", "#AUDIT#1700000000000-a")
    poison = {**_expired("2", "AAAAAAAAAAA/BUCKET#k#r#0", "#STATE"), "eventName": "MODIFY"}
    poison["dynamodb"].pop("OldImage")
    answer = port.call(
        "lambda", "invoke", FunctionName="partial-aggregator",
        Payload=json.dumps({"Records": [poison, good]}).encode(),
    )  # fmt: skip
    said = json.loads(answer["Payload"].read())
    assert "FunctionError" not in answer, said
    assert said == {"batchItemFailures": [{"itemIdentifier": "2"}]}
    archive = stack.outputs["ArchiveBucketName"]
    objects = port.call("s3", "list_objects_v2", Bucket=archive, Prefix="audit/")["Contents"]
    assert len(objects) == 1
    delete(port, "partial", confirm="partial")


def _expired(sequence: str, pk: str, sk: str) -> dict[str, Any]:
    keys = {"PK": {"S": pk}, "SK": {"S": sk}}
    image = keys | {
        "event_id": {"S": sk.removeprefix("#AUDIT#")},
        "timestamp": {"S": "2023-11-14T22:13:20.000Z"},
        "action": {"S": "limits_set"},
        "entity_id": {"S": "key-1"},
        "details": {"S": "{}"},
        "ttl": {"N": "1700000000"},
    }
    return {
        "eventID": sequence,
        "eventName": "REMOVE",
        "eventSource": "aws:dynamodb",
        "userIdentity": {"type": "Service", "principalId": "dynamodb.amazonaws.com"},
        "dynamodb": {
            "ApproximateCreationDateTime": 1_700_000_100,
            "Keys": keys,
            "OldImage": image,
            "SequenceNumber": sequence,
            "StreamViewType": "NEW_AND_OLD_IMAGES",
        },
    }


ACQUIRES = 10_000
ENTITIES, RESOURCES, CLIENTS = 50, 3, 16
BATCH = 2000  # what a function is given of such records: 6 MB


def test_ten_thousand_acquires_equal_what_the_function_counted(port: Port) -> None:
    """Delivered by the engine's mapping from the stack's stream; then again, shuffled."""
    stack = deploy(port, "many", StackOptions(enable_alarms=False)).stack
    [source] = port.call("lambda", "list_event_source_mappings")["EventSourceMappings"]
    mapping = {"UUID": source["UUID"], "BatchSize": BATCH}
    port.call("lambda", "update_event_source_mapping", **mapping, Enabled=False)
    asyncio.run(_acquire_all(f"{stack.url}&timeout_ms=60000&connections=32"))
    consumed = _consumed(port, "many")
    assert sum(counters["rpm"] for counters in consumed.values()) == ACQUIRES
    assert len(consumed) == ENTITIES * RESOURCES
    port.call("lambda", "update_event_source_mapping", **mapping, Enabled=True)
    wanted = {(*place, kind): c for place, c in consumed.items() for kind in ("hourly", "daily")}
    assert _until(lambda: _sums(stack), wanted) == wanted
    _, records = _streamed(stack)
    records = [one for one in records if one["dynamodb"]["Keys"]["SK"]["S"] == "#STATE"]
    assert len(records) == ACQUIRES
    random.Random(5).shuffle(records)
    call = _invoked(port, "many-aggregator")
    for at in range(0, ACQUIRES, BATCH):
        plain = json.dumps(records[at : at + BATCH], default=lambda moment: moment.timestamp())
        assert call({"Records": json.loads(plain)}) == {"batchItemFailures": []}
    assert _sums(stack) == wanted
    delete(port, "many", confirm="many")


async def _acquire_all(url: str) -> None:
    async with await Repository.open(url) as repository:
        limits = [Limit.per_minute("rpm", 10**6), Limit.per_minute("tpm", 10**8)]
        limiter = RateLimiter(repository, limits=limits)

        async def client(number: int) -> None:
            for at in range(number, ACQUIRES, CLIENTS):
                amounts = {"rpm": 1, "tpm": 1 + at % 97}
                place = f"user-{at % ENTITIES}", f"model-{at % RESOURCES}"
                async with limiter.acquire(*place, amounts):
                    pass

        await asyncio.gather(*(client(number) for number in range(CLIENTS)))


def _consumed(port: Port, table: str) -> dict[tuple[str, str], dict[str, int]]:
    """What the buckets themselves say: `tc`, in whole tokens, over all shards."""
    found: dict[tuple[str, str], dict[str, int]] = {}
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


def _sums(stack: Stack) -> dict[tuple[str, str, str], dict[str, int]]:
    """Usage over all windows of a type, page by page."""
    found: dict[tuple[str, str, str], dict[str, int]] = {}
    with SyncRepository.open(f"{stack.url}&timeout_ms=20000") as repository:
        key: str | None = None
        while True:
            rows, key = repository.get_usage_snapshots(limit=1000, next_key=key)
            for one in rows:
                sums = found.setdefault((one.entity_id, one.resource, one.window_type), {})
                for name, amount in one.counters.items():
                    sums[name] = sums.get(name, 0) + amount
            if key is None:
                return found


def _invoked(port: Port, name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The deployed function, called as its event source calls it."""

    def call(event: dict[str, Any]) -> dict[str, Any]:
        answer = port.call(
            "lambda", "invoke", FunctionName=name, Payload=json.dumps(event).encode()
        )
        said: dict[str, Any] = json.loads(answer["Payload"].read())
        assert "FunctionError" not in answer, said
        return said

    return call


def _streamed(stack: Stack) -> tuple[str, list[Any]]:
    """All that the table's stream has."""
    service = BotoService(
        "dynamodbstreams", region="us-east-1", endpoint=stack.endpoint, blocking=True
    )
    stream = Stream(service, stack.outputs["StreamArn"])
    found: list[Any] = []
    for shard in run(stream.shards()):
        iterator: str | None = run(stream.iterator(shard.id, None))
        while iterator is not None:
            batch = run(stream.batch(iterator))
            found += batch.records
            iterator = batch.iterator if batch.records else None
    run(service.close())
    return stream.arn, found


def test_poison_ends_in_the_stacks_queue_and_expired_events_in_its_archive(port: Port) -> None:
    """The deployed function on real records of the stack's own stream, delivered as AWS would."""
    options = StackOptions(audit_retention_days=3, enable_alarms=False)
    stack = deploy(port, "letters", options).stack
    url = f"{stack.url}&timeout_ms=20000"
    with SyncRepository.open(url) as repository:
        repository.create_entity("key-1", principal="ada")
        repository.set_limits("key-1", LIMITS, principal="ada")
        events = repository.get_audit_events("key-1", 10)
        namespace = repository.get_namespace("default")
        assert namespace is not None
        limiter = SyncRateLimiter(repository)
        for _ in range(4):
            with limiter.acquire("key-1", "gpt-4", {"rpm": 1}):
                pass
        _expire_oldest(port, "letters", f"{namespace.id}/AUDIT#key-1")
        bad = {"PK": {"S": f"{namespace.id}/BUCKET#bad#r#0"}, "SK": {"S": "#STATE"}}
        port.call("dynamodb", "put_item", TableName="letters", Item={**bad, "rf": {"N": "1"}})
        for _ in range(3):
            with limiter.acquire("key-1", "gpt-4", {"rpm": 1}):
                pass
    [source] = port.call("lambda", "list_event_source_mappings")["EventSourceMappings"]
    arn, records = _streamed(stack)
    inbox = BotoService("sqs", region="us-east-1", endpoint=stack.endpoint, blocking=True)
    queue = stack.outputs["DeadLettersUrl"]
    delivery = Mapped(
        _invoked(port, "letters-aggregator"), inbox, queue, arn,
        [json.loads(one["Pattern"]) for one in source["FilterCriteria"]["Filters"]],
        retries_max=source["MaximumRetryAttempts"],
    )  # fmt: skip
    delivery.deliver([expired(record, time.time()) for record in records])
    counted = {kind: _usage(stack)["key-1", kind] for kind in ("hourly", "daily")}
    assert counted == {"hourly": {"rpm": 7}, "daily": {"rpm": 7}}
    [message] = run(inbox.call("receive_message", QueueUrl=queue))["Messages"]
    run(inbox.close())
    [poison] = [r for r in records if r["dynamodb"]["Keys"]["PK"] == bad["PK"]]
    place = json.loads(message["Body"])["DDBStreamBatchInfo"]
    assert place["startSequenceNumber"] == poison["dynamodb"]["SequenceNumber"]
    told = CliRunner().invoke(cli, ["audit", "list", "--archived", "--url", stack.url, "--json"])
    assert told.exit_code == 0, told.output
    assert [one["event_id"] for one in json.loads(told.stdout)["items"]] == [events[-1].event_id]
    delete(port, "letters", confirm="letters")


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


BROKEN = """
  Broken:
    Type: AWS::Logs::LogStream
    Properties: {LogGroupName: of-nobody, LogStreamName: one}
"""


def _broken_template(patch: pytest.MonkeyPatch) -> None:
    text = cfn_template().replace("\nOutputs:", f"{BROKEN}\nOutputs:")
    patch.setattr(stack_module, "cfn_template", lambda: text)


def test_what_stands_in_the_way_is_named_and_nothing_is_left(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = _inventory(port)
    with monkeypatch.context() as patch:
        _broken_template(patch)
        with pytest.raises(StackOperationError) as caught:
            deploy(port, "failing")
    assert caught.value.resource == "Broken (AWS::Logs::LogStream)"
    assert "does not exist" in caught.value.reason
    assert status(port, "failing").status == "ROLLBACK_COMPLETE"
    assert _inventory(port) == nothing

    assert deploy(port, "failing").changed  # the remains are cleared away by themselves
    with monkeypatch.context() as patch:
        _broken_template(patch)
        with pytest.raises(StackOperationError, match=r"Broken.*as it was before"):
            deploy(port, "failing", StackOptions(lambda_memory=512))
    assert status(port, "failing").parameters["LambdaMemory"] == "256"
    delete(port, "failing", confirm="failing")
    assert _inventory(port) == nothing


def test_an_aggregator_can_be_switched_off_and_on(port: Port) -> None:
    nothing = _inventory(port)
    made = deploy(port, "switched").stack
    archive = made.outputs["ArchiveBucketName"]
    off = deploy(port, "switched", StackOptions(enable_aggregator=False)).stack
    there = _inventory(port)
    assert there["functions"] == there["sources"] == there["queues"] == []
    assert there["buckets"] == [archive]  # what was archived stays
    assert "usage" not in off.url
    assert deploy(port, "switched").stack.outputs.keys() == made.outputs.keys()
    assert _inventory(port)["functions"] == ["switched-aggregator"]
    delete(port, "switched", confirm="switched")
    assert _inventory(port)["buckets"] == [archive]  # of a stack that is no more
    remove_bucket(port, archive)
    assert _inventory(port) == nothing


def test_without_an_aggregator_each_process_counts(port: Port) -> None:
    stack = deploy(port, "lone", StackOptions(enable_aggregator=False, enable_alarms=False)).stack
    assert _inventory(port)["functions"] == []
    with SyncRateLimiter(stack.url, limits=LIMITS) as limiter:
        with limiter.acquire("key-1", "gpt-4", {"rpm": 1}):
            pass
    assert _usage(stack)["key-1", "hourly"] == {"rpm": 1}
    delete(port, "lone", confirm="lone")
