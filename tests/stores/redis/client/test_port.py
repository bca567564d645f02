"""A port to one server: what it carries at once, and what becomes of calls when things break."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headgate import Limit, RateLimiter, SyncRateLimiter, SyncRepository
from headgate.core.errors import Contended, StoreTrouble, Unreachable
from headgate.core.runtime import run
from headgate.stores.redis.client import connection
from headgate.stores.redis.client.calls import RedisPort, open_port
from headgate.stores.redis.client.commands import Script
from headgate.stores.redis.client.connection import CALLS_MAX
from headgate.stores.redis.client.errors import NotSent, ScriptRefused, Unexpected
from tests.stores.redis import servers
from tests.stores.redis.client.kit import BOTH_MODES, INCR, in_threads, outcome, use

REFUSE = Script("refuse", "return redis.error_reply('HEADGATE too fine: ' .. ARGV[1])")
BROKEN = Script("broken", "return nonsense.x")


def connections(url: str) -> int:
    return str(servers.command(url, "CLIENT", "LIST")).count("\n") - 1  # without the one that asks


@pytest.mark.parametrize("server", ["redis_url", "cluster_url"])
def test_a_thousand_calls_share_one_connection_to_each_master(url: str) -> None:
    async def test(port: RedisPort) -> None:
        replies = await asyncio.gather(*(port.script(INCR, ["n"], []) for _ in range(1000)))
        assert replies == list(range(1, 1001))  # in the order of the calls, too
        await asyncio.gather(*(port.script(INCR, [f"c:{n}"], []) for n in range(1000)))
        end_s = time.monotonic() + 5  # the connections of earlier tests may still be ending
        for send in await port.each_master():
            while (found := await send(("CLIENT", "LIST", "TYPE", "normal"))).count("\n") != 1:
                assert time.monotonic() < end_s, found

    use(url, test)


@BOTH_MODES
def test_errors_of_scripts_and_server(redis_url: str, blocking: bool) -> None:
    async def test(port: RedisPort) -> None:
        before = await port.command("CLIENT", "ID")
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
        assert await port.command("CLIENT", "ID") == before  # the connection is as good as before

    use(redis_url, test, blocking=blocking)


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

    use(own_server.url, test, timeout_ms=10_000)


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

    use(own_server.url, test)


def test_a_dead_connection_is_noticed_before_a_thread_uses_it(own_server: servers.Server) -> None:
    async def test(port: RedisPort) -> None:
        assert await port.script(INCR, ["n"], []) == 1
        own_server.kill()
        assert isinstance(await outcome(port.script(INCR, ["n"], [])), NotSent)
        own_server.start()
        assert await port.script(INCR, ["n"], []) == 1

    use(own_server.url, test, blocking=True)


@BOTH_MODES
def test_a_stopped_server_is_given_up_at_the_deadline(
    own_server: servers.Server, blocking: bool
) -> None:
    async def test(port: RedisPort) -> None:
        await port.script(INCR, ["n"], [])
        os.kill(own_server.pid, signal.SIGSTOP)
        try:
            start_s = time.monotonic()
            outcomes = await port.scripts([(INCR, ["n"], [])] * (1 if blocking else 50))
            assert time.monotonic() - start_s > 0.29
            assert {type(each) for each in outcomes} == {Unreachable}
            assert all("no answer within 300 ms; whether" in str(each) for each in outcomes)
            # the next connection gets no further
            assert isinstance(await outcome(port.script(INCR, ["n"], [])), NotSent)
        finally:
            os.kill(own_server.pid, signal.SIGCONT)
        end_s = time.monotonic() + 10
        while isinstance(await outcome(port.script(INCR, ["n"], [])), StoreTrouble):
            assert time.monotonic() < end_s

    use(own_server.url, test, blocking=blocking, timeout_ms=300)


def test_a_thread_without_a_connection_waits_until_its_deadline(own_server: servers.Server) -> None:
    port = open_port(f"{own_server.url}?connections=1&timeout_ms=300", blocking=True)
    assert run(port.script(INCR, ["n"], [])) == 1
    outcomes: list[object] = []
    os.kill(own_server.pid, signal.SIGSTOP)
    try:
        in_threads(2, lambda: outcomes.append(run(outcome(port.script(INCR, ["n"], [])))))
    finally:
        os.kill(own_server.pid, signal.SIGCONT)
    sent = [each for each in outcomes if type(each) is Unreachable]
    kept = [each for each in outcomes if isinstance(each, Contended | NotSent)]
    assert len(sent) == len(kept) == 1
    assert "nothing was sent" in str(kept[0])
    run(port.close())


@BOTH_MODES
@pytest.mark.parametrize(("mode", "applied"), [("cut_before", 0), ("cut_after", 1)])
def test_a_cut_call_is_never_sent_again(
    own_server: servers.Server, mode: str, applied: int, blocking: bool
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
        use(proxy.url, test, blocking=blocking)


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

    use(own_server.url, test, timeout_ms=10_000)


def test_a_call_cancelled_before_it_is_sent_is_not_sent(redis_url: str) -> None:
    servers.flush(redis_url)

    async def test(port: RedisPort) -> None:
        task = asyncio.create_task(port.script(INCR, ["n"], []))  # it has to connect first
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await port.command("GET", "n") is None

    use(redis_url, test)


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

    use(own_server.url, test)


def test_the_line_is_bounded(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CALLS_MAX", 10)

    async def test(port: RedisPort) -> None:
        calls = [outcome(port.command("PING")) for _ in range(15)]
        outcomes = await asyncio.gather(*calls)
        assert outcomes[:10] == ["PONG"] * 10
        assert all(isinstance(each, Contended) for each in outcomes[10:])
        assert await port.command("PING") == "PONG"

    use(redis_url, test)


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


def test_a_cancelled_connector_does_not_block_the_way(redis_url: str) -> None:
    async def test(port: RedisPort) -> None:
        call = asyncio.create_task(outcome(port.command("PING")))
        for _ in range(3):
            await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task(), call}:
            task.cancel()
        assert isinstance(await call, NotSent)
        assert await port.command("PING") == "PONG"

    use(redis_url, test)


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


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(own_server: servers.Server) -> None:
    port = open_port(own_server.url, blocking=True)

    def call(port: RedisPort) -> object:
        return run(port.script(INCR, ["n"], []))

    for _ in range(3):
        call(port)
    mine = run(port.command("CLIENT", "ID"))
    child = os.fork()
    if child == 0:
        try:
            fine = run(port.command("CLIENT", "ID")) != mine
            fine = fine and [call(port) for _ in range(100)][-1] is not None
            run(port.close())
            os._exit(0 if fine else 1)
        except BaseException:
            traceback.print_exc()
            os._exit(2)
    replies = [call(port) for _ in range(100)]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert all(isinstance(reply, int) for reply in replies)
    assert run(port.command("CLIENT", "ID")) == mine  # the parent's own is as it was
    assert run(port.command("GET", "n")) == "203"
    run(port.close())


def test_a_closed_blocking_port_says_so(redis_url: str) -> None:
    port = open_port(redis_url, blocking=True)
    run(port.command("PING"))
    run(port.close())
    run(port.close())
    with pytest.raises(Unreachable, match="closed"):
        run(port.command("PING"))


# Many callers at once on a limiter that has no connection yet: a healthy server serves them all.
# The tests at the port hold the loop up on purpose, so that they say the same on any machine.

TASKS = 5000  # ten thousand are promised, and take long on a busy machine
THREADS = 100
BUSY_S = 1.2
TIMEOUT_MS = 500
LIMITS = [Limit.per_minute("rpm", 10_000_000)]

EVERYWHERE = pytest.mark.parametrize("server", ["redis_url", "sentinel_url", "cluster_url"])


@pytest.mark.parametrize("wait", [None, 30], ids=["at once", "waiting"])
def test_thousands_of_tasks_on_a_cold_limiter_all_get_a_decision(
    redis_url: str, wait: float | None
) -> None:
    servers.flush(redis_url)
    url = f"{redis_url}?timeout_ms=1000"
    with SyncRepository(url) as repository:
        repository.register_namespace("default")

    async def acquire(limiter: RateLimiter, place: int) -> str:
        name = f"entity-{place % 50}"
        try:
            async with limiter.acquire(name, "r", {"rpm": 1}, limits=LIMITS, wait=wait):
                return "admitted"
        except Exception as error:
            return f"{type(error).__name__}: {error}".replace(name, "…")

    async def main() -> Counter[str]:
        async with RateLimiter(url) as limiter:
            return Counter(await asyncio.gather(*(acquire(limiter, n) for n in range(TASKS))))

    assert asyncio.run(main()) == {"admitted": TASKS}
    assert CALLS_MAX >= 10_000


def test_a_hundred_threads_on_a_cold_limiter_all_get_a_decision(redis_url: str) -> None:
    servers.flush(redis_url)
    outcomes: list[str] = []
    together = threading.Barrier(THREADS)

    def acquire(limiter: SyncRateLimiter, place: int) -> None:
        together.wait()
        try:
            with limiter.acquire(f"entity-{place % 50}", "r", {"rpm": 1}, limits=LIMITS):
                outcomes.append("admitted")
        except Exception as error:
            outcomes.append(f"{type(error).__name__}: {error}")

    with SyncRateLimiter(redis_url) as limiter:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda place: acquire(limiter, place), range(THREADS)))
    assert Counter(outcomes) == {"admitted": THREADS}


def outcomes_of(
    url: str, calls: int, busy: Iterable[float] = (), timeout_ms: int = TIMEOUT_MS
) -> Counter[str]:
    """How so many calls end that begin in one turn of a loop, which is held up in the next ones."""

    async def count(port: RedisPort) -> str:
        try:
            await port.script(INCR, [f"counter-{id(port)}"], [])
        except Unreachable as error:
            return str(error)
        return "counted"

    async def main() -> Counter[str]:
        port = open_port(url, blocking=False, timeout_ms=timeout_ms)
        tasks = [asyncio.create_task(count(port)) for _ in range(calls)]
        for pause_s in busy:
            await asyncio.sleep(0)
            time.sleep(pause_s)
        ended = Counter(await asyncio.gather(*tasks))
        await port.close()
        return ended

    return asyncio.run(main())


@EVERYWHERE
@pytest.mark.parametrize(
    "busy",
    [[BUSY_S], [0.0, 0.0, BUSY_S, BUSY_S]],
    ids=["before it dials", "while it dials"],
)
def test_a_busy_loop_does_not_blame_the_server(url: str, busy: list[float]) -> None:
    assert outcomes_of(url, 100, busy) == {"counted": 100}


@EVERYWHERE
@pytest.mark.parametrize("blocking", [False, True], ids=["tasks", "threads"])
def test_a_script_that_everybody_misses_is_sent_a_few_times_at_most(
    url: str, blocking: bool
) -> None:
    servers.everywhere(url, "SCRIPT", "FLUSH")
    servers.everywhere(url, "CONFIG", "RESETSTAT")
    calls = 1000
    if blocking:
        port = open_port(url, blocking=True)
        in_threads(32, lambda: run(port.script(INCR, ["missed"], [])))
        run(port.close())
    else:
        assert outcomes_of(url, calls, timeout_ms=servers.PATIENCE_MS) == {"counted": calls}
    stats = " ".join(map(str, servers.everywhere(url, "INFO", "commandstats")))
    whole = int(stats.partition("cmdstat_eval:calls=")[2].partition(",")[0])
    assert 1 <= whole <= 8  # one by the shared connection, at most one per pooled one


def test_threads_that_share_a_connection_all_get_on(redis_url: str) -> None:
    """Whoever is done used to take the connection again before those who waited woke up."""
    port = open_port(f"{redis_url}?connections=1", blocking=True, timeout_ms=servers.PATIENCE_MS)
    done, gate = [0] * 4, threading.Barrier(4)
    seen: list[list[int]] = []  # how far everybody is when the first has made all its calls

    def caller(place: int) -> None:
        gate.wait()
        for _ in range(4000):
            run(port.command("PING"))
            done[place] += 1
        seen.append(list(done))

    threads = [threading.Thread(target=caller, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run(port.close())
    assert min(seen[0]) > 100  # it was 0
