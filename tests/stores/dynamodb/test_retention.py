"""How long history is kept: the URL's word, the table's, or for long; and when it is looked up."""

from __future__ import annotations

from typing import Any

import pytest

from headgate import SyncRateLimiter, SyncRepository
from headgate.core.errors import ValidationError
from headgate.core.history import DAY_MS, audit_event
from headgate.core.limits import Limit
from headgate.core.runtime import run
from headgate.repository import Repository, open_backend
from headgate.stores.dynamodb import over_port
from headgate.stores.dynamodb.catalog.items import (
    AUDIT_KEPT_MS,
    DAYS_MAX,
    NOTES,
    REFRESH_MS,
    USAGE_KEPT_MS,
    Retention,
    RetentionPeriods,
    as_json,
)
from headgate.stores.dynamodb.ledger import DynamoLedger
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.create import check, prepare
from proof.model.port import ModelPort
from tests.stores.dynamodb.catalog.kit import NOW_MS, TABLE, Watched, model_port, table_at

NOTED = {"audit_retention_days": 7, "usage_retention_days": 30, "snapshot_windows": "hourly"}
DAY_S = 86_400


def noted(**notes: Any) -> Any:
    return {NOTES: as_json(notes)}


def test_the_url_stands_above_the_table_and_the_table_above_the_default() -> None:
    assert Retention().learn({}, 0) == RetentionPeriods(AUDIT_KEPT_MS, USAGE_KEPT_MS)
    assert Retention().learn(noted(**NOTED), 0) == RetentionPeriods(
        7 * DAY_MS, {"hourly": 30 * DAY_MS}
    )
    periods = Retention(audit_days=1, usage_days=2).learn(noted(**NOTED), 0)
    assert periods == RetentionPeriods(DAY_MS, {"hourly": 2 * DAY_MS})


@pytest.mark.parametrize("strange", [0, -1, True, 1.5, "7", None, DAYS_MAX + 1, [7]])
def test_a_strange_note_is_as_none(strange: object) -> None:
    periods = Retention().learn(noted(audit_retention_days=strange, snapshot_windows=strange), 0)
    assert periods == RetentionPeriods(AUDIT_KEPT_MS, USAGE_KEPT_MS)


def test_the_record_is_read_once_and_again_after_a_while() -> None:
    reads: list[object] = []

    async def get(key: object) -> Any:
        reads.append(key)
        return noted(audit_retention_days=len(reads))

    retention = Retention()
    for now_ms in (5, 6, REFRESH_MS + 4):
        assert run(retention.periods(get, now_ms)).audit_ms == DAY_MS
    assert run(retention.periods(get, REFRESH_MS + 5)).audit_ms == 2 * DAY_MS
    assert len(reads) == 2


def opened(port: ModelPort, **options: int) -> SyncRepository:
    backend = over_port(port, TABLE, blocking=True, retention=Retention(**options))
    return SyncRepository(_core=Repository(clock=lambda: NOW_MS, _blocking=True, _backend=backend))


def ends_in_days(port: ModelPort, pk: str, sk: str) -> dict[str, float]:
    items = run(table_at("", name=TABLE, port=port).every(ask.query(TABLE, pk, ask.begins(sk))))
    return {item["SK"]["S"]: (int(item["ttl"]["N"]) - NOW_MS / 1000) / DAY_S for item in items}


@pytest.mark.parametrize(("options", "days"), [({}, 7), ({"audit_days": 2}, 2)])
def test_every_audit_event_gets_that_end(options: dict[str, int], days: int) -> None:
    """Those of entities, limits and namespaces, and those that are appended."""
    port = model_port()
    with opened(port) as repository:
        repository.create_table()
        repository.set_version_record(NOTED)
    with opened(port, **options) as repository:
        repository.create_entity("a")
        repository.set_limits("a", [Limit.per_minute("rpm", 5)], resource="r")
        repository.reset_bucket("a", "r")
        repository.register_namespace("eu")
        home, other = (repository.get_namespace(name).id for name in ("default", "eu"))
    ends = ends_in_days(port, f"{home}/AUDIT#a", "#AUDIT#")
    ends |= ends_in_days(port, f"{other}/AUDIT#$SYSTEM", "#AUDIT#")
    assert len(ends) == 4
    assert all(days - 0.1 < end <= days + 0.1 for end in ends.values()), ends


def test_usage_that_processes_count_gets_its_end_and_its_windows() -> None:
    port = model_port()
    with opened(port) as repository:
        repository.create_table()
        repository.set_version_record({**NOTED, "snapshot_windows": "hourly,daily"})
    with opened(port) as repository:
        limiter = SyncRateLimiter(repository, limits=[Limit.per_minute("rpm", 5)])
        with limiter.acquire("a", "r", {"rpm": 1}):
            pass
        home = repository.get_namespace("default").id
    ends = ends_in_days(port, f"{home}/ENTITY#a", "#USAGE#")
    assert sorted(sk.split("#")[3] for sk in ends) == ["daily", "hourly"]
    assert all(30 - 0.1 < end <= 31.1 for end in ends.values()), ends


def test_opening_tells_it_and_a_change_reads_nothing_more() -> None:
    port = Watched(model_port())
    run(prepare(table_at("", name=TABLE, port=port.inner)))
    table = table_at("", name=TABLE, port=port)
    assert run(check(table))
    ledger = DynamoLedger(table)
    for _ in range(3):
        run(ledger.append("n" * 11, audit_event(0, "did", "a", None)))
    assert port.calls == ["GetItem", "PutItem", "PutItem", "PutItem"]


@pytest.mark.parametrize("option", ["audit_days=0", "usage_days=-1", "audit_days=x"])
def test_days_that_are_none_are_refused(option: str) -> None:
    with pytest.raises(ValidationError, match=option.partition("=")[0]):
        open_backend(f"dynamodb://limits?region=us-east-1&{option}", blocking=True)
