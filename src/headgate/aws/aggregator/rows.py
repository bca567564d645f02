"""Changes become usage rows: per entity, resource and window, all of a batch in one.

This is all of the counting, and it is pure. Beside its counters a row keeps a mark of what it has
counted, so one conditional write both counts and remembers that it did.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headgate.aws.aggregator.records import Amount, Change, amount_between, sum_amounts
from headgate.core.errors import Contended, Damaged, StoreTrouble, Throttled, Unreachable
from headgate.core.history import WindowUsage, window_around
from headgate.core.record import BucketKey
from headgate.stores.dynamodb.catalog.items import (
    Item,
    Key,
    text,
    text_of,
    usage_attributes,
    usage_counters,
    usage_key,
)
from headgate.stores.dynamodb.client.calls import ConditionFailed, DynamoRequest, Rejected
from headgate.stores.dynamodb.protocol.update_expression import UpdateExpression
from headgate.stores.dynamodb.table.table import Table

HEAD, REST = "h_", "r_"  # with a shard's number: the two halves of its mark
SHARDS_MAX = 32  # of a bucket in one write; an expression may have 4 KB


# --------------------------------------------------------------------------------------------------
# What a row has counted of a bucket's shard: unbroken runs of changes.
#
# A run goes from the state before its first change to the state after its last, with the sequence
# numbers of both. Nothing can be missing inside a run, because each change begins where the one
# before it ended. So a change that is delivered again lies inside a run and has been counted, and a
# change that comes late lies between two runs and has not. While changes come in the order of the
# stream there is one run, and it grows.

RUNS_MAX = 8  # beyond it the oldest gap is closed: we no longer wait for what is missing there


class ChangeRun(NamedTuple):
    first: int  # sequence numbers
    last: int
    before: str  # names of states; empty where there was no bucket
    after: str

    def holds(self, sequence: int) -> bool:
        return self.first <= sequence <= self.last


class Mark(NamedTuple):
    """Runs as a row keeps them: `head` is the end of the newest, `rest` everything else.

    A run that grows changes the head alone, so it can be written without knowing the rest.
    """

    head: str
    rest: str


def merge_runs(runs: Iterable[ChangeRun]) -> tuple[ChangeRun, ...]:
    """The runs in order, those that follow each other as one.

    A bucket that was deleted and one that was created later are not joined: nobody can tell whether
    there was a third in between.
    """
    found: list[ChangeRun] = []
    for run in sorted(runs):
        if found and found[-1].after and found[-1].after == run.before:
            found[-1] = found[-1]._replace(last=run.last, after=run.after)
        else:
            found.append(run)
    while len(found) > RUNS_MAX:
        oldest, second = found[:2]
        found[:2] = [second._replace(first=oldest.first, before=oldest.before)]
    return tuple(found)


def mark_of(runs: Sequence[ChangeRun]) -> Mark:
    newest = runs[-1]
    older = [f"{_end(run.first, run.before)}>{_end(run.last, run.after)}" for run in runs[:-1]]
    rest = "|".join([_end(newest.first, newest.before), *reversed(older)])
    return Mark(_end(newest.last, newest.after), rest)


def head_after(state: str) -> str:
    """How the head of a mark begins whose newest run ended in this state."""
    return f"{state}@"


def parse_runs(mark: Mark) -> tuple[ChangeRun, ...]:
    try:
        start, *older = mark.rest.split("|")
        runs = []
        for text_of_run in [*reversed(older), f"{start}>{mark.head}"]:
            begin, end = text_of_run.split(">")
            (before, first), (after, last) = begin.split("@"), end.split("@")
            runs.append(ChangeRun(int(first), int(last), before, after))
        return tuple(runs)
    except ValueError as error:
        raise Damaged(
            f"a usage row does not tell what it holds ({mark}); it was written by something else: "
            f"delete that row"
        ) from error


def _end(sequence: int, state: str) -> str:
    return f"{head_after(state)}{sequence}"


# --------------------------------------------------------------------------------------------------
# Rows, and the writes that bring them up to date.


class UsageRow(NamedTuple):
    """What a batch adds to one usage row: by shard, its changes in order."""

    key: BucketKey
    window_type: str
    start_ms: int
    shards: dict[int, list[Change]]

    @property
    def sequences(self) -> list[int]:
        return [change.sequence for changes in self.shards.values() for change in changes]

    def usage(self, amount: Amount) -> WindowUsage:
        return WindowUsage(self.window_type, self.start_ms, *amount)

    @property
    def place(self) -> Key:
        empty = self.usage(Amount({}, 0))
        return usage_key(self.key.namespace, self.key.entity_id, self.key.resource, empty)


class MarkUpdate(NamedTuple):
    """A shard's mark: as it is in the row, None where it is absent, and as it becomes.

    `follows` is the state whose end the row's mark must tell, where the mark itself is not known.
    """

    shard: int
    was: Mark | None
    becomes: Mark
    follows: str


class RowUpdate(NamedTuple):
    """What one write adds to a row, and how it changes the row's marks."""

    amount: Amount
    mark_updates: list[MarkUpdate]


def rows_of(changes: Iterable[Change], window_types: Sequence[str]) -> list[UsageRow]:
    """Each change once, in the row of every window it happened in."""
    ordered = sorted({change.sequence: change for change in changes}.values())
    shards: dict[tuple[BucketKey, str, int], dict[int, list[Change]]] = {}
    for change in ordered:
        for window_type in window_types:
            start_ms, _ = window_around(window_type, change.at_ms)
            row = shards.setdefault((change.key, window_type, start_ms), {})
            row.setdefault(change.shard, []).append(change)
    return [
        UsageRow(*place, dict(list(found.items())[at : at + SHARDS_MAX]))
        for place, found in shards.items()
        for at in range(0, len(found), SHARDS_MAX)
    ]


