"""The table comes, is checked, and goes."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from headgate.core.errors import IncompatibleSchemaError, Unreachable
from headgate.core.levels import Entity
from headgate.core.runtime import run
from headgate.stores.dynamodb.catalog.catalog import DynamoCatalog
from headgate.stores.dynamodb.catalog.items import Item, key_of, number, system_key, text
from headgate.stores.dynamodb.client.calls import (
    ConditionFailed,
    DynamoPort,
    DynamoRequest,
    Rejected,
    TableMissing,
)
from headgate.stores.dynamodb.table import migrate
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.create import RECORD, creation
from headgate.stores.dynamodb.table.migrate import Migration, MigrationProgress, upgrade
from headgate.stores.dynamodb.table.table import Table
from tests.cli.kit import invoke
from tests.stores.dynamodb.kit import NOW_MS, Watched, model_port, port_to, table_at


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


# What zae-limiter 0.17.0 and its aggregator wrote for one namespace, a family and three acquires.
ZAE_LIMITER = Path(__file__).with_name("zae_limiter_0_17.jsonl")


@pytest.fixture
def real_table(dynamo_endpoint: str) -> Iterator[Table]:
    """On the engine: zae-limiter writes maps and lists, which the model does not know."""
    table = table_at(dynamo_endpoint)
    yield table
    run(table.port.close())


def zae_table(table: Table, *without: str) -> list[Item]:
    """Makes the table of zae-limiter; `without` leaves items out by a part of their sort key."""
    run(table.port.call(creation(table.name)))
    for item in map(json.loads, ZAE_LIMITER.read_text().splitlines()):
        if not any(part in item["SK"]["S"] for part in without):
            run(table.write(ask.put(item)))
    return everything(table)


def everything(table: Table) -> list[Item]:
    items, start = run(table.page(DynamoRequest("Scan", {"TableName": table.name})))
    assert start is None
    return sorted(items, key=key_of)


Verb = Callable[[DynamoCatalog], Coroutine[Any, Any, Any]]
VERBS: dict[str, Verb] = {
    "prepare": lambda catalog: catalog.prepare(),
    "upgrade": lambda catalog: catalog.upgrade(),
    "upgrade, dry": lambda catalog: catalog.upgrade(dry_run=True),
    "get_namespace": lambda catalog: catalog.get_namespace("default"),
    "register_namespace": lambda catalog: catalog.register_namespace("default", None, NOW_MS),
    "list_namespaces": lambda catalog: catalog.list_namespaces(state="active"),
    "get_version_record": lambda catalog: catalog.get_version_record(),
    "set_version_record": lambda catalog: catalog.set_version_record({"note": 1}),
    "destroy": lambda catalog: catalog.destroy(),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_table_of_zae_limiter_is_named_and_left_alone(real_table: Table, verb: str) -> None:
    """Its keys and indexes are called as ours are, so only what it wrote tells."""
    before = zae_table(real_table)
    with pytest.raises(IncompatibleSchemaError, match=r"zae-limiter"):
        run(VERBS[verb](DynamoCatalog(real_table)))
    assert everything(real_table) == before


@pytest.mark.parametrize("without", [["#VERSION"], ["#VERSION", "#NAMESPACE", "#NSID"]])
@pytest.mark.parametrize("verb", ["prepare", "upgrade", "upgrade, dry"])
def test_a_table_of_another_program_that_says_no_version_is_left_alone(
    real_table: Table, verb: str, without: list[str]
) -> None:
    before = zae_table(real_table, *without)
    with pytest.raises(IncompatibleSchemaError, match="another program"):
        run(VERBS[verb](DynamoCatalog(real_table)))
    assert everything(real_table) == before


def test_the_command_says_whose_table_it_is(dynamo_endpoint: str, real_table: Table) -> None:
    before = zae_table(real_table)
    url = f"dynamodb://{real_table.name}?region=us-east-1&endpoint={dynamo_endpoint}"
    for words in ("check key-1 gpt-4 rpm=1 --take", "upgrade", "upgrade --create", "usage list",
                  "namespace list", "entity list", "export", "version --store"):  # fmt: skip
        said = invoke("-u", url, *words.split())
        assert said.code == 1, (words, said)
        assert "error: the table belongs to another program" in said.err
        assert "zae-limiter" in said.err
        assert "do:  give the URL of another table" in said.err
    assert everything(real_table) == before


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
    port = Slow([MISSING, IN_USE, {}, IN_USE, MISSING])
    run(DynamoCatalog(table_at("", port=port)).destroy())
    assert port.calls == ["GetItem", *["DeleteTable"] * 4]


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


# Moving tables on, by a made-up step: doors that were painted have a color afterwards.

DOORS = 50
PAINTED = ask.WriteCondition("attribute_exists(#paint)", {"#paint": "paint"})


def doors_walk(table: str) -> DynamoRequest:
    params = {
        "TableName": table,
        "ConsistentRead": True,
        "FilterExpression": "begins_with(#pk, :door)",
        "ExpressionAttributeNames": {"#pk": "PK"},
        "ExpressionAttributeValues": {":door": text("DOOR#")},
    }
    return DynamoRequest("Scan", params)


async def repaint(table: Table, items: Sequence[Item], dry_run: bool) -> int:
    """As the framework asks of a step: each item atomically, and nothing the second time."""
    old = [item for item in items if "paint" in item]
    for item in [] if dry_run else old:
        sets = {"color": item["paint"]}
        try:
            await table.write(
                ask.update(key_of(item), sets=sets, removes=("paint",), guard=PAINTED)
            )
        except ConditionFailed:
            continue  # another upgrade was faster
    return len(old)


REPAINTING = Migration(1, "doors have a color", doors_walk, repaint)


class Cut(Watched):
    """Small pages, and an end after so many writes."""

    page = 10**6
    left = 10**9

    async def call(self, request: DynamoRequest) -> dict[str, Any]:
        if request.operation == "UpdateItem":
            self.left -= 1
        if self.left < 0:
            raise Unreachable("cut")
        if request.operation == "Scan":
            request = DynamoRequest("Scan", {**request.params, "Limit": self.page})
        return await super().call(request)


class Old:
    """A table without a version, with a namespace and painted doors in it."""

    def __init__(self, port: DynamoPort | None = None) -> None:
        self.port = Cut(port or model_port())
        self.table: Table = table_at("", port=self.port)
        self.catalog = DynamoCatalog(self.table)
        run(self.port.call(creation(self.table.name)))
        self.ns = run(self.catalog.register_namespace("team", None, NOW_MS)).id
        for door in range(DOORS):
            item = {"PK": text(f"DOOR#{door}"), "SK": text("#DOOR"), "paint": text(f"blue {door}")}
            run(self.table.write(ask.put(item)))

    def doors(self) -> list[Item]:
        return list(run(self.table.every(doors_walk(self.table.name))))

    def check_moved(self) -> None:
        assert run(self.catalog.get_version_record())["schema_version"] == 1
        run(self.catalog.prepare())
        doors = self.doors()
        assert not [door for door in doors if "paint" in door]
        assert {door["color"]["S"] for door in doors} == {f"blue {door}" for door in range(DOORS)}


@pytest.fixture
def made_up_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "MIGRATIONS", (REPAINTING,))


@pytest.fixture
def old(made_up_step: None) -> Old:
    return Old()


def test_an_old_table_says_what_moves_it_on(old: Old) -> None:
    with pytest.raises(IncompatibleSchemaError, match="headgate upgrade"):
        run(old.catalog.prepare())


def test_every_old_item_is_moved_once(old: Old) -> None:
    [done] = run(upgrade(old.table))
    assert (done.version, done.looked_at, done.moved, done.done) == (1, DOORS, DOORS, True)
    old.check_moved()
    assert run(upgrade(old.table)) == []


def test_a_dry_run_changes_nothing(old: Old) -> None:
    before = old.doors()
    writes = old.port.calls.count("UpdateItem")
    [would] = run(upgrade(old.table, dry_run=True))
    assert (would.moved, would.done) == (DOORS, True)
    assert old.doors() == before
    assert old.port.calls.count("UpdateItem") == writes
    assert run(old.table.get(RECORD)) is None


def test_progress_is_told_page_by_page(old: Old) -> None:
    old.port.page = 20
    told: list[MigrationProgress] = []
    run(upgrade(old.table, report=told.append))
    assert len(told) >= 3
    assert [one.done for one in told] == [False] * (len(told) - 1) + [True]
    assert [one.looked_at for one in told] == sorted(one.looked_at for one in told)
    assert told[-1].moved == DOORS
    old.check_moved()


def test_an_upgrade_cut_anywhere_is_finished_by_the_next(made_up_step: None) -> None:
    resumed = 0
    for left in (0, 1, 7, 19, 33, 48, 53):
        old = Old()
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
        old.check_moved()
    assert resumed >= 3


def test_two_upgrades_at_once_do_no_harm(dynamo_endpoint: str, made_up_step: None) -> None:
    """On a real engine, one of them page by page."""
    old = Old(port_to(dynamo_endpoint))
    old.port.page = 15
    other = table_at("", name=old.table.name, port=old.port.inner)
    old.port.before["UpdateItem"] = lambda: run(upgrade(other))
    run(upgrade(old.table))
    old.check_moved()
    run(old.port.close())


def test_a_newer_table_is_not_downgraded(old: Old) -> None:
    run(old.table.write(ask.update(RECORD, sets={"schema_version": number(7)})))
    with pytest.raises(IncompatibleSchemaError, match="update this one"):
        run(upgrade(old.table))


def test_old_headgates_find_the_new_version_on_the_namespace(old: Old) -> None:
    key = (f"{old.ns}/SYSTEM#", "#CONFIG")
    run(old.table.write(ask.update(key, sets={"schema_version": number(0)})))
    run(upgrade(old.table))
    item = run(old.table.get(key))
    assert item["schema_version"] == {"N": "1"}


def test_where_no_step_is_needed_a_missing_version_is_noted(
    old: Old, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "MIGRATIONS", ())
    assert run(upgrade(old.table, dry_run=True)) == []
    with pytest.raises(IncompatibleSchemaError, match="headgate upgrade"):
        run(old.catalog.prepare())
    assert run(upgrade(old.table)) == []
    run(old.catalog.prepare())
