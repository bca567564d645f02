"""Requests, word for word: what is said to DynamoDB is part of what is promised."""

from __future__ import annotations

import itertools
import re
import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.errors import Damaged
from headgate.core.history import WINDOW_TYPES, AuditEvent, WindowUsage, window_time
from headgate.core.levels import Entity, Level, Mode, OnUnavailable, StoredLevel
from headgate.core.limits import Limit
from headgate.core.runtime import run
from headgate.stores.dynamodb import ledger as usage
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.catalog import lookup_keys
from headgate.stores.dynamodb.catalog.items import (
    entity_as_item,
    entity_from_item,
    event_as_item,
    event_from_item,
    level_as_item,
    level_from_item,
)
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table import table
from headgate.stores.dynamodb.table.create import creation
from headgate.testing import ScriptedPort
from proof.size import sized
from tests.stores.dynamodb.kit import table_at

NS = "abcdefghijk"
DAY_S = 86_400


def s(text: str) -> dict[str, str]:
    return {"S": text}


def n(value: int) -> dict[str, str]:
    return {"N": str(value)}


def test_the_table_is_created_whole() -> None:
    request = creation("limits")
    assert request.operation == "CreateTable"
    params = request.params
    assert params["BillingMode"] == "PAY_PER_REQUEST"
    assert params["KeySchema"] == [
        {"AttributeName": "PK", "KeyType": "HASH"},
        {"AttributeName": "SK", "KeyType": "RANGE"},
    ]
    assert params["StreamSpecification"] == {
        "StreamEnabled": True,
        "StreamViewType": "NEW_AND_OLD_IMAGES",
    }
    assert {
        index["IndexName"]: index["Projection"]["ProjectionType"]
        for index in params["GlobalSecondaryIndexes"]
    } == {"GSI1": "ALL", "GSI2": "KEYS_ONLY", "GSI3": "KEYS_ONLY", "GSI4": "KEYS_ONLY"}
    named = {one["AttributeName"] for one in params["AttributeDefinitions"]}
    assert named == {"PK", "SK", *(f"GSI{i}{key}" for i in range(1, 5) for key in ("PK", "SK"))}


def test_an_entity_s_item() -> None:
    entity = Entity("user-1", "User One", "org", True, {"n": [1.5, None]}, Mode.BYPASS, 3, 7)
    item = entity_as_item(NS, entity, 9, 2)
    assert item == {
        "PK": s(f"{NS}/ENTITY#user-1"), "SK": s("#META"),
        "GSI1PK": s(f"{NS}/PARENT#org"), "GSI1SK": s("CHILD#user-1"),
        "GSI4PK": s(NS), "GSI4SK": s(f"{NS}/ENTITY#user-1"),
        "entity_id": s("user-1"), "name": s("User One"), "parent_id": s("org"),
        "cascade": {"BOOL": True}, "metadata": s('{"n":[1.5,null]}'), "mode": s("bypass"),
        "version": n(3), "created_ms": n(7), "children": n(2), "config_version": n(9),
    }  # fmt: skip
    assert entity_from_item(item) == entity


def test_a_level_s_item() -> None:
    limits = (Limit.per_minute("tpm", 1000, burst=1500), Limit.custom("x", 5, 0, 1, soft=True))
    stored = StoredLevel(limits, 12, OnUnavailable.BLOCK, Mode.DISABLED)
    item = level_as_item(NS, Level("user-1", "gpt-4"), stored)
    assert item == {
        "PK": s(f"{NS}/ENTITY#user-1"), "SK": s("#CONFIG#gpt-4"),
        "GSI2PK": s(f"{NS}/CONFIG#"), "GSI2SK": s("ENTITY#gpt-4#user-1"),
        "GSI3PK": s(f"{NS}/ENTITY_CONFIG#gpt-4"), "GSI3SK": s("user-1"),
        "GSI4PK": s(NS), "GSI4SK": s(f"{NS}/ENTITY#user-1"),
        "entity_id": s("user-1"), "resource": s("gpt-4"), "config_version": n(12),
        "l_tpm_cp": n(1500), "l_tpm_ra": n(1000), "l_tpm_rp": n(60),
        "l_x_cp": n(5), "l_x_ra": n(0), "l_x_rp": n(1), "l_x_so": {"BOOL": True},
        "limit_order": s("tpm x"), "on_unavailable": s("block"), "mode": s("disabled"),
    }  # fmt: skip
    assert level_from_item(item) == stored
    bare = level_as_item(NS, Level("user-1", "gpt-4"), StoredLevel((), 13))
    assert not [name for name in bare if name.startswith(("GSI2", "GSI3"))]
    assert level_from_item(bare) == StoredLevel((), 13)


