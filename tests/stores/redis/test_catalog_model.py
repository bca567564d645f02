"""Random changes of entities, limits and namespaces on Redis and on the reference model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.core.limits import Limit
from headgate.core.runtime import run
from headgate.stores.memory import open_memory
from headgate.stores.redis import records
from tests.stores.catalog_suite import CatalogModel, Pair
from tests.stores.redis.catalog_kit import opened


class TestModel(CatalogModel):
    STEPS = 500
    LARGEST = Limit.custom("ttl", 10**12, 10**12, 3600)  # what its scripts count exactly

    @pytest.fixture
    def pair(self, redis_url: str) -> Iterator[Pair]:
        backend = opened(redis_url)
        yield Pair(open_memory(), backend)
        run(backend.store.close())

    @pytest.fixture
    def small_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(records, "CHILDREN_PER_BATCH", 3)
