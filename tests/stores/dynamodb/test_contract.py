"""The whole contract on a real engine: buckets, configuration, catalog and history together.

In both ways on the model, too: proof/model/test_contract.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate import (
    IncompatibleSchemaError,
    Limit,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
)
from headgate.core.runtime import run
from headgate.repository import Repository, open_backend
from headgate.stores.dynamodb import over_port
from headgate.stores.dynamodb.catalog.items import number
from headgate.stores.dynamodb.client.calls import DynamoRequest
from headgate.stores.dynamodb.table import migrate
from headgate.stores.dynamodb.table.create import RECORD, SCHEMA
from headgate.testing import Case, cases, run_case
from tests.declare.kit import plan_and_apply
from tests.stores.dynamodb.kit import TABLE, fresh_table, model_port, opened, port_to, table_at
from tests.stores.dynamodb.table.test_table import REPAINTING


@pytest.mark.parametrize("case", cases(), ids=str)
def test_contract(case: Case, dynamo_endpoint: str) -> None:
    run_case(case, opened(dynamo_endpoint), blocking=True)


@pytest.mark.parametrize("case", cases("store", "quotas"), ids=str)
def test_contract_of_buckets_in_an_event_loop(case: Case, dynamo_endpoint: str) -> None:
    run_case(case, opened(dynamo_endpoint, blocking=False), blocking=False)


OVER_SEVERAL = [
    "all_buckets_or_none",
    "any_program_agrees_with_the_pure_model",
    "a_decision_over_several_buckets_is_whole_within_a_batch",
    "an_undone_take_gives_back_only_what_it_took",
    "buckets_asked_different_amounts_are_settled_each_by_its_own",
]


@pytest.mark.parametrize("name", OVER_SEVERAL)
def test_cases_over_several_buckets_where_they_go_in_one_transaction(
    name: str, dynamo_endpoint: str
) -> None:
    [case] = [case for case in cases() if str(case) == name]
    run_case(case, opened(dynamo_endpoint, options="&strict=on"), blocking=True)


@pytest.mark.parametrize("case", cases("store", "quotas"), ids=str)
def test_contract_of_buckets_where_several_go_in_one_transaction_on_the_model(case: Case) -> None:
    run_case(case, over_port(model_port(), TABLE, blocking=True, strict=True), blocking=True)


# Declared limits on DynamoDB: the plan finds live buckets through the indexes.


def test_on_dynamodb(dynamo_endpoint: str, tmp_path: Path) -> None:
    name = fresh_table(dynamo_endpoint)
    where = f"region=us-east-1&endpoint={dynamo_endpoint}&timeout_ms=10000"
    plan_and_apply(f"dynamodb://{name}?{where}", tmp_path)


# How a person opens the store, and what it says where that cannot be.


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


@pytest.mark.parametrize(
    ("option", "usual", "wanted"),
    [("", 10_000, 10_000), ("", 100_000, 100_000), ("?cache_entries=25000", 100_000, 25_000)],
)
def test_limits_and_buckets_are_remembered_alike(
    credentials: None, option: str, usual: int, wanted: int
) -> None:
    """A bucket that was forgotten costs a failed write, so it must last as long as its limits."""
    home: Any = Repository(f"dynamodb://table{option}", _cache_entries=usual)
    assert home.configs.cache.entries_max == wanted
    assert home.backend.store._cache._buckets_max == wanted


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
