"""Exact arithmetic beside the pure model, limits that Redis refuses, clocks, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headgate import Limit, RateLimitExceeded, SyncRateLimiter, SyncRepository, ValidationError
from headgate.core.decision import Demand, Verdict
from headgate.core.errors import Damaged, Full, StoreDenied, StoreTrouble, UndoLost, Unreachable
from headgate.core.history import UsageQuery
from headgate.core.lease import GROWN_MAX_MILLI
from headgate.core.record import CELLS, HOUR_MS, TERMS, TOKENS, BucketKey, Terms, cells_of
from headgate.core.runtime import run
from headgate.core.store import Outcome, Store, consume_each
from headgate.repository import open_backend
from headgate.stores.memory import open_memory
from headgate.stores.redis import keys
from headgate.stores.redis.buckets import RedisStore
from headgate.stores.redis.client.calls import RedisPort, open_port
from headgate.stores.redis.encoding import AMOUNT_MAX_MILLI, hour_args
from headgate.stores.redis.scripts import matching_keys
from tests.stores.programs import KEYS, Program
from tests.stores.redis import servers


def _told(verdict: Verdict) -> tuple[object, ...]:
    rows = [(s.limit_name, s.available, s.exceeded, s.retry_after_ms) for s in verdict.statuses]
    return verdict.allowed, verdict.retry_after_ms, verdict.outdated, rows


def _some_limits(rng: random.Random) -> list[Limit]:
    found = []
    for number in range(40):
        capacity = rng.choice((1, 5, 100, 10**4, 10**9))
        refill = rng.choice((0, 1, 7, capacity, capacity // 2 + 1, 10**6, 10**9 + 7))
        period = rng.choice((1, 7, 60, 3600, 86_399, 86_400, 604_800, 999_983))
        soft = rng.random() < 0.1
        found.append(Limit.custom("abcd"[number % 4], capacity, refill, period, soft=soft))
    return found


QUOTAS = [
    Limit.quota(name, capacity, soft=soft, **schedule)
    for (name, capacity, soft), schedule in zip(
        [(name, capacity, False) for name in "abcd" for capacity in (1, 40, 10**6)]
        + [("a", 9, True)],
        itertools.cycle(
            (
                {"every": "day", "tz": "Europe/Berlin"},
                {"reset_after": 60},
                {"cron": "0 */3 * * *", "tz": "America/St_Johns"},
                {"every": "month", "tz": "Asia/Tokyo"},
                {"reset_after": 7 * 366 * 86_400 + 1},
                {"every": "week"},
                {"reset_after": 86_399},
                {"cron": "30 2 * * 0", "tz": "Pacific/Apia"},
            )
        ),
        strict=False,
    )
]


def _shown(store: Store, now_ms: int) -> list[object]:
    return [
        record
        and (
            record[TERMS].version,
            [(one.spec, one.level_milli(now_ms), one.consumed_milli) for one in cells_of(record)],
        )
        for record in run(store.peek(KEYS, now_ms)).records
    ]


@pytest.mark.parametrize("seed", range(1, 6))
def test_random_decisions_agree_with_the_big_integer_model(redis_url: str, seed: int) -> None:
    """4000 steps a seed, 20 000 in all: capacities to 10^9, weeks of idling, changing limits."""
    servers.flush(redis_url)
    stores = [open_memory().store, open_backend(redis_url, blocking=True).store]
    program = Program(seed, _some_limits(random.Random(seed)), _told)
    program.gaps_ms.remove(-250)
    for number in range(4000):
        told = program.step(stores)
        assert told[0] == told[1], number
        if number % 50 == 0:
            shown = [_shown(store, program.now_ms) for store in stores]
            assert shown[0] == shown[1], number
    run(stores[1].close())


@pytest.mark.parametrize("seed", range(11, 15))
def test_random_decisions_with_quotas_agree_with_the_big_integer_model(
    redis_url: str, seed: int
) -> None:
    """Beside limits of all kinds: schedules that change, debts that are years old, idling."""
    servers.flush(redis_url)
    stores = [open_memory().store, open_backend(redis_url, blocking=True).store]
    dice = random.Random(seed)
    program = Program(seed, QUOTAS + dice.sample(_some_limits(dice), 8), _told)
    program.gaps_ms.remove(-250)
    program.gaps_ms += [11 * HOUR_MS] * (seed % 2) + [3 * HOUR_MS]
    program.gaps_ms.remove(40 * 24 * HOUR_MS)
    for number in range(1500):
        if number % 300 == 299:
            program.now_ms += 400 * 24 * HOUR_MS
        told = program.step(stores)
        assert told[0] == told[1], number
        if number % 20 == 0:
            shown = [_shown(store, program.now_ms) for store in stores]
            assert shown[0] == shown[1], number
    run(stores[1].close())


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


def test_a_lease_grows_no_further_than_one_call_can_give_back(redis_url: str) -> None:
    """Its books and the bucket stay as they were where it is refused; it settled to nothing on its
    own books, and left the debt in the bucket, after it had grown twice by the most of a call."""
    servers.flush(redis_url)
    most, once = GROWN_MAX_MILLI // 1000, AMOUNT_MAX_MILLI // 1000
    with SyncRateLimiter(redis_url, limits=[Limit("x", 10, 0, 1)]) as limiter:
        with limiter.acquire("a", "api", {"x": 5}) as lease:
            for too_much in (once + 1, once, most - 4):
                with pytest.raises(ValidationError, match="hold more than 1125899906842; use"):
                    lease.adjust(x=too_much)
                with pytest.raises(ValidationError):
                    lease.consume(x=too_much)
                assert lease.consumed == {"x": 5}
            lease.adjust(x=most - 5)
            assert limiter.available("a", "api") == {"x": 10 - most}
            lease.settle(x=3)
            assert lease.consumed == {"x": 3}
        assert limiter.available("a", "api") == {"x": 7}
        with (
            pytest.raises(RuntimeError, match="the block's own"),
            limiter.acquire("a", "api", {"x": 1}) as lease,
        ):
            lease.adjust(x=most - 1)
            raise RuntimeError("the block's own")
        assert limiter.available("a", "api") == {"x": 7}


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
    url: str, blocking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without refill, so that the server's own clock changes nothing: amounts, terms and keys
    change between calls, the scripts are forgotten, and the packed calls are few."""
    monkeypatch.setattr("headgate.stores.redis.buckets.CALLS_MAX", 4)
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


