"""Shards that run hot are seen in the stream and divided, once, with nothing made or lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headgate import Limit
from headgate.aws.aggregator import hot_shards as splits
from headgate.aws.aggregator.hot_shards import HotShard, ShardSplitter, WriteRates
from headgate.aws.aggregator.process import Aggregator, Settings
from headgate.aws.aggregator.records import Change, parse_record, state_of
from headgate.core.errors import Throttled
from headgate.core.record import BucketKey
from headgate.core.runtime import run
from headgate.stores.dynamodb.client.calls import AccessRefused
from headgate.stores.dynamodb.protocol.item import bucket_key
from headgate.stores.dynamodb.store import DynamoStore
from tests.aws.aggregator.kit import NS, Record, Rig, Shard, Tape
from tests.stores.dynamodb.kit import Bucket, Watched, port_to


def changes(records: list[Record]) -> list[Change]:
    return [one for record in records if isinstance(one := parse_record(record), Change)]


def traffic(per_s: int, seconds: int) -> list[Change]:
    tape = Tape()
    shard = Shard(tape)
    shard.make(rpm=1)
    for second in range(seconds):
        for _ in range(per_s):
            shard.write(rpm=1 + second)
        tape.now_ms += 1000
    return changes(tape.records)


@pytest.mark.parametrize(("per_s", "size"), [(100, 333), (800, 333), (801, 333), (1500, 10_000)])
def test_a_pace_is_told_to_the_write(per_s: int, size: int) -> None:
    rates, found = WriteRates(), []
    line = traffic(per_s, 4)
    for at in range(0, len(line), size):
        found += rates.hot(line[at : at + size])
    assert bool(found) is (per_s > 800)
    if found:
        assert found[-1].per_s == per_s
        assert found[-1].largest_milli == {"rpm": 4000}


def test_what_is_delivered_again_is_no_pace() -> None:
    rates, line = WriteRates(), traffic(500, 3)
    for _ in range(5):
        assert not rates.hot(line)


def test_a_bucket_made_anew_is_measured_anew() -> None:
    tape, rates = Tape(), WriteRates()
    shard = Shard(tape)
    for _ in range(4):
        shard.make(rpm=1)
        for _ in range(700):
            shard.write(rpm=1)
        shard.remove()
        tape.now_ms += 1000
    assert not rates.hot(changes(tape.records))


def test_memory_is_bounded() -> None:
    tape, rates = Tape(), WriteRates(items_max=5)
    for number in range(50):
        Shard(tape, f"e{number}").make(rpm=1)
    rates.hot(changes(tape.records))
    assert len(rates._known) == 5


@pytest.fixture
def rig(endpoint: str) -> Iterator[Rig]:
    found = Rig(endpoint, split=True)
    yield found
    run(found.close())


def hot_bucket(rig: Rig, capacity: int = 10**6) -> Bucket:
    store = rig.backend.store
    assert isinstance(store, DynamoStore)
    bucket = Bucket(store, [Limit.per_second("rpm", capacity)], "hot")
    for _ in range(3):
        assert bucket.take(rpm=2).allowed
    return bucket


def hurried() -> list[Record]:
    """Records of the same bucket as if hundreds had written in a second."""
    tape = Tape()
    shard = Shard(tape, "hot")
    shard.make(rpm=2)
    for _ in range(3):
        tape.now_ms += 1000
        for _ in range(900):
            shard.write(rpm=2)
    return tape.records


def test_a_hot_shard_is_divided_and_the_levels_stay(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splits, "SETTLE_MS", 3_600_000)  # however slow this machine is
    bucket = hot_bucket(rig)
    bucket.now_ms = rig.table.port.now_ms()
    assert bucket.level("rpm") == 10**9
    off = Aggregator(rig.table, Settings(rig.name, split=False))
    assert run(off.process(hurried())).splits == 0
    assert len(bucket.shards()) == 1
    report = run(rig.aggregator.process(hurried()))
    assert report.splits == 1
    bucket.now_ms = rig.table.port.now_ms()
    shards = bucket.shards()
    assert [seen.shard for seen in shards] == [0, 1]
    assert bucket.consumed("rpm") == 6000
    assert bucket.level("rpm") == 10**9
    again = run(Aggregator(rig.table, rig.settings).process(hurried()))
    assert again.splits == 0  # it was divided a moment ago
    assert len(bucket.shards()) == 2


def test_no_shard_gets_smaller_than_what_is_asked_of_it(rig: Rig) -> None:
    bucket = hot_bucket(rig, capacity=7)
    report = run(rig.aggregator.process(hurried()))
    assert report.splits == 1  # halves of 3 and 4 still hold the largest demand, 2
    other = ShardSplitter(rig.table, enabled=True)
    key = BucketKey(NS, "hot", "r")
    assert run(other.divide([HotShard(key, 0, 900, {"rpm": 2000})])) == 0
    assert len(bucket.shards()) == 2


class Refusing:
    def __init__(self, inner: Any, trouble: Exception) -> None:
        self.inner, self.trouble, self.calls = inner, trouble, 0
        self.now_ms = inner.now_ms

    async def call(self, request: Any) -> Any:
        if request.operation == "TransactWriteItems":
            self.calls += 1
            raise self.trouble
        return await self.inner.call(request)


@pytest.mark.parametrize(
    ("trouble", "calls"),
    [(AccessRefused("AccessDeniedException", "no", "no"), 1), (Throttled(""), 4)],
)
def test_trouble_fails_no_record_and_a_role_that_may_not_is_asked_once(
    rig: Rig, trouble: Exception, calls: int
) -> None:
    hot_bucket(rig)
    port = Refusing(rig.table.port, trouble)
    splits = ShardSplitter(rig.table_over(port), enabled=True)
    hot = HotShard(BucketKey(NS, "hot", "r"), 0, 900, {})
    assert [run(splits.divide([hot, hot])) for _ in range(2)] == [0, 0]
    assert port.calls == calls
    assert splits.enabled is (calls > 1)


def test_a_bucket_that_is_gone_is_left_alone(rig: Rig) -> None:
    port = Watched(port_to(rig.endpoint))
    splits = ShardSplitter(rig.table_over(port), enabled=True)
    assert run(splits.divide([HotShard(BucketKey(NS, "nobody", "r"), 0, 900, {})])) == 0
    assert port.calls == ["GetItem"]
    run(port.close())


def test_a_schedule_that_cannot_be_told_here_is_left_to_the_clients(rig: Rig) -> None:
    """The function's machine may lack a zone, or what reads cron. Usage is counted all the same."""
    hot_bucket(rig)
    key = bucket_key(BucketKey(NS, "hot", "r"))
    item = run(rig.table.get(key))
    assert item is not None
    for name in ("b_rpm_rp", "b_rpm_ra"):
        item.pop(name, None)
    item |= {"lo": {"S": "rpm@month~Mars/Olympus=o"}, "b_rpm_rf": {"N": "0"}}
    run(rig.table.call("PutItem", Item=item))
    splits = ShardSplitter(rig.table, enabled=True)
    assert run(splits.divide([HotShard(BucketKey(NS, "hot", "r"), 0, 900, {})])) == 0
    assert splits.enabled
    assert state_of(item).own_milli.keys() == {"rpm"}
