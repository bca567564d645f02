"""Writers that meet: whatever happens between a read and its commit, the rules hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.core.levels import Entity
from headgate.core.runtime import run
from headgate.stores.catalog import Backend
from headgate.stores.redis.records import RedisCatalog
from tests.stores.catalog_suite import CatalogRaces, Two
from tests.stores.redis.catalog_kit import NOW_MS, Watched, opened, port_to

COMMIT = "catalog_commit"


@pytest.fixture
def two(redis_url: str) -> Iterator[Two]:
    backend, port = opened(redis_url), Watched(port_to(redis_url))
    yield Two(backend, RedisCatalog(port), port, COMMIT)
    run(port.close())
    run(backend.store.close())


class TestRaces(CatalogRaces):
    WRITERS = 100

    @pytest.fixture
    def crowd(self, redis_url: str) -> Backend:
        return opened(redis_url, blocking=False)


def test_writers_apart_do_not_disturb_each_other(two: Two) -> None:
    two.meanwhile(lambda: two.create("b"))
    run(two.slow.create_entity(two.ns, Entity("a"), None, NOW_MS))
    assert two.watched.calls == ["catalog_kin", COMMIT]
