"""The counting: every change is counted once, in whatever order and however often it comes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.aws.aggregator.records import Change, parse_record
from headgate.aws.aggregator.rows import (
    RUNS_MAX,
    ChangeRun,
    Mark,
    RowUpdate,
    head_after,
    mark_of,
    merge_runs,
    parse_runs,
    row_update,
    rows_of,
)
from headgate.core.errors import Damaged
from tests.aws.aggregator.kit import HOUR_MS, Record, Shard, Tape

Place = tuple[str, str, int]


class Rows:
    """What a table does with the updates, their conditions included."""

    def __init__(self) -> None:
        self.counters: dict[Place, dict[str, int]] = {}
        self.events: dict[Place, int] = {}
        self.marks: dict[Place, dict[int, Mark]] = {}

    def take(self, records: list[Record], windows: tuple[str, ...] = ("hourly", "daily")) -> None:
        changes = [one for record in records if isinstance(one := parse_record(record), Change)]
        for row in rows_of(changes, windows):
            place = row.key.text, row.window_type, row.start_ms
            counting = row_update(row, None)
            if counting is not None and not self._apply(place, counting):
                counting = row_update(row, self._item(place))
                assert counting is None or self._apply(place, counting)

    def _apply(self, place: Place, counting: RowUpdate) -> bool:
        marks = self.marks.setdefault(place, {})
        for grown in counting.mark_updates:
            held = marks.get(grown.shard)
            if grown.was is not None and held != grown.was:
                return False
            follows = grown.follows and held and held.head.startswith(head_after(grown.follows))
            if grown.was is None and held is not None and not follows:
                return False
        for grown in counting.mark_updates:
            held = marks.get(grown.shard)
            rest = held.rest if grown.follows and held else grown.becomes.rest
            marks[grown.shard] = Mark(grown.becomes.head, rest)
        self.events[place] = self.events.get(place, 0) + counting.amount.events
        counters = self.counters.setdefault(place, {})
        for name, milli in counting.amount.counters_milli.items():
            counters[name] = counters.get(name, 0) + milli
        return True

    def _item(self, place: Place) -> dict[str, Any]:
        item = {}
        for shard, mark in self.marks[place].items():
            item |= {f"h_{shard}": {"S": mark.head}, f"r_{shard}": {"S": mark.rest}}
        return item

    def sums(self) -> dict[Place, dict[str, int]]:
        found = {
            place: {name: milli // 1000 for name, milli in counters.items() if milli}
            for place, counters in self.counters.items()
        }
        return {place: counters for place, counters in found.items() if counters}


class Truth:
    """What really was consumed, by hour and by day."""

    def __init__(self) -> None:
        self.sums: dict[Place, dict[str, int]] = {}

    def add(self, key: str, at_ms: int, tokens: dict[str, int]) -> None:
        for window, length_ms in (("hourly", HOUR_MS), ("daily", 24 * HOUR_MS)):
            row = self.sums.setdefault((key, window, at_ms // length_ms * length_ms), {})
            for name, amount in tokens.items():
                row[name] = row.get(name, 0) + amount

    def nonzero(self) -> dict[Place, dict[str, int]]:
        found = {p: {n: a for n, a in row.items() if a} for p, row in self.sums.items()}
        return {place: row for place, row in found.items() if row}


def history(dice: random.Random, steps: int) -> tuple[Tape, Truth]:
    """Two buckets in a few shards that live, are divided, merged, forgotten and made again."""
    tape, truth = Tape(), Truth()
    for entity_id in ("a", "b"):
        shards = [Shard(tape, entity_id, shard, first=dice.randint(1, 10**4)) for shard in range(3)]
        key = f"{'n' * 11}#{entity_id}#r"
        for _ in range(steps):
            tape.now_ms += dice.choice((0, 0, 1000, 60_000, HOUR_MS // 2))
            shard = dice.choice(shards)
            tokens = {name: dice.randint(-3, 9) for name in dice.sample(("rpm", "tpm"), 1)}
            if shard.item is None:
                tokens = {"rpm": dice.randint(0, 5), "tpm": dice.randint(0, 5)}
                shard.make(**tokens)
                truth.add(key, tape.now_ms, tokens)
                continue
            match dice.randrange(12):
                case 0:
                    shard.remove()
                case 1:
                    shard.rebase()
                case 2:
                    shard.absorb(rpm=dice.randint(0, 50))
                case 3:
                    shard.write()  # a top-up: no consumption
                case _:
                    if not set(tokens) <= set(shard.limits):
                        continue
                    shard.write(**tokens)
                    truth.add(key, tape.now_ms, tokens)
    return tape, truth


@settings(deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 60), st.integers(1, 20))
def test_in_order_and_delivered_again(seed: int, steps: int, size: int) -> None:
    dice = random.Random(seed)
    tape, truth = history(dice, steps)
    rows = Rows()
    at = 0
    while at < len(tape.records):
        batch = tape.records[max(0, at - dice.choice((0, 0, 3))) : at + dice.randint(1, size)]
        for _ in range(dice.choice((1, 1, 2))):
            dice.shuffle(batch)
            rows.take(batch)
        at += max(1, len(batch) - 3)
    assert rows.sums() == truth.nonzero()


@settings(deadline=None)
@given(st.integers(0, 10**9), st.integers(1, RUNS_MAX))
def test_batches_in_any_order(seed: int, count: int) -> None:
    """As many batches as a row remembers gaps; they come in any order, some of them twice."""
    dice = random.Random(seed)
    tape, truth = history(dice, 14)
    cuts = sorted(dice.sample(range(len(tape.records)), min(count - 1, len(tape.records))))
    batches = [tape.records[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
    batches += dice.sample(batches, dice.randint(0, len(batches)))
    dice.shuffle(batches)
    rows = Rows()
    for batch in batches:
        rows.take(batch)
    assert rows.sums() == truth.nonzero()


def test_the_first_write_counts_from_zero_and_events_are_takes() -> None:
    tape, rows = Tape(), Rows()
    shard = Shard(tape)
    shard.make(rpm=1, tpm=500)
    shard.write(rpm=1, tpm=300)
    shard.write(tpm=-120)  # given back
    shard.write()  # a top-up
    rows.take(tape.records, ("hourly",))
    [counters] = rows.counters.values()
    assert counters == {"rpm": 2000, "tpm": 680_000}
    assert list(rows.events.values()) == [2]


def test_a_gap_inside_a_later_batch_stays_open() -> None:
    tape, rows = Tape(), Rows()
    shard = Shard(tape)
    shard.make(rpm=1)
    for _ in range(9):
        shard.write(rpm=1)
    line = tape.records
    rows.take(line[:4], ("hourly",))
    rows.take([line[4], line[6], line[7]], ("hourly",))
    rows.take(line[8:], ("hourly",))
    assert [counters["rpm"] for counters in rows.counters.values()] == [9000]
    for _ in range(2):
        rows.take([line[5]], ("hourly",))
    assert [counters["rpm"] for counters in rows.counters.values()] == [10_000]
    assert [len(parse_runs(mark)) for marks in rows.marks.values() for mark in marks.values()] == [
        1
    ]


def test_a_limit_that_is_dropped_gives_nothing_back() -> None:
    tape, rows = Tape(), Rows()
    shard = Shard(tape)
    shard.make(rpm=3, old=50)
    shard.drop("old")
    shard.write(rpm=1)
    shard.write(old=2)
    rows.take(tape.records, ("hourly",))
    assert list(rows.sums().values()) == [{"rpm": 4, "old": 52}]


def test_half_an_item_is_no_bucket() -> None:
    tape, rows = Tape(), Rows()
    shard = Shard(tape)
    shard.item = {"b_rpm_tc": 40_000}  # left behind by something else
    shard.limits = ["rpm"]
    shard.make(rpm=2)
    rows.take(tape.records, ("hourly",))
    assert list(rows.sums().values()) == [{"rpm": 2}]


def test_marks_are_read_as_they_were_written() -> None:
    runs = merge_runs(
        [ChangeRun(5, 9, "", "1.5"), ChangeRun(20, 30, "1.8", "2.9"), ChangeRun(40, 41, "3.1", "")]
    )
    assert len(runs) == 3
    assert parse_runs(mark_of(runs)) == runs
    assert merge_runs([ChangeRun(1, 2, "", "1.2"), ChangeRun(3, 4, "1.2", "1.3")]) == (
        ChangeRun(1, 4, "", "1.3"),
    )
    # an end and a beginning tell nothing of what was in between
    assert len(merge_runs([ChangeRun(1, 2, "1.1", ""), ChangeRun(5, 6, "", "9.1")])) == 2


def test_runs_are_bounded_and_close_at_the_old_end() -> None:
    runs = merge_runs(ChangeRun(at, at, f"{at}.0", f"{at}.1") for at in range(100))
    assert len(runs) == RUNS_MAX
    assert runs[0].first == 0
    assert runs[-1] == ChangeRun(99, 99, "99.0", "99.1")


@pytest.mark.parametrize("mark", [Mark("", ""), Mark("1.1@x", "@2"), Mark("1.1@3", "@2|3")])
def test_a_mark_of_something_else_is_damage(mark: Mark) -> None:
    with pytest.raises(Damaged):
        parse_runs(mark)


def test_a_bucket_in_many_shards_is_a_few_writes() -> None:
    tape = Tape()
    for number in range(40):
        Shard(tape, shard=number).make(rpm=1)
    changes = [one for record in tape.records if isinstance(one := parse_record(record), Change)]
    rows = rows_of(changes, ("hourly",))
    assert [len(row.shards) for row in rows] == [32, 8]