def test_an_audit_event_s_item() -> None:
    event = AuditEvent("0000000001000-00-aa", "t", "did", "a", "me\ud800", None, {"k": 1})
    item = event_as_item(NS, event, 5000, 400 * DAY_S * 1000)
    assert item == {
        "PK": s(f"{NS}/AUDIT#a"), "SK": s("#AUDIT#0000000001000-00-aa"),
        "GSI4PK": s(NS), "GSI4SK": s(f"{NS}/EVENT#0000000001000-00-aa"),
        "event_id": s("0000000001000-00-aa"), "timestamp": s("t"), "action": s("did"),
        "entity_id": s("a"), "principal": {"B": "bWXtoIA="}, "details": s('{"k":1}'),
        "ttl": n(5 + 400 * DAY_S),
    }  # fmt: skip
    assert event_from_item(item) == event


def test_usage_is_added_in_one_update() -> None:
    row = WindowUsage("hourly", 1_704_117_600_000, {"ttl": 5000, "tpm": -1}, 2)
    request = usage.addition("limits", NS, "user-1", "gpt-4", row, 0, 100 * DAY_S * 1000)
    assert request.operation == "UpdateItem"
    assert request.credit
    assert request.params == {
        "TableName": "limits",
        "Key": {
            "PK": s(f"{NS}/ENTITY#user-1"),
            "SK": s("#USAGE#gpt-4#hourly#2024-01-01T14:00:00Z"),
        },
        "UpdateExpression": "SET #n0 = :v0, #n1 = :v1, #n2 = :v2, #n3 = :v3, #n4 = :v4, "
        "#n5 = :v5, #n6 = :v6, #n7 = :v7, #n8 = :v8 ADD #n9 :v9, #n10 :v10, #n11 :v11",
        "ExpressionAttributeNames": {
            "#n0": "GSI2PK", "#n1": "GSI2SK", "#n2": "GSI4PK", "#n3": "GSI4SK",
            "#n4": "entity_id", "#n5": "resource", "#n6": "window", "#n7": "window_start",
            "#n8": "ttl", "#n9": "u_ttl", "#n10": "u_tpm", "#n11": "total_events",
        },
        "ExpressionAttributeValues": {
            ":v0": s(f"{NS}/RESOURCE#gpt-4"), ":v1": s("USAGE#hourly#098295882400000#user-1"),
            ":v2": s(NS), ":v3": s(f"{NS}/USAGE#hourly#098295882400000#user-1#gpt-4"),
            ":v4": s("user-1"), ":v5": s("gpt-4"), ":v6": s("hourly"),
            ":v7": s("2024-01-01T14:00:00Z"), ":v8": n(1_704_121_200 + 100 * DAY_S),
            ":v9": n(5000), ":v10": n(-1), ":v11": n(2),
        },
    }  # fmt: skip


def test_a_transaction() -> None:
    seen: Any = {"config_version": n(4)}
    writes = [
        ask.put({"PK": s("p"), "SK": s("s")}, ask.ABSENT),
        ask.delete(("p", "t"), ask.if_unchanged(seen)),
        ask.update(("p", "u"), sets={"a": n(1)}, removes=["b"], guard=ask.if_one_of("c", "x", "y")),
    ]
    request = ask.transaction("limits", writes)
    assert len(request.params.pop("ClientRequestToken")) == 32
    assert request.operation == "TransactWriteItems"
    assert request.params == {
        "TransactItems": [
            {"Put": {
                "TableName": "limits", "Item": {"PK": s("p"), "SK": s("s")},
                "ConditionExpression": "attribute_not_exists(#PK)",
                "ExpressionAttributeNames": {"#PK": "PK"},
            }},
            {"Delete": {
                "TableName": "limits", "Key": {"PK": s("p"), "SK": s("t")},
                "ConditionExpression": "#seen = :seen",
                "ExpressionAttributeNames": {"#seen": "config_version"},
                "ExpressionAttributeValues": {":seen": n(4)},
            }},
            {"Update": {
                "TableName": "limits", "Key": {"PK": s("p"), "SK": s("u")},
                "UpdateExpression": "SET #n0 = :v0 REMOVE #n1",
                "ConditionExpression": "#is IN (:is0, :is1)",
                "ExpressionAttributeNames": {"#n0": "a", "#n1": "b", "#is": "c"},
                "ExpressionAttributeValues": {":v0": n(1), ":is0": s("x"), ":is1": s("y")},
            }},
        ],
    }  # fmt: skip


