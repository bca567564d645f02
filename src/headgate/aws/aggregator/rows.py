"""Changes become usage rows: per entity, resource and window, all of a batch in one.

This is all of the counting, and it is pure. Beside its counters a row keeps a mark of what it has
counted, so one conditional write both counts and remembers that it did.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headgate.aws.aggregator.records import Amount, Change, amount_between, sum_amounts
from headgate.core.errors import Damaged
from headgate.core.history import WindowUsage, window_around
from headgate.core.record import BucketKey
from headgate.stores.dynamodb.catalog.items import Item, Key, text_of, usage_key

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
        pairs = [tuple(text.split(">")) for text in reversed(older)]
        return tuple(_parse_run(*pair) for pair in [*pairs, (start, mark.head)])
    except (ValueError, TypeError) as error:
        raise Damaged(
            f"a usage row does not tell what it holds ({mark}); it was written by something else: "
            f"delete that row"
        ) from error


def _end(sequence: int, state: str) -> str:
    return f"{head_after(state)}{sequence}"


def _parse_run(start: str, end: str) -> ChangeRun:
    before, first = start.split("@")
    after, last = end.split("@")
    return ChangeRun(int(first), int(last), before, after)


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
        return WindowUsage(self.window_type, self.start_ms, amount.counters_milli, amount.events)

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
    return [UsageRow(*place, part) for place, found in shards.items() for part in _parts(found)]


def _parts(shards: dict[int, list[Change]]) -> Iterable[dict[int, list[Change]]]:
    numbers = list(shards)
    for at in range(0, len(numbers), SHARDS_MAX):
        yield {shard: shards[shard] for shard in numbers[at : at + SHARDS_MAX]}


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
            runs = merge_runs([*held, *(_run(change) for change in fresh)])
            follows = runs[0].before if item is None and len(runs) == 1 else ""
            amounts.append(amount)
            grown.append(MarkUpdate(shard, was, mark_of(runs), follows))
    return RowUpdate(sum_amounts(amounts), grown) if grown else None


def _run(change: Change) -> ChangeRun:
    return ChangeRun(change.sequence, change.sequence, change.before.name, change.after.name)


def _mark_in(item: Item, shard: int) -> Mark | None:
    head, rest = text_of(item, f"{HEAD}{shard}"), text_of(item, f"{REST}{shard}")
    return None if head is None or rest is None else Mark(head, rest)
