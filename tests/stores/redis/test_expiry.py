"""How long Redis keeps a bucket: past the moment it is full, and for ever where that never comes.

The server's own clock counts here, so what is asked is the life that it gave the key.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate import Limit
from headgate.core.decision import Demand
from headgate.core.record import BucketKey, Terms
from headgate.core.runtime import run
from headgate.repository import open_backend
from headgate.stores.redis import keys
from headgate.stores.redis.client.cluster import slot_of
from tests.stores.redis import servers

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
    found = servers.command(url, "PTTL", keys.bucket(KEY))
    assert isinstance(found, int)
    return found


@TAKES
def test_it_outlives_the_slowest_limit_and_not_by_much(redis_url: str, takes: int) -> None:
    limits = [Limit.per_second("fast", 10), Limit.per_hour("slow", 10)]
    full_ms = takes * HOUR_MS // 10
    assert full_ms < life_ms(redis_url, limits, takes) <= full_ms + MARGIN_MS + 1000


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
SERVERS = pytest.mark.parametrize("server", ["redis_url", "cluster_url"])
USAGE = pytest.mark.parametrize("usage", ["on", "off"])


class Shop:
    """A store on an empty server, and what its keys still have to live."""

    def __init__(self, url: str, usage: str) -> None:
        servers.flush(url)
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
        found = servers.command(self.url, "PTTL", name)
        assert isinstance(found, int)
        return found

    def found(self) -> list[str]:
        page = run(self.store.find(KEY.namespace, entity_id=KEY.entity_id, limit=10))
        return [key.resource for key in page.items]


@pytest.fixture
def shop(request: pytest.FixtureRequest, server: str, usage: str) -> Iterator[Shop]:
    made = Shop(request.getfixturevalue(server), usage)
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