def row_update(row: UsageRow, item: Item | None) -> RowUpdate | None:
    """The write that counts what the row does not hold yet; None where there is nothing to count.

    Without the `item` the row is not known. The write then assumes that this batch continues where
    the row ends, as it does in the order of the stream, and its conditions fail if that is wrong.
    """
    amounts: list[Amount] = []
    grown: list[MarkUpdate] = []
    for shard, changes in row.shards.items():
        was = None if item is None else _mark_in(item, shard)
        held = () if was is None else parse_runs(was)
        fresh = [one for one in changes if not any(run.holds(one.sequence) for run in held)]
        amount = sum_amounts(amount_between(one.before, one.after) for one in fresh)
        if amount:
            new = [ChangeRun(x.sequence, x.sequence, x.before.name, x.after.name) for x in fresh]
            runs = merge_runs([*held, *new])
            follows = runs[0].before if item is None and len(runs) == 1 else ""
            amounts.append(amount)
            grown.append(MarkUpdate(shard, was, mark_of(runs), follows))
    return RowUpdate(sum_amounts(amounts), grown) if grown else None


def _mark_in(item: Item, shard: int) -> Mark | None:
    head, rest = text_of(item, f"{HEAD}{shard}"), text_of(item, f"{REST}{shard}")
    return None if head is None or rest is None else Mark(head, rest)


AT_ONCE = 16
ATTEMPTS_MAX = 8


@dataclass
class WriteResult:
    """What came of a batch's rows; `failed` says per sequence number why it is not counted.

    Those in `permanent` will not be counted next time either: their row is damaged, or too large.
    """

    rows: int = 0
    writes: int = 0
    held_already: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    permanent: set[int] = field(default_factory=set)

    def fail(self, row: UsageRow, why: object, *, permanent: bool = False) -> None:
        for sequence in row.sequences:
            self.failed.setdefault(sequence, str(why))
        if permanent:
            self.permanent.update(row.sequences)


def update(table: str, row: UsageRow, found: RowUpdate, kept_ms: int) -> DynamoRequest:
    """The request that adds to a row if its marks are as expected."""
    names = row.key.namespace, row.key.entity_id, row.key.resource
    usage = row.usage(found.amount)
    _, end_ms = window_around(row.window_type, row.start_ms)
    draft = UpdateExpression()
    for name, value in usage_attributes(*names, usage, end_ms, kept_ms).items():
        draft.set(name, value)
    for name, value in usage_counters(usage).items():
        draft.add(name, int(value["N"]))
    for grown in found.mark_updates:
        _advance_mark(draft, grown)
    return DynamoRequest("UpdateItem", {"TableName": table, **draft.write(row.place)})


def _advance_mark(draft: UpdateExpression, grown: MarkUpdate) -> None:
    head, rest = f"{HEAD}{grown.shard}", f"{REST}{grown.shard}"
    draft.set(head, text(grown.becomes.head))
    if grown.follows:
        draft.set_once(rest, text(grown.becomes.rest))
        draft.absent_or_begins(head, text(head_after(grown.follows)))
        return
    draft.set(rest, text(grown.becomes.rest))
    if grown.was is None:
        draft.absent(head)
    else:
        draft.same(head, text(grown.was.head))
        draft.same(rest, text(grown.was.rest))


async def write_rows(table: Table, rows: Sequence[UsageRow], kept_ms: int) -> WriteResult:
    """Counts every change in its rows exactly once, or names it as failed.

    After a failure the rest is tried only once, so that an outage does not take longer than the
    caller has.
    """
    written = WriteResult()
    for at in range(0, len(rows), AT_ONCE):
        attempts = 1 if written.failed else ATTEMPTS_MAX
        await _write_some(table, rows[at : at + AT_ONCE], kept_ms, written, attempts)
    return written


async def _write_some(
    table: Table, rows: Sequence[UsageRow], kept_ms: int, written: WriteResult, attempts: int
) -> None:
    waiting = [
        (row, update(table.name, row, found, kept_ms))
        for row in rows
        if (found := row_update(row, None)) is not None
    ]
    for attempt in range(attempts):
        if not waiting:
            return
        outcomes = await table.port.call_all([request for _, request in waiting])
        written.writes += len(outcomes)
        waiting = [
            (row, again)
            for (row, request), outcome in zip(waiting, outcomes, strict=True)
            if (again := _next_request(table.name, row, request, outcome, kept_ms, written))
        ]
        if waiting and any(isinstance(outcome, _TRANSIENT) for outcome in outcomes):
            await table.pause(attempt)
    for row, _ in waiting:
        written.fail(row, f"{attempts} attempts to write a usage row came to nothing")


_TRANSIENT = (Throttled, Contended, Unreachable)  # trouble that may be over in a moment


def _next_request(
    table: str,
    row: UsageRow,
    request: DynamoRequest,
    outcome: dict[str, Any] | StoreTrouble,
    kept_ms: int,
    written: WriteResult,
) -> DynamoRequest | None:
    """The request to send next for the row; None once its outcome is known."""
    if not isinstance(outcome, StoreTrouble):
        written.rows += 1
        return None
    if isinstance(outcome, ConditionFailed):
        try:
            found = row_update(row, outcome.item or {})
        except Damaged as error:
            written.fail(row, error, permanent=True)
            return None
        if found is None:
            written.held_already += 1
            return None
        return update(table, row, found, kept_ms)
    if isinstance(outcome, _TRANSIENT):
        return request
    invalid = isinstance(outcome, Rejected) and outcome.code == "ValidationException"
    written.fail(row, outcome, permanent=invalid)
    return None
