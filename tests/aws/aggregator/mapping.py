"""A stand-in for AWS's event source mapping of a DynamoDB stream, and for its deletions by TTL.

The local engine's own mapping filters and delivers, but knows neither partial batch responses nor
retries nor a failure destination for streams, and its TTL deletes without a record. So what AWS
documents is done here, over the engine's real stream, real queue and real function code:

- records that no filter matches are not delivered;
- with ReportBatchItemFailures the batch is cut at the lowest sequence number named, and comes again
  from there on; an identifier that is unknown fails the test;
- after so many retries what is left of the batch is given up: where it lies, not what it holds, is
  told to the failure destination, and the shard goes on behind it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.aws.aggregator.s3 import BotoService
from headgate.core.runtime import run

Record = Mapping[str, Any]
Handler = Callable[[dict[str, Any]], dict[str, Any]]


def matches(pattern: Any, value: Any) -> bool:
    """As much of event filtering as the template uses: equality, prefixes, nesting."""
    if isinstance(pattern, dict):
        return isinstance(value, Mapping) and all(
            matches(part, value.get(name)) for name, part in pattern.items()
        )
    return any(
        isinstance(value, str) and value.startswith(one["prefix"])
        if isinstance(one, dict)
        else value == one
        for one in pattern
    )


@dataclass
class Mapped:
    """One shard's delivery to one function."""

    handler: Handler
    queue: BotoService
    queue_url: str
    stream: str
    filters: Sequence[Any]
    retries_max: int
    batch_size: int = 100

    def deliver(self, records: Sequence[Record]) -> None:
        """The shard's records are done or given up."""
        kept = [one for one in records if any(matches(rule, one) for rule in self.filters)]
        for at in range(0, len(kept), self.batch_size):
            batch, tried = list(kept[at : at + self.batch_size]), 0
            while batch:
                left = self._invoke(batch)
                tried = tried + 1 if len(left) == len(batch) else 1  # it came further: a new start
                if left and tried > self.retries_max:
                    self._give_up(left, tried)
                    break
                batch = left

    def _invoke(self, batch: Sequence[Record]) -> list[Record]:
        """What has to come again."""
        answer = self.handler({"Records": json.loads(json.dumps(batch, default=_seconds))})
        failed = [one["itemIdentifier"] for one in answer["batchItemFailures"]]
        if not failed:
            return []
        numbers = [one["dynamodb"]["SequenceNumber"] for one in batch]
        return list(batch[min(numbers.index(number) for number in failed) :])

    def _give_up(self, batch: Sequence[Record], invoked: int) -> None:
        message = {
            "requestContext": {
                "condition": "RetryAttemptsExhausted",
                "approximateInvokeCount": invoked,
            },
            "DDBStreamBatchInfo": {
                "startSequenceNumber": batch[0]["dynamodb"]["SequenceNumber"],
                "endSequenceNumber": batch[-1]["dynamodb"]["SequenceNumber"],
                "batchSize": len(batch),
                "streamArn": self.stream,
            },
        }
        body = json.dumps(message)
        run(self.queue.call("send_message", QueueUrl=self.queue_url, MessageBody=body))


def expired(record: Record, now_s: float) -> Record:
    """A deletion as TTL's own is told: by the service, of an item whose time was over."""
    ends = record["dynamodb"].get("OldImage", {}).get("ttl", {}).get("N")
    if record["eventName"] != "REMOVE" or ends is None or int(ends) > now_s:
        return record
    who = {"type": "Service", "principalId": "dynamodb.amazonaws.com"}
    return {**record, "userIdentity": who}


def _seconds(moment: Any) -> int:
    return int(moment.timestamp())
