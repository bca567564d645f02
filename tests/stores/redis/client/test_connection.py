"""The shared connection at moments that no server can be made to hit; its transport is played."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.core.errors import Unreachable
from headgate.stores.redis.client.commands import pack
from headgate.stores.redis.client.connection import EARLY_CALLS, LoopClock, RedisConnection
from headgate.stores.redis.client.errors import NotSent
from headgate.stores.redis.client.url import Node

PING = pack(("PING",))


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.aborted = False

    def write(self, data: Any) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol


class Stage:
    def __init__(self) -> None:
        self.transports: list[Transport] = []
        self.loop = asyncio.get_running_loop()
        self.clock = LoopClock(self.loop, 1.0)
        self.link = RedisConnection(Node("played", 1), self._dial, self.clock, 1000)

    async def _dial(self, node: Node) -> Any:
        self.transports.append(Transport())
        return SimpleNamespace(transport=self.transports[-1])

    def ask(self, due_s: float = 5) -> asyncio.Task[Any]:
        return asyncio.create_task(self.link.ask(PING, self.clock.now_s() + due_s))

    def receive(self, data: bytes) -> None:
        self.link.get_buffer(-1)[: len(data)] = data
        self.link.buffer_updated(len(data))

    async def sent(self, count: int = 1) -> Transport:
        for _ in range(20):
            await asyncio.sleep(0)
        assert b"".join(self.transports[-1].written).count(b"PING") == count
        return self.transports[-1]


async def ending(task: asyncio.Task[Any]) -> Any:
    return (await asyncio.gather(task, return_exceptions=True))[0]


@pytest.mark.parametrize("ended_by", ["answer", "loss", "an answer before the cancel"])
async def test_what_comes_between_cancel_and_waking_reaches_the_caller(ended_by: str) -> None:
    stage = Stage()
    seen: list[Any] = []

    async def caller() -> None:
        try:
            seen.append(await stage.link.ask(PING, stage.clock.now_s() + 5))
        except Unreachable as error:
            seen.append(type(error))
        await asyncio.sleep(0)
        seen.append("not reached")

    task = asyncio.create_task(caller())
    await stage.sent()
    if ended_by == "an answer before the cancel":
        stage.receive(b"+PONG\r\n")
    task.cancel()
    if ended_by == "answer":
        stage.receive(b"+PONG\r\n")
    elif ended_by == "loss":
        stage.link.connection_lost(None)
    assert isinstance(await ending(task), asyncio.CancelledError)
    assert seen == [Unreachable if ended_by == "loss" else "PONG"]


async def test_calls_of_one_turn_are_written_at_once() -> None:
    stage = Stage()
    tasks = [stage.ask() for _ in range(5)]
    transport = await stage.sent(5)
    assert len(transport.written) == 1
    stage.receive(b"+1\r\n+2\r\n+3\r\n-ERR")
    stage.receive(b" four\r\n$1\r\n5\r\n")
    replies = await asyncio.gather(*tasks)
    assert replies[:3] == ["1", "2", "3"]
    assert replies[3].text == "ERR four"
    assert replies[4] == "5"


async def test_many_calls_of_one_turn_are_under_way_before_it_ends() -> None:
    stage = Stage()
    tasks = [stage.ask()]
    await stage.sent()
    tasks += [stage.ask() for _ in range(2 * EARLY_CALLS + 3)]
    transport = await stage.sent(2 * EARLY_CALLS + 4)
    assert [data.count(b"PING") for data in transport.written] == [1, EARLY_CALLS, EARLY_CALLS, 3]
    stage.receive(b"+PONG\r\n" * (2 * EARLY_CALLS + 4))
    assert set(await asyncio.gather(*tasks)) == {"PONG"}


async def test_nothing_is_written_early_while_the_other_side_is_slow() -> None:
    stage = Stage()
    tasks = [stage.ask()]
    transport = await stage.sent()
    stage.link.pause_writing()
    tasks += [stage.ask() for _ in range(2 * EARLY_CALLS)]
    await stage.sent(1)
    stage.link.resume_writing()
    await stage.sent(2 * EARLY_CALLS + 1)
    assert len(transport.written) == 2
    stage.receive(b"+PONG\r\n" * len(tasks))
    assert set(await asyncio.gather(*tasks)) == {"PONG"}


async def test_an_overdue_head_gets_one_more_look() -> None:
    """As in a loop that was busy past the deadline and runs its timers before it reads."""
    stage = Stage()
    task = stage.ask(due_s=0.05)
    await stage.sent()
    time.sleep(0.06)
    stage.link._timer.cancel()
    stage.link._look()
    assert not task.done()
    stage.receive(b"+PONG\r\n")
    assert await task == "PONG"


async def test_an_overdue_head_takes_the_sent_along_and_leaves_the_unsent() -> None:
    stage = Stage()
    head, second = stage.ask(due_s=0.01), stage.ask()
    first_line = await stage.sent(2)
    stage.link.pause_writing()
    third = stage.ask()
    assert "no answer within" in str(await ending(head))
    assert "unknown" in str(await ending(second))
    assert first_line.aborted
    second_line = await stage.sent()
    assert second_line is not first_line
    stage.receive(b"+PONG\r\n")
    assert await third == "PONG"


async def test_answers_nobody_asked_for_end_the_connection() -> None:
    stage = Stage()
    task = stage.ask()
    transport = await stage.sent()
    stage.receive(b"+PONG\r\n+PONG\r\n")
    assert await task == "PONG"
    assert transport.aborted
    again = stage.ask()
    assert await stage.sent() is not transport
    stage.receive(b"+PONG\r\n")
    assert await again == "PONG"


@pytest.mark.parametrize("noise", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x01"])
async def test_what_is_no_reply_ends_the_connection(noise: bytes) -> None:
    stage = Stage()
    task = stage.ask(due_s=0.05)
    transport = await stage.sent()
    stage.receive(noise)
    assert type(await ending(task)) is Unreachable
    assert transport.aborted


async def test_a_retired_connection_answers_what_was_sent() -> None:
    stage = Stage()
    first = stage.ask()
    transport = await stage.sent()
    stage.link.retire()
    second = stage.ask()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(transport.written) == 1
    stage.receive(b"+OLD\r\n")
    assert await first == "OLD"
    assert await stage.sent() is not transport
    stage.receive(b"+NEW\r\n")
    assert await second == "NEW"


async def test_a_late_attempt_expires_by_itself() -> None:
    """A redirected call joins the line with less time than those before it."""
    stage = Stage()
    first = stage.ask()
    late = stage.ask(due_s=0.01)
    transport = await stage.sent(2)
    assert "unknown" in str(await ending(late))
    assert not transport.aborted
    stage.receive(b"+1\r\n+2\r\n")
    assert await first == "1"


async def test_a_late_attempt_that_was_not_sent_never_is() -> None:
    stage = Stage()
    first = stage.ask()
    transport = await stage.sent()
    stage.link.pause_writing()
    due_s = stage.clock.now_s() + 0.01
    late = asyncio.create_task(stage.link.ask(PING, due_s, asking=True))
    assert isinstance(await ending(late), NotSent)
    stage.link.resume_writing()
    stage.receive(b"+PONG\r\n")
    assert await first == "PONG"
    assert len(transport.written) == 1  # nor the ASKING before it


async def test_a_busy_loop_stops_the_clock_and_an_idle_one_does_not() -> None:
    loop = asyncio.get_running_loop()
    clock = LoopClock(loop, 1.0)
    before_s = clock.now_s()
    time.sleep(1.2)  # as a loop that starts thousands of tasks
    await asyncio.sleep(0)
    assert clock.now_s() - before_s < 0.5
    before_s, began_s = clock.now_s(), loop.time()
    while clock.now_s() - before_s < 0.5:  # ends, so it does count
        await asyncio.sleep(0.01)
    assert loop.time() - began_s >= 0.49  # and never runs ahead


async def test_a_clock_that_nobody_asks_stops_ticking() -> None:
    clock = LoopClock(asyncio.get_running_loop(), 0.01)
    clock.now_s()
    while clock._timer is not None:
        await asyncio.sleep(0.001)
    clock.now_s()
    assert clock._timer is not None
