"""On a real table and its stream: usage is what the buckets say, whatever happens on the way."""

from __future__ import annotations

import copy
import random
from pathlib import Path

from headgate import Limit
from headgate.core.decision import Demand
from headgate.core.errors import Throttled, Unreachable
from headgate.core.plan import join_halves
from headgate.core.record import BucketKey, Terms, cells_of
from headgate.core.runtime import run
from headgate.stores.dynamodb.store import DynamoStore
from headgate.stores.dynamodb.table import requests as ask
from tests.aws.aggregator.kit import NS, Failing, Rig, Shard, Tape, drop_items, totals
from tests.stores.dynamodb.kit import Bucket, Watched, port_to

TERMS = Terms((Limit.per_second("rpm", 10**6).spec, Limit.per_second("tpm", 10**9).spec), 1)
NOW_MS = 1_767_225_600_000


def demand(entity_id: str, resource: str = "r", rpm: int = 1, tpm: int = 10) -> Demand:
    return Demand(BucketKey(NS, entity_id, resource), TERMS, (rpm * 1000, tpm * 1000))


def busy(
    rig: Rig, takes: int, seed: int = 1, entities: int = 3
) -> dict[tuple[str, str], list[int]]:
    """Traffic with some given back, and what it comes to."""
    dice = random.Random(seed)
    wanted: dict[tuple[str, str], list[int]] = {}
    for number in range(takes):
        place = f"e{number % entities}", "r"
        tpm = dice.randint(0, 90)
        assert run(rig.backend.store.consume([demand(*place, tpm=tpm)], NOW_MS + number)).allowed
        back = dice.randint(0, tpm) if dice.random() < 0.3 else 0
        if back:
            line = Demand(BucketKey(NS, *place), TERMS, (None, -back * 1000))
            run(rig.backend.store.adjust([line], NOW_MS + number))
        sums = wanted.setdefault(place, [0, 0])
        sums[0] += 1
        sums[1] += tpm - back
    return wanted


def counted(rig: Rig, window: str = "daily") -> dict[tuple[str, str], list[int]]:
    found = totals(rig.usage(), window)
    return {place: [sums.get("rpm", 0), sums.get("tpm", 0)] for place, sums in found.items()}


