"""The port against an engine that behaves like DynamoDB: what the store builds on."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import pytest

from headgate.stores.dynamodb.client.calls import (
    ConditionFailed,
    DynamoPort,
    DynamoRequest,
    Rejected,
    TableMissing,
    TransactionCancelled,
)
from tests.stores.dynamodb.client.kit import outcome, using

pytestmark = pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])


def create(table: str) -> DynamoRequest:
    def key(name: str, kind: str) -> dict[str, str]:
        return {"AttributeName": name, "KeyType": kind}

    index = {
        "IndexName": "GSI1",
        "KeySchema": [key("GSI1PK", "HASH"), key("GSI1SK", "RANGE")],
        "Projection": {"ProjectionType": "KEYS_ONLY"},
    }
    names = ("PK", "SK", "GSI1PK", "GSI1SK")
    return DynamoRequest(
        "CreateTable",
        {
            "TableName": table,
            "KeySchema": [key("PK", "HASH"), key("SK", "RANGE")],
            "AttributeDefinitions": [
                {"AttributeName": name, "AttributeType": "S"} for name in names
            ],
            "GlobalSecondaryIndexes": [index],
            "BillingMode": "PAY_PER_REQUEST",
        },
    )


def key(name: str) -> dict[str, Any]:
    return {"PK": {"S": name}, "SK": {"S": "#STATE"}}


def take(table: str, name: str, amount: int, at_most: int) -> dict[str, Any]:
    return {
        "TableName": table,
        "Key": key(name),
        "UpdateExpression": "SET GSI1PK = :all, GSI1SK = :name ADD used :amount",
        "ConditionExpression": "attribute_not_exists(used) OR used <= :most",
        "ExpressionAttributeValues": {
            ":amount": {"N": str(amount)},
            ":most": {"N": str(at_most - amount)},
            ":all": {"S": "all"},
            ":name": {"S": name},
        },
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def update(table: str, name: str, amount: int = 1, at_most: int = 100) -> DynamoRequest:
    params = take(table, name, amount, at_most)
    return DynamoRequest("UpdateItem", params | {"ReturnValues": "ALL_NEW"})


def test_the_calls_the_store_makes(dynamo_endpoint: str, blocking: bool) -> None:
    table = f"port-{uuid.uuid4().hex}"

    async def test(port: DynamoPort) -> None:
        await port.call(create(table))
        again = await outcome(port.call(create(table)))
        assert isinstance(again, Rejected)
        assert again.code == "ResourceInUseException"
        await conditional(port)
        await several(port)
        await transaction(port)
        assert abs(port.now_ms() - time.time() * 1000) < 1500

    async def conditional(port: DynamoPort) -> None:
        reply = await port.call(update(table, "a", 60))
        assert reply["Attributes"]["used"] == {"N": "60"}
        failed = await outcome(port.call(update(table, "a", 60)))
        assert isinstance(failed, ConditionFailed)
        assert failed.item is not None
        assert failed.item["used"] == {"N": "60"}
        assert failed.item["PK"] == {"S": "a"}

    async def several(port: DynamoPort) -> None:
        outcomes = await port.call_all([update(table, name, 50) for name in ("b", "a", "c")])
        assert [type(each) for each in outcomes] == [dict, ConditionFailed, dict]
        keys = {table: {"Keys": [key("a"), key("b"), key("none")]}}
        got = await port.call(DynamoRequest("BatchGetItem", {"RequestItems": keys}))
        found = {each["PK"]["S"]: each["used"]["N"] for each in got["Responses"][table]}
        assert found == {"a": "60", "b": "50"}
        listed = await port.call(
            DynamoRequest(
                "Query",
                {
                    "TableName": table,
                    "IndexName": "GSI1",
                    "KeyConditionExpression": "GSI1PK = :all AND GSI1SK >= :from",
                    "ExpressionAttributeValues": {":all": {"S": "all"}, ":from": {"S": "b"}},
                },
            )
        )
        assert [each["PK"]["S"] for each in listed["Items"]] == ["b", "c"]

    async def transaction(port: DynamoPort) -> None:
        parts = [{"Update": take(table, name, 50, 100)} for name in ("d", "a")]
        request = DynamoRequest("TransactWriteItems", {"TransactItems": parts})
        trouble = await outcome(port.call(request))
        assert isinstance(trouble, TransactionCancelled)
        (first, _), (second, item) = trouble.reasons
        assert (first, second) == ("None", "ConditionalCheckFailed")
        assert item is not None
        assert item["used"] == {"N": "60"}
        missing = await port.call(DynamoRequest("GetItem", {"TableName": table, "Key": key("d")}))
        assert "Item" not in missing

    using(dynamo_endpoint, test, blocking=blocking, timeout_ms=10_000)


def test_what_is_not_there_and_what_cannot_be(dynamo_endpoint: str, blocking: bool) -> None:
    async def test(port: DynamoPort) -> None:
        missing = await outcome(port.call(update("no-such-table", "a")))
        assert isinstance(missing, TableMissing)
        table = f"port-{uuid.uuid4().hex}"
        await port.call(create(table))
        wrong = update(table, "a")
        wrong.params["UpdateExpression"] = "SET nonsense"
        assert isinstance(await outcome(port.call(wrong)), Rejected)

    using(dynamo_endpoint, test, blocking=blocking, timeout_ms=10_000)


def test_nothing_is_lost_and_nothing_is_doubled(dynamo_endpoint: str, blocking: bool) -> None:
    table = f"port-{uuid.uuid4().hex}"

    async def test(port: DynamoPort) -> None:
        await port.call(create(table))
        if blocking:
            outcomes = [
                each for _ in range(5) for each in await port.call_all([update(table, "a")] * 30)
            ]
        else:
            outcomes = await asyncio.gather(
                *(outcome(port.call(update(table, "a"))) for _ in range(150))
            )
        assert sum(isinstance(each, dict) for each in outcomes) == 100
        assert sum(isinstance(each, ConditionFailed) for each in outcomes) == 50

    using(dynamo_endpoint, test, blocking=blocking, timeout_ms=10_000)
