"""The memory store stays within its bound and forgets nobody who is in use."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate import SyncRateLimiter, SyncRepository
from headgate.core.decision import Demand
from headgate.core.errors import Contended, Full
from headgate.core.history import UsageQuery
from headgate.core.levels import Entity
from headgate.core.limits import Limit
from headgate.core.record import CELLS, TOKENS, BucketKey, Terms
from headgate.core.runtime import run
from headgate.stores import catalog as rules
from headgate.stores.memory import buckets as module
from headgate.stores.memory import ledger as history
from headgate.stores.memory import open_memory
from headgate.stores.memory.buckets import MemoryStore
from headgate.stores.records import EntityFamily
from headgate.testing import FakeClock
from proof.size import sized
from tests.walks import walked

NOW_MS = 1_767_225_600_000
SLOW = Terms((Limit.per_day("x", 10).spec,), 1)
FAST = Terms((Limit.per_second("x", 1000).spec,), 1)


def take(store: MemoryStore, name: str, terms: Terms, amount: int, now_ms: int) -> bool:
    demand = Demand(BucketKey("n" * 11, name, "r"), terms, (amount * 1000,))
    return run(store.consume([demand], now_ms)).allowed


def test_destroy_leaves_nothing() -> None:
    """Buckets, usage, audit, small texts, notes and what was claimed once, of every namespace."""
    clock = FakeClock(NOW_MS)
    with SyncRepository("memory://", clock=clock) as repository:
        limiter = SyncRateLimiter(repository, limits=[Limit.per_minute("rpm", 5)])
        repository.register_namespace("other")
        other = SyncRateLimiter(repository.namespace("other"), limits=[Limit.per_minute("rpm", 5)])
        for one in (limiter, other):
            with one.acquire("a", "api", {"rpm": 3}):
                pass
            one.top_up("a", "api", {"rpm": 1}, idempotency_key="once")
        clock.advance(3_600_000)
        assert limiter.get_usage_snapshots()[0]
        repository.set_version_record({"note": 1})
        backend = repository.core.backend
        run(backend.expiring.put("gone", "name", "text", NOW_MS, seen=None))
        run(backend.catalog.destroy())
        assert repository.get_version_record() == {"schema_version": 1}
        assert repository.list_namespaces() == []
        store, ledger = backend.store, backend.ledger
        left = (store._buckets, store._once, ledger._usage, ledger._audit, backend.expiring._texts)
        assert [len(one) for one in left] == [0, 0, 0, 0, 0]


def test_full_buckets_make_room() -> None:
    store = MemoryStore(buckets_max=100)
    for n in range(4_000):
        assert take(store, f"k{n}", FAST, 1, NOW_MS + n)
        assert len(store) <= 100


def test_a_bucket_in_use_is_never_forgotten() -> None:
    store = MemoryStore(buckets_max=100)
    for n in range(100):
        assert take(store, f"k{n}", SLOW, 10, NOW_MS)
    with pytest.raises(Full, match="buckets_max"):
        take(store, "one-more", SLOW, 1, NOW_MS)
    assert not any(take(store, f"k{n}", SLOW, 1, NOW_MS) for n in range(100))
    assert take(store, "one-more", SLOW, 1, NOW_MS + 86_400_000)


@pytest.mark.parametrize("early_ms", [1, 999])
def test_a_bucket_makes_room_when_it_is_full_and_not_a_moment_earlier(early_ms: int) -> None:
    """Whoever comes back to a bucket that was forgotten too early finds a full one."""
    store = MemoryStore(buckets_max=2)
    start_ms = NOW_MS + 500  # in the middle of a second, so that rounding to seconds shows
    full_ms = start_ms + 86_400_000
    assert take(store, "a", SLOW, 10, start_ms)
    assert take(store, "b", SLOW, 10, start_ms)
    with pytest.raises(Full):
        take(store, "new", SLOW, 1, full_ms - early_ms)
    assert not take(store, "a", SLOW, 10, full_ms - early_ms)
    assert take(store, "new", SLOW, 1, full_ms)
    assert take(store, "a", SLOW, 10, full_ms)


def test_a_stand_in_gives_way_with_the_fullest() -> None:
    store = MemoryStore(buckets_max=50, gives_way=True)
    for n in range(50):
        assert take(store, f"k{n}", SLOW, 1 + n % 10, NOW_MS)
    assert take(store, "new", SLOW, 10, NOW_MS)
    assert len(store) == 50
    assert not take(store, "new", SLOW, 1, NOW_MS)
    empty = [f"k{n}" for n in range(50) if n % 10 == 9]
    assert not any(take(store, name, SLOW, 1, NOW_MS) for name in empty)


def test_usage_of_an_evicted_bucket_is_kept() -> None:
    store = MemoryStore(buckets_max=10)
    for n in range(100):
        assert take(store, f"k{n}", FAST, 3, NOW_MS + n * 10)
    rows = store._ledger._usage
    assert (
        sum(one.counters["x"] for (_, kind, *_), one in rows.items() if kind == "hourly")
        >= 90 * 3000
    )


def test_a_family_that_grows_as_fast_as_it_is_deleted_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "DELETE_STEPS_MAX", 3)
    catalog = open_memory().catalog
    namespace = run(catalog.register_namespace("team", None, NOW_MS)).id
    run(catalog.create_entity(namespace, Entity("a"), None, NOW_MS))
    read, steps = catalog.records.read_family, []

    async def never_complete(*whose: str) -> EntityFamily:
        steps.append(whose)
        return (await read(*whose))._replace(is_complete=False)

    monkeypatch.setattr(catalog.records, "read_family", never_complete)
    with pytest.raises(Contended, match="'a' still has children or limits after 3 steps"):
        run(catalog.delete_entity(namespace, "a", None, NOW_MS))
    assert len(steps) == 3
    assert run(catalog.get_entity(namespace, "a")) is not None


# A lease that the garbage collector ends, in the middle of what its thread does in the store.

KEY = BucketKey("n", "e", "r")
TERMS = Terms((Limit.per_day("x", 10).spec,), 1)


def in_time(work: Callable[[], Any]) -> None:
    """A thread that waits for itself would wait for ever."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def demand(tokens: int) -> Demand:
    return Demand(KEY, TERMS, (tokens * 1000,))


