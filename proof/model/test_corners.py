"""Where the model follows what AWS documents and the engine of the tests does not."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.stores.dynamodb.client.calls import (
    ConditionFailed,
    DynamoRequest,
    Rejected,
    TransactionCancelled,
)
from proof.model.engine import Engine, Outcome, Snapshot

KEY = {"PK": {"S": "p"}, "SK": {"S": "s"}}


@pytest.fixture
def engine() -> Engine:
    found = Engine(Snapshot(tables={"t": {}}))
    item = {**KEY, "n": {"N": "5"}, "text": {"S": "five"}}
    found.apply(DynamoRequest("PutItem", {"TableName": "t", "Item": item}))
    return found


def updated(engine: Engine, update: str, condition: str | None = None, **values: str) -> Outcome:
    params: dict[str, Any] = {"TableName": "t", "Key": KEY, "UpdateExpression": update}
    params["ExpressionAttributeValues"] = {f":{name}": {"N": n} for name, n in values.items()}
    if condition is not None:
        params["ConditionExpression"] = condition
    return engine.apply(DynamoRequest("UpdateItem", params))


@pytest.mark.parametrize(
    ("update", "condition", "values"),
    [
        ("SET n = :a ADD n :b", None, {"a": "1", "b": "2"}),  # one attribute written twice
        ("SET m = :a REMOVE m", None, {"a": "1"}),
        ("SET n = :a", "n BETWEEN :b AND :c", {"a": "1", "b": "3", "c": "2"}),
        ("SET text = text + :a", None, {"a": "1"}),  # a sum with text
        ("ADD text :a", None, {"a": "1"}),
        ("SET n = m + :a", None, {"a": "1"}),  # m is not there
        ("SET PK = :a", None, {"a": "1"}),  # part of the key
        ("SET n = :a", None, {"a": "1", "b": "2"}),  # b is not used
        ("SET n = :b", None, {"a": "1"}),  # b is not defined
        ("SET n = :a SET m = :a", None, {"a": "1"}),
        ("SET n = :a", "", {"a": "1"}),
        ("ADD n :a", None, {"a": "1" * 39}),
    ],
)
def test_it_refuses_what_aws_refuses(
    engine: Engine, update: str, condition: str | None, values: dict[str, str]
) -> None:
    before = engine.snapshot
    outcome = updated(engine, update, condition, **values)
    assert isinstance(outcome, Rejected)
    assert outcome.code == "ValidationException"
    assert engine.snapshot == before


def test_a_number_keeps_all_of_38_digits(engine: Engine) -> None:
    updated(engine, "SET n = :a", a="9" * 37 + "0")
    updated(engine, "ADD n :a", a="9")
    [row] = engine.snapshot.rows.values()
    assert row.number("n") == 10**38 - 1


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("m <> :a", True),  # what is not there is not equal to anything
        ("m = :a", False),
        ("m < :a", False),
        ("NOT m < :a", True),
        ("text > :a", False),  # another type
        ("text <> :a", True),
    ],
)
def test_comparing_with_nothing(engine: Engine, condition: str, holds: bool) -> None:
    outcome = updated(engine, "SET n = :a", condition, a="1")
    assert isinstance(outcome, dict) is holds
    assert isinstance(outcome, ConditionFailed) is not holds


def test_the_condition_comes_before_what_the_update_needs(engine: Engine) -> None:
    assert isinstance(updated(engine, "SET n = m + :a", "n < :a", a="1"), ConditionFailed)


def test_a_transaction_tells_per_part_why_it_was_cancelled(engine: Engine) -> None:
    before = engine.snapshot
    update = {
        "TableName": "t",
        "Key": KEY,
        "UpdateExpression": "SET n = m + :a",
        "ExpressionAttributeValues": {":a": {"N": "1"}},
    }
    put = {"TableName": "t", "Item": {**KEY, "SK": {"S": "other"}}}
    parts = [{"Update": update}, {"Put": put}]
    outcome = engine.apply(DynamoRequest("TransactWriteItems", {"TransactItems": parts}))
    assert isinstance(outcome, TransactionCancelled)
    assert outcome.reasons == [("ValidationError", None), ("None", None)]
    assert engine.snapshot == before


def test_snapshots_are_compared_by_value(engine: Engine) -> None:
    before = engine.snapshot
    updated(engine, "ADD n :a", a="1")
    assert engine.snapshot != before
    updated(engine, "ADD n :a", a="-1")
    assert engine.snapshot == before
    assert hash(engine.snapshot) == hash(before)
