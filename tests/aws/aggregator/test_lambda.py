"""The function as Lambda calls it: settings from the environment, failures and metrics out."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator

import pytest

from headgate.aws.aggregator import lambda_handler
from headgate.core.errors import ValidationError
from headgate.core.runtime import run
from tests.aws.aggregator.kit import Rig, Shard, Tape, totals


@pytest.fixture
def rig(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    found = Rig(endpoint)
    monkeypatch.setattr(lambda_handler, "_opened", [])
    monkeypatch.setenv("HEADGATE_TABLE", found.name)
    monkeypatch.setenv("HEADGATE_WINDOWS", "hourly,daily,monthly")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    yield found
    for aggregator in lambda_handler._opened:
        run(aggregator.table.port.close())
    run(found.close())


def test_a_batch_with_a_bad_record(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    tape = Tape()
    shard = Shard(tape, "a")
    shard.make(rpm=2, tpm=30)
    shard.write(rpm=1, tpm=7)
    bad = copy.deepcopy(Shard(tape, "b").make(rpm=1))
    bad["dynamodb"]["NewImage"].pop("lo")
    tape.records[-1] = bad
    shard.write(rpm=1)
    for _ in range(2):
        answer = lambda_handler.handle({"Records": tape.records}, None)
        failed = [{"itemIdentifier": bad["dynamodb"]["SequenceNumber"]}]
        assert answer == {"batchItemFailures": failed}
    for window in ("hourly", "daily", "monthly"):
        assert totals(rig.usage(), window) == {("a", "r"): {"rpm": 4, "tpm": 37}}
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (first["RecordsProcessed"], first["RecordsFailed"]) == (3, 1)
    assert (first["SnapshotsWritten"], first["Writes"]) == (3, 3)
    assert (second["SnapshotsWritten"], second["SnapshotsUnchanged"], second["Writes"]) == (0, 3, 3)
    [described] = first["_aws"]["CloudWatchMetrics"]
    assert described["Namespace"] == "headgate"
    assert first[described["Dimensions"][0][0]] == rig.name
    assert all(type(first[metric["Name"]]) is int for metric in described["Metrics"])
    assert len(lambda_handler._opened) == 1


def test_an_empty_batch_and_a_record_without_a_number(rig: Rig) -> None:
    assert lambda_handler.handle({"Records": []}, None) == {"batchItemFailures": []}
    assert lambda_handler.handle({}, None) == {"batchItemFailures": []}
    # an empty identifier: Lambda takes the whole batch for failed, and bisects it
    answer = lambda_handler.handle({"Records": [{"dynamodb": {}}]}, None)
    assert answer == {"batchItemFailures": [{"itemIdentifier": ""}]}


def test_a_function_that_is_told_nothing_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lambda_handler, "_opened", [])
    monkeypatch.delenv("HEADGATE_TABLE", raising=False)
    with pytest.raises(ValidationError, match="HEADGATE_TABLE"):
        lambda_handler.handle({"Records": []}, None)
