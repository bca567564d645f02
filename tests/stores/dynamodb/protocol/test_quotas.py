"""Quotas on DynamoDB: what is written, how often, and what processes that disagree make of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headgate import SyncRateLimiter
from headgate.core.errors import Damaged
from headgate.core.levels import Level, StoredLevel
from headgate.core.limits import Limit, Spec
from headgate.core.record import Terms
from headgate.core.runtime import run
from headgate.repository import Repository
from headgate.stores.dynamodb import over_port, schema
from headgate.stores.dynamodb.catalog.items import level_as_item, level_from_item
from headgate.stores.dynamodb.protocol import item as items
from headgate.stores.dynamodb.protocol import limit_moves
from headgate.stores.dynamodb.schema import layout_of, names_in, terms_from
from headgate.stores.dynamodb.sharding import router
from headgate.stores.dynamodb.sharding.split import can_split, is_lossless
from headgate.stores.dynamodb.table.create import prepare
from headgate.sync import SyncRepository
from headgate.testing import FakeClock
from proof.model.engine import Engine
from tests.core.test_resets import patch_schedule, schedules_of
from tests.stores.dynamodb.kit import (
    START_MS,
    TABLE,
    Bucket,
    divided,
    engine_with_table,
    model_port,
    spent,
    store_on,
    table_at,
)

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
BERLIN = "Europe/Berlin"
MONTHLY = Limit.quota("x", 100, every="month", tz=BERLIN)
DAILY = Limit.quota("x", 100, every="day")
SESSION = Limit.quota("x", 100, reset_after=3600)
CRON = Limit.quota("x", 100, cron="30 2 * * *", tz=BERLIN)


def row_of(engine: Engine, shard: int = 0) -> dict[str, Any]:
    [row] = [
        row for (_, pk, _), row in engine.snapshot.rows.items()
        if "/BUCKET#" in pk and pk.endswith(f"#{shard}")
    ]  # fmt: skip
    return {name: content for name, (_, content) in row.values.items()}


# One write, and when it takes more.


@pytest.mark.parametrize("limit", [MONTHLY, DAILY, CRON], ids=str)
def test_every_warm_take_is_one_write_also_the_first_of_a_window(limit: Limit) -> None:
    bucket = Bucket(store_on(), [limit])
    assert bucket.take(x=1).allowed
    spent(bucket.store)
    for days in (0, 0, 1, 31, 400, 0):
        bucket.now_ms += days * DAY_MS
        assert bucket.take(x=3).allowed
        assert spent(bucket.store) == 1
    assert bucket.take(x=97).allowed is False
    assert spent(bucket.store) == 1  # a read


def test_a_session_costs_others_one_more_write_when_it_begins() -> None:
    """Its epoch moves, so what another process planned on the window before fails once."""
    engine = engine_with_table()
    one = Bucket(store_on(engine), [SESSION])
    other = one.seen_by(store_on(engine))
    for bucket in (one, other, one, other):
        assert bucket.take(x=1).allowed
    for number in range(4):
        one.now_ms = other.now_ms = START_MS + (number + 1) * HOUR_MS
        spent(one.store), spent(other.store)
        assert [one.take(x=1).allowed, other.take(x=1).allowed] == [True, True]
        assert [spent(one.store), spent(other.store)] == [1, 2]
        assert [one.take(x=1).allowed, other.take(x=1).allowed] == [True, True]
        assert [spent(one.store), spent(other.store)] == [1, 1]


@pytest.mark.parametrize("limit", [MONTHLY, SESSION], ids=["month", "session"])
def test_a_quota_gives_nothing_away_where_others_move_it(limit: Limit) -> None:
    """No band: of a month it would be missed for the rest of it."""
    engine = engine_with_table()
    crowd = [Bucket(store_on(engine), [limit])]
    crowd += [crowd[0].seen_by(store_on(engine)) for _ in range(3)]
    taken = 0
    for bucket in itertools.islice(itertools.cycle(crowd), 130):
        taken += bucket.take(x=1).allowed
    assert taken == 100


def test_several_buckets_in_one_step_know_that_a_session_has_begun() -> None:
    store = store_on(strict=True)
    first, second = Bucket(store, [SESSION]), Bucket(store, [SESSION])
    demands = [first.demand(x=60), second.demand(x=10)]
    for number in range(3):
        now_ms = START_MS + number * 2 * HOUR_MS
        verdict = run(store.consume(demands, now_ms))
        assert verdict.allowed
        assert [status.available for status in verdict.statuses] == [40, 90]
        assert [status.reset_at_ms for status in verdict.statuses] == [now_ms + HOUR_MS] * 2
        assert not run(store.consume(demands, now_ms + HOUR_MS - 1)).allowed


def test_a_session_that_went_into_debt_meanwhile_is_not_begun() -> None:
    """Somebody whose clock is behind owes for the window before. Beside an allowance, whose item
    has no end that would have moved, the tokens alone tell."""
    engine = engine_with_table()
    limits = [SESSION, Limit.custom("y", 9, 0, 1)]
    one = Bucket(store_on(engine), limits)
    assert one.take(x=60, y=1).allowed
    other = one.seen_by(store_on(engine))
    other.now_ms = START_MS + HOUR_MS - 1000
    one.now_ms = START_MS + HOUR_MS
    one.store._port.before["UpdateItem"] = lambda: other.adjust(x=70)
    assert not one.take(x=100).allowed
    assert one.level() == 70_000


def test_an_item_is_kept_for_a_day_after_its_reset() -> None:
    """Whoever places the reset later finds it, and the window that it has met."""
    engine = engine_with_table()
    bucket = Bucket(store_on(engine), [DAILY])
    for _ in range(3):
        bucket.take(x=1)
        assert row_of(engine)["ttl"] * 1000 >= bucket.now_ms + 2 * DAY_MS
        bucket.now_ms += DAY_MS
    session = Bucket(store_on(engine_with_table()), [SESSION])
    session.take(x=1)
    assert row_of(session.store._port.inner.engine)["ttl"] == (START_MS + HOUR_MS) // 1000 + 60


# What the item says.


def test_the_layout_says_the_schedule() -> None:
    limits = (MONTHLY, CRON, SESSION, Limit.per_day("x", 3))
    specs = tuple(limit.spec._replace(name=f"l{n}") for n, limit in enumerate(limits))
    held = Terms(specs[:2], 4, sources=("resource", "entity")).extend(specs[2:], 4)
    text = layout_of(held)
    assert text == (
        "l0@month~Europe/Berlin=r l1@cron~30~2~*~*~*~Europe/Berlin=e | l2@session~3600s=m l3=m"
    )
    numbers = tuple(spec[1:4] for spec in specs)
    assert terms_from(text, 4, numbers).specs == held.specs
    assert names_in(text) == ("l0", "l1", "l2", "l3")


def test_an_item_has_the_window_and_no_pace() -> None:
    engine = engine_with_table()
    bucket = Bucket(store_on(engine), [MONTHLY])
    bucket.now_ms += 10 * DAY_MS + 7
    bucket.take(x=40)
    row = row_of(engine)
    assert {name: row[name] for name in row if name.startswith("b_x")} == {
        "b_x_cp": 100_000, "b_x_tk": 60_000, "b_x_tc": 40_000, "b_x_rf": START_MS,
    }  # fmt: skip


def test_a_schedule_that_this_machine_cannot_tell_is_named() -> None:
    with pytest.raises(Damaged, match=r"limit tpm .* 'month Mars/Olympus', .*tzdata"):
        terms_from("tpm@month~Mars/Olympus=r", 1, ((1000, 0, 1000),))


def test_changes_to_a_quota_and_back_leave_nothing_behind() -> None:
    engine = engine_with_table()
    bucket = Bucket(store_on(engine), [Limit.custom("x", 100, 7, 60)])
    bucket.take(x=30)
    for version, limit in enumerate((MONTHLY, SESSION, Limit.custom("x", 100, 7, 60)), start=2):
        bucket.terms = Terms((limit.spec,), version)
        assert bucket.take(x=5).allowed
        names = {name[-2:] for name in row_of(engine) if name.startswith("b_x_")}
        pace = {"ra", "rp"} if limit.resets is None else set()
        assert names == {"cp", "tk", "tc", "rf"} | pace
    assert bucket.level() == 55_000


def test_stored_quotas_are_read_as_they_were_written() -> None:
    quotas = (MONTHLY, Limit.quota("y", 5, cron="0 0 1,15 * *", soft=True), Limit.per_day("z", 9))
    stored = StoredLevel(quotas, 3)
    found = level_from_item(level_as_item("ns", Level("e", "r"), stored))
    assert found == stored
    port = model_port()
    run(prepare(table_at("", name=TABLE, port=port)))
    clock = FakeClock(START_MS + 30 * DAY_MS)
    backend = over_port(port, TABLE, blocking=True)
    core = Repository(clock=clock, _blocking=True, _backend=backend)
    with SyncRateLimiter(SyncRepository(_core=core)) as limiter:
        limiter.set_limits("alice", list(quotas), "api")
        assert limiter.get_limits("alice", "api") == list(quotas)
        with limiter.acquire("alice", "api", {"x": 30, "y": 7}):
            pass
        assert limiter.available("alice", "api") == {"x": 70, "y": 5, "z": 9}


# Processes whose time zone databases or clocks are apart.

ZONED = Spec("x", 100_000, 0, 1000, False, "calendar day Test/Zone")


@contextmanager
def database(hours: int) -> Iterator[None]:
    """A machine whose database says that Test/Zone is so many hours ahead of UTC."""
    with pytest.MonkeyPatch.context() as patch:
        schedule = schedules_of(hours, patch)
        patch_schedule(patch, schedule)
        for module in (items, limit_moves, schema):
            patch.setattr(module, "schedule_of", lambda text: schedule)
        limit_moves.reset_end_ms.cache_clear()
        yield
    limit_moves.reset_end_ms.cache_clear()


class Machine:
    """One process's view of one bucket; `hours` is what its database says of the zone."""

    def __init__(self, engine: Engine, hours: int) -> None:
        self.hours = hours
        self.bucket = Bucket(store_on(engine), [], "zoned")
        self.bucket.terms = Terms((ZONED,), 1)

    def takes(self, at_ms: int, amount: int = 1, most: int = 999) -> int:
        """How often it takes so much until it is refused."""
        self.bucket.now_ms = at_ms
        with database(self.hours):
            tries = (self.bucket.take(x=amount).allowed for _ in range(most))
            return sum(itertools.takewhile(bool, tries))


