"""Records that cannot be done: the rest is counted, they are in the queue, the stream goes on."""

from __future__ import annotations

import copy
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.aws.aggregator.consumer import AGE_MS_MAX, Consumer, find_stream_arn
from headgate.aws.aggregator.dead_letters import (
    MESSAGE_BYTES_MAX,
    DeadLetter,
    DeadLetters,
    FileDeadLetters,
    S3DeadLetters,
    SqsDeadLetters,
)
from headgate.aws.aggregator.open import open_dead_letters
from headgate.aws.aggregator.s3 import BotoService, S3Objects
from headgate.core.errors import Throttled, Unreachable, ValidationError
from headgate.core.runtime import run
from headgate.stores.dynamodb.client.calls import Rejected
from tests.aws.aggregator.kit import NS, Failing, Rig, Shard, Tape, Wheel, counted, drop_items, take
from tests.cli.kit import told


class Inbox:
    """A real queue, and what is in it."""

    def __init__(self, endpoint: str, name: str) -> None:
        self.service = BotoService("sqs", region="us-east-1", endpoint=endpoint, blocking=True)
        self.url: str = run(self.service.call("create_queue", QueueName=name))["QueueUrl"]

    def messages(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            reply = run(
                self.service.call("receive_message", QueueUrl=self.url, MaxNumberOfMessages=10)
            )
            if not reply.get("Messages"):
                return found
            for one in reply["Messages"]:
                found.append(json.loads(one["Body"]))
                handle = one["ReceiptHandle"]
                run(self.service.call("delete_message", QueueUrl=self.url, ReceiptHandle=handle))


@pytest.fixture
def inbox(endpoint: str, rig: Rig) -> Iterator[Inbox]:
    found = Inbox(endpoint, f"dead-{rig.name}")
    yield found
    run(found.service.close())


def poison(rig: Rig) -> None:
    """An item under a bucket's key that no headgate wrote; the stream tells of it."""
    key = {"PK": {"S": f"{NS}/BUCKET#bad#r#0"}, "SK": {"S": "#STATE"}}
    item = {**key, "rf": {"N": "1"}, "g": {"S": "what?"}, "raw": {"B": "AAEC"}}
    run(rig.table.call("PutItem", Item=item))


def test_a_process_of_ones_own_puts_it_into_the_queue(rig: Rig, inbox: Inbox) -> None:
    take(rig, 5)
    poison(rig)
    take(rig, 5)
    words = ["aggregate", rig.name, "--drain", "--region", "us-east-1"]
    words += ["--endpoint", rig.endpoint, "--dead-letters", inbox.url]
    assert told(*words)["dead_letters"] == 1
    assert counted(rig) == {("e", "r"): {"rpm": 10}}
    [letter] = inbox.messages()
    assert letter["requestContext"] == {"condition": "Unreadable"}
    assert letter["record"]["dynamodb"]["NewImage"]["g"] == {"S": "what?"}
    assert letter["record"]["dynamodb"]["NewImage"]["raw"] == {"B": "AAEC"}
    number = letter["record"]["dynamodb"]["SequenceNumber"]
    assert letter["DDBStreamBatchInfo"]["startSequenceNumber"] == number
    assert letter["DDBStreamBatchInfo"]["streamArn"] == run(find_stream_arn(rig.table))
    take(rig, 1)
    assert told(*words)["dead_letters"] == 0  # it is behind: once is enough
    assert inbox.messages() == []


def test_into_objects_and_into_a_file(
    rig: Rig, bucket: str, objects: S3Objects, tmp_path: Path
) -> None:
    path = tmp_path / "dead.jsonl"
    tape = Tape()
    good, bad = Shard(tape, "a"), Shard(tape, "b")
    good.make(rpm=1)
    bad.make(rpm=1)
    del tape.records[1]["dynamodb"]["NewImage"]
    for place in (f"s3://{bucket}/given-up", str(path)):
        for _ in range(2):
            letters = open_dead_letters(place, "us-east-1", rig.endpoint, blocking=True)
            reader = reading(rig, tape, letters)
            _forget_marks(rig)
            run(reader.drain())
            assert reader.dead_letters_sent == 1
            run(letters.close())
    lines = path.read_text().splitlines()
    assert len(lines) == 2  # at least once: the mark was lost
    [name] = run(objects.names("", 10))
    assert name.startswith("given-up/44215845")
    [line] = gzip.decompress(run(objects.get(name))).decode().splitlines()
    for text in (line, lines[0]):
        assert json.loads(text)["record"]["dynamodb"]["Keys"]["PK"]["S"] == f"{NS}/BUCKET#b#r#0"
    assert counted(rig) == {("a", "r"): {"rpm": 1}}


def _forget_marks(rig: Rig) -> None:
    drop_items(rig, "_/SYSTEM#", "#STREAM#")


class Kept:
    """Letters that stay with the test; a trouble may come first."""

    def __init__(self, *troubles: Exception) -> None:
        self.letters: list[DeadLetter] = []
        self.troubles = list(troubles)

    async def send(self, letters: Any, now_ms: int) -> None:
        if self.troubles:
            raise self.troubles.pop(0)
        self.letters += letters

    async def close(self) -> None: ...


def reading(rig: Rig, tape: Tape, letters: DeadLetters | None, port: Any = None) -> Consumer:
    return rig.reader(Wheel({"only": (None, [tape.records])}), port, letters=letters)


def one_change(age_ms: int, rig: Rig) -> Tape:
    tape = Tape()
    tape.now_ms = rig.table.port.now_ms() - age_ms
    Shard(tape, "a").make(rpm=1)
    return tape


def test_passing_trouble_is_waited_out_until_the_record_is_old(rig: Rig) -> None:
    for age_ms, given_up in ((0, 0), (AGE_MS_MAX - 60_000, 0), (AGE_MS_MAX + 60_000, 1)):
        kept = Kept()
        busy = Failing(rig.table.port, [Throttled("busy")] * 8)
        reader = reading(rig, one_change(age_ms, rig), kept, busy)
        run(reader.read_round())
        assert [letter.condition for letter in kept.letters] == ["RecordAgeExceeded"] * given_up
        _forget_marks(rig)
    busy = Failing(rig.table.port, [Throttled("busy")] * 8)
    reader = reading(rig, one_change(AGE_MS_MAX + 60_000, rig), None, busy)
    run(reader.read_round())
    assert counted(rig) == {}
    run(reader.drain())
    assert counted(rig) == {("a", "r"): {"rpm": 1}}, "without dead letters it is tried on"


def test_a_row_that_refuses_for_good_does_not_hold_up_the_others(rig: Rig) -> None:
    tape = one_change(0, rig)
    Shard(tape, "b").make(rpm=5)
    kept = Kept()
    invalid = Rejected("ValidationException", "item size has exceeded the maximum")

    class Picky(Failing):
        async def call_all(self, requests: Any) -> Any:
            outcomes = await self.inner.call_all(
                [one for one in requests if "ENTITY#a" not in one.params["Key"]["PK"]["S"]]
            )
            left = iter(outcomes)
            return [
                invalid if "ENTITY#a" in one.params["Key"]["PK"]["S"] else next(left)
                for one in requests
            ]

    run(reading(rig, tape, kept, Picky(rig.table.port, [])).drain())
    [letter] = kept.letters
    assert (letter.condition, "item size" in letter.why) == ("Refused", True)
    assert counted(rig) == {("b", "r"): {"rpm": 5}}


def test_a_letter_that_cannot_be_sent_is_sent_later(rig: Rig) -> None:
    tape = one_change(0, rig)
    del tape.records[0]["dynamodb"]["NewImage"]
    kept = Kept(Unreachable("no queue"))
    reader = reading(rig, tape, kept)
    with pytest.raises(Unreachable):
        run(reader.drain())
    assert kept.letters == []
    run(reading(rig, tape, kept).drain())
    assert len(kept.letters) == 1


def test_a_letter_too_large_for_a_queue_says_where_its_record_is() -> None:
    tape = Tape()
    record = Shard(tape).make(rpm=1)
    huge = copy.deepcopy(record)
    huge["dynamodb"]["NewImage"]["x"] = {"S": "x" * MESSAGE_BYTES_MAX}
    for one, whole in ((record, True), (huge, False)):
        text = DeadLetter("arn", "shard", "Unreadable", "why", one).text(0, MESSAGE_BYTES_MAX)
        assert len(text) < MESSAGE_BYTES_MAX
        said = json.loads(text)
        assert ("record" in said, "recordLeftOut" in said) == (whole, not whole)
        number = record["dynamodb"]["SequenceNumber"]
        assert said["DDBStreamBatchInfo"]["startSequenceNumber"] == number


SQS = "https://sqs.eu-west-1.amazonaws.com/123456789012/dead"
PLACES = {
    SqsDeadLetters: [
        SQS, "http://127.0.0.1:4566/000000000000/dead", "arn:aws:sqs:eu-west-1:123456789012:dead"
    ],
    S3DeadLetters: ["s3://my-letters", "s3://my-letters/of/today"],
    FileDeadLetters: ["dead.jsonl", "/var/lib/headgate/dead.jsonl"],
}  # fmt: skip


def test_places() -> None:
    for kind, places in PLACES.items():
        for place in places:
            assert type(open_dead_letters(place, "us-east-1", blocking=True)) is kind
    for text in ("", "s3://No_Bucket", "https://", "ftp://x/y", "arn:aws:sns:eu:1:x", "a\0b"):
        with pytest.raises(ValidationError, match="dead_letters"):
            open_dead_letters(text, "us-east-1", blocking=True)


def test_a_file_that_cannot_be_written_is_trouble(tmp_path: Path) -> None:
    letter = DeadLetter("arn", "shard", "Unreadable", "why", {})
    with pytest.raises(Unreachable, match="name another file"):
        run(FileDeadLetters(tmp_path / "no" / "such" / "folder").send([letter], 0))


def test_a_queue_by_its_arn(rig: Rig, inbox: Inbox) -> None:
    account = inbox.url.split("/")[-2]
    arn = f"arn:aws:sqs:us-east-1:{account}:{os.path.basename(inbox.url)}"
    letters = open_dead_letters(arn, "us-east-1", rig.endpoint, blocking=True)
    for number in range(2):
        run(letters.send([DeadLetter("arn", "shard", "Unreadable", f"why {number}", {})], 0))
    run(letters.close())
    assert sorted(one["why"] for one in inbox.messages()) == ["why 0", "why 1"]
