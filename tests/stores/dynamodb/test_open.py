"""How a person opens the store, and what it says where that cannot be."""

from __future__ import annotations

import pytest

from headgate import (
    IncompatibleSchemaError,
    Limit,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
)
from headgate.core.runtime import run
from headgate.repository import open_backend
from headgate.stores.dynamodb.catalog.items import number
from headgate.stores.dynamodb.client.calls import DynamoRequest
from headgate.stores.dynamodb.table import migrate
from headgate.stores.dynamodb.table.create import RECORD, SCHEMA
from tests.stores.dynamodb.catalog.kit import port_to, table_at
from tests.stores.dynamodb.kit import fresh_table
from tests.stores.dynamodb.table.test_upgrade import REPAINTING


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("dynamodb://", "must name a table"),
        ("dynamodb://ab", "must name a table"),
        ("dynamodb://table/part", "must name a table"),
        ("dynamodb://table?regoin=x", "unknown option 'regoin'"),
        ("dynamodb://table?strict=maybe", "must be one of off, on"),
        ("dynamodb://table?usage=on", "must be one of local, stream, off"),
        ("dynamodb://table?timeout_ms=0", "from 1 to"),
        ("dynamodb://table?connections=many", "from 1 to"),
        ("dynamodb://table?region=x&region=y", "twice"),
    ],
)
def test_a_wrong_url_says_what_is_wrong(credentials: None, url: str, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        open_backend(url, blocking=True)


def test_from_nothing_to_a_limit(dynamo_endpoint: str) -> None:
    """The first minute: open, acquire, look."""
    name = f"first-{port_to(dynamo_endpoint).now_ms()}"
    url = f"dynamodb://{name}?region=us-east-1&endpoint={dynamo_endpoint}"
    with SyncRepository.open(url) as repository:
        limiter = SyncRateLimiter(repository, limits=[Limit.per_hour("rph", 10)])
        with limiter.acquire("key-1", "gpt-4", {"rph": 4}):
            pass
        assert limiter.available("key-1", "gpt-4") == {"rph": 6}
        [shot] = limiter.get_usage_snapshots("key-1", window_type="hourly")[0]
        assert dict(shot.counters) == {"rph": 4}
        assert repository.upgrade() == []
        repository.delete_table()


def test_several_buckets_in_one_step_if_asked_for(dynamo_endpoint: str) -> None:
    name = fresh_table(dynamo_endpoint)
    url = f"dynamodb://{name}?region=us-east-1&endpoint={dynamo_endpoint}"
    with SyncRateLimiter(url, limits=[Limit.per_hour("rph", 10)], strict=True) as limiter:
        assert limiter.core.repository.capabilities.atomic == "one step"
        wants = [("a", "api", {"rph": 1}), ("b", "api", {"rph": 1})]
        with limiter.acquire_many(wants):
            pass
        assert limiter.available("b", "api") == {"rph": 9}
    with SyncRepository(url) as apart, pytest.raises(ValidationError, match="strict"):
        SyncRateLimiter(apart, strict=True)
    SyncRateLimiter("memory://", strict=True).close()


def test_a_table_of_an_older_schema_is_named_and_moved_on(
    dynamo_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = fresh_table(dynamo_endpoint)
    table = table_at(dynamo_endpoint, name=name)
    key = {"PK": {"S": RECORD[0]}, "SK": {"S": RECORD[1]}}
    item = {**key, SCHEMA: number(0)}
    run(table.port.call(DynamoRequest("PutItem", {"TableName": name, "Item": item})))
    run(table.port.close())
    url = f"dynamodb://{name}?region=us-east-1&endpoint={dynamo_endpoint}"
    with pytest.raises(IncompatibleSchemaError, match="upgrade"):
        SyncRepository.open(url)
    monkeypatch.setattr(migrate, "MIGRATIONS", (REPAINTING,))
    with SyncRepository(url) as repository:
        [step] = repository.upgrade(dry_run=True)
        assert step.version == 1
        seen: list[object] = []
        [step] = repository.upgrade(report=seen.append)
        assert step.done
        assert seen
        repository.create_table()
