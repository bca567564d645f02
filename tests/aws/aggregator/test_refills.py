"""Storing what was refilled, by records of a real stream: off unless asked for, and unseen."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from aws.infra.guarding import Guarded
from aws.infra.rendering import Rendered
from dynamodb.shard_kit import Bucket
from headgate import Limit
from headgate.aws.aggregator.process import Aggregator, BatchReport, Settings
from headgate.aws.aggregator.refills import REFILLS_MAX, BucketRefiller
from headgate.aws.infra import StackOptions
from headgate.cli.app import cli
from headgate.core.errors import StoreTrouble, Throttled
from headgate.core.runtime import run
from headgate.stores.dynamodb.client.port import AccessRefused, DynamoRequest
from headgate.stores.dynamodb.protocol.rebase import AGE_MS, SLACK_MS
from headgate.stores.dynamodb.store import DynamoStore

from .kit import HOUR_MS, START_MS, Record, Rig

LIMITS = [Limit.per_minute("rpm", 100), Limit.per_day("tpd", 5000)]


class Timed:
    """A port whose time is the test's, and that can be in trouble."""

    def __init__(self, inner: Any, clock: Callable[[], int]) -> None:
        self.inner = inner
        self.now_ms = clock
        self.sent: list[DynamoRequest] = []
        self.trouble: StoreTrouble | None = None

    async def call(self, request: DynamoRequest) -> Any:
        return await self.inner.call(request)

    async def call_all(self, requests: Any) -> list[Any]:
        found = [one for one in requests if "/BUCKET#" in one.params["Key"]["PK"]["S"]]
        self.sent += found
        if self.trouble is not None and found:
            return [self.trouble for _ in requests]
        return list(await self.inner.call_all(requests))