def test_a_key_asked_for_twice_is_sent_once() -> None:
    port = ScriptedPort([{"Responses": {}}])
    run(table_at("", port=port).get_all(lookup_keys(NS, "a", "_default_")))
    [wanted] = port.requests[0].params["RequestItems"].values()
    assert len(wanted["Keys"]) == 4


def test_a_query_goes_on_where_it_stopped() -> None:
    port = ScriptedPort([{"Items": [1], "LastEvaluatedKey": {"PK": s("a")}}, {"Items": [2]}])
    found = run(table_at("", port=port).every(ask.query("limits", "p")))
    assert found == [1, 2]
    assert "ExclusiveStartKey" not in port.requests[0].params
    assert port.requests[1].params["ExclusiveStartKey"] == {"PK": s("a")}


def item(name: str) -> dict[str, Any]:
    return {"PK": s(name), "SK": s("x")}


def test_what_a_batch_left_undone_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "PAUSE_MS_MAX", 1)
    undone = {"limits": {"Keys": [item("b")], "ConsistentRead": True}}
    port = ScriptedPort(
        [
            {"Responses": {"limits": [item("a")]}, "UnprocessedKeys": undone},
            {"Responses": {"limits": [item("b")]}, "UnprocessedKeys": {}},
        ]
    )
    found = run(table_at("", name="limits", port=port).get_all([("a", "x"), ("b", "x")]))
    assert sorted(found) == [("a", "x"), ("b", "x")]
    assert port.requests[1].params["RequestItems"] == undone


class Batches(ScriptedPort):
    async def call_all(self, requests: Any) -> list[Any]:
        return [await self.call(request) for request in requests]


def test_what_a_deletion_left_undone_is_deleted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "PAUSE_MS_MAX", 1)
    undone = {"limits": [{"DeleteRequest": {"Key": item("k3")}}]}
    port = Batches([{}, {"UnprocessedItems": undone}, {}])
    keys = [(f"k{at}", "x") for at in range(30)]
    assert run(table_at("", name="limits", port=port).delete_all(keys)) == 30
    sizes = [len(request.params["RequestItems"]["limits"]) for request in port.requests]
    assert sizes == [25, 5, 1]


@pytest.mark.parametrize("verb", ["get_all", "delete_all"])
def test_a_batch_that_is_never_done_ends(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "PAUSE_MS_MAX", 1)
    reply = {
        "UnprocessedKeys": {"limits": {"Keys": [item("b")]}},
        "UnprocessedItems": {"limits": [{"DeleteRequest": {"Key": item("b")}}]},
    }
    port = Batches([reply] * 100)
    with pytest.raises(table.Throttled, match="over its capacity"):
        run(getattr(table_at("", name="limits", port=port), verb)([("b", "x")]))
    assert len(port.requests) == table.ROUNDS_MAX


# Keys: what they look like, and that no two things share one.

EXAMPLES = settings(max_examples=sized(30, 100, 1000))
LETTERS = string.ascii_letters
ALNUM = LETTERS + string.digits


def words(first: str, rest: str, size: int) -> st.SearchStrategy[str]:
    return st.builds(str.__add__, st.sampled_from(first), st.text(rest, max_size=size - 1))


entities = words(ALNUM, ALNUM + "_.-:@", 31)
resources = words(LETTERS, ALNUM + "_.-/:", 21)
types = st.sampled_from(WINDOW_TYPES)
times = st.integers(0, 4_000_000_000_000)


