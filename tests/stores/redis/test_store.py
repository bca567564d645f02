"""Exact arithmetic beside the pure model, limits that Redis refuses, clocks, restarts."""

from __future__ import annotations

import asyncio
import random

import pytest

from headgate import (
    Limit,
    RateLimitExceeded,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
)
from headgate.core.decision import (
    Demand,
    Verdict,
    adjust_record,
    decide,
    is_credit_only,
    needs_write,
)
from headgate.core.record import TERMS, BucketKey, Record, Terms, cells_of, new_record
from headgate.core.runtime import run
from headgate.core.store import Store
from headgate.repository import open_backend
from tests.stores.redis import servers

START_MS = 1_767_225_600_000


def _told(verdict: Verdict) -> tuple[object, ...]:
    rows = [(s.limit_name, s.available, s.exceeded, s.retry_after_ms) for s in verdict.statuses]
    return verdict.allowed, verdict.retry_after_ms, verdict.outdated, rows


def _some_limits(rng: random.Random) -> list[Limit]:
    found = []
    for name in rng.sample(("a", "b", "c", "d"), rng.randint(1, 3)):
        capacity = rng.choice((1, 5, 100, 10**4, 10**9))
        refill = rng.choice((0, 1, 7, capacity, capacity // 2 + 1, 10**6, 10**9 + 7))
        period = rng.choice((1, 7, 60, 3600, 86_399, 86_400, 604_800, 999_983))
        found.append(Limit.custom(name, capacity, refill, period, soft=rng.random() < 0.1))
    return found


class Twin:
    """A store and the pure model beside it, given the same things to do."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store = store
        self.rng = random.Random(seed)
        self.model: dict[str, Record] = {}
        self.now_ms = START_MS
        self.pool = [self._terms() for _ in range(12)]

    def step(self) -> None:
        rng = self.rng
        self.now_ms += rng.choice((0, 0, 1, 3, 17, 400, 30_000, 3_600_000, 604_800_000))
        names = rng.sample(("p", "q", "s", "t"), rng.randint(1, 3))
        demands = [self._demand(name) for name in names]
        if rng.random() < 0.75:
            self._take(names, demands)
        else:
            self._adjust(names, demands)

    def _terms(self) -> Terms:
        specs = tuple(limit.spec for limit in _some_limits(self.rng))
        if self.rng.random() < 0.2:
            return Terms(specs, own=True)
        return Terms(specs, self.rng.randint(1, 4))

    def _demand(self, name: str) -> Demand:
        rng = self.rng
        terms = rng.choice(self.pool[:3] if rng.random() < 0.8 else self.pool)
        amounts = tuple(
            None
            if rng.random() < 0.2
            else 1000 * rng.choice((0, 1, spec.capacity_milli // 3000, spec.capacity_milli // 1000))
            for spec in terms.specs
        )
        return Demand(BucketKey("n" * 11, name, "r"), terms, amounts)

    def _take(self, names: list[str], demands: list[Demand]) -> None:
        verdict = run(self.store.consume(demands, self.now_ms))
        found = [self.model.get(name) for name in names]
        expected, after = decide(demands, found, self.now_ms)
        assert _told(verdict) == _told(expected)
        for name, before, record in zip(names, found, after, strict=True):
            if needs_write(expected, before, record):
                self.model[name] = record

    def _adjust(self, names: list[str], demands: list[Demand]) -> None:
        sign = self.rng.choice((1, -1))
        demands = [demand.inverse() if sign < 0 else demand for demand in demands]
        run(self.store.adjust(demands, self.now_ms))
        for name, demand in zip(names, demands, strict=True):
            if name in self.model or not is_credit_only(demand):
                before = self.model.get(name) or new_record(demand.terms, self.now_ms)
                self.model[name] = adjust_record(before, demand, self.now_ms)

    def compare(self) -> None:
        keys = [BucketKey("n" * 11, name, "r") for name in "pqst"]
        seen = run(self.store.peek(keys, self.now_ms))
        for key, record in zip(keys, seen.records, strict=True):
            expected = self.model.get(key.entity_id)
            assert (record is None) == (expected is None)
            if record is not None and expected is not None:
                assert self._shown(record) == self._shown(expected)
                assert record[TERMS].version == expected[TERMS].version

    def _shown(self, record: Record) -> list[tuple[object, ...]]:
        return [
            (cell.spec, cell.level_milli(self.now_ms), cell.consumed_milli)
            for cell in cells_of(record)
        ]


@pytest.mark.parametrize("seed", range(1, 6))
def test_random_decisions_agree_with_the_big_integer_model(redis_url: str, seed: int) -> None:
    """4000 steps a seed, 20 000 in all: capacities to 10^9, weeks of idling, changing limits."""
    servers.flush(redis_url)
    backend = open_backend(redis_url, blocking=True)
    twin = Twin(backend.store, seed)
    for number in range(4000):
        twin.step()
        if number % 50 == 0:
            twin.compare()
    run(backend.store.close())


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        (Limit.per_second("x", 2**52 // 1000 + 1), "count in larger units"),
        (Limit.custom("x", 10, 1, 9 * 365 * 86_400 + 1), "choose a rounder rate"),
    ],
    ids=["too large", "too slow"],
)
def test_limits_that_cannot_be_exact_are_refused(redis_url: str, limit: Limit, says: str) -> None:
    """With a call, and when they are set."""
    servers.flush(redis_url)
    with SyncRateLimiter(redis_url) as limiter:
        with pytest.raises(ValidationError, match=says):
            with limiter.acquire("a", "api", {"x": 1}, limits=[limit]):
                pass
    with SyncRepository(redis_url) as repository:
        repository.create_entity("a")
        for set_it in (
            lambda: repository.set_limits("a", [limit]),
            lambda: repository.set_limits("a", [limit], "api"),
            lambda: repository.set_resource_defaults("api", [limit]),
            lambda: repository.set_system_defaults([limit]),
            lambda: SyncRateLimiter(redis_url, limits=[limit]),
        ):
            with pytest.raises(ValidationError, match=says):
                set_it()
        assert repository.get_limits("a") == repository.get_resource_defaults("api") == []
        fine = Limit.per_second("x", 2**52 // 1000)
        repository.set_limits("a", [fine])
        assert repository.get_limits("a") == [fine]


@pytest.mark.parametrize("of", [("one",), ("one", "two")], ids=["one bucket", "two buckets"])
@pytest.mark.parametrize("specs", [1, 2], ids=["one limit", "two limits"])
def test_a_clock_that_jumps_years_ahead_and_back_blocks_nothing(
    redis_url: str, of: tuple[str, ...], specs: int
) -> None:
    """As memory and SQLite do: see tests/core/test_clock_steps.py."""
    servers.flush(redis_url)
    store = open_backend(redis_url, blocking=True).store
    limits = [Limit.per_minute("n", 60), Limit.per_day("slow", 60)][:specs]
    terms = Terms(tuple(limit.spec for limit in limits), 1)
    now_ms, years_ms = 1_800_000_000_000, 5 * 365 * 24 * 3_600_000

    def demands(tokens: int) -> list[Demand]:
        return [Demand(BucketKey("ns", "e", name), terms, (tokens * 1000,) * specs) for name in of]

    def take(at_ms: int, tokens: int) -> Verdict:
        return run(store.consume(demands(tokens), at_ms))

    assert take(now_ms, 10)
    assert take(now_ms + years_ms, 20)  # full again there, 40 are left
    hour_ms = 3_600_000
    assert not take(now_ms + years_ms - hour_ms, 40)  # S12: an hour behind moves nothing
    sighting = run(store.peek([demand.key for demand in demands(1)], now_ms + 1000))
    assert sighting.verdict(demands(40))
    assert not take(now_ms + 1000, 41)  # the level came along, and no more
    assert take(now_ms + 1000, 40)
    wait_ms = take(now_ms + 1000, 1).retry_after_ms
    assert wait_ms is not None
    assert wait_ms <= 24 * hour_ms // 60
    assert not take(now_ms + 1000 + wait_ms - 1, 1)
    assert take(now_ms + 1000 + wait_ms, 1)

    run(store.adjust(demands(1000), now_ms + years_ms))  # S7: debt comes along
    assert not take(now_ms, 1)
    assert not take(now_ms + 10 * 60_000, 1)
    assert take(now_ms + 20 * 24 * hour_ms, 1)  # and is paid from the first refusal on
    run(store.close())


def test_a_client_whose_clock_is_an_hour_off_changes_nothing(redis_url: str) -> None:
    servers.flush(redis_url)
    limits = [Limit.per_hour("x", 60)]
    with SyncRateLimiter(redis_url, limits=limits) as honest:
        with honest.acquire("a", "api", {"x": 60}):
            pass
        hour_ms = 3_600_000
        real_ms = honest.core.clock
        for skew_ms in (hour_ms, -hour_ms):
            with SyncRateLimiter(
                redis_url, limits=limits, clock=lambda skew_ms=skew_ms: real_ms() + skew_ms
            ) as skewed:
                with pytest.raises(RateLimitExceeded) as caught:
                    with skewed.acquire("a", "api", {"x": 1}):
                        pass
                assert 0 < caught.value.retry_after_seconds <= 60
                assert skewed.available("a", "api") == {"x": 0}


def test_debt_survives_a_restart_with_aof() -> None:
    limits = [Limit.per_day("x", 10)]
    with servers.folder() as folder:
        with servers.Server(folder, "--appendonly", "yes", "--appendfsync", "always") as server:
            with SyncRateLimiter(server.url, limits=limits) as limiter:
                with limiter.acquire("a", "api", {"x": 5}) as lease:
                    lease.adjust(x=50)
                server.kill()
                server.start()
                assert limiter.available("a", "api") == {"x": -45}


def test_one_call_per_decision_and_none_for_leaving(redis_url: str) -> None:
    servers.flush(redis_url)
    limits = [Limit.per_minute(name, 1000) for name in ("a", "b", "c")]
    with SyncRateLimiter(redis_url, limits=limits) as limiter:
        asked = [(f"e{n}", "api", {"a": 1, "b": 1, "c": 1}) for n in range(5)]
        with limiter.acquire_many(asked):
            pass
        servers.command(redis_url, "CONFIG", "RESETSTAT")
        with limiter.acquire_many(asked):
            pass
        assert servers.called(redis_url)["evalsha"] == 1


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
@pytest.mark.parametrize("server", ["redis_url", "cluster_url"])
def test_a_call_packed_once_is_the_right_one_each_time(
    request: pytest.FixtureRequest, server: str, blocking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without refill, so that the server's own clock changes nothing: amounts, terms and keys
    change between calls, the scripts are forgotten, and the packed calls are few."""
    monkeypatch.setattr("headgate.stores.redis.buckets.CALLS_MAX", 4)
    url = request.getfixturevalue(server)
    servers.flush(url)
    rng = random.Random(5)
    names = ("a", "b", "c")

    async def main() -> None:
        backend = open_backend(url, blocking=blocking)
        left: dict[str, int] = {}
        for version in range(1, 6):
            terms = Terms((Limit.custom("n", 10**6, 0, 1).spec,), version)
            for turn in range(40):
                name, amount = rng.choice(names), rng.choice((1, 2, 3000))
                if turn == 20:
                    servers.everywhere(url, "SCRIPT", "FLUSH")
                demand = Demand(BucketKey("ns", name, "r"), terms, (amount * 1000,))
                verdict = await backend.store.consume([demand], None)
                left[name] = left.get(name, 10**6) - amount
                assert verdict.allowed
                assert verdict.statuses[0].available == left[name]
                assert len(getattr(backend.store, "_calls", ())) <= 4
        await backend.store.close()

    if blocking:
        run(main())
    else:
        asyncio.run(main())