def test_what_could_not_be_read_is_counted_once_it_can(rig: Rig) -> None:
    """A newer client's item met an older aggregator; the batch comes again after the upgrade."""
    wanted = busy(rig, 30)
    records = rig.buckets()
    spoiled = [copy.deepcopy(dict(record)) for record in records]
    for number in (0, 7, 8, 20):
        spoiled[number]["dynamodb"]["NewImage"]["g"] = {"S": "what?"}
    report = run(rig.aggregator.process(spoiled))
    assert len(report.failures) == 4
    assert counted(rig) != wanted
    for _ in range(2):
        assert not run(rig.aggregator.process(records)).failures
    assert counted(rig) == counted(rig, "hourly") == wanted
    for (entity_id, resource), sums in wanted.items():
        [record] = run(rig.backend.store.peek([BucketKey(NS, entity_id, resource)], NOW_MS)).records
        assert record is not None
        assert [cell.consumed_milli // 1000 for cell in cells_of(record)] == sums


def test_splits_and_merges_are_counted_once(rig: Rig) -> None:
    store = rig.backend.store
    assert isinstance(store, DynamoStore)
    bucket = Bucket(store, [Limit.per_second("x", 10**6)], "hot")
    for _ in range(20):
        assert bucket.take(x=3).allowed
    bucket.split_to(4)
    for _ in range(60):
        assert bucket.take(x=2).allowed
    bucket.now_ms += 10_000
    assert bucket.merge_one()
    bucket.take(x=1)
    assert bucket.merge_one()
    assert bucket.merge_one()
    bucket.split_to(2)
    for _ in range(10):
        bucket.take(x=5)
    assert len(bucket.shards()) == 2
    assert bucket.consumed() == (60 + 120 + 1 + 50) * 1000
    records = rig.records()
    for at in range(0, len(records), 9):
        assert not run(rig.aggregator.process(records[at : at + 9])).failures
    found = totals(rig.usage(), "daily")
    assert found == {("hot", "r"): {"x": 60 + 120 + 1 + 50}}
    random.Random(3).shuffle(records)
    run(rig.aggregator.process(records))
    assert totals(rig.usage(), "daily") == found


def test_what_cascades_is_counted_apart_by_the_stream(rig: Rig) -> None:
    """Through shards, gathers, merges and what is given back: both counters, once each. Items of
    older versions have no such counter, which means 0."""
    store = rig.backend.store
    assert isinstance(store, DynamoStore)
    team = Bucket(store, [Limit.per_day("x", 1000)], "team")
    assert team.take(x=1).allowed  # asked for itself, by whoever knows of no cascade
    key, now_ms = Bucket(store, [Limit.per_day("x", 1000)], "key"), team.now_ms

    def by_cascade(x: int) -> Demand:
        line = team.demand(x=x).amounts
        return Demand(team.key, team.terms, line, cascaded=line)

    def acquire(x: int) -> None:
        assert run(store.consume([key.demand(x=x), by_cascade(x)], now_ms)).allowed

    for _ in range(10):
        acquire(3)
    team.split_to(4)
    for _ in range(40):
        acquire(2)
    assert team.take(x=7).allowed
    acquire(700)  # more than a shard has: gathered
    asked = team.demand(x=50)
    both = join_halves(team.demand(x=20), Demand(asked.key, asked.terms, asked.amounts,
                                                 cascaded=asked.amounts))  # fmt: skip
    assert run(store.consume([both], now_ms)).allowed
    for back in (by_cascade(-30), by_cascade(-90), team.demand(x=-3)):
        run(store.adjust([back], now_ms))
    team.now_ms += 10_000
    assert team.merge_one()
    now_ms = team.now_ms
    acquire(5)
    wanted = 30 + 80 + 700 + 50 - 120 + 5
    records = rig.records()
    for _ in range(2):
        for at in range(0, len(records), 9):
            assert not run(rig.aggregator.process(records[at : at + 9])).failures
        random.Random(4).shuffle(records)
    shots = {(one.entity_id, one.window_type): one for one in rig.usage()}
    for window in ("hourly", "daily"):
        shot = shots["team", window]
        assert dict(shot.from_children) == {"x": wanted}
        assert shot.own == {"x": 1 + 7 + 20 - 3}
        assert shot.events_from_children >= 52  # a gathered take is an event on each shard
        assert shots["key", window].from_children == {}
        assert shots["key", window].own == {"x": 30 + 80 + 700 + 5}
    assert team.consumed() == (wanted + 25) * 1000


def test_as_many_shards_as_a_bucket_can_have(rig: Rig) -> None:
    """The largest expressions there are, of a guess and of a plan, are taken by the service."""
    tape = Tape()
    shards = [Shard(tape, "wide", number) for number in range(64)]
    names = [f"limit-of-some-length-{number}" for number in range(8)]
    for shard in shards:
        shard.make(**dict.fromkeys(names, 1))
    for _ in range(2):
        for shard in shards:
            shard.write(**dict.fromkeys(names, 1))
    for start, end in ((0, 64), (64, 128), (100, 192)):
        report = run(rig.aggregator.process(tape.records[start:end]))
        assert not report.failures
    assert totals(rig.usage(), "daily") == {("wide", "r"): dict.fromkeys(names, 192)}


def test_a_bucket_that_was_forgotten_is_counted_on(rig: Rig) -> None:
    wanted = busy(rig, 12, entities=1)
    run(rig.backend.store.forget([BucketKey(NS, "e0", "r")]))
    more = busy(rig, 9, seed=2, entities=1)
    run(rig.aggregator.process(rig.records()))
    both = [a + b for a, b in zip(wanted["e0", "r"], more["e0", "r"], strict=True)]
    assert counted(rig) == {("e0", "r"): both}


def test_writes_per_thousand_acquires_of_a_hot_entity(rig: Rig) -> None:
    """Two limits, two windows. It is a write per window and batch."""
    tape = Tape()
    shard = Shard(tape, "hot")
    shard.make(rpm=1, tpm=10)
    for _ in range(999):
        shard.write(rpm=1, tpm=10)
    writes = {}
    for size in (1000, 500, 250, 100):
        port = Watched(port_to(rig.endpoint))
        aggregator = rig.aggregator_over(port)
        drop_items(rig, f"{NS}/ENTITY#hot", "#USAGE#")
        for at in range(0, 1000, size):
            run(aggregator.process(tape.records[at : at + size]))
        writes[size] = port.calls.count("UpdateItem")
        assert set(port.calls) == {"UpdateItem"}
        run(port.close())
    assert writes == {1000: 2, 500: 4, 250: 8, 100: 20}
    told = (Path(__file__).parents[3] / "docs" / "how-to" / "usage-history.md").read_text()
    for size, count in writes.items():
        assert f"| {size:,} | {count} |".replace(",", " ") in told
    assert counted(rig) == {("hot", "r"): [1000, 10_000]}


def test_trouble_that_passes_is_waited_out(rig: Rig) -> None:
    wanted = busy(rig, 12)
    port = Failing(rig.table.port, [Throttled("busy"), Unreachable("lost"), Throttled("busy")])
    report = run(rig.aggregator_over(port).process(rig.buckets()))
    assert not report.failures
    assert report.held_already == 6
    assert counted(rig) == wanted


def test_trouble_that_stays_fails_the_records_of_that_row(rig: Rig) -> None:
    busy(rig, 12)
    records = rig.buckets()
    port = Failing(rig.table.port, [Throttled("busy")] * 100)
    report = run(rig.aggregator_over(port).process(records))
    numbers = [record["dynamodb"]["SequenceNumber"] for record in records]
    assert [failure.sequence for failure in report.failures] == numbers
    assert not any(failure.unreadable for failure in report.failures)
    assert counted(rig) == {}


def test_a_row_says_when_it_ends_and_shows_no_marks(endpoint: str) -> None:
    rig = Rig(endpoint, windows=("hourly", "monthly"), retention_ms=7 * 86_400_000)
    busy(rig, 5, entities=1)
    run(rig.aggregator.process(rig.records()))
    shots = rig.usage()
    assert sorted(shot.window_type for shot in shots) == ["hourly", "monthly"]
    assert all(set(shot.counters) == {"rpm", "tpm"} for shot in shots)
    now_s = rig.table.port.now_ms() // 1000
    run(rig.close())
    rig.table = rig.table_over(port_to(endpoint))
    items = run(rig.table.every(ask.query(rig.name, f"{NS}/ENTITY#e0", ask.begins("#USAGE#"))))
    ends = {item["window"]["S"]: int(item["ttl"]["N"]) - now_s for item in items}
    assert 7 * 86_400 <= ends["hourly"] <= 7 * 86_400 + 3600
    assert 7 * 86_400 <= ends["monthly"] <= 38 * 86_400
    run(rig.table.port.close())
