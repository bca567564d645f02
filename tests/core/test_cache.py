"""A cache is bounded, forgets in time, and knows what is not there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.plan_cache import Cache, CacheStats
from tests.core.kit import LAW

verbs = st.sampled_from(("get", "put", "put", "drop", "stale"))
stories = st.lists(st.tuples(verbs, st.integers(0, 6), st.integers(0, 5)), max_size=40)


@LAW
@given(stories, st.integers(1, 4), st.integers(1, 12))
def test_a_cache_is_a_bounded_map_whose_entries_live_for_a_while(
    story: list[tuple[str, int, int]], entries_max: int, ttl_ms: int
) -> None:
    cache: Cache[int] = Cache(ttl_ms, entries_max)
    model: dict[int, tuple[int, int]] = {}
    now_ms, gets, hits = 0, 0, 0
    for value, (verb, key, gap_ms) in enumerate(story):
        now_ms += gap_ms
        if verb == "put":
            cache.put(key, value, now_ms)
            model.pop(key, None)
            while len(model) >= entries_max:
                del model[next(iter(model))]
            model[key] = (now_ms + ttl_ms, value)
        elif verb == "drop":
            cache.drop(key)
            model.pop(key, None)
        elif verb == "stale":
            assert cache.stale(key) == (model[key][1] if key in model else None)
        else:
            end_ms, known = model.get(key, (0, -1))
            fresh = now_ms < end_ms
            assert cache.get(key, now_ms) == (known if fresh else None)
            gets, hits = gets + 1, hits + fresh
        assert len(model) <= entries_max
        assert cache.stats() == CacheStats(hits, gets - hits, len(model), ttl_ms / 1000)


def test_both_sides_of_the_time_border() -> None:
    cache: Cache[str] = Cache(100)
    cache.put("a", "value", 1_000)
    assert cache.get("a", 1_099) == "value"
    assert cache.get("a", 1_100) is None
    assert cache.stale("a") == "value", "better than nothing while its source is away"
    cache.put("a", "newer", 1_100)
    assert cache.get("a", 1_199) == "newer"


def test_what_was_not_found_is_remembered_too() -> None:
    cache: Cache[None] = Cache(100)
    cache.put("a", None, 0)
    assert cache.get("a", 1) is None
    assert (cache.hits, cache.misses) == (1, 0)
    assert cache.get("b", 1) is None
    assert (cache.hits, cache.misses) == (1, 1)


def test_a_time_to_live_of_zero_is_no_cache() -> None:
    cache: Cache[str] = Cache(0)
    cache.put("a", "value", 0)
    assert cache.get("a", 0) is None
    assert cache.stale("a") is None
    assert cache.stats().size == 0


def test_dropping_some_and_dropping_all() -> None:
    cache: Cache[int] = Cache(100)
    for number in range(6):
        cache.put(number, number, 0)
    for key in (1, 3, 5):
        cache.drop(key)
    assert [cache.get(number, 1) for number in range(6)] == [0, None, 2, None, 4, None]
    cache.drop("never there")
    cache.invalidate()
    assert cache.stats().size == 0
