"""The shared connection: what it carries at once, and what becomes of calls when things break."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from headgate.core.errors import Contended, Full, StoreTrouble, Unreachable
from headgate.stores.redis.client import connection as wire_link
from headgate.stores.redis.client.calls import (
    RedisPort,
    Script,
    ScriptRefused,
    Unexpected,
    open_port,
)
from headgate.stores.redis.client.commands import NotSent
from tests.stores.redis import servers

INCR = Script("incr", "return redis.call('INCR', KEYS[1])")
REFUSE = Script("refuse", "return redis.error_reply('HEADGATE too fine: ' .. ARGV[1])")
BROKEN = Script("broken", "return nonsense.x")

Test = Callable[[RedisPort], Coroutine[Any, Any, None]]


def using(url: str, test: Test, timeout_ms: int = 5000) -> None:
    async def main() -> None:
        port = open_port(url, blocking=False, timeout_ms=timeout_ms)
        try:
            async with asyncio.timeout(60):
                await test(port)
        finally:
            await port.close()

    asyncio.run(main(), debug=False)


async def outcome(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except StoreTrouble as error:
        return error


def connections(url: str) -> int:
    return str(servers.command(url, "CLIENT", "LIST")).count("\n") - 1  # without the one that asks


def test_a_thousand_calls_share_one_connection(redis_url: str) -> None:
    servers.flush(redis_url)

    async def test(port: RedisPort) -> None:
        replies = await asyncio.gather(*(port.script(INCR, ["n"], []) for _ in range(1000)))
        assert replies == list(range(1, 1001))  # in the order of the calls, too
        end_s = time.monotonic() + 5  # the connections of earlier tests may still be ending
        while (clients := str(await port.command("CLIENT", "LIST"))).count("\n") != 1:
            assert time.monotonic() < end_s, clients

    using(redis_url, test)


def test_a_flushed_script_is_loaded_again_and_runs_once(redis_url: str) -> None:
    servers.flush(redis_url)

    async def test(port: RedisPort) -> None:
        done = False

        async def flushing() -> int:
            flushes = 0
            while not done:
                await port.command("SCRIPT", "FLUSH")
                flushes += 1
            return flushes

        async def calling() -> None:
            for _ in range(20):
                await port.script(INCR, ["n"], [])

        flusher = asyncio.create_task(flushing())
        await asyncio.gather(*(calling() for _ in range(200)))
        done = True
        assert await flusher > 3
        assert await port.command("GET", "n") == "4000"

    using(redis_url, test, timeout_ms=10_000)


def test_errors_of_scripts_and_server(redis_url: str) -> None:
    async def test(port: RedisPort) -> None:
        with pytest.raises(ScriptRefused) as refused:
            await port.script(REFUSE, [], ["x"])
        assert refused.value.text == "HEADGATE too fine: x"
        with pytest.raises(Unexpected, match="report it as a bug"):
            await port.script(BROKEN, [], [])
        with pytest.raises(Unexpected, match="unknown command"):
            await port.command("NONSENSE")
        await port.command("SET", "text", "x")
        with pytest.raises(Unexpected, match="another program uses this key"):
            await port.command("HGET", "text", "x")
        outcomes = await port.scripts([(INCR, ["m"], []), (REFUSE, [], ["y"]), (INCR, ["m"], [])])
        assert isinstance(outcomes[1], ScriptRefused)
        assert outcomes[2] == outcomes[0] + 1

    using(redis_url, test)


def test_full_memory_is_named(own_server: servers.Server) -> None:
    async def test(port: RedisPort) -> None:
        await port.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(Full, match=r"memory is full.*do not choose an eviction"):
            await port.script(INCR, ["n"], [])

    using(own_server.url, test)


def test_a_busy_script_is_contention(own_server: servers.Server) -> None:
    forever = Script("forever", "while true do end")

    async def test(port: RedisPort) -> None:
        await port.command("CONFIG", "SET", "busy-reply-threshold", "1")
        endless = asyncio.create_task(outcome(port.script(forever, [], [])))
        second = open_port(own_server.url, blocking=False)
        while not isinstance(busy := await outcome(second.command("GET", "x")), Contended):
            assert not isinstance(busy, StoreTrouble)
        assert "SCRIPT KILL" in str(busy)
        await second.command("SCRIPT", "KILL")
        await second.close()
        assert isinstance(await endless, Unexpected)

    using(own_server.url, test, timeout_ms=10_000)


@pytest.mark.parametrize("server", ["own_server", "old_server"])
def test_a_replica_is_named_and_left(request: pytest.FixtureRequest, server: str) -> None:
    url = request.getfixturevalue(server).url

    async def test(port: RedisPort) -> None:
        await port.command("REPLICAOF", servers.HOST, servers.free_port())
        before = await port.command("CLIENT", "ID")
        with pytest.raises(Unreachable, match="replica"):
            await port.script(INCR, ["n"], [])
        await port.command("REPLICAOF", "NO", "ONE")
        assert await port.command("CLIENT", "ID") != before  # the name may lead elsewhere by now
        assert await port.script(INCR, ["n"], []) == 1

    using(url, test)


def test_a_killed_server_is_found_again(own_server: servers.Server) -> None:
    async def test(port: RedisPort) -> None:
        await port.script(INCR, ["n"], [])
        os.kill(own_server.pid, signal.SIGSTOP)  # so that the calls are under way for sure
        calls = [asyncio.create_task(outcome(port.script(INCR, ["n"], []))) for _ in range(100)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        own_server.kill()
        outcomes = await asyncio.gather(*calls)
        assert {type(each) for each in outcomes} == {Unreachable}
        assert "lost while a call was under way" in str(outcomes[0])
        assert "unknown" in str(outcomes[0])
        gone = await outcome(port.script(INCR, ["n"], []))
        assert isinstance(gone, NotSent)
        own_server.start()
        assert await port.script(INCR, ["n"], []) == 1

    using(own_server.url, test)


def test_a_stopped_server_is_given_up_at_the_deadline(own_server: servers.Server) -> None:
    async def test(port: RedisPort) -> None:
        await port.script(INCR, ["n"], [])
        os.kill(own_server.pid, signal.SIGSTOP)
        try:
            start_s = time.monotonic()
            outcomes = await asyncio.gather(
                *(outcome(port.script(INCR, ["n"], [])) for _ in range(50))
            )
            spent_s = time.monotonic() - start_s
            assert spent_s > 0.29
            assert all("no answer within 300 ms" in str(each) for each in outcomes)
            # the next connection gets no further
            late = await outcome(port.script(INCR, ["n"], []))
            assert isinstance(late, NotSent)
        finally:
            os.kill(own_server.pid, signal.SIGCONT)
        until = time.monotonic() + 10
        while isinstance(await outcome(port.script(INCR, ["n"], [])), StoreTrouble):
            assert time.monotonic() < until

    using(own_server.url, test, timeout_ms=300)


def test_a_sleeping_server_keeps_nobody_past_the_deadline(own_server: servers.Server) -> None:
    async def test(port: RedisPort) -> None:
        slow = asyncio.create_task(outcome(port.command("DEBUG", "SLEEP", "2")))
        await asyncio.sleep(0)
        calls = [outcome(port.script(INCR, ["n"], [])) for _ in range(10)]
        outcomes = [await slow, *await asyncio.gather(*calls)]
        assert all(isinstance(each, Unreachable) for each in outcomes)

    using(own_server.url, test, timeout_ms=200)


@pytest.mark.parametrize(("mode", "applied"), [("cut_before", 0), ("cut_after", 1)])
def test_a_cut_call_is_never_sent_again(
    own_server: servers.Server, mode: str, applied: int
) -> None:
    async def test(port: RedisPort) -> None:
        await port.command("PING")
        proxy.mode = mode
        cut = await outcome(port.script(INCR, ["n"], []))
        assert type(cut) is Unreachable
        assert "whether it was applied is unknown" in str(cut)
        proxy.mode = "pass"
        assert await port.script(INCR, ["n"], []) == applied + 1
        assert proxy.connections == 2

    servers.command(own_server.url, "EVAL", INCR.source, 1, "other")
    with servers.FaultProxy(own_server.port) as proxy:
        using(proxy.url, test)


def test_under_constant_cuts_nothing_is_applied_twice(own_server: servers.Server) -> None:
    async def test(port: RedisPort) -> None:
        counts = {"asked": 0, "done": 0}

        async def calling() -> None:
            for _ in range(40):
                counts["asked"] += 1
                counts["done"] += not isinstance(
                    await outcome(port.script(INCR, ["n"], [])), StoreTrouble
                )

        async def cutting() -> None:
            while True:
                await asyncio.sleep(0.003)
                proxy.cut()

        cutter = asyncio.create_task(cutting())
        await asyncio.gather(*(calling() for _ in range(50)))
        cutter.cancel()
        applied = int(str(servers.command(own_server.url, "GET", "n") or 0))
        assert counts["done"] <= applied <= counts["asked"]
        assert counts["asked"] == 2000

    with servers.FaultProxy(own_server.port) as proxy:
        using(proxy.url, test, timeout_ms=3000)


def test_calls_that_were_not_sent_go_over_the_next_connection(own_server: servers.Server) -> None:
    async def test(port: RedisPort) -> None:
        await port.command("PING")
        proxy.cut()
        end_s = time.monotonic() + 5
        while isinstance(await outcome(port.command("PING")), StoreTrouble):
            assert time.monotonic() < end_s
        replies = await asyncio.gather(*(port.script(INCR, ["n"], []) for _ in range(10)))
        assert replies == list(range(1, 11))

    with servers.FaultProxy(own_server.port) as proxy:
        using(proxy.url, test)


def test_a_cancelled_caller_of_a_sent_call_gets_its_answer_first(
    own_server: servers.Server,
) -> None:
    async def test(port: RedisPort) -> None:
        await port.script(INCR, ["n"], [])
        got: list[Any] = []

        async def caller() -> None:
            got.append(await port.script(INCR, ["n"], []))
            await asyncio.sleep(0)
            got.append("not reached")

        os.kill(own_server.pid, signal.SIGSTOP)
        tasks = [asyncio.create_task(caller()) for _ in range(3)]
        for _ in range(3):
            await asyncio.sleep(0)  # sent
        tasks[1].cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        tasks[1].cancel()  # again, while it waits
        assert not tasks[1].done()
        os.kill(own_server.pid, signal.SIGCONT)
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(ends[1], asyncio.CancelledError)
        assert sorted(got, key=str) == [2, 3, 4, "not reached", "not reached"]
        assert await port.command("GET", "n") == "4"

    using(own_server.url, test, timeout_ms=10_000)


def test_cancelled_at_any_moment_the_answer_is_not_lost(redis_url: str) -> None:
    """Between cancel and wake-up the answer may arrive: it must still reach the caller."""
    servers.flush(redis_url)

    async def test(port: RedisPort) -> None:
        await port.command("PING")
        counted = 0

        async def caller() -> None:
            nonlocal counted
            await port.script(INCR, ["n"], [])
            counted += 1

        for turns in range(30):
            tasks = [asyncio.create_task(caller()) for _ in range(20)]
            for _ in range(turns % 10):
                await asyncio.sleep(0.0001 * (turns // 10))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert int(await port.command("GET", "n") or 0) == counted

    using(redis_url, test)


def test_a_call_cancelled_before_it_is_sent_is_not_sent(redis_url: str) -> None:
    servers.flush(redis_url)

    async def test(port: RedisPort) -> None:
        task = asyncio.create_task(port.script(INCR, ["n"], []))  # it has to connect first
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await port.command("GET", "n") is None

    using(redis_url, test)


def test_a_timeout_around_a_call_still_knows_itself(own_server: servers.Server) -> None:
    async def test(port: RedisPort) -> None:
        await port.script(INCR, ["n"], [])
        reached = None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                os.kill(own_server.pid, signal.SIGSTOP)
                asyncio.get_running_loop().call_later(0.2, os.kill, own_server.pid, signal.SIGCONT)
                reached = await port.script(INCR, ["n"], [])
                await asyncio.sleep(0)
        assert reached == 2

    using(own_server.url, test)


def test_the_line_is_bounded(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_link, "CALLS_MAX", 10)

    async def test(port: RedisPort) -> None:
        calls = [outcome(port.command("PING")) for _ in range(15)]
        outcomes = await asyncio.gather(*calls)
        assert outcomes[:10] == ["PONG"] * 10
        assert all(isinstance(each, Contended) for each in outcomes[10:])
        assert await port.command("PING") == "PONG"

    using(redis_url, test)


def test_a_port_serves_one_loop_after_the_other(redis_url: str) -> None:
    port = open_port(redis_url, blocking=False)

    async def use() -> None:
        assert await port.command("PING") == "PONG"

    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(use())
        second.run(use())
        first.run(use())
        second.run(port.close())
        with pytest.raises(Unreachable, match="closed"):
            first.run(use())
    servers.until(lambda: connections(redis_url) == 0, "closing what the other loop had")


def test_loops_that_end_without_closing_leave_no_connections(redis_url: str) -> None:
    port = open_port(redis_url, blocking=False)
    servers.until(lambda: connections(redis_url) == 0, "ending earlier tests")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # which is what Python says of it
        for _ in range(10):
            asyncio.run(port.command("PING"))
        servers.until(lambda: connections(redis_url) <= 1, "leaving closed loops")
        asyncio.run(port.close())
        servers.until(lambda: connections(redis_url) == 0, "closing the last")
        gc.collect()


def test_a_busy_loop_is_not_taken_for_a_slow_server(redis_url: str) -> None:
    """The answer came in time; that nobody looked is no reason to call it lost."""

    async def test(port: RedisPort) -> None:
        await port.command("PING")
        call = asyncio.create_task(outcome(port.command("PING")))
        for _ in range(3):
            await asyncio.sleep(0)
        time.sleep(0.3)  # the loop is held up well past the deadline
        assert await call == "PONG"

    using(redis_url, test, timeout_ms=100)
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        port = open_port(redis_url, blocking=False, timeout_ms=100)
        runner.run(test(port))
        runner.run(port.close())


def test_a_cancelled_connector_does_not_block_the_way(redis_url: str) -> None:
    async def test(port: RedisPort) -> None:
        call = asyncio.create_task(outcome(port.command("PING")))
        for _ in range(3):
            await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task(), call}:
            task.cancel()
        assert isinstance(await call, NotSent)
        assert await port.command("PING") == "PONG"

    using(redis_url, test)


def test_closing_waits_for_calls_under_way(redis_url: str) -> None:
    async def main() -> None:
        port = open_port(redis_url, blocking=False)
        await port.command("PING")
        calls = [asyncio.create_task(port.command("PING")) for _ in range(10)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await port.close()
        await port.close()
        assert await asyncio.gather(*calls) == ["PONG"] * 10
        with pytest.raises(Unreachable, match="closed"):
            await port.command("PING")

    asyncio.run(main())
    servers.until(lambda: connections(redis_url) == 0, "closing")


def test_large_values_pass_in_both_directions(redis_url: str) -> None:
    async def test(port: RedisPort) -> None:
        big = "é" * 500_000
        await asyncio.gather(*(port.command("SET", f"big{place}", big) for place in range(20)))
        values = await asyncio.gather(*(port.command("GET", f"big{place}") for place in range(20)))
        assert all(value == big for value in values)

    using(redis_url, test, timeout_ms=20_000)
    servers.flush(redis_url)