@pytest.mark.parametrize("step", ["take", "decide", "needs_write", "adjust_record"])
def test_what_is_given_back_in_the_middle_is_not_lost(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    run(store.consume([demand(6)], NOW_MS))
    real = getattr(module, step)
    ended = []

    def interrupted(*args: Any, **how: Any) -> Any:
        result = real(*args, **how)
        if not ended:
            ended.append(True)
            run(store.adjust([demand(-4)], NOW_MS))
        return result

    monkeypatch.setattr(module, step, interrupted)

    def work() -> None:
        if step == "adjust_record":
            run(store.adjust([demand(1)], NOW_MS))
        else:
            other = Demand(BucketKey("n", "e2", "r"), TERMS, (1000,))
            wanted = [demand(1)] if step == "take" else [demand(1), other]
            assert run(store.consume(wanted, NOW_MS)).allowed

    in_time(work)
    assert ended
    [record] = run(store.peek([KEY], NOW_MS)).records
    assert record[CELLS + TOKENS] == (10 - 6 + 4 - 1) * 1000


def usage_of(store: MemoryStore) -> dict[str, tuple[int, int]]:
    """By window: tokens and events."""
    page = run(store._ledger.usage("n", UsageQuery(limit=100), None))
    return {
        f"{one.window_type} {one.window_start[:13]}": (one.counters["x"], one.total_events)
        for one in page.items
    }


@pytest.mark.parametrize("on", ["mark_counted", "count", "add_counters"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_is_given_back_while_an_hour_is_counted_is_counted_once(
    on: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """6 in one hour; in the next one 4 of it come back while 1 is taken."""
    clock = FakeClock(NOW_MS)
    store = MemoryStore(clock)
    run(store.consume([demand(6)], NOW_MS))
    later_ms = NOW_MS + 3_600_000
    place: Any = {"mark_counted": module, "count": store._ledger, "add_counters": history}[on]
    real = getattr(place, on)
    ended = []

    def interrupted(*args: Any, **how: Any) -> Any:
        found = real(*args, **how) if moment == "after" else None
        if not ended:
            ended.append(True)
            run(store.adjust([demand(-4)], later_ms))
        return found if moment == "after" else real(*args, **how)

    monkeypatch.setattr(place, on, interrupted)
    in_time(lambda: run(store.consume([demand(1)], later_ms)))
    assert ended
    [record] = run(store.peek([KEY], later_ms)).records
    assert record[CELLS + TOKENS] == (10 - 6 + 4 - 1) * 1000
    clock.advance(3_600_000)
    assert usage_of(store) == {
        "hourly 2026-01-01T00": (6, 1), "hourly 2026-01-01T01": (-3, 1),
        "daily 2026-01-01T00": (3, 2), "monthly 2026-01-01T00": (3, 2),
    }  # fmt: skip


def test_what_is_given_back_while_usage_is_read_is_neither_lost_nor_counted_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock(NOW_MS)
    store = MemoryStore(clock)
    for name in ("e", "e2", "e3"):
        run(store.consume([Demand(BucketKey("n", name, "r"), TERMS, (6000,))], NOW_MS))
    real = module.has_uncounted_usage
    ended: list[str] = []

    def interrupted(record: Any) -> bool:
        if not ended:  # gives back to one that is being counted, and makes another
            ended.append("")
            run(store.adjust([demand(-4)], NOW_MS))
            run(store.adjust([Demand(BucketKey("n", "new", "r"), TERMS, (1000,))], NOW_MS))
        return real(record)

    monkeypatch.setattr(module, "has_uncounted_usage", interrupted)
    in_time(lambda: usage_of(store))
    assert ended
    page = run(store._ledger.usage("n", UsageQuery(limit=100, window_type="hourly"), None))
    used = {one.entity_id: one.counters["x"] for one in page.items}
    assert used == {"e": 2, "e2": 6, "e3": 6, "new": 1}
    [record] = run(store.peek([KEY], NOW_MS)).records
    assert record[CELLS + TOKENS] == 8000


def test_a_bucket_that_is_taken_from_while_it_makes_room_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore(buckets_max=2)
    run(store.consume([demand(0)], NOW_MS))
    real = module.full_at_ms
    ended = []

    def interrupted(record: Any) -> Any:
        found = real(record)
        if not ended:
            ended.append(True)
            run(store.adjust([demand(8)], NOW_MS))
        return found

    monkeypatch.setattr(module, "full_at_ms", interrupted)
    in_time(lambda: run(store.consume([Demand(BucketKey("n", "z", "r"), TERMS, (0,))], NOW_MS)))
    assert ended
    [record] = run(store.peek([KEY], NOW_MS)).records
    assert record[CELLS + TOKENS] == 2000


def test_several_buckets_given_back_in_the_middle_lose_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that are all there are decided in a shorter way, with the same care."""
    store = MemoryStore()
    other = Demand(BucketKey("n", "e2", "r"), TERMS, (1000,))
    run(store.consume([demand(6), other], NOW_MS))
    real, ended = module.take, []

    def interrupted(*args: Any) -> Any:
        result = real(*args)
        if not ended:
            ended.append(True)
            run(store.adjust([demand(-4)], NOW_MS))
        return result

    monkeypatch.setattr(module, "take", interrupted)
    in_time(lambda: run(store.consume([demand(1), other], NOW_MS)))
    levels = [record[CELLS + TOKENS] for record in store._buckets.values()]
    assert (ended, levels) == ([True], [7000, 8000])


@settings(max_examples=sized(60, 200, 2000), suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from("abc"), min_size=2, max_size=3, unique=True),
            st.integers(0, 12),
            st.sampled_from([0, 1, 60_000, 3_600_000]),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_several_buckets_that_are_there_are_decided_as_all_others(
    steps: list[tuple[list[str], int, int]],
) -> None:
    short, long = MemoryStore(), MemoryStore()
    now_ms = NOW_MS
    for names, tokens, passed_ms in steps:
        now_ms += passed_ms
        demands = [
            Demand(BucketKey("n", name, "r"), TERMS, (tokens * 1000,), cascaded=cascaded)
            for name, cascaded in zip(names, (None, (tokens * 1000,), None), strict=False)
        ]
        said = short.consume_local(demands, now_ms)
        wanted = long._consume_all(demands, now_ms)
        assert (said.allowed, said.outdated) == (wanted.allowed, wanted.outdated)
        assert said.statuses == wanted.statuses
        assert list(said.records) == list(wanted.records)
        assert list(said.before) == list(wanted.before)
        assert short._buckets == long._buckets


@pytest.mark.parametrize("tokens", [1, 10])
def test_several_buckets_that_are_there_are_decided_once(tokens: int) -> None:
    """Also where they refuse: an attack is not decided twice."""
    store = MemoryStore()
    demands = [
        Demand(BucketKey("n", name, "r"), TERMS, (amount * 1000,))
        for name, amount in (("a", 1), ("b", tokens))
    ]
    store.consume_local([Demand(one.key, TERMS, (1000,)) for one in demands], NOW_MS)
    with walked() as walk:
        assert store.consume_local(demands, NOW_MS).allowed is (tokens == 1)
    assert walk.calls == 7, walk  # itself, the short way, and two calls a bucket; the verdict
    assert "MemoryStore._consume_all" not in {name for _, name in walk.steps}


class Stream:
    """Who reads one row of it and loses interest leaves a cycle to the collector."""

    def __init__(self, limiter: SyncRateLimiter, key: str) -> None:
        self.limiter, self.key = limiter, key
        self.rows = self.read()

    def read(self) -> Iterator[int]:
        with self.limiter.acquire(self.key, "api", {"rps": 1}):
            yield 1
            yield 2


def test_generators_that_are_dropped_with_a_lease_stop_nobody() -> None:
    kept = gc.get_threshold()

    def work() -> None:
        gc.set_threshold(7)
        try:
            with SyncRateLimiter(limits=[Limit.per_second("rps", 10**9)]) as limiter:
                for number in range(3000):
                    next(Stream(limiter, f"k{number % 50}").rows)
        finally:
            gc.set_threshold(*kept)

    in_time(work)
