"""Many tasks on one loop: a bounded pool, deadlines in line, cancellation that loses nothing."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headgate.core.errors import Contended, StoreTrouble, Unreachable
from headgate.stores.dynamodb.client.calls import (
    DynamoPort,
    DynamoRequest,
    NotApplied,
    open_port,
)
from headgate.transport import pool_async
from tests.stores.dynamodb.client.kit import CREDIT, READ, TAKE, Answer, Canned, outcome, using
from tests.stores.dynamodb.engine import free_port


async def arrival(canned: Canned, requests: int = 1) -> None:
    await asyncio.get_running_loop().run_in_executor(None, canned.wait_for, requests)


async def test_two_hundred_calls_share_sixteen_connections(
    canned: Canned, port: DynamoPort
) -> None:
    canned.default = Answer(delay_s=0.005)
    requests = [DynamoRequest("GetItem", {"TableName": "limits", "n": n}) for n in range(200)]
    replies = await asyncio.gather(*(port.call(request) for request in requests))
    assert len(replies) == 200
    assert sorted(seen.body["n"] for seen in canned.seen) == list(range(200))
    assert canned.connections == canned.open_max == 16


@pytest.mark.parametrize("options", [{"connections": 2, "timeout_ms": 500}])
async def test_a_server_that_hangs_costs_every_caller_its_time_and_no_more(
    canned: Canned, port: DynamoPort
) -> None:
    gate = threading.Event()
    canned.default = Answer(gate=gate)
    calls = [asyncio.ensure_future(outcome(port.call(TAKE))) for _ in range(10)]
    outcomes = await asyncio.gather(*calls)
    gate.set()
    assert all(isinstance(each, StoreTrouble) for each in outcomes)
    unknown = [each for each in outcomes if type(each) is Unreachable]
    assert len(unknown) >= len(canned.seen)  # all that arrived, and maybe some that did not


def test_a_line_that_is_too_long_is_not_joined(
    canned: Canned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_async, "CALLS_WAITING_MAX", 5)
    canned.default = Answer(delay_s=0.05)

    async def test(port: DynamoPort) -> None:
        await port.call(READ)
        outcomes = await asyncio.gather(*(outcome(port.call(TAKE)) for _ in range(10)))
        assert sum(isinstance(each, Contended) for each in outcomes) == 4
        assert sum(isinstance(each, dict) for each in outcomes) == 6

    using(canned.endpoint, test, connections=1)


async def test_a_cancellation_in_the_turn_of_the_reply_loses_nothing(
    canned: Canned, port: DynamoPort
) -> None:
    """Cancelled at every moment around the reply, the caller hears of each call that was sent."""
    heard = 0

    async def caller(port: DynamoPort) -> None:
        nonlocal heard
        await port.call(TAKE)
        heard += 1

    await port.call(READ)
    for turns in range(60):
        task = asyncio.create_task(caller(port))
        for _ in range(turns % 12):
            await asyncio.sleep(0)
        if turns >= 12:
            await asyncio.sleep(turns / 50_000)
        task.cancel()
        await asyncio.wait((task,))
    assert heard == len(canned.seen) - 1
    assert heard > 20


@pytest.mark.parametrize("options", [{"connections": 1}])
async def test_a_call_in_line_is_withdrawn_at_once(canned: Canned, port: DynamoPort) -> None:
    gate = threading.Event()
    canned.default = Answer(gate=gate)
    first = asyncio.create_task(port.call(TAKE))
    await arrival(canned)
    second = asyncio.create_task(port.call(CREDIT))
    await asyncio.sleep(0.01)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    gate.set()
    await first
    assert len(canned.seen) == 1


@pytest.mark.parametrize("options", [{"connections": many} for many in (1, 2, 16)])
@pytest.mark.parametrize("cancels", [1, 3])
async def test_several_calls_are_never_left_half_done(
    canned: Canned, cancels: int, port: DynamoPort
) -> None:
    gate = threading.Event()
    canned.tell(Answer(gate=gate))
    heard: list[Any] = []

    async def caller(port: DynamoPort) -> None:
        heard.extend(await port.call_all([TAKE, CREDIT, READ, TAKE]))
        await asyncio.sleep(0)
        heard.append("not cancelled")

    task = asyncio.create_task(caller(port))
    await arrival(canned)
    for _ in range(cancels):
        task.cancel()
        await asyncio.sleep(0.01)
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert heard == [{"Attributes": {}}] * 4
    assert len(canned.seen) == 4


@pytest.mark.parametrize("options", [{"connections": 1}])
async def test_a_cancelled_batch_in_line_is_still_carried_out(
    canned: Canned, port: DynamoPort
) -> None:
    """The moment of danger: a line becomes free in the very turn its next caller is cancelled."""
    heard: list[Any] = []

    async def caller(port: DynamoPort) -> None:
        heard.append(await port.call_all([TAKE, TAKE, TAKE]))

    await port.call(READ)
    for turns in range(40):
        task = asyncio.create_task(caller(port))
        await asyncio.sleep(turns / 20_000)
        task.cancel()
        await asyncio.wait((task,))
    assert [len(each) for each in heard] == [3] * len(heard)
    assert len(canned.seen) == 1 + 3 * len(heard)


def test_a_refused_batch_keeps_its_outcomes_when_cancelled(credentials: None) -> None:
    heard: list[Any] = []

    async def caller(port: DynamoPort) -> None:
        heard.extend(await port.call_all([TAKE, CREDIT]))

    async def test(port: DynamoPort) -> None:
        await outcome(port.call(CREDIT))  # credentials are there
        task = asyncio.create_task(caller(port))
        await asyncio.sleep(0.015)  # in the pause before the second attempt
        task.cancel()
        await asyncio.wait((task,))

    using(f"http://127.0.0.1:{free_port()}", test)
    assert [isinstance(each, NotApplied) for each in heard] == [True, True]


@pytest.mark.parametrize("options", [{"connections": 4}])
async def test_one_bad_connection_does_not_harm_the_others(
    canned: Canned, port: DynamoPort
) -> None:
    canned.default = Answer(delay_s=0.01)
    canned.tell(Answer(cut=True), Answer(raw=(b"nonsense\r\n\r\n",)))
    outcomes = await asyncio.gather(*(outcome(port.call(TAKE)) for _ in range(60)))
    assert sum(isinstance(each, Unreachable) for each in outcomes) == 2
    assert sum(isinstance(each, dict) for each in outcomes) == 58
    assert len(canned.seen) == 60


@pytest.mark.parametrize("options", [{"connections": 2}])
async def test_closing_waits_for_what_was_sent_and_refuses_the_rest(
    canned: Canned, port: DynamoPort
) -> None:
    gate = threading.Event()
    canned.default = Answer(gate=gate)
    calls = [asyncio.ensure_future(outcome(port.call(TAKE))) for _ in range(4)]
    await arrival(canned, 2)
    closing = asyncio.ensure_future(port.close())
    await asyncio.sleep(0)
    gate.set()
    await closing
    outcomes = await asyncio.gather(*calls)
    assert [isinstance(each, dict) for each in outcomes] == [True, True, False, False]
    assert all(isinstance(each, NotApplied) for each in outcomes[2:])
    assert len(canned.seen) == 2


def test_loops_side_by_side(canned: Canned) -> None:
    endpoint = canned.endpoint
    port = open_port(region="us-east-1", endpoint=endpoint, blocking=False, timeout_ms=60_000)
    barrier = threading.Barrier(3)

    async def many() -> None:
        await asyncio.gather(*(port.call(TAKE) for _ in range(50)))
        await asyncio.get_running_loop().run_in_executor(None, barrier.wait, 60)
        await port.close()
        await asyncio.sleep(0.05)  # the others' connections are ended from here, too

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(asyncio.run, [many() for _ in range(3)]))
    assert len(canned.seen) == 150
