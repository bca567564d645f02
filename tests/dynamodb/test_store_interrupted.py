"""What was taken is reported or given back, whatever happens to the caller or to usage."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from dynamodb.model.engine import Engine
from dynamodb.model.port import ModelPort
from dynamodb.shard_kit import START_MS, Bucket
from headgate import Limit
from headgate.bridge import run
from headgate.errors import StoreTrouble, Unreachable
from headgate.stores.dynamodb import over_port, tally
from headgate.stores.dynamodb.buckets import DynamoStore
from headgate.stores.dynamodb.port import Request


class Cancelling(ModelPort):
    """Cancels its caller while a round of several calls is under way, as a real port delivers it:
    with the answers, and then at the next await."""

    cancel = False

    async def call_all(self, requests: Sequence[Request]) -> list[dict[str, Any] | StoreTrouble]:
        await asyncio.sleep(0)
        outcomes = await super().call_all(requests)
        if self.cancel:
            self.cancel = False
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        return outcomes


def store_over(port: ModelPort, **more: Any) -> DynamoStore:
    prepared = ModelPort(port.engine, lambda: START_MS)
    run(over_port(prepared, "t", blocking=True).catalog.prepare())
    found = over_port(port, "t", blocking=False, **more).store
    assert isinstance(found, DynamoStore)
    return found


def test_a_cancelled_caller_leaves_nothing_taken_of_a_refused_demand() -> None:
    async def flow() -> None:
        port = Cancelling(Engine(), lambda: START_MS)
        store = store_over(port, usage="off")
        wide = Bucket(store, [Limit.per_minute("x", 10)])
        narrow = Bucket(store, [Limit.per_minute("x", 1)])
        both = [wide.demand(x=2), narrow.demand(x=1)]
        assert (await store.consume(both, START_MS)).allowed
        port.cancel = True
        with pytest.raises(asyncio.CancelledError):
            await store.consume(both, START_MS)
        sight = await store.peek([wide.key], START_MS)
        record = sight.records[0]
        assert record is not None
        assert record[4:6] == (8000, 2000)  # tokens and consumption: as after the first

    asyncio.run(flow())


class Deaf(ModelPort):
    """Takes everything but usage rows."""

    async def call_all(self, requests: Sequence[Request]) -> list[dict[str, Any] | StoreTrouble]:
        rows = [request for request in requests if request.params["Key"]["SK"]["S"] != "#STATE"]
        if rows:
            return [Unreachable("history is away") for _ in requests]
        return await super().call_all(requests)


@pytest.mark.parametrize("kind", [ModelPort, Deaf])
def test_usage_that_is_much_goes_to_history_bit_by_bit_and_before_a_take(
    monkeypatch: pytest.MonkeyPatch, kind: type[ModelPort]
) -> None:
    """No acquire waits for all of it, and none fails because history is away."""
    monkeypatch.setattr(tally, "HOURS_MAX", 5)
    store = store_over(kind(Engine(), lambda: START_MS))
    assert store._tally is not None
    for number in range(40):
        bucket = Bucket(store, [Limit.per_minute("x", 10)], f"entity{number}")
        assert run(store.consume([bucket.demand(x=1)], START_MS)).allowed
        assert len(store._tally._held) <= 5


def test_closing_while_history_is_away_is_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    store = store_over(Deaf(Engine(), lambda: START_MS))
    for number in range(3):
        bucket = Bucket(store, [Limit.per_minute("x", 10)], f"entity{number}")
        assert run(store.consume([bucket.demand(x=1)], START_MS)).allowed
    run(store.close())
    assert "usage of 3 bucket hours is lost: history is away" in caplog.text