class Scene:
    """Two buckets that live through the same; the records of one of them go to an aggregator."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        store = rig.backend.store
        assert isinstance(store, DynamoStore)
        self.plain, self.warmed = (Bucket(store, LIMITS, name) for name in ("plain", "warmed"))
        self.port = Timed(rig.table.port, lambda: self.warmed.now_ms)
        self.settings = Settings(rig.name, split=False, refill=True)
        self.aggregator = Aggregator(rig.table_over(self.port), self.settings)

    def both(self, act: Callable[[Bucket], Any]) -> None:
        """They are told the same, to the last wait."""
        said = [
            repr(act(bucket)).replace(bucket.key.entity_id, "it")
            for bucket in (self.plain, self.warmed)
        ]
        assert said[0] == said[1]

    def wait(self, pause_ms: int) -> None:
        for bucket in (self.plain, self.warmed):
            bucket.now_ms += pause_ms

    def records(self) -> list[Record]:
        found = self.rig.buckets()
        return [dict(one) for one in found if "#warmed#" in one["dynamodb"]["Keys"]["PK"]["S"]]

    def process(self) -> BatchReport:
        return run(self.aggregator.process(self.records()))

    def epoch_ms(self) -> int:
        [seen] = self.warmed.shards()
        return seen.epoch_ms


@pytest.fixture
def scene(endpoint: str) -> Iterator[Scene]:
    rig = Rig(endpoint)
    yield Scene(rig)
    run(rig.close())


def test_who_was_rebased_admits_what_the_other_admits(scene: Scene) -> None:
    """Over two days, with debt and credits: every verdict and wait, and what was used, the same."""
    refills = 0
    for hour in range(24):
        scene.both(lambda bucket: bucket.take(rpm=60, tpd=300))
        scene.wait(7 + hour * 1111)
        scene.both(lambda bucket: bucket.take(rpm=50, tpd=1))
        scene.both(lambda bucket, extra=hour - 9: bucket.adjust(rpm=extra, tpd=3 * extra))  # type: ignore[misc]
        scene.wait(HOUR_MS * (1 + hour % 3))
        refills += scene.process().refills
        scene.both(lambda bucket: bucket.check(rpm=100, tpd=600))
        scene.both(lambda bucket: (bucket.level("rpm"), bucket.level("tpd")))
        scene.both(lambda bucket: (bucket.consumed("rpm"), bucket.consumed("tpd")))
    assert refills >= 20
    assert scene.epoch_ms() > START_MS + 12 * HOUR_MS
    hours = [one for one in scene.rig.usage() if one.window_type == "hourly"]
    counted = sum(one.counters["rpm"] for one in hours)
    assert counted * 1000 == scene.warmed.consumed("rpm")  # a rebase is no consumption


def test_the_same_records_again_change_nothing(scene: Scene) -> None:
    scene.both(lambda bucket: bucket.take(rpm=60, tpd=300))
    scene.wait(2 * HOUR_MS)
    old = scene.records()
    assert run(scene.aggregator.process(old)).refills == 1
    epoch_ms = scene.epoch_ms()
    assert scene.warmed.now_ms - SLACK_MS - 864 < epoch_ms <= scene.warmed.now_ms - SLACK_MS
    for records in (old, old, scene.records(), list(reversed(scene.records()))):
        assert run(scene.aggregator.process(records)).refills == 0
        assert scene.epoch_ms() == epoch_ms
    scene.both(lambda bucket: bucket.take(rpm=100, tpd=4700))


def test_a_take_after_the_record_is_not_lost(scene: Scene) -> None:
    """The image is old when it comes: what was taken since stays taken."""
    scene.both(lambda bucket: bucket.take(tpd=4000))
    scene.wait(HOUR_MS)
    old = scene.records()
    scene.both(lambda bucket: bucket.take(tpd=1100))
    assert run(scene.aggregator.process(old)).refills == 1
    scene.both(lambda bucket: (bucket.level("tpd"), bucket.consumed("tpd")))
    scene.both(lambda bucket: bucket.take(tpd=110))
    assert scene.warmed.consumed("tpd") == 5_100_000


def test_a_young_epoch_and_a_bucket_that_is_gone_are_left_alone(scene: Scene) -> None:
    assert scene.warmed.take(rpm=1).allowed
    scene.wait(AGE_MS - 1)
    assert scene.process().refills == 0
    assert scene.port.sent == []
    scene.wait(1)
    old = scene.records()
    run(scene.warmed.store.forget([scene.warmed.key]))
    assert run(scene.aggregator.process(old)).refills == 0
    assert scene.warmed.shards() == []
    scene.port.sent.clear()
    assert scene.process().refills == 0  # its last record says that it is gone
    assert scene.port.sent == []


def test_it_is_off_unless_asked_for(scene: Scene) -> None:
    assert Settings("t").refill is False
    assert scene.warmed.take(rpm=1).allowed
    scene.wait(5 * HOUR_MS)
    quiet = Aggregator(scene.rig.table_over(scene.port), Settings(scene.rig.name, split=False))
    assert run(quiet.process(scene.records())).refills == 0
    assert scene.port.sent == []
    assert scene.epoch_ms() == START_MS


def test_trouble_fails_no_record_and_a_role_that_may_not_is_asked_once(scene: Scene) -> None:
    assert scene.warmed.take(rpm=1).allowed
    scene.wait(5 * HOUR_MS)
    refills = BucketRefiller(scene.rig.table_over(scene.port), enabled=True)
    aggregator = Aggregator(scene.rig.table_over(scene.port), scene.settings)
    aggregator._refills = refills
    for trouble, asked in ((Throttled("busy"), 1), (AccessRefused("AccessDenied", "no", "no"), 2)):
        scene.port.trouble = trouble
        report = run(aggregator.process(scene.records()))
        assert report.refills == 0
        assert report.failures == []
        assert len(scene.port.sent) == asked
    assert not refills.enabled
    assert run(aggregator.process(scene.records())).refills == 0
    assert len(scene.port.sent) == 2


def test_a_batch_is_bounded(scene: Scene) -> None:
    store = scene.warmed.store
    crowd = [Bucket(store, LIMITS, f"one-{number}") for number in range(70)]
    for bucket in crowd:
        assert bucket.take(rpm=1).allowed
    scene.wait(3 * HOUR_MS)
    found = [dict(one) for one in scene.rig.buckets()]
    assert run(scene.aggregator.process(found)).refills == REFILLS_MAX < len(crowd)


@pytest.mark.parametrize("switch", ["--refill", "--no-refill", ""])
def test_the_command_has_a_switch(scene: Scene, switch: str) -> None:
    """By the true clock, which is long after the bucket was made."""
    assert scene.warmed.take(rpm=1).allowed
    words = ["--json", "aggregate", scene.rig.name, "--drain", *filter(None, [switch])]
    place = ["--endpoint", scene.rig.endpoint, "--region", "us-east-1"]
    done = CliRunner().invoke(cli, [*words, *place])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["refills"] == (switch == "--refill")
    assert (scene.epoch_ms() > START_MS) is (switch == "--refill")


@pytest.mark.parametrize("on", [False, True])
def test_the_role_allows_it_where_the_stack_has_it_on(scene: Scene, on: bool) -> None:
    """The real requests, with IAM before the table."""
    options = StackOptions(enable_refill=on)
    guarded = Guarded(scene.rig.table.port, Rendered(options).statements("AggregatorRole"))
    timed = Timed(guarded, lambda: scene.warmed.now_ms)
    aggregator = Aggregator(scene.rig.table_over(timed), scene.settings)
    assert scene.warmed.take(rpm=1).allowed
    scene.wait(2 * HOUR_MS)
    if on:
        assert run(aggregator.process(scene.records())).refills == 1
        assert guarded.denied == []
    else:
        with pytest.raises(StoreTrouble, match="not allowed"):
            run(aggregator.process(scene.records()))
        assert guarded.denied[0][0] == "UpdateItem"
    assert (scene.epoch_ms() > START_MS) is on
