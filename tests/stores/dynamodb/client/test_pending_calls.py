"""Who waits for a call is woken by the callback that read its answer, and never by another task."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest

from headgate.transport.http1 import Response
from headgate.transport.http_pool import PoolOptions, ServerAddress
from headgate.transport.pool_async import AsyncHttpConnection, AsyncHttpPool, PendingCall

REPLY = Response(200, b"", b"{}", True)

mood = contextvars.ContextVar("mood", default="nobody's")


def pending(request: bytes = b"") -> PendingCall:
    return PendingCall(request, 0.0, 0.0, asyncio.get_running_loop())


def errand() -> PendingCall:
    made = pending()
    options = PoolOptions(ServerAddress("h", 80, None), 1, 1.0, 100)
    made.connection = AsyncHttpConnection(AsyncHttpPool(options))  # it was sent
    return made


async def waiting(call: PendingCall) -> asyncio.Task[None]:
    """A caller that waits for it."""

    async def caller() -> None:
        await call

    task = asyncio.create_task(caller())
    await asyncio.sleep(0)
    return task


async def test_the_caller_goes_on_in_the_turn_that_read_its_answer() -> None:
    order: list[str] = []
    call = errand()

    async def caller() -> None:
        await call
        order.append("caller")

    def answered() -> None:
        asyncio.get_running_loop().call_soon(order.append, "the next turn")
        call.settle(REPLY, at_once=True)

    task = asyncio.create_task(caller())
    asyncio.get_running_loop().call_soon(answered)
    await task
    await asyncio.sleep(0)
    assert order == ["caller", "the next turn"]
    assert call.outcome is REPLY


async def test_a_task_that_settles_it_does_not_run_the_caller_inside_itself() -> None:
    call = errand()
    running: list[Any] = []

    async def caller() -> None:
        await call
        running.append(asyncio.current_task())

    task = asyncio.create_task(caller())
    await asyncio.sleep(0)
    call.settle(REPLY, at_once=True)
    assert running == []
    await task
    assert running == [task]


async def test_the_caller_goes_on_in_its_own_context() -> None:
    call = errand()

    async def caller() -> str:
        mood.set("the caller's")
        await call
        return mood.get()

    task = asyncio.create_task(caller())
    asyncio.get_running_loop().call_soon(lambda: call.settle(REPLY, at_once=True))
    assert await task == "the caller's"
    assert mood.get() == "nobody's"


async def test_what_is_settled_already_is_not_waited_for() -> None:
    call = errand()
    call.settle(REPLY)
    await call


async def test_a_batch_has_all_answers_before_its_caller_is_cancelled() -> None:
    pool = AsyncHttpPool(PoolOptions(ServerAddress("h", 80, None), 1, 1.0, 100))
    calls: list[PendingCall] = []
    pool._submit = calls.append  # type: ignore[method-assign]
    found: list[Any] = []

    async def caller() -> None:
        found.extend(await pool.ask_all([b"1", b"2", b"3"], 0.0))
        await asyncio.sleep(0)

    task = asyncio.create_task(caller())
    await asyncio.sleep(0)
    task.cancel()
    for at in (1, 2, 0):
        assert found == []
        asyncio.get_running_loop().call_soon(lambda at=at: calls[at].settle(REPLY, at_once=True))
        for _ in range(5):
            await asyncio.sleep(0)
    assert found == [REPLY, REPLY, REPLY]
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_call_that_was_not_sent_is_cancelled_at_once_and_says_why() -> None:
    call = pending()

    task = await waiting(call)
    task.cancel("enough")
    with pytest.raises(asyncio.CancelledError, match="enough"):
        await task
    call.settle(REPLY)  # whoever still has it may settle it: nobody is woken twice
    await asyncio.sleep(0)


async def test_a_call_that_was_sent_is_waited_for_and_then_its_caller_is_cancelled() -> None:
    call = errand()

    task = await waiting(call)
    task.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    asyncio.get_running_loop().call_soon(lambda: call.settle(REPLY, at_once=True))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert call.outcome is REPLY


async def test_a_task_that_is_shown_shows_nothing_of_the_request() -> None:
    call = pending(b"authorization: secret")

    task = await waiting(call)
    assert "PendingCall" in repr(task)
    assert "secret" not in repr(task)
    call.settle(REPLY)
    await task
