"""A stand-in for AWS's event source mapping of a DynamoDB stream, and for its deletions by TTL.

The local engine's own mapping filters and delivers, but knows neither partial batch responses nor
retries nor a failure destination for streams, and its TTL deletes without a record. So what AWS
documents is done here, over the engine's real stream, real queue and real function code:

- records that no filter matches are not delivered;
- with ReportBatchItemFailures the batch is cut at the lowest sequence number named, and comes again
  from there on; an identifier that is empty or unknown, or an exception, fails it as a whole;
- a batch that failed as a whole is bisected where that is asked for;
- after so many retries what is left of the batch is given up: where it lies, not what it holds, is
  told to the failure destination, and the shard goes on behind it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.aws.aggregator.s3 import AwsService
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
    queue: AwsService
    queue_url: str
    stream: str
    filters: Sequence[Any]
    batch_size: int = 100
    retries_max: int = 10
    bisects: bool = True
    delivered: list[int] = field(default_factory=list)  # the size of every batch, in order
    given_up: int = 0

    def deliver(self, records: Sequence[Record], shard: str = "shardId-0") -> None:
        """The shard's records are done or given up."""
        kept = [one for one in records if any(matches(rule, one) for rule in self.filters)]
        for at in range(0, len(kept), self.batch_size):
            self._settle(kept[at : at + self.batch_size], shard)

    def _settle(self, batch: Sequence[Record], shard: str, tried: int = 0) -> None:
        while batch:
            left, whole = self._invoke(batch)
            if not left:
                return
            tried = tried + 1 if len(left) == len(batch) else 1  # it came further: a new start
            if whole and self.bisects and len(left) > 1:
                half = len(left) // 2
                self._settle(left[:half], shard, tried)
                batch = left[half:]
            elif tried > self.retries_max:
                self._give_up(left, shard, tried)
                return
            else:
                batch = left

    def _invoke(self, batch: Sequence[Record]) -> tuple[list[Record], bool]:
        """What has to come again, and whether the batch failed as a whole."""
        self.delivered.append(len(batch))
        try:
            answer = self.handler(
                {"Records": json.loads(json.dumps(list(batch), default=_seconds))}
            )
        except Exception:
            return list(batch), True
        named = [one.get("itemIdentifier") for one in answer.get("batchItemFailures", [])]
        if not named:
            return [], False
        numbers = [one["dynamodb"]["SequenceNumber"] for one in batch]
        if any(name not in numbers for name in named):
            return list(batch), True
        first = min(int(name) for name in named)
        return [one for one in batch if _number(one) >= first], False

    def _give_up(self, batch: Sequence[Record], shard: str, invoked: int) -> None:
        self.given_up += len(batch)
        times = [one["dynamodb"]["ApproximateCreationDateTime"] for one in (batch[0], batch[-1])]
        message = {
            "requestContext": {
                "requestId": "0",
                "functionArn": "arn:aws:lambda:us-east-1:000000000000:function:aggregator",
                "condition": "RetryAttemptsExhausted",
                "approximateInvokeCount": invoked,
            },
            "responseContext": {"statusCode": 200, "executedVersion": "$LATEST"},
            "version": "1.0",
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "DDBStreamBatchInfo": {
                "shardId": shard,
                "startSequenceNumber": batch[0]["dynamodb"]["SequenceNumber"],
                "endSequenceNumber": batch[-1]["dynamodb"]["SequenceNumber"],
                "approximateArrivalOfFirstRecord": str(times[0]),
                "approximateArrivalOfLastRecord": str(times[1]),
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


def _number(record: Record) -> int:
    return int(record["dynamodb"]["SequenceNumber"])


def _seconds(moment: Any) -> int:
    return int(moment.timestamp())
