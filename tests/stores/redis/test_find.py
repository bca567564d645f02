"""Buckets are found by an index: what a page costs and shows, and how the index stays small."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from headgate import Limit
from headgate.core.decision import Demand
from headgate.core.errors import ValidationError
from headgate.core.record import BucketKey, Terms
from headgate.core.runtime import run
from headgate.repository import open_backend
from headgate.stores.redis import keys
from headgate.stores.redis.buckets import RedisStore
from headgate.stores.redis.client.cluster import SLOTS, slot_of, tag_in_slot
from tests.stores.redis import servers

NAMESPACE = "spaceship-1"
INDEX = keys.bucket_index(NAMESPACE, 0, 1)
TERMS = Terms((Limit.per_hour("x", 1000).spec,), 1)
SERVERS = pytest.mark.parametrize("server", ["redis_url", "cluster_url"])
Names = list[tuple[str, str]]


@pytest.fixture
def store(url: str) -> Iterator[RedisStore]:
    found = open_backend(url, blocking=True).store
    yield found
    run(found.close())


def take(store: RedisStore, names: Names, namespace: str = NAMESPACE) -> None:
    for entity_id, resource in names:
        demand = Demand(BucketKey(namespace, entity_id, resource), TERMS, (1000,))
        assert run(store.consume([demand], None)).allowed


def pages(store: RedisStore, limit: int, **scope: str) -> list[Names]:
    """All pages, as they come."""
    found: list[Names] = []
    cursor = None
    for _ in range(1000):
        page = run(store.find(NAMESPACE, limit=limit, cursor=cursor, **scope))
        found.append([(key.entity_id, key.resource) for key in page.items])
        cursor = page.cursor
        if cursor is None:
            return found
    raise AssertionError("the pages have no end")


def joined(found: list[Names]) -> Names:
    return [name for page in found for name in page]


@pytest.mark.parametrize("server", ["redis_url"])
def test_a_page_costs_what_it_shows_whatever_else_is_stored(url: str, store: RedisStore) -> None:
    servers.command(url, "EVAL", "for n = 1, 10000 do redis.call('SET', 'hg:b:{other-one-1#' .. n "
                    ".. '}#r', n) redis.call('SET', 'stranger:' .. n, n) end", 0)  # fmt: skip
    names = [(f"e{n:03}", resource) for n in range(50) for resource in ("r", "s")]
    take(store, names)
    take(store, names[:10], "spaceship-2")
    run(store.find(NAMESPACE, limit=1))  # the server knows the script from here on
    servers.command(url, "CONFIG", "RESETSTAT")
    assert joined(pages(store, 10)) == names
    assert joined(pages(store, 10, resource="s")) == names[1::2]
    assert pages(store, 10, entity_id="e007") == [[("e007", "r"), ("e007", "s")]]
    assert pages(store, 10, entity_id="e007", resource="s") == [[("e007", "s")]]
    counted = servers.called(url)
    assert counted["evalsha"] == counted["zrangebylex"] == 10 + 5 + 1 + 1
    assert counted["exists"] <= 100 + 50 + 2 + 1 + 17  # each page looks at the one after it
    assert {"scan", "keys", "smembers", "zrem"}.isdisjoint(counted)


@SERVERS
def test_pages_are_whole_and_show_each_bucket_once(store: RedisStore) -> None:
    names = [(f"e{n:03}", resource) for n in range(60) for resource in ("r", "r2", "s")]
    take(store, names)
    for limit in (1000, 50):
        found = pages(store, limit)
        assert sorted(joined(found)) == names
        assert all(len(page) == limit for page in found[:-1])
    on_one = [name for name in names if name[1] == "r"]
    assert sorted(joined(pages(store, 25, resource="r"))) == on_one
    assert pages(store, 1, entity_id="e001") == [[("e001", one)] for one in ("r", "r2", "s")]
    run(store.forget([BucketKey(NAMESPACE, "e001", "r2")]))
    assert pages(store, 1, entity_id="e001") == [[("e001", "r")], [("e001", "s")]]
    assert ("e001", "r2") not in joined(pages(store, 1000))


@SERVERS
def test_a_bucket_that_expired_is_skipped_and_no_longer_listed(url: str, store: RedisStore) -> None:
    take(store, [(f"e{n}", "r") for n in range(9)])
    for n in (0, 1, 2, 3, 5, 8):
        servers.command(url, "DEL", keys.bucket(BucketKey(NAMESPACE, f"e{n}", "r")))
    found = pages(store, 2)
    assert sorted(joined(found)) == [("e4", "r"), ("e6", "r"), ("e7", "r")]
    assert [len(page) for page in found] == [2, 1]
    if "cluster" not in url:
        assert servers.command(url, "ZCARD", INDEX) == 2 * 3


@pytest.mark.parametrize("server", ["redis_url"])
def test_an_index_that_nobody_reads_stays_small(url: str, store: RedisStore) -> None:
    for n in range(300):
        take(store, [(f"visitor-{n}", "r")])
        servers.command(url, "DEL", keys.bucket(BucketKey(NAMESPACE, f"visitor-{n}", "r")))
    size = servers.command(url, "ZCARD", INDEX)
    assert size <= 60  # of 600 entries that ever were; chance alone does not miss 30 in a row


@pytest.mark.parametrize("server", ["redis_url"])
@pytest.mark.parametrize("cursor", ["", "e1", "a#b", "a#b#c#d"])
def test_a_cursor_that_no_page_returned_is_refused(store: RedisStore, cursor: str) -> None:
    with pytest.raises(ValidationError, match="cursor"):
        run(store.find(NAMESPACE, limit=10, cursor=cursor))


@pytest.mark.parametrize("stem", ["", "ns##", "spaceship-1##", "a_-9##"])
def test_there_is_a_tag_for_every_slot(stem: str) -> None:
    tags = [tag_in_slot(stem, slot) for slot in range(SLOTS)]
    assert all(tag.startswith(stem) and len(tag) == len(stem) + 4 for tag in tags)
    assert [slot_of(f"hg:i:{{{tag}}}") for tag in tags] == list(range(SLOTS))


def test_the_index_of_a_bucket_is_in_its_slot_and_never_an_entitys_key() -> None:
    rng = random.Random(3)
    for _ in range(200):
        key = BucketKey("spaceship-1", f"e{rng.random()}", "r")
        slot = slot_of(keys.bucket(key))
        index = keys.bucket_index(key.namespace, slot, SLOTS)
        assert slot_of(index) == slot
        assert index.startswith("hg:i:{spaceship-1##")


# How long Redis keeps a bucket: past the moment it is full, and for ever where that never comes.
# The server's own clock counts here, so what is asked is the life that it gave the key.

HOUR_MS = 3_600_000
MARGIN_MS = 300_000
KEY = BucketKey("spaceship-1", "e", "r")
TAKES = pytest.mark.parametrize("takes", [1, 3], ids=["the first take", "takes after it"])


def life_ms(url: str, limits: list[Limit], takes: int, debit: int = 0) -> int:
    """What is left of the life of a bucket after so many takes of one; -1 is for ever."""
    servers.flush(url)
    store = open_backend(url, blocking=True).store
    terms = Terms(tuple(limit.spec for limit in limits), 1)
    for _ in range(takes):
        one = Demand(KEY, terms, (1000,) * len(limits))
        assert run(store.consume([one], None)).allowed
    if debit:
        run(store.adjust([Demand(KEY, terms, (debit * 1000,) * len(limits))], None))
    run(store.close())
    return servers.command(url, "PTTL", keys.bucket(KEY))


@TAKES
def test_it_outlives_the_slowest_limit_and_not_by_much(redis_url: str, takes: int) -> None:
    limits = [Limit.per_second("fast", 10), Limit.per_hour("slow", 10)]
    full_ms = takes * HOUR_MS // 10
    assert full_ms < life_ms(redis_url, limits, takes) <= full_ms + MARGIN_MS + 1000


def test_it_outlives_each_take_by_a_minute_at_least(redis_url: str) -> None:
    """A take sets the end only where it moves the moment it is full into another four minutes."""
    servers.flush(redis_url)
    store = open_backend(redis_url, blocking=True).store
    demand = Demand(KEY, Terms((Limit.per_hour("x", 60, burst=100).spec,), 1), (1000,))
    first_ms = 0
    for taken in range(1, 31):
        verdict = run(store.consume([demand], None))
        left_ms = servers.command(redis_url, "PTTL", keys.bucket(KEY))
        now_ms = run(store.peek([], None)).now_ms
        first_ms = first_ms or verdict.now_ms
        full_ms = taken * 60_000 - (now_ms - first_ms)  # what is missing, at most
        assert full_ms + 50_000 < left_ms <= taken * 60_000 + MARGIN_MS + 1000
    run(store.close())


@TAKES
def test_S7_it_outlives_its_debt(redis_url: str, takes: int) -> None:
    life = life_ms(redis_url, [Limit.per_hour("x", 10)], takes, debit=1000)
    assert life > (1000 + takes) * HOUR_MS // 10 - 60_000


@TAKES
def test_S8_what_never_refills_never_expires(redis_url: str, takes: int) -> None:
    limits = [Limit.per_second("fast", 10), Limit.custom("once", 10, 0, 1)]
    assert life_ms(redis_url, limits, takes) == -1


DAY_MS = 24 * HOUR_MS
LISTED_MS = 400 * DAY_MS
NOON_MS = 1_800_014_400_000  # of some day, UTC
OTHER = BucketKey("spaceship-1", "e", "other")
FAST = [Limit.per_second("fast", 10), Limit.per_hour("slow", 10)]
ONCE = [Limit.custom("once", 10, 0, 1)]
YEARS = [Limit.custom("years", 1000, 1000, 3 * 365 * 86_400)]  # three years for all of it
USAGE = pytest.mark.parametrize("usage", ["on", "off"])


class Shop:
    """A store, and what its keys still have to live."""

    def __init__(self, url: str, usage: str) -> None:
        self.url = url
        self.store = open_backend(f"{url}?usage={usage}", blocking=True).store
        slots = 16_384 if "cluster" in url else 1
        self.index = keys.bucket_index(KEY.namespace, slot_of(keys.bucket(KEY)), slots)

    def take(
        self,
        now_ms: int,
        limits: list[Limit],
        *,
        of: tuple[BucketKey, ...] = (KEY,),
        tokens: int = 1,
    ) -> None:
        terms = Terms(tuple(limit.spec for limit in limits), 1)
        demands = [Demand(key, terms, (tokens * 1000,) * len(limits)) for key in of]
        assert run(self.store.consume(demands, now_ms)).allowed

    def left_ms(self, name: str) -> int:
        return servers.command(self.url, "PTTL", name)

    def found(self) -> list[str]:
        page = run(self.store.find(KEY.namespace, entity_id=KEY.entity_id, limit=10))
        return [key.resource for key in page.items]


@pytest.fixture
def shop(url: str, usage: str) -> Iterator[Shop]:
    made = Shop(url, usage)
    yield made
    run(made.store.close())


@SERVERS
@USAGE
@pytest.mark.parametrize("of", [(KEY,), (KEY, OTHER)], ids=["one bucket", "two buckets"])
def test_the_list_is_renewed_while_its_bucket_is_used(
    shop: Shop, of: tuple[BucketKey, ...]
) -> None:
    shop.take(NOON_MS, FAST, of=of)
    assert shop.left_ms(shop.index) > LISTED_MS - HOUR_MS
    servers.command(shop.url, "PEXPIRE", shop.index, HOUR_MS)  # as if most of its life had gone by
    shop.take(NOON_MS + DAY_MS, FAST, of=of)
    assert shop.left_ms(shop.index) > shop.left_ms(keys.bucket(KEY)) + LISTED_MS / 2


@SERVERS
@USAGE
def test_a_bucket_that_fell_off_the_list_is_found_again(shop: Shop) -> None:
    shop.take(NOON_MS, FAST)
    servers.command(shop.url, "DEL", shop.index)
    assert shop.found() == []
    shop.take(NOON_MS + DAY_MS, FAST)
    assert shop.found() == [KEY.resource]
    run(shop.store.forget([KEY]))
    assert shop.left_ms(keys.bucket(KEY)) == shop.left_ms(shop.index) == -2


@SERVERS
@USAGE
def test_a_bucket_that_lives_for_years_is_listed_for_years(shop: Shop) -> None:
    for tokens in (100, 500, 300):  # of one day, and each makes its life longer
        shop.take(NOON_MS, YEARS, tokens=tokens)
        assert shop.left_ms(shop.index) > shop.left_ms(keys.bucket(KEY)) > 100 * DAY_MS
    terms = Terms(tuple(limit.spec for limit in YEARS), 1)
    run(shop.store.adjust([Demand(KEY, terms, (5_000_000,))], NOON_MS))
    assert shop.left_ms(shop.index) > shop.left_ms(keys.bucket(KEY)) > 15 * 365 * DAY_MS


@SERVERS
@USAGE
def test_a_bucket_that_never_ends_is_listed_without_end(shop: Shop) -> None:
    shop.take(NOON_MS, FAST, of=(OTHER,))
    for day in range(3):
        shop.take(NOON_MS + day * DAY_MS, ONCE)
        shop.take(NOON_MS + day * DAY_MS, FAST, of=(OTHER,))
        assert shop.left_ms(keys.bucket(KEY)) == shop.left_ms(shop.index) == -1
    servers.command(shop.url, "PEXPIRE", shop.index, HOUR_MS)  # as an older version left it
    shop.take(NOON_MS + 2 * DAY_MS, ONCE)
    assert shop.left_ms(shop.index) == -1


@USAGE
@pytest.mark.parametrize("server", ["redis_url"])
def test_the_list_costs_a_usual_take_nothing(shop: Shop) -> None:
    shop.take(NOON_MS, FAST)
    servers.command(shop.url, "CONFIG", "RESETSTAT")
    for second in range(5):
        shop.take(NOON_MS + second * 1000, FAST)
    counted = servers.called(shop.url)
    assert counted["set"] == 5
    assert {"pttl", "zadd", "pexpire"}.isdisjoint(counted)
