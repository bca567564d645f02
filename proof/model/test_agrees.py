"""The model answers as a real engine does: replies, failures and items, on random programs.

HEADGATE_MODEL_SEED chooses other steps.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from headgate.core.errors import StoreTrouble
from headgate.core.runtime import run
from headgate.stores.dynamodb.client.calls import (
    ConditionFailed,
    DynamoPort,
    DynamoRequest,
    Rejected,
    TransactionCancelled,
)
from headgate.stores.dynamodb.table import create as table_making
from headgate.stores.dynamodb.table.table import Table
from proof.model.engine import Engine, Snapshot
from proof.model.port import ModelPort
from proof.model.programs import Program
from proof.size import sized
from tests.stores.dynamodb.kit import table_at

STEPS = sized(600, 2400, 160_000)
SEED = int(os.environ.get("HEADGATE_MODEL_SEED", "1"))
STEPS_PER_PROGRAM = 8


def outcome_of(port: DynamoPort, request: DynamoRequest) -> Any:
    """What a request came to, without what the two may word differently."""
    try:
        reply = run(port.call(request))
    except ConditionFailed as failure:
        return "failed", failure.item
    except TransactionCancelled as cancelled:
        return "cancelled", cancelled.reasons
    except Rejected as rejected:
        return "rejected", rejected.code
    except StoreTrouble as trouble:
        raise AssertionError(f"{request} met {trouble!r}") from trouble
    found = {name: reply[name] for name in ("Attributes", "Item", "Items") if reply.get(name)}
    for name in ("Count", "ScannedCount"):
        if name in reply:
            found[name] = reply[name]
    for table, items in reply.get("Responses", {}).items():
        found[table] = sorted(items, key=lambda item: item["SK"]["S"])
    return "done", found


def items_of(port: DynamoPort, table: Table, program: Program) -> list[Any]:
    found = []
    for part in (0, 1):
        request = DynamoRequest(
            "Query",
            {
                "TableName": table.name,
                "KeyConditionExpression": "PK = :pk",
                "ExpressionAttributeValues": {":pk": {"S": f"{program.mark}/{part}"}},
                "ConsistentRead": True,
            },
        )
        found += run(port.call(request))["Items"]
    return found


@pytest.fixture(scope="module")
def pair(dynamo_endpoint: str) -> Iterator[tuple[Table, ModelPort]]:
    """A table in the real engine, and the same one in a model."""
    table = table_at(dynamo_endpoint)
    run(table_making.prepare(table))
    model = ModelPort(Engine(), table.port.now_ms)
    run(model.call(table_making.creation(table.name)))
    yield table, model
    run(table.port.close())


def test_random_programs_agree(pair: tuple[Table, ModelPort]) -> None:
    """Each program has items of its own, so a failure is its steps alone."""
    table, model = pair
    kinds: dict[str, int] = {}
    for number in range(max(1, STEPS // STEPS_PER_PROGRAM)):
        program = Program(random.Random(f"{SEED}-{number}"), table.name, f"p{SEED}.{number}")
        model.engine.snapshot = model.engine.snapshot.with_tables(model.engine.snapshot.tables)
        model.engine.snapshot = Snapshot(tables=model.engine.snapshot.tables)
        trace: list[str] = []
        for _ in range(STEPS_PER_PROGRAM):
            request = program.step()
            real, modelled = outcome_of(table.port, request), outcome_of(model, request)
            trace.append(f"{request}\n  real  {real}\n  model {modelled}")
            assert modelled == real, "\n".join(trace)
            kinds[real[0]] = kinds.get(real[0], 0) + 1
        real_items = items_of(table.port, table, program)
        assert items_of(model, table, program) == real_items, "\n".join(trace)
    print(f"steps agreed on, by outcome: {kinds}")  # noqa: T201
    assert set(kinds) == {"done", "failed", "cancelled", "rejected"}