# Servers that were demoted or are full, buckets that something else wrote, and replies that are
# none: always headgate's own words, for batches as for single decisions.

DAILY = Terms((Limit.per_day("d", 12).spec,), 1)
DEMANDS = [Demand(BucketKey("ns", f"e{n}", "x"), DAILY, (1000,)) for n in range(3)]


@contextlib.contextmanager
def opened(url: str) -> Iterator[tuple[RedisStore, RedisPort]]:
    port = open_port(url, blocking=True)
    try:
        yield RedisStore(port), port
    finally:
        run(port.close())


def each(store: RedisStore) -> list[Outcome]:
    return run(consume_each(store, [[demand] for demand in DEMANDS], None))


@pytest.mark.parametrize("server", ["own_server", "old_server"])
def test_a_batch_that_meets_a_replica_leaves_it(url: str) -> None:
    with opened(url) as (store, port):
        assert all(isinstance(one, Verdict) for one in each(store))
        servers.command(url, "REPLICAOF", servers.HOST, servers.free_port())
        before = run(port.command("CLIENT", "ID"))
        told = each(store)
        assert [type(one) for one in told] == [Unreachable] * 3
        assert "replica" in str(told[0])
        assert run(port.command("CLIENT", "ID")) != before  # the name may lead elsewhere by now
        servers.command(url, "REPLICAOF", "NO", "ONE")
        assert all(isinstance(one, Verdict) and one.allowed for one in each(store))


