"""Moving tables on: the framework, and the step from schema 0 on a table of that shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dynamodb.test_catalog_kit import NOW_MS, Watched, port_to, table_at
from headgate.core.errors import Damaged, IncompatibleSchemaError, Unreachable
from headgate.core.history import UsageQuery, UsageSnapshot, WindowUsage
from headgate.core.runtime import run
from headgate.stores.dynamodb.catalog.catalog import DynamoCatalog
from headgate.stores.dynamodb.catalog.items import number, text
from headgate.stores.dynamodb.client.port import DynamoRequest
from headgate.stores.dynamodb.ledger import DynamoLedger
from headgate.stores.dynamodb.table import migrate as migrations_usage
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.create import RECORD, creation
from headgate.stores.dynamodb.table.migrate import MigrationProgress, upgrade
from headgate.stores.dynamodb.table.table import Table

HOURS = 50
START_MS = 1_704_067_200_000  # 2024-01-01T00:00:00Z


class Cut(Watched):
    """Small pages, and an end after so many writes."""

    page = 10**6
    left = 10**9

    async def call(self, request: DynamoRequest) -> dict[str, Any]:
        self._spend(request, 1)
        if request.operation == "Scan":
            request = DynamoRequest("Scan", {**request.params, "Limit": self.page})
        return await super().call(request)

    async def call_all(self, requests: Any) -> Any:
        self._spend(requests[0], len(requests))
        return await super().call_all(requests)

    def _spend(self, request: DynamoRequest, count: int) -> None:
        if request.operation in ("TransactWriteItems", "UpdateItem"):
            self.left -= count
        if self.left < 0:
            raise Unreachable("cut")


class Old:
    """A table of schema 0 with a namespace and usage rows in it."""

    def __init__(self, endpoint: str) -> None:
        self.port = Cut(port_to(endpoint))
        self.table: Table = table_at(endpoint, port=self.port)
        self.catalog = DynamoCatalog(self.table)
        self.ledger = DynamoLedger(self.table)
        run(self.port.call(creation(self.table.name)))
        self.ns = run(self.catalog.register_namespace("team", None, NOW_MS)).id
        for hour in range(HOURS):
            start = f"2024-01-{1 + hour // 24:02d}T{hour % 24:02d}:00:00Z"
            self.put("user-1", start, "daily" if hour % 24 == 0 else "hourly", tpm=hour, ttl=9)

    def put(self, entity_id: str, start: str, window: str, **counters: int) -> None:
        pk = f"{self.ns}/ENTITY#{entity_id}"
        item = {
            "PK": text(pk), "SK": text(f"#USAGE#gpt-4#{start}"),
            "entity_id": text(entity_id), "resource": text("gpt-4"), "window": text(window),
            "window_start": text(start), "total_events": number(2),
            "GSI2PK": text(f"{self.ns}/RESOURCE#gpt-4"),
            "GSI4PK": text(self.ns), "GSI4SK": text(pk),
            **{name: number(value) for name, value in counters.items()},
        }  # fmt: skip
        run(self.table.write(ask.put(item)))

    def usage(self, **wanted: Any) -> list[UsageSnapshot]:
        query = UsageQuery(limit=1000, **wanted)
        return list(run(self.ledger.usage(self.ns, query, None)).items)

    def keys(self) -> list[str]:
        items = run(self.table.every(migrations_usage.usage_walk(self.table.name)))
        return sorted(item["SK"]["S"] for item in items)


@pytest.fixture
def old(dynamo_endpoint: str) -> Iterator[Old]:
    old = Old(dynamo_endpoint)
    yield old
    run(old.port.close())


def check_moved(old: Old) -> None:
    assert run(old.catalog.get_version_record())["schema_version"] == 1
    run(old.catalog.prepare())
    for wanted in ({"entity_id": "user-1"}, {"resource": "gpt-4"}, {}):
        shots = old.usage(**wanted)
        assert len(shots) == HOURS
        assert sum(shot.counters["tpm"] for shot in shots) == sum(range(HOURS))
        assert {shot.total_events for shot in shots} == {2}
        assert [shot.window_type for shot in shots].count("daily") == 3
        assert shots[-1].window_start == "2024-01-01T00:00:00Z"
    assert all("ttl" not in shot.counters for shot in shots)


def test_an_old_table_says_what_moves_it_on(old: Old) -> None:
    with pytest.raises(IncompatibleSchemaError, match="headgate upgrade"):
        run(old.catalog.prepare())


def test_usage_rows_get_their_window_type(old: Old) -> None:
    [done] = run(upgrade(old.table))
    assert (done.version, done.looked_at, done.moved, done.done) == (1, HOURS, HOURS, True)
    assert old.keys()[1] == "#USAGE#gpt-4#daily#2024-01-02T00:00:00Z"
    check_moved(old)
    assert run(upgrade(old.table)) == []


def test_a_dry_run_changes_nothing(old: Old) -> None:
    before = old.keys()
    writes = len([call for call in old.port.calls if call not in ("Scan", "GetItem", "Query")])
    [would] = run(upgrade(old.table, dry_run=True))
    assert (would.moved, would.done) == (HOURS, True)
    assert old.keys() == before
    after = len([call for call in old.port.calls if call not in ("Scan", "GetItem", "Query")])
    assert after == writes
    assert run(old.table.get(RECORD)) is None


def test_progress_is_told_page_by_page(old: Old) -> None:
    old.port.page = 20
    told: list[MigrationProgress] = []
    run(upgrade(old.table, report=told.append))
    assert len(told) > 3
    assert [one.done for one in told] == [False] * (len(told) - 1) + [True]
    assert [one.looked_at for one in told] == sorted(one.looked_at for one in told)
    assert told[-1].moved == HOURS
    check_moved(old)


def test_an_upgrade_cut_anywhere_is_finished_by_the_next(
    dynamo_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations_usage, "MOVES_AT_ONCE", 4)
    resumed = 0
    for left in range(0, 56, 5):
        old = Old(dynamo_endpoint)
        old.port.page = 15
        old.port.left = left
        with pytest.raises(Unreachable):
            run(upgrade(old.table))
        old.port.left = 10**9
        if left:
            with pytest.raises(IncompatibleSchemaError, match="run it again"):
                run(old.catalog.prepare())
        noted = (run(old.table.get(RECORD)) or {}).get("position", {}).get("S", "null") != "null"
        resumed += noted
        before = len(old.port.requests)
        run(upgrade(old.table))
        scans = [one for one in old.port.requests[before:] if one.operation == "Scan"]
        assert ("ExclusiveStartKey" in scans[0].params) == noted  # it goes on where it was
        check_moved(old)
        run(old.port.close())
    assert resumed > 4


def test_two_upgrades_at_once_count_everything_once(old: Old, dynamo_endpoint: str) -> None:
    other = table_at(dynamo_endpoint, name=old.table.name)
    old.port.before["TransactWriteItems"] = lambda: run(upgrade(other))  # type: ignore[assignment]
    run(upgrade(old.table))
    check_moved(old)
    run(other.port.close())


def test_a_row_that_is_there_already_is_added_to(old: Old) -> None:
    row = WindowUsage("daily", START_MS, {"tpm": 5000}, 1)
    run(old.ledger.add_usage(old.ns, "user-1", "gpt-4", [row]))
    run(upgrade(old.table))
    first = old.usage(entity_id="user-1")[-1]
    assert (first.counters["tpm"], first.total_events) == (5, 3)


def test_a_row_nobody_can_read_stops_the_upgrade_and_is_named(old: Old) -> None:
    old.put("odd", "2024-01-01T00:00:00Z", "weekly", tpm=1)
    with pytest.raises(Damaged, match="ENTITY#odd"):
        run(upgrade(old.table))
    with pytest.raises(Damaged, match="ENTITY#odd"):
        run(upgrade(old.table, dry_run=True))


def test_a_newer_table_is_not_downgraded(old: Old) -> None:
    run(old.table.write(ask.update(RECORD, sets={"schema_version": number(7)})))
    with pytest.raises(IncompatibleSchemaError, match="update this one"):
        run(upgrade(old.table))


def test_old_headgates_find_the_new_version_on_the_namespace(old: Old) -> None:
    run(upgrade(old.table))
    item = run(old.table.get((f"{old.ns}/SYSTEM#", "#CONFIG")))
    assert item["schema_version"] == {"N": "1"}
