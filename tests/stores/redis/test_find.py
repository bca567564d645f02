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
def url(request: pytest.FixtureRequest, server: str) -> str:
    found: str = request.getfixturevalue(server)
    servers.flush(found)
    return found


@pytest.fixture
def store(url: str) -> Iterator[RedisStore]:
    found = open_backend(url, blocking=True).store
    assert isinstance(found, RedisStore)
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
    assert isinstance(size, int)
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