@pytest.mark.parametrize("begun_h", [19, 21.5, 22.5])
def test_a_reset_that_two_place_at_two_moments_comes_once(begun_h: float) -> None:
    """One resets at 21:00 UTC, the other at 22:00. Whenever the item was made, before both, between
    them or after both, each window gives one capacity, and neither process starves."""
    engine = engine_with_table()
    early, late = Machine(engine, 3), Machine(engine, 2)
    now_ms = START_MS + round(begun_h * HOUR_MS)
    maker = early if begun_h < 22 else late
    assert maker.takes(now_ms, most=40) == 40
    assert late.takes(now_ms) + early.takes(now_ms) == 60
    for day in range(0 if begun_h < 21 else 1, 5):
        reset_ms = START_MS + day * DAY_MS + 21 * HOUR_MS
        assert (late.takes(reset_ms), early.takes(reset_ms - 1)) == (0, 0)
        if day % 2:
            assert early.takes(reset_ms, amount=50) == 2
            assert late.takes(reset_ms + HOUR_MS) == 0
        else:
            assert early.takes(reset_ms, most=1) == 1
            assert late.takes(reset_ms + HOUR_MS) == 99
        assert early.takes(reset_ms + 2 * HOUR_MS) == 0


def test_a_clock_that_is_behind_at_a_reset_takes_from_neither_window_twice() -> None:
    engine = engine_with_table()
    fast = Bucket(store_on(engine), [DAILY])
    slow = fast.seen_by(store_on(engine))
    assert fast.take(x=70).allowed
    for day in range(1, 4):
        fast.now_ms = START_MS + day * DAY_MS
        slow.now_ms = fast.now_ms - 5000
        assert fast.take(x=60).allowed
        assert not slow.take(x=1).allowed  # by its clock, the old window is used up
        slow.now_ms += 5000
        assert slow.take(x=40).allowed
        assert not fast.take(x=1).allowed


