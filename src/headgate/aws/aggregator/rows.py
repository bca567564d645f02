"""Changes become usage rows: per entity, resource and window, all of a batch in one.

This is the whole of the counting, and it is pure. What a row holds already it tells itself, beside
its counters, so one conditional write both counts and remembers what was counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headgate.aws.aggregator.records import Amount, Change, amount_between, sum_amounts
from headgate.aws.aggregator.runs import ChangeRun, Mark, mark_of, merge_runs, parse_runs
from headgate.core.history import WindowUsage, window_around
from headgate.core.record import BucketKey
from headgate.stores.dynamodb.catalog.items import Item, Key, text_of, usage_key

HEAD, REST = "h_", "r_"  # with a shard's number: the two halves of its mark
SHARDS_MAX = 32  # of a bucket in one write; an expression may have 4 KB

Changes = Sequence[Change]


class UsageRow(NamedTuple):
    """What a batch has for one usage row: by shard, its changes in order."""

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
    """What one write adds to a row, and how that moves its marks on."""

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


def optimistic_update(row: UsageRow) -> RowUpdate | None:
    """The write to make while the row is not known; None where there is nothing to count.

    Its conditions hold where the batch goes on where the row ends, as it does in the stream.
    """
    amounts: list[Amount] = []
    grown: list[MarkUpdate] = []
    for shard, changes in row.shards.items():
        amount = _amount(changes)
        if amount:
            runs = merge_runs(_run(change) for change in changes)
            follows = runs[0].before if len(runs) == 1 else ""
            amounts.append(amount)
            grown.append(MarkUpdate(shard, None, mark_of(runs), follows))
    return RowUpdate(sum_amounts(amounts), grown) if grown else None


def exact_update(row: UsageRow, item: Item) -> RowUpdate | None:
    """The write that counts what the row, as it is now, does not hold yet; None where it has it."""
    amounts: list[Amount] = []
    grown: list[MarkUpdate] = []
    for shard, changes in row.shards.items():
        was = _mark_in(item, shard)
        held = parse_runs(was) if was is not None else ()
        fresh = [
            change for change in changes if not any(run.holds(change.sequence) for run in held)
        ]
        amount = _amount(fresh)
        if amount:
            runs = merge_runs([*held, *(_run(change) for change in fresh)])
            amounts.append(amount)
            grown.append(MarkUpdate(shard, was, mark_of(runs), ""))
    return RowUpdate(sum_amounts(amounts), grown) if grown else None


def _amount(changes: Changes) -> Amount:
    return sum_amounts(amount_between(change.before, change.after) for change in changes)


def _run(change: Change) -> ChangeRun:
    return ChangeRun(change.sequence, change.sequence, change.before.name, change.after.name)


def _mark_in(item: Item, shard: int) -> Mark | None:
    head, rest = text_of(item, f"{HEAD}{shard}"), text_of(item, f"{REST}{shard}")
    return None if head is None or rest is None else Mark(head, rest)
