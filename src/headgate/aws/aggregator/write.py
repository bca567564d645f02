"""Writing usage rows: one conditional update each, tried again until its outcome is known.

An update says in which state the row's runs must have ended. If one was applied and its answer was
lost, sending it again therefore fails, and the row that comes back already holds everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.aws.aggregator.rows import (
    HEAD,
    REST,
    MarkUpdate,
    RowUpdate,
    UsageRow,
    head_after,
    row_update,
)
from headgate.core.errors import Contended, Damaged, StoreTrouble, Throttled, Unreachable
from headgate.core.history import window_around
from headgate.stores.dynamodb.catalog.items import text, usage_attributes, usage_counters
from headgate.stores.dynamodb.client.calls import ConditionFailed, DynamoRequest, Rejected
from headgate.stores.dynamodb.protocol.update_expression import UpdateExpression
from headgate.stores.dynamodb.table.table import Table

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


Waiting = list[tuple[UsageRow, DynamoRequest]]


async def _write_some(
    table: Table, rows: Sequence[UsageRow], kept_ms: int, written: WriteResult, attempts: int
) -> None:
    waiting: Waiting = [
        (row, update(table.name, row, found, kept_ms))
        for row in rows
        if (found := row_update(row, None)) is not None
    ]
    for attempt in range(attempts):
        if not waiting:
            return
        outcomes = await table.port.call_all([request for _, request in waiting])
        written.writes += len(outcomes)
        again: Waiting = []
        for (row, request), outcome in zip(waiting, outcomes, strict=True):
            request_again = _next_request(table.name, row, request, outcome, kept_ms, written)
            if request_again is not None:
                again.append((row, request_again))
        waiting = again
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
