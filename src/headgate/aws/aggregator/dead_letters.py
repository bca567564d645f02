"""Dead letters: records that can never be processed are stored elsewhere, and the stream goes on.

They go to an SQS queue, to S3 objects, or to a file. Each says where in the stream the record was,
in the format that Lambda uses for its own failure destinations, and why it was given up. It also
holds the record itself, which Lambda leaves out: the stream forgets it after a day.
"""

from __future__ import annotations

import base64
import datetime
import gzip
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from headgate.aws.aggregator.records import record_time_ms, sequence_text
from headgate.aws.aggregator.s3 import BotoService, S3Objects
from headgate.core.errors import Unreachable
from headgate.core.history import iso_time

MESSAGE_BYTES_MAX = 256 * 1024  # that a queue takes
UNREADABLE, REFUSED, TOO_OLD = "Unreadable", "Refused", "RecordAgeExceeded"

QUEUE_URL = re.compile(r"https?://[^/\s]+/\S*[^/\s]")
QUEUE_ARN = re.compile(r"arn:aws[a-z\-]*:sqs:[a-z0-9\-]+:(\d{12}):([\w\-]{1,80})", re.ASCII)
OBJECTS_URL = re.compile(r"s3://([a-z0-9][a-z0-9.\-]{1,61}[a-z0-9])(?:/([\w.=/\-]*))?", re.ASCII)


class DeadLetter(NamedTuple):
    """A record that was given up, where it was, and why."""

    stream: str
    shard: str
    condition: str
    why: str
    record: Mapping[str, Any]

    def text(self, now_ms: int, bytes_max: int | None = None) -> str:
        """The letter as JSON, without the record if that is larger than the receiver accepts."""
        number = sequence_text(self.record)
        arrived = _arrival_time(self.record)
        place = {
            "shardId": self.shard,
            "startSequenceNumber": number,
            "endSequenceNumber": number,
            "approximateArrivalOfFirstRecord": arrived,
            "approximateArrivalOfLastRecord": arrived,
            "batchSize": 1,
            "streamArn": self.stream,
        }
        said = {
            "version": "1.0",
            "timestamp": iso_time(now_ms),
            "requestContext": {"condition": self.condition},
            "why": self.why,
            "DDBStreamBatchInfo": place,
        }
        whole = json.dumps({**said, "record": self.record}, default=_json_default)
        if bytes_max is None or len(whole.encode()) <= bytes_max:
            return whole
        return json.dumps({**said, "recordLeftOut": f"{len(whole)} bytes"})


class DeadLetters(Protocol):
    async def send(self, letters: Sequence[DeadLetter], now_ms: int) -> None:
        """Stores all letters or raises StoreTrouble; after an error some may be stored twice."""
        ...

    async def close(self) -> None: ...


class SqsDeadLetters:
    """A message each, in a queue of SQS."""

    def __init__(self, service: BotoService, place: str) -> None:
        self._service = service
        self._place = place  # its URL or, before the first letter, its ARN

    async def send(self, letters: Sequence[DeadLetter], now_ms: int) -> None:
        if found := QUEUE_ARN.fullmatch(self._place):
            reply = await self._service.call(
                "get_queue_url", QueueName=found[2], QueueOwnerAWSAccountId=found[1]
            )
            self._place = str(reply["QueueUrl"])
        for letter in letters:
            body = letter.text(now_ms, MESSAGE_BYTES_MAX)
            await self._service.call("send_message", QueueUrl=self._place, MessageBody=body)

    async def close(self) -> None:
        await self._service.close()


class S3DeadLetters:
    """One object for all letters of a batch; the same letters make the same object."""

    def __init__(self, objects: S3Objects, folder: str) -> None:
        self._objects = objects
        self._folder = f"{folder.strip('/')}/" if folder.strip("/") else ""

    async def send(self, letters: Sequence[DeadLetter], now_ms: int) -> None:
        numbers = [sequence_text(letter.record) for letter in letters]
        digest = hashlib.sha256(" ".join([letters[0].shard, *numbers]).encode()).hexdigest()[:12]
        name = f"{self._folder}{numbers[0]}-{numbers[-1]}-{digest}.jsonl.gz"
        lines = "".join(f"{letter.text(now_ms)}\n" for letter in letters)
        await self._objects.put(name, gzip.compress(lines.encode(), mtime=0))

    async def close(self) -> None:
        await self._objects.close()


class FileDeadLetters:
    """A line each, appended to a file. Letters are rare, so it may block on the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def send(self, letters: Sequence[DeadLetter], now_ms: int) -> None:
        lines = "".join(f"{letter.text(now_ms)}\n" for letter in letters)
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise Unreachable(
                f"dead letters cannot be written ({error}); make room or name another file"
            ) from error

    async def close(self) -> None:
        return None


def _arrival_time(record: Mapping[str, Any]) -> str:
    """Empty where it does not say: what cannot be read is a dead letter, too."""
    try:
        return iso_time(record_time_ms(record))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return ""


def _json_default(value: object) -> str:
    """Values that JSON does not have: bytes as Lambda shows them, times, nested sets."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime.datetime) else str(value)