# Shards.


def test_a_reset_fills_every_shard_with_its_share() -> None:
    limit = Limit.quota("x", 101, every="day")
    bucket = divided(store_on(), limit, shards=5)
    assert bucket.take(x=101).allowed
    assert bucket.level() == 0
    refused = bucket.take(x=1)
    assert refused.retry_after_ms == DAY_MS
    bucket.now_ms += DAY_MS
    assert bucket.level() == 101_000
    assert sorted(bucket.levels()) == [12_625, 12_625, 25_250, 25_250, 25_250]
    verdict = bucket.take(x=90)
    assert verdict.allowed
    assert verdict.statuses[0].available == 11
    assert bucket.take(x=11).allowed
    assert not bucket.take(x=1).allowed
    bucket.now_ms += 3 * DAY_MS
    assert sum(bucket.take(x=1).allowed for _ in range(120)) == 101


@pytest.mark.parametrize("limit", [MONTHLY, CRON], ids=["month", "cron"])
def test_dividing_and_putting_together_keeps_level_and_reset(limit: Limit) -> None:
    bucket = divided(store_on(), limit, shards=1)
    at_ms = START_MS + 40 * DAY_MS
    bucket.now_ms = at_ms
    assert bucket.take(x=30).allowed
    bucket.split_to(4)
    assert bucket.level() == 70_000
    verdict = bucket.check(x=80)
    assert limit.resets is not None
    assert verdict.retry_after_ms == limit.resets.instants(at_ms, 1)[0] - at_ms
    bucket.adjust(x=90)
    assert bucket.level() == -20_000
    assert max(bucket.levels()) <= 0
    while bucket.merge_one():
        pass
    assert bucket.levels() == [-20_000]
    bucket.now_ms += verdict.retry_after_ms - 1
    assert bucket.level() == -20_000
    bucket.now_ms += 1
    assert bucket.level() == 80_000