@pytest.mark.parametrize("server", ["own_server", "old_server"])
def test_a_batch_that_meets_full_memory_is_told_so(url: str) -> None:
    with opened(url) as (store, _):
        servers.command(url, "CONFIG", "SET", "maxmemory", "1")
        told = each(store)
        assert [type(one) for one in told] == [Full] * 3
        assert "memory is full" in str(told[0])
        servers.command(url, "CONFIG", "SET", "maxmemory", "0")
        left = [one.statuses[0].available for one in each(store) if isinstance(one, Verdict)]
        assert left == [11, 11, 11], "nothing of the failed batch was done"


def test_a_batch_follows_a_failover_that_sentinel_tells(own_server: servers.Server) -> None:
    with servers.folder() as folder, servers.Server(folder) as successor:
        masters = [own_server.port]
        with said(lambda _: _master(masters[-1])) as sentinel:
            address = f"redis+sentinel://{servers.HOST}:{sentinel}/main"
            with opened(address) as (store, port):
                assert all(isinstance(one, Verdict) for one in each(store))
                servers.command(own_server.url, "REPLICAOF", servers.HOST, successor.port)
                masters.append(successor.port)
                told = each(store)
                assert [isinstance(one, Verdict) and one.allowed for one in told] == [True] * 3
                assert run(port.command("ROLE"))[0] == "master"


def _master(port: int) -> bytes:
    return b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%d\r\n" % (len(str(port)), port)


def test_a_bucket_that_an_older_version_stored_is_read_on(redis_url: str) -> None:
    """Its shape, its end and its row of usage are those of before demands came packed."""
    servers.flush(redis_url)
    core = (
        '{"version":1,"own":false,"specs":[["x",10000,60000,3600000,false]],"sources":["override"]}'
    )
    demand = Demand(
        BucketKey("older", "e", "r"), Terms((Limit.per_hour("x", 60, burst=10).spec,), 1), (1000,)
    )
    with opened(redis_url) as (store, _):
        now_ms = run(store.peek([], None)).now_ms
        hour = now_ms // 3_600_000
        name, row = keys.bucket(demand.key), keys.usage(demand.key) + str(hour_args(now_ms)[1])
        old = "cmsgpack.pack(ARGV[1], '', 0, tonumber(ARGV[2]), 4000, 6000, 0), 'PX', 660000"
        put = f"redis.call('SET', KEYS[1], {old})"
        servers.command(redis_url, "EVAL", put, 1, name, core, now_ms)
        servers.command(redis_url, "HSET", row, f"{hour}:", 6, f"{hour}:x", 6000)
        servers.command(redis_url, "SADD", keys.usage_index("older", "e"), row)
        for left in (3, 2, 1, 0):
            verdict = run(store.consume([demand], None))
            assert verdict.allowed
            assert verdict.statuses[0].available == left
            life_ms = servers.command(redis_url, "PTTL", name)
            assert life_ms > (10 - left) * 60_000
        assert not run(store.consume([demand], None)).allowed
    backend = open_backend(redis_url, blocking=True)
    shots = run(backend.ledger.usage("older", UsageQuery("e", window_type="monthly"), None)).items
    run(backend.store.close())
    assert sum(shot.total_events for shot in shots) == 10
    assert sum(shot.counters["x"] for shot in shots) == 10


# As an earlier version takes one token of the first limit: numbers in the shortest form.
EARLIER_TAKE = """
local cells = { cmsgpack.unpack(redis.call('GET', KEYS[1])) }
cells[5] = cells[5] - 1000
cells[6] = cells[6] + 1000
redis.call('SET', KEYS[1], cmsgpack.pack(unpack(cells)), 'KEEPTTL')
return {cells[1], cells[2], unpack(cells, 3)}
"""


