"""The table comes, is checked, and goes."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.core.errors import IncompatibleSchemaError
from headgate.core.levels import Entity
from headgate.core.runtime import run
from headgate.stores.dynamodb.catalog.catalog import DynamoCatalog
from headgate.stores.dynamodb.catalog.items import number, system_key
from headgate.stores.dynamodb.client.calls import DynamoRequest, Rejected, TableMissing
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.create import RECORD, creation
from headgate.stores.dynamodb.table.table import Table
from tests.stores.dynamodb.catalog.kit import NOW_MS, Watched, model_port, table_at


@pytest.fixture
def table() -> Table:
    return table_at("", port=model_port())


def test_the_table_has_its_indexes_its_stream_and_its_expiry(dynamo_endpoint: str) -> None:
    table = table_at(dynamo_endpoint)
    run(DynamoCatalog(table).prepare())
    found = run(table.call("DescribeTable"))["Table"]
    assert {index["IndexName"] for index in found["GlobalSecondaryIndexes"]} == {
        "GSI1", "GSI2", "GSI3", "GSI4",
    }  # fmt: skip
    assert found["StreamSpecification"]["StreamViewType"] == "NEW_AND_OLD_IMAGES"
    assert found["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    ttl = run(table.call("DescribeTimeToLive"))["TimeToLiveDescription"]
    assert (ttl["TimeToLiveStatus"], ttl["AttributeName"]) == ("ENABLED", "ttl")
    run(table.port.close())


def test_preparing_again_changes_nothing(table: Table) -> None:
    catalog = DynamoCatalog(table)
    run(catalog.prepare())
    made = run(catalog.register_namespace("team", None, NOW_MS))
    run(catalog.prepare())
    assert run(catalog.get_namespace("team")) == made


def test_a_table_that_is_missing_is_not_made_on_the_way(table: Table) -> None:
    catalog = DynamoCatalog(table)
    with pytest.raises(TableMissing):
        run(catalog.get_version_record())
    with pytest.raises(TableMissing):
        run(catalog.register_namespace("team", None, NOW_MS))
    run(catalog.destroy())


def test_a_table_made_by_infrastructure_code_is_used(table: Table) -> None:
    run(table.port.call(creation(table.name)))
    catalog = DynamoCatalog(table)
    run(catalog.prepare())
    assert run(catalog.get_version_record()) == {"schema_version": 1}
    assert "schema_version" in (run(table.get(RECORD)) or {})


def test_two_that_prepare_at_once(table: Table) -> None:
    watched = Watched(table.port)
    one = DynamoCatalog(table_at("", name=table.name, port=watched))
    watched.before["CreateTable"] = lambda: run(DynamoCatalog(table).prepare())
    run(one.prepare())
    assert run(one.get_version_record())["schema_version"] == 1


class Slow:
    """A port that tells of a table which takes its time to come or go."""

    def __init__(self, states: list[Any]) -> None:
        self.states = states
        self.calls: list[str] = []

    def now_ms(self) -> int:
        return NOW_MS

    async def call(self, request: DynamoRequest) -> dict[str, Any]:
        self.calls.append(request.operation)
        answer = self.states.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {"Table": answer} if request.operation == "DescribeTable" else answer


MISSING = TableMissing("ResourceNotFoundException", "missing")
IN_USE = Rejected("ResourceInUseException", "in use")


def keys(prefix: str = "") -> list[dict[str, str]]:
    return [
        {"AttributeName": f"{prefix}PK", "KeyType": "HASH"},
        {"AttributeName": f"{prefix}SK", "KeyType": "RANGE"},
    ]


def described(state: str, index_state: str = "ACTIVE", count: int = 4) -> dict[str, Any]:
    indexes = [
        {"IndexName": f"GSI{n}", "IndexStatus": index_state, "KeySchema": keys(f"GSI{n}")}
        for n in range(1, count + 1)
    ]
    return {"TableStatus": state, "KeySchema": keys(), "GlobalSecondaryIndexes": indexes}


def test_it_waits_until_all_of_the_table_is_there() -> None:
    states = [described("CREATING"), described("ACTIVE", "CREATING"), described("ACTIVE")]
    expiry = {"TimeToLiveDescription": {"TimeToLiveStatus": "ENABLED"}}
    port = Slow([MISSING, IN_USE, MISSING, *states, expiry, {"Items": []}, {}])
    run(DynamoCatalog(table_at("", port=port)).prepare())
    assert port.calls == [
        "GetItem", "CreateTable", *["DescribeTable"] * 4, "DescribeTimeToLive", "Scan",
        "UpdateItem",
    ]  # fmt: skip


def test_it_waits_until_the_table_is_gone() -> None:
    port = Slow([IN_USE, {}, IN_USE, MISSING])
    run(DynamoCatalog(table_at("", port=port)).destroy())
    assert port.calls == ["DeleteTable"] * 4


@pytest.mark.parametrize(
    "found", [described("ACTIVE", count=3), {**described("ACTIVE"), "KeySchema": keys("X")}]
)
def test_another_program_s_table_is_left_alone(found: dict[str, Any]) -> None:
    port = Slow([{}, found])
    with pytest.raises(IncompatibleSchemaError, match="left alone"):
        run(DynamoCatalog(table_at("", port=port)).prepare())
    assert port.calls == ["GetItem", "DescribeTable"]


def test_what_a_newer_headgate_wrote_is_not_touched(table: Table) -> None:
    catalog = DynamoCatalog(table)
    run(catalog.prepare())
    made = run(catalog.register_namespace("team", None, NOW_MS))
    newer = {"schema_version": number(2)}
    run(table.write(ask.update(RECORD, sets=newer)))
    run(table.write(ask.update(system_key(made.id), sets=newer)))
    for flow in (
        catalog.prepare(),
        catalog.get_namespace("team"),
        catalog.register_namespace("more", None, NOW_MS),
        catalog.lookup(made.id, "a", "r"),
        catalog.create_entity(made.id, Entity("a"), None, NOW_MS),
    ):
        with pytest.raises(IncompatibleSchemaError, match="update this one"):
            run(flow)


def test_notes_do_not_move_the_schema(table: Table) -> None:
    catalog = DynamoCatalog(table)
    run(catalog.prepare())
    run(catalog.set_version_record({"schema_version": 9, "client": "é\ud800"}))
    assert run(catalog.get_version_record()) == {"schema_version": 1, "client": "é\ud800"}