def test_keys_are_as_documented() -> None:
    ns = "abcdefghijk"
    assert schema.pk_system(ns) == "abcdefghijk/SYSTEM#"
    assert schema.pk_system() == "_/SYSTEM#"
    assert schema.pk_resource(ns, "gpt-4") == "abcdefghijk/RESOURCE#gpt-4"
    assert schema.pk_entity(ns, "user-1") == "abcdefghijk/ENTITY#user-1"
    assert schema.pk_bucket(ns, "user-1", "gpt-4", 3) == "abcdefghijk/BUCKET#user-1#gpt-4#3"
    assert schema.pk_audit(ns, "$SYSTEM") == "abcdefghijk/AUDIT#$SYSTEM"
    assert schema.STATE == "#STATE"
    assert schema.META == "#META"
    assert schema.VERSION == "#VERSION"
    assert (schema.sk_config(), schema.sk_config("gpt-4")) == ("#CONFIG", "#CONFIG#gpt-4")
    assert schema.sk_audit("1-2") == "#AUDIT#1-2"
    assert schema.parse_audit_sk("#AUDIT#1-2") == "1-2"
    assert schema.gsi4_sk_audit(ns, "1-2") == "abcdefghijk/EVENT#1-2"
    assert schema.sk_namespace("team") == "#NAMESPACE#team"
    assert schema.sk_nsid(ns) == "#NSID#abcdefghijk"
    usage = schema.sk_usage("gpt-4", "hourly", "2024-01-01T14:00:00Z")
    assert usage == "#USAGE#gpt-4#hourly#2024-01-01T14:00:00Z"
    assert schema.pk_parent(ns, "org") == "abcdefghijk/PARENT#org"
    assert schema.gsi1_sk("user-1") == "CHILD#user-1"
    assert schema.gsi2_sk_bucket("user-1", 0) == "BUCKET#user-1#0"
    assert schema.gsi3_pk_entity_config(ns, "gpt-4") == "abcdefghijk/ENTITY_CONFIG#gpt-4"
    assert schema.gsi3_sk_bucket("gpt-4", 0) == "BUCKET#gpt-4#0"


@pytest.mark.parametrize(
    "text",
    ["", "x", "ns/ENTITY#a", "ns/BUCKET#a#r", "ns/BUCKET#a#r#", "ns/BUCKET#a#r#x",
     "ns/BUCKET#a#r#-1", "ns/BUCKET#a#r#1#2", "ns/BUCKET#a#r#1\n", "ns/BUCKET#a#r#²"],
)  # fmt: skip
def test_what_is_no_bucket_s_key_is_not_taken_for_one(text: str) -> None:
    with pytest.raises(Damaged):
        schema.parse_bucket_pk(text)


def test_a_key_without_a_window_type_is_not_taken_for_a_usage_row() -> None:
    with pytest.raises(Damaged, match="no usage row"):
        schema.parse_usage_sk("#USAGE#gpt-4#2024-01-01T14:00:00Z")


@EXAMPLES
@given(st.lists(st.tuples(times, types, entities, resources), max_size=8))
def test_usage_sorts_newest_first_then_by_names(rows: list[tuple[int, str, str, str]]) -> None:
    for kind in WINDOW_TYPES:
        keys = [(schema.gsi4_sk_usage("n" * 11, kind, t, e, r), (-t, e, r)) for t, k, e, r in rows]
        assert [place for _, place in sorted(keys)] == sorted(place for _, place in keys)


@EXAMPLES
@given(st.lists(entities, unique=True), st.text())
def test_a_cursor_cuts_a_list_of_names_where_it_would_sort(found: list[str], cursor: str) -> None:
    bound = schema.clip_cursor(cursor) + schema.JUST_AFTER
    for name in found:
        if name == cursor or name.startswith(cursor):
            assert (name > bound) == (name > cursor)


def test_everything_fits_into_keys() -> None:
    """A partition key may have 2048 bytes, a sort key 1024."""
    entity_id, resource, ns = "e" * 256, "r" * 64, "n" * 11
    start = window_time(4_000_000_000_000)
    longest = [
        schema.pk_bucket(ns, entity_id, resource, 10**6),
        schema.pk_audit(ns, "$RESOURCE:" + resource),
        schema.sk_usage(resource, "monthly", start),
        schema.gsi4_sk_usage(ns, "monthly", 0, entity_id, resource),
        schema.gsi2_sk_config(resource, entity_id),
        f"{ns}/ENTITY#{schema.clip_cursor('é' * 5000)}!",
    ]
    assert max(len(text.encode()) for text in longest) < 1024


def test_all_the_characters_of_names_sort_after_those_that_bound_them() -> None:
    everything = {chr(n) for n in range(128) if re.match(r"[a-zA-Z0-9_.\-:@/]", chr(n))}
    bounds = (schema.JUST_AFTER, "#", schema.NEXT)
    assert all(a < b for a, b in itertools.pairwise(bounds))
    assert min(everything) > schema.NEXT
    assert max(everything) < "~"