def test_shards_with_a_moment_far_ahead_move_no_other_limit() -> None:
    """A quota's window may begin later here than where it was met. A limit that refills must not
    be counted up to then when the shard is divided."""
    engine = engine_with_table()
    bucket = Bucket(store_on(engine), [], "zoned")
    bucket.terms = Terms((ZONED, Limit.custom("y", 100, 1, 60).spec), 1)
    bucket.now_ms = START_MS + 21 * HOUR_MS
    with database(3):  # its window has just begun
        assert bucket.take(x=10, y=100).allowed
    late = bucket.seen_by(store_on(engine))  # where it begins in an hour
    with database(2):
        assert late.split()
        assert late.level("y") == 0
        assert late.level("x") == 90_000
        assert late.merge_one()
        assert late.level("y") == 0
        assert late.level("x") == 90_000
    with database(3):
        bucket.store._cache.drop(bucket.key)
        assert (bucket.level("x"), bucket.level("y")) == (90_000, 0)


def test_a_session_is_not_divided() -> None:
    bucket = divided(store_on(), SESSION, shards=1)
    [seen] = bucket.shards()
    assert not can_split(seen, {})


def test_a_session_that_comes_to_shards_has_a_window_in_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A change of limits may bring one to a divided bucket. No shard gives more than its share in
    its window, and shards are put together once at most one window runs."""
    monkeypatch.setattr(router, "LOOK_MS", 10**15)  # the test puts them together
    bucket = divided(store_on(), Limit.per_hour("x", 100), shards=2)
    bucket.terms = Terms((SESSION.spec,), 2)
    assert bucket.take(x=100).allowed
    assert bucket.levels() == [0, 0]
    bucket.now_ms += HOUR_MS
    while sum(level == 50_000 for level in bucket.levels()) == 2:
        assert bucket.take(x=1).allowed
    started_ms = bucket.now_ms
    bucket.now_ms += HOUR_MS // 2
    assert is_lossless(*bucket.shards(), now_ms=bucket.now_ms)
    while 50_000 in bucket.levels():
        assert bucket.take(x=1).allowed
    assert not is_lossless(*bucket.shards(), now_ms=bucket.now_ms)
    left = bucket.level() // 1000
    verdict = bucket.check(x=left + 1)
    assert verdict.retry_after_ms == started_ms + HOUR_MS - bucket.now_ms
    assert verdict.statuses[0].reset_at_ms == started_ms + HOUR_MS
    bucket.now_ms = started_ms + HOUR_MS
    before = bucket.level()
    assert is_lossless(*bucket.shards(), now_ms=bucket.now_ms)
    assert bucket.merge_one()
    assert bucket.level() == before
    bucket.now_ms += HOUR_MS // 2 - 1
    assert bucket.level() == before
    bucket.now_ms += 1
    assert bucket.level() == 100_000
