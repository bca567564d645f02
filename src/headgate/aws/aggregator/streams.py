"""A table's stream through the streams API: its shards, and the records of each in order."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

from headgate.aws.aggregator.s3 import AwsService
from headgate.core.errors import ValidationError
from headgate.stores.dynamodb.client.calls import Rejected
from headgate.stores.dynamodb.table.table import Table

PAGES_MAX = 100  # of shards, each of a hundred
RECORDS_MAX = 1000

# The place is no longer to be had: an iterator lives a quarter of an hour, a record a day.
ITERATOR_EXPIRED = frozenset({"ExpiredIteratorException", "TrimmedDataAccessException"})


class StreamShard(NamedTuple):
    id: str
    parent: str | None


class StreamBatch(NamedTuple):
    """Some records and where to go on; None where the shard has come to its end."""

    records: list[Mapping[str, Any]]
    iterator: str | None


async def find_stream_arn(table: Table) -> str:
    """The ARN of the table's stream."""
    found = (await table.call("DescribeTable"))["Table"]
    arn, kind = found.get("LatestStreamArn"), found.get("StreamSpecification", {})
    if not arn or not kind.get("StreamEnabled"):
        raise ValidationError("table", table.name, "has no stream; enable one with both images")
    if kind.get("StreamViewType") != "NEW_AND_OLD_IMAGES":
        raise ValidationError(
            "table", table.name, "has a stream without both images; make it NEW_AND_OLD_IMAGES"
        )
    return str(arn)


class Stream:
    def __init__(self, service: AwsService, arn: str) -> None:
        self._service = service
        self.arn = arn

    @property
    def label(self) -> str:
        """When the stream was made: it tells a table's streams apart."""
        return self.arn.rpartition("/")[2]

    async def shards(self) -> list[StreamShard]:
        found: list[StreamShard] = []
        start: dict[str, str] = {}
        for _ in range(PAGES_MAX):
            reply = await self._service.call("describe_stream", StreamArn=self.arn, **start)
            page = reply["StreamDescription"]
            found += [
                StreamShard(one["ShardId"], one.get("ParentShardId")) for one in page["Shards"]
            ]
            last = page.get("LastEvaluatedShardId")
            if not last:
                break
            start = {"ExclusiveStartShardId": last}
        return found

    async def iterator(self, shard: str, after: str | None) -> str:
        """Where to read from: after a record, or from the oldest that is still there."""
        try:
            return await self._iterator(shard, after)
        except Rejected as error:
            if after is None or error.code not in ITERATOR_EXPIRED:
                raise
            return await self._iterator(shard, None)

    async def _iterator(self, shard: str, after: str | None) -> str:
        place = {"ShardIteratorType": "TRIM_HORIZON"}
        if after is not None:
            place = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": after}
        reply = await self._service.call(
            "get_shard_iterator", StreamArn=self.arn, ShardId=shard, **place
        )
        return str(reply["ShardIterator"])

    async def batch(self, iterator: str, most: int = RECORDS_MAX) -> StreamBatch:
        reply = await self._service.call("get_records", ShardIterator=iterator, Limit=most)
        records = [_as_lambda_record(record) for record in reply.get("Records", [])]
        return StreamBatch(records, reply.get("NextShardIterator"))


def _as_lambda_record(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record as Lambda would deliver it: bytes as text."""
    body = dict(record.get("dynamodb", {}))
    for image in ("OldImage", "NewImage"):
        if image in body:
            body[image] = {name: _value(value) for name, value in body[image].items()}
    return {**record, "dynamodb": body}


def _value(value: Mapping[str, Any]) -> Mapping[str, Any]:
    found = value.get("B")
    return {"B": base64.b64encode(found).decode()} if isinstance(found, bytes) else value
