"""Reading the table's stream in a process of your own, instead of Lambda.

It continues from its checkpoint, parents before children, and moves the checkpoint only after all
of a batch is done. So a process that is killed reads some records again, which changes nothing. Two
processes at once are wasteful but harmless.

A record that can never be processed is skipped, after it was put among the dead letters if there
are any. One that fails for now is tried until it is twelve hours old, as Lambda does it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headgate.aws.aggregator.dead_letters import (
    REFUSED,
    TOO_OLD,
    UNREADABLE,
    DeadLetter,
    DeadLetters,
)
from headgate.aws.aggregator.process import Aggregator, BatchReport, RecordFailure, Records
from headgate.aws.aggregator.records import record_time_ms, sequence_text
from headgate.aws.aggregator.s3 import AwsService
from headgate.core.errors import StoreTrouble, ValidationError
from headgate.core.history import DAY_MS
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.items import TTL, key_attributes, number, text, text_of
from headgate.stores.dynamodb.client.calls import Rejected
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.table import Table
from headgate.transport.gates import GateFactory, WaitGate

# --------------------------------------------------------------------------------------------------
# A table's stream through the streams API: its shards, and the records of each in order.

PAGES_MAX = 100  # of shards, each of a hundred
RECORDS_MAX = 1000

# That position is gone: an iterator lives for a quarter of an hour, a record for a day.
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


# --------------------------------------------------------------------------------------------------
# How far a stream was read, in the table itself.
#
# _/SYSTEM#   #STREAM#{label}#{shard}   the last record that was done, or that the shard is

STREAM = "#STREAM#"
DONE = "done"
CHECKPOINT_TTL_MS = 3 * DAY_MS  # a stream forgets its records after one


class Checkpoints:
    def __init__(self, table: Table, label: str) -> None:
        self._table = table
        self._stem = f"{STREAM}{label}#"

    async def load(self) -> dict[str, str]:
        """By shard: the sequence number of the last record that was done, or DONE."""
        request = ask.query(self._table.name, schema.pk_system(), ask.begins(self._stem))
        found: dict[str, str] = {}
        for item in await self._table.every(request):
            found[item[schema.SK]["S"].removeprefix(self._stem)] = text_of(item, "sequence") or ""
        return found

    async def save(self, shard: str, sequence: str) -> None:
        now_ms = self._table.port.now_ms()
        place = key_attributes((schema.pk_system(), f"{self._stem}{shard}"))
        ends = {TTL: number((now_ms + CHECKPOINT_TTL_MS) // 1000)}
        await self._table.write(ask.put({**place, "sequence": text(sequence), **ends}))


IDLE_MS = 1000
SHARD_SCAN_ROUNDS = 60  # look for new shards at least this often
CHECKPOINT_RECORDS = 1000  # irrelevant records to skip before the checkpoint moves
AGE_MS_MAX = 12 * 3_600_000  # of a record that keeps failing; the stream forgets after a day

OnReport = Callable[[BatchReport], None]
OnTrouble = Callable[[StoreTrouble], None]


@dataclass(slots=True)
class _ShardCursor:
    """A shard being read: where to go on, and what is done."""

    id: str
    after: str | None
    iterator: str | None = None
    since_checkpoint: int = 0


class Consumer:
    """`run` reads until `stop`, which any thread may call; `drain` until there is no more."""

    def __init__(
        self,
        aggregator: Aggregator,
        service: AwsService,
        pace: GateFactory,
        *,
        idle_ms: int = IDLE_MS,
        on_report: OnReport = lambda report: None,
        on_trouble: OnTrouble = lambda trouble: None,
        letters: DeadLetters | None = None,
    ) -> None:
        self._aggregator = aggregator
        self._service = service
        self._pace = pace
        self._idle_ms = idle_ms
        self._on_report = on_report
        self._on_trouble = on_trouble
        self._letters = letters
        self.dead_letters_sent = 0
        self._stopping = False
        self._gate: WaitGate | None = None
        self._stream: Stream | None = None
        self._checkpoints: Checkpoints | None = None
        self._done: set[str] = set()
        self._open: dict[str, _ShardCursor] = {}
        self._rounds = 0

    def stop(self) -> None:
        """Makes `run` return after the batch under way."""
        self._stopping = True
        gate = self._gate
        if gate is not None:
            gate.open()

    async def close(self) -> None:
        if self._letters is not None:
            await self._letters.close()
        await self._service.close()
        await self._aggregator.close()

    async def run(self) -> None:
        """Reports store errors and tries again later; the stream keeps its records for a day."""
        while not self._stopping:
            try:
                moved = await self.read_round()
            except StoreTrouble as trouble:
                self._on_trouble(trouble)
                self._open.clear()
                moved = False
            if not moved:
                await self._wait_idle()

    async def drain(self, rounds_max: int = 10_000) -> None:
        """Processes everything in the stream and returns; store errors are raised."""
        for _ in range(rounds_max):
            if self._stopping or not await self.read_round():
                return

    async def read_round(self) -> bool:
        """Processes a batch of every shard that can be read; False if all were empty."""
        if not self._open or self._rounds % SHARD_SCAN_ROUNDS == 0:
            await self._find_shards()
        self._rounds += 1
        moved = False
        for cursor in list(self._open.values()):
            if self._stopping:
                break
            moved |= await self._read(cursor)
        return moved

    async def _find_shards(self) -> None:
        """Opens the shards whose parents are done, or gone from the stream."""
        if self._stream is None:
            self._stream = Stream(self._service, await find_stream_arn(self._aggregator.table))
            self._checkpoints = Checkpoints(self._aggregator.table, self._stream.label)
        assert self._checkpoints is not None
        marks = await self._checkpoints.load()
        shards = await self._stream.shards()
        known = {shard.id for shard in shards}
        self._done = {id for id, mark in marks.items() if mark == DONE} | (self._done & known)
        for shard in shards:
            blocked = shard.parent in known and shard.parent not in self._done
            if shard.id not in self._done and shard.id not in self._open and not blocked:
                self._open[shard.id] = _ShardCursor(shard.id, marks.get(shard.id))

    async def _read(self, cursor: _ShardCursor) -> bool:
        assert self._stream is not None
        if cursor.iterator is None:
            cursor.iterator = await self._stream.iterator(cursor.id, cursor.after)
        try:
            batch = await self._stream.batch(cursor.iterator)
        except Rejected as error:
            if error.code not in ITERATOR_EXPIRED:
                raise
            cursor.iterator = None  # the next round asks for another
            return False
        done = await self._process(cursor, batch.records)
        if not done:
            cursor.iterator = None
            return False
        cursor.iterator = batch.iterator
        if batch.iterator is None:
            await self._finish(cursor)
            return True
        return bool(batch.records)

    async def _process(self, cursor: _ShardCursor, records: Records) -> bool:
        """Whether all records are done or given up. None is given up while another may still be
        done."""
        if not records:
            return True
        report = await self._aggregator.process(records)
        if report.is_relevant:
            self._on_report(report)
        given_up = self._dead_letters_of(cursor.id, report.failures, records)
        if len(given_up) < len(report.failures):
            return False
        if given_up and self._letters is not None:
            await self._letters.send(given_up, self._aggregator.table.port.now_ms())
            self.dead_letters_sent += len(given_up)
        cursor.after = sequence_text(records[-1])
        cursor.since_checkpoint += len(records)
        # A checkpoint is itself a record of this stream: noting each one would never end.
        if report.is_relevant or cursor.since_checkpoint >= CHECKPOINT_RECORDS:
            assert self._checkpoints is not None
            await self._checkpoints.save(cursor.id, cursor.after)
            cursor.since_checkpoint = 0
        return True

    def _dead_letters_of(
        self, shard: str, failures: Sequence[RecordFailure], records: Records
    ) -> list[DeadLetter]:
        assert self._stream is not None
        now_ms = self._aggregator.table.port.now_ms()
        found = {sequence_text(record): record for record in records}
        letters = []
        for failure in failures:
            record = found[failure.sequence]
            condition = UNREADABLE if failure.unreadable else REFUSED
            if not failure.permanent:
                aged = self._letters is not None and now_ms - record_time_ms(record) > AGE_MS_MAX
                if not aged:
                    continue
                condition = TOO_OLD
            letters.append(DeadLetter(self._stream.arn, shard, condition, failure.why, record))
        return letters

    async def _finish(self, cursor: _ShardCursor) -> None:
        """Notes that the shard has ended, so that its children can be read."""
        assert self._checkpoints is not None
        await self._checkpoints.save(cursor.id, DONE)
        self._done.add(cursor.id)
        del self._open[cursor.id]
        await self._find_shards()

    async def _wait_idle(self) -> None:
        self._gate = self._pace.gate()
        if not self._stopping:
            await self._gate.wait(self._idle_ms)
        self._gate = None