@pytest.mark.parametrize("names", [("x",), ("x", "y", "z")], ids=["one limit", "three limits"])
@pytest.mark.parametrize("usage", ["on", "off"])
def test_an_earlier_version_shares_a_bucket_with_this_one(
    redis_url: str, names: tuple[str, ...], usage: str
) -> None:
    """Either reads what the other wrote, and the usual case writes its numbers in place."""
    servers.flush(redis_url)
    terms = Terms(tuple(Limit.per_second(name, 1000).spec for name in names), 1)
    demand = Demand(BucketKey("ns", "e", "r"), terms, (1000, None, 2000)[: len(names)])
    backend = open_backend(f"{redis_url}?usage={usage}", blocking=True)
    left, name, now_ms = 1000, keys.bucket(demand.key), 1_800_000_001_000

    def take() -> Counter[str]:  # no time passes, so the bucket is full at the same moment
        nonlocal left
        left -= 1
        servers.command(redis_url, "CONFIG", "RESETSTAT")
        verdict = run(backend.store.consume([demand], now_ms))
        assert verdict.allowed
        assert verdict.statuses[0].available == left
        return servers.called(redis_url)

    assert take()["set"] == 1
    for _ in range(3):
        for _ in range(2):
            called = take()
            assert (called["setrange"], called["set"]) == (1, 0)
        core, dormant, newest, epoch, *cells = servers.command(
            redis_url, "EVAL", EARLIER_TAKE, 1, name
        )
        left -= 1
        assert json.loads(core)["version"] == 1
        assert (dormant, newest, epoch) == ("", 0, now_ms)
        assert cells[:3] == [left * 1000, (1000 - left) * 1000, 0]
        called = take()
        assert (called["setrange"], called["set"]) == (0, 1)
    run(backend.store.close())


