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
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from headgate.aws.aggregator.dead_letters import (
    REFUSED,
    TOO_OLD,
    UNREADABLE,
    DeadLetter,
    DeadLetters,
)
from headgate.aws.aggregator.process import Aggregator, BatchReport, RecordFailure, Records
from headgate.aws.aggregator.records import record_time_ms, sequence_text
from headgate.aws.aggregator.s3 import BotoService
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


# How far a stream was read is kept in the table itself:
#
# _/SYSTEM#   #STREAM#{label}#{shard}   the last record that was done, or that the shard is

STREAM = "#STREAM#"
DONE = "done"
CHECKPOINT_TTL_MS = 3 * DAY_MS  # a stream forgets its records after one


class Stream:
    """The stream of a table, and the checkpoints of who reads it."""

    def __init__(self, service: BotoService, table: Table, arn: str) -> None:
        self._service = service
        self._table = table
        self.arn = arn
        label = arn.rpartition("/")[2]  # when the stream was made tells a table's streams apart
        self._stem = f"{STREAM}{label}#"

    async def shards(self) -> dict[str, str | None]:
        """By id, the parent whose records come before."""
        found: dict[str, str | None] = {}
        start: dict[str, str] = {}
        for _ in range(PAGES_MAX):
            reply = await self._service.call("describe_stream", StreamArn=self.arn, **start)
            page = reply["StreamDescription"]
            found |= {one["ShardId"]: one.get("ParentShardId") for one in page["Shards"]}
            last = page.get("LastEvaluatedShardId")
            if not last:
                break
            start = {"ExclusiveStartShardId": last}
        return found

    async def iterator(self, shard: str, after: str | None) -> str:
        """Where to read from: after a record, or from the oldest that is still there."""
        place = {"ShardIteratorType": "TRIM_HORIZON"}
        if after is not None:
            place = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": after}
        try:
            reply = await self._service.call(
                "get_shard_iterator", StreamArn=self.arn, ShardId=shard, **place
            )
        except Rejected as error:
            if after is None or error.code not in ITERATOR_EXPIRED:
                raise
            return await self.iterator(shard, None)
        return str(reply["ShardIterator"])

    async def batch(self, iterator: str) -> tuple[list[Mapping[str, Any]], str | None]:
        """Some records and where to go on; None where the shard has come to its end."""
        reply = await self._service.call("get_records", ShardIterator=iterator, Limit=RECORDS_MAX)
        records = [_as_lambda_record(record) for record in reply.get("Records", [])]
        return records, reply.get("NextShardIterator")

    async def load_checkpoints(self) -> dict[str, str]:
        """By shard: the sequence number of the last record that was done, or DONE."""
        request = ask.query(self._table.name, schema.pk_system(), ask.begins(self._stem))
        return {
            item[schema.SK]["S"].removeprefix(self._stem): text_of(item, "sequence") or ""
            for item in await self._table.every(request)
        }

    async def save_checkpoint(self, shard: str, sequence: str) -> None:
        now_ms = self._table.port.now_ms()
        place = key_attributes((schema.pk_system(), f"{self._stem}{shard}"))
        ends = {TTL: number((now_ms + CHECKPOINT_TTL_MS) // 1000)}
        await self._table.write(ask.put({**place, "sequence": text(sequence), **ends}))


def _as_lambda_record(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record as Lambda would deliver it: bytes as text."""
    body = dict(record.get("dynamodb", {}))
    for image in ("OldImage", "NewImage"):
        if image in body:
            body[image] = {
                name: {"B": base64.b64encode(value["B"]).decode()} if "B" in value else value
                for name, value in body[image].items()
            }
    return {**record, "dynamodb": body}


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


@dataclass(eq=False)
class Consumer:
    """`run` reads until `stop`, which any thread may call; `drain` until there is no more."""

    aggregator: Aggregator
    service: BotoService
    pace: GateFactory
    _: KW_ONLY
    idle_ms: int = IDLE_MS
    on_report: OnReport = lambda report: None
    on_trouble: OnTrouble = lambda trouble: None
    letters: DeadLetters | None = None
    dead_letters_sent: int = field(default=0, init=False)
    _stopping: bool = field(default=False, init=False)
    _gate: WaitGate | None = field(default=None, init=False)
    _stream: Stream | None = field(default=None, init=False)
    _done: set[str] = field(default_factory=set, init=False)
    _open: dict[str, _ShardCursor] = field(default_factory=dict, init=False)
    _rounds: int = field(default=0, init=False)

    def stop(self) -> None:
        """Makes `run` return after the batch under way."""
        self._stopping = True
        if (gate := self._gate) is not None:
            gate.open()

    async def close(self) -> None:
        if self.letters is not None:
            await self.letters.close()
        await self.service.close()
        await self.aggregator.close()

    async def run(self) -> None:
        """Reports store errors and tries again later; the stream keeps its records for a day."""
        while not self._stopping:
            try:
                moved = await self.read_round()
            except StoreTrouble as trouble:
                self.on_trouble(trouble)
                self._open.clear()
                moved = False
            if not moved:
                self._gate = self.pace.gate()
                if not self._stopping:
                    await self._gate.wait(self.idle_ms)
                self._gate = None

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
        table = self.aggregator.table
        if self._stream is None:
            self._stream = Stream(self.service, table, await find_stream_arn(table))
        marks = await self._stream.load_checkpoints()
        shards = await self._stream.shards()
        self._done = {id for id, mark in marks.items() if mark == DONE} | (self._done & set(shards))
        for id, parent in shards.items():
            blocked = parent in shards and parent not in self._done
            if id not in self._done and id not in self._open and not blocked:
                self._open[id] = _ShardCursor(id, marks.get(id))

    async def _read(self, cursor: _ShardCursor) -> bool:
        assert self._stream is not None
        if cursor.iterator is None:
            cursor.iterator = await self._stream.iterator(cursor.id, cursor.after)
        try:
            records, following = await self._stream.batch(cursor.iterator)
        except Rejected as error:
            if error.code not in ITERATOR_EXPIRED:
                raise
            cursor.iterator = None  # the next round asks for another
            return False
        if not await self._process(self._stream, cursor, records):
            cursor.iterator = None
            return False
        cursor.iterator = following
        if following is None:  # the shard has ended, and its children can be read
            await self._stream.save_checkpoint(cursor.id, DONE)
            self._done.add(cursor.id)
            del self._open[cursor.id]
            await self._find_shards()
        return following is None or bool(records)

    async def _process(self, stream: Stream, cursor: _ShardCursor, records: Records) -> bool:
        """Whether all records are done or given up. None is given up while another may still be
        done."""
        if not records:
            return True
        report = await self.aggregator.process(records)
        if report.is_relevant:
            self.on_report(report)
        given_up = self._dead_letters_of(stream.arn, cursor.id, report.failures, records)
        if len(given_up) < len(report.failures):
            return False
        if given_up and self.letters is not None:
            await self.letters.send(given_up, self.aggregator.table.port.now_ms())
            self.dead_letters_sent += len(given_up)
        cursor.after = sequence_text(records[-1])
        cursor.since_checkpoint += len(records)
        # A checkpoint is itself a record of this stream: noting each one would never end.
        if report.is_relevant or cursor.since_checkpoint >= CHECKPOINT_RECORDS:
            await stream.save_checkpoint(cursor.id, cursor.after)
            cursor.since_checkpoint = 0
        return True

    def _dead_letters_of(
        self, arn: str, shard: str, failures: Sequence[RecordFailure], records: Records
    ) -> list[DeadLetter]:
        now_ms = self.aggregator.table.port.now_ms()
        found = {sequence_text(record): record for record in records}
        letters = []
        for failure in failures:
            record = found[failure.sequence]
            condition = UNREADABLE if failure.unreadable else REFUSED
            if not failure.permanent:
                aged = self.letters is not None and now_ms - record_time_ms(record) > AGE_MS_MAX
                if not aged:
                    continue
                condition = TOO_OLD
            letters.append(DeadLetter(arn, shard, condition, failure.why, record))
        return letters
