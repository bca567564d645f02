"""Shards in the page, on the model of DynamoDB: what the store tells, and that others have none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headgate.core.record import BucketKey
from headgate.core.runtime import run, steady_clock
from headgate.repository import Repository
from headgate.service.decide.service import Service
from headgate.service.metrics.service import ServiceMetrics
from headgate.service.program import Options, Program, authenticator_for
from headgate.stores.dynamodb import over_port
from headgate.stores.dynamodb.protocol.flow import run_flow
from headgate.stores.dynamodb.store import DynamoStore
from proof.model.engine import Engine
from proof.model.port import ModelPort
from tests.service.dashboard.kit import Place, shown
from tests.service.dashboard.test_pages import text_of


@pytest.fixture(scope="module")
def table() -> Iterator[Place]:
    """A service on DynamoDB with a bucket in one piece and one in three shards."""
    backend = over_port(ModelPort(Engine(), steady_clock()), "model", blocking=False)
    repository = Repository("dynamodb://model?region=x", _backend=backend)
    metrics = ServiceMetrics()
    service = Service(repository, on_answer=metrics.count_answer)
    options = Options()
    program = Program(options, service, authenticator_for(options, repository), metrics)
    with shown(program) as place:
        place.limit("resources/hot", capacity=1000, amount=0)
        for who in ("divided", "alone"):
            assert place.check(who, "hot", 200) == 200
        assert isinstance(backend.store, DynamoStore)
        [namespace] = [one["id"] for one in place.ask("GET", "/v1/namespaces")["items"]]
        divide(backend.store, BucketKey(namespace, "user:divided", "hot"))
        yield place


def divide(store: DynamoStore, key: BucketKey) -> None:
    """Shard 0 is split twice: halves, and then a half in two."""
    for _ in range(2):
        now_ms, _ = run(store.shards(key, None))
        known = store._cache.open(key)
        assert run(run_flow(store._port, store._taker.split(known, known.shards[0], now_ms)))


def test_shards_are_told_with_depth_share_and_level(table: Place, page: Any) -> None:
    found = table.ask("GET", "/ui/shards")
    assert found["sharding"]
    divided, whole = found["buckets"]
    assert (divided["entity"], len(divided["shards"])) == ("user:divided", 3)
    assert [(one["number"], one["depth"], one["parts"]) for one in divided["shards"]] == [
        (0, 2, 4),
        (1, 1, 2),
        (2, 2, 4),
    ]
    limits = [one["limits"][0] for one in divided["shards"]]
    assert [one["capacity_milli"] for one in limits] == [250_000, 500_000, 250_000]
    assert sum(one["level_milli"] for one in limits) == 800_000, "nothing made, nothing lost"
    assert (whole["entity"], len(whole["shards"])) == ("user:alone", 1)
    page.goto(table.page("shards"))
    text_of(page, "#shards-sum", "2 buckets looked at; 1 divided")
    card = page.get_by_role("region", name="user:divided on hot")
    assert card.locator("article").count() == 3
    text_of(page, "article[data-shard='1'] h3", "Shard 1\\s*depth 1, 1/2 of it")
    text_of(page, "article[data-shard='1'] .number", "400 / 500")
    text_of(page, ".badge", "in one piece")


def test_a_store_that_does_not_shard_says_so(place: Place, page: Any) -> None:
    assert place.ask("GET", "/ui/shards") == {"sharding": False, "buckets": [], "whole": True}
    page.goto(place.page("shards"))
    text_of(page, "#no-shards", "This store does not shard")


def test_looking_at_shards_needs_a_sane_query(place: Place) -> None:
    assert place.send("GET", "/ui/shards?namespace=nowhere")[0] == 404
    assert place.send("GET", "/ui/shards?namespace=%00")[0] == 400
    assert place.send("GET", "/ui/shards?a=1&b=1&c=1&d=1&e=1")[0] == 400