DAMAGE = [
    "redis.call('SET', KEYS[1], 'garbage')",
    "redis.call('SET', KEYS[1], '')",
    "redis.call('SET', KEYS[1], cmsgpack.pack(1))",
    "redis.call('SET', KEYS[1], cmsgpack.pack('no json', '', 0, 1, 2, 3, 4))",
    "redis.call('SET', KEYS[1], cmsgpack.pack('{}', '', 0, 1, 2, 3, 4))",
    "redis.call('DEL', KEYS[1]) redis.call('LPUSH', KEYS[1], 'x')",
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_bucket_is_trouble_of_its_own_and_forgetting_heals_it(
    redis_url: str, damage: str
) -> None:
    servers.flush(redis_url)
    bad, good = DEMANDS[0], DEMANDS[1]
    with opened(redis_url) as (store, port):
        run(store.consume([bad], None))
        (key,) = run(matching_keys(port, "*:b:*"))
        servers.command(redis_url, "EVAL", damage, 1, key)
        for verb in (
            store.consume([bad], None),
            store.adjust([bad], None),
            store.peek([bad.key], None),
        ):
            with pytest.raises(StoreTrouble) as caught:
                run(verb)
            assert not isinstance(caught.value, Unreachable)
        told = run(consume_each(store, [[bad], [good]], None))
        assert isinstance(told[0], StoreTrouble)
        assert not isinstance(told[0], Unreachable)
        assert isinstance(told[1], Verdict)
        run(store.forget([bad.key]))
        assert run(store.consume([bad], None)).statuses[0].available == 11


REPLIES = [
    b"+OK", b":1", b"$-1", b"*-1", b"*0", b"*1\r\n:5", b"*2\r\n:5\r\n+x", b"*2\r\n+5\r\n+1",
    b"*2\r\n:1\r\n:99999999999999999", b"*3\r\n:1\r\n:1\r\n:1", b"*3\r\n:1\r\n:1\r\n*1\r\n:1",
    b"HTTP/1.1 400 Bad Request", b"-ERR unknown", b"-", b"*3\r\n-ERR\r\n-ERR\r\n-ERR",
]  # fmt: skip


@pytest.mark.parametrize("reply", REPLIES)
def test_what_is_no_reply_of_ours_is_trouble_and_never_an_admission(reply: bytes) -> None:
    with said(lambda asked: reply + b"\r\n" if b"EVAL" in asked else b"+OK\r\n") as server:
        with opened(f"redis://{servers.HOST}:{server}") as (store, _):
            for verb in (store.consume(DEMANDS[:1], None), store.peek([DEMANDS[0].key], None)):
                with pytest.raises(StoreTrouble):
                    run(verb)
            assert all(isinstance(one, StoreTrouble) for one in each(store))


def test_a_node_of_a_cluster_is_named() -> None:
    with said(lambda asked: b"-MOVED 1 h:1\r\n" if b"EVAL" in asked else b"+OK\r\n") as server:
        with opened(f"redis://{servers.HOST}:{server}") as (store, _):
            with pytest.raises(StoreDenied, match=r"redis\+cluster://"):
                run(store.consume(DEMANDS[:1], None))


def test_a_reply_that_cannot_be_read_undoes_what_other_slots_gave(cluster_url: str) -> None:
    servers.flush(cluster_url)
    with opened(cluster_url) as (store, port):
        ours = next(d for d in DEMANDS[1:] if _slot(port, d) != _slot(port, DEMANDS[0]))
        sent: list[Any] = []

        async def scripts(calls: Any) -> list[Any]:
            sent.append(calls)
            found = await type(port).scripts(port, calls)
            return [*found[:-1], [1, 2]] if len(sent) == 1 else found

        port.scripts = scripts  # type: ignore[method-assign]
        with pytest.raises(Damaged):
            run(store.consume([ours, DEMANDS[0]], None))
        record = run(store.peek([ours.key], None)).records[0]
        assert record[CELLS + TOKENS] == 12_000


def test_an_undo_over_slots_without_an_answer_is_told(cluster_url: str) -> None:
    servers.flush(cluster_url)
    with opened(cluster_url) as (store, port):
        theirs = next(d for d in DEMANDS[1:] if _slot(port, d) != _slot(port, DEMANDS[0]))
        all_of_it = Demand(theirs.key, theirs.terms, (12_000,))
        assert run(store.consume([all_of_it], None)).allowed
        sent: list[Any] = []

        async def scripts(calls: Any) -> list[Any]:
            sent.append(calls)
            found = await type(port).scripts(port, calls)
            return found if len(sent) == 1 else [Unreachable("no answer in time")]

        port.scripts = scripts  # type: ignore[method-assign]
        with pytest.raises(UndoLost, match="no answer in time"):
            run(store.consume([DEMANDS[0], theirs], None))
        assert len(sent) == 2


def _slot(port: RedisPort, demand: Demand) -> int:
    from headgate.stores.redis import keys

    return port.slot(keys.bucket(demand.key))


@contextlib.contextmanager
def said(answer: Callable[[bytes], bytes]) -> Iterator[int]:
    """The port of a server that says what it is told to, once for whatever it receives."""
    with socket.create_server((servers.HOST, 0)) as door:
        threading.Thread(target=_serve, args=(door, answer), daemon=True).start()
        yield door.getsockname()[1]
        with contextlib.suppress(OSError):
            door.shutdown(socket.SHUT_RDWR)


def _serve(door: socket.socket, answer: Callable[[bytes], bytes]) -> None:
    with contextlib.suppress(OSError):
        while True:
            caller, _ = door.accept()
            threading.Thread(target=_talk, args=(caller, answer), daemon=True).start()


def _talk(caller: socket.socket, answer: Callable[[bytes], bytes]) -> None:
    with caller, contextlib.suppress(OSError):
        while asked := caller.recv(65_536):
            commands = max(1, asked.count(b"CLIENT\r\n"))
            caller.sendall(b"".join(answer(asked) for _ in range(commands)))
