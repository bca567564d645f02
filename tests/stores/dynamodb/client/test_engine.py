"""The async port against a real engine: what the store builds on comes over the wire as it expects.

The blocking one: proof/model/test_agrees.py.
"""

from __future__ import annotations

import time

from headgate.stores.dynamodb.client.calls import (
    ConditionFailed,
    DynamoPort,
    Rejected,
    TableMissing,
    TransactionCancelled,
)
from headgate.stores.dynamodb.protocol.update_expression import UpdateExpression
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.create import creation
from tests.stores.dynamodb.client.kit import outcome, using
from tests.stores.dynamodb.kit import table_name


def test_the_calls_the_store_makes(dynamo_endpoint: str) -> None:
    table = table_name()
    a, b, c, d = ((name, "#STATE") for name in "abcd")
    draft = UpdateExpression()
    draft.set_number("used", 60)
    draft.absent("used")

    async def test(port: DynamoPort) -> None:
        assert isinstance(await outcome(port.call(draft.request(table, a))), TableMissing)
        await port.call(creation(table))
        again = await outcome(port.call(creation(table)))
        assert isinstance(again, Rejected)
        assert again.code == "ResourceInUseException"
        assert (await port.call(draft.request(table, a)))["Attributes"]["used"] == {"N": "60"}
        await several(port)
        await transaction(port)
        assert abs(port.now_ms() - time.time() * 1000) < 1500

    async def several(port: DynamoPort) -> None:
        done, failed, also = await port.call_all([draft.request(table, key) for key in (b, a, c)])
        assert (type(done), type(also)) == (dict, dict)
        assert isinstance(failed, ConditionFailed)
        assert failed.item == {"PK": {"S": "a"}, "SK": {"S": "#STATE"}, "used": {"N": "60"}}
        got = await port.call(ask.batch_get(table, [a, b, d]))
        assert {item["PK"]["S"] for item in got["Responses"][table]} == {"a", "b"}

    async def transaction(port: DynamoPort) -> None:
        writes: list[ask.Write] = [{"Update": draft.write(key)} for key in (d, a)]
        cancelled = await outcome(port.call(ask.transaction(table, writes)))
        assert isinstance(cancelled, TransactionCancelled)
        (first, nothing), (second, item) = cancelled.reasons
        assert (first, nothing, second) == ("None", None, "ConditionalCheckFailed")
        assert item == {"PK": {"S": "a"}, "SK": {"S": "#STATE"}, "used": {"N": "60"}}
        assert "Item" not in await port.call(ask.get(table, d))

    using(dynamo_endpoint, test, blocking=False)
