"""Connections of both modes over real sockets: reuse, bounds, time, and what breaks."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

import pytest

from headgate.client import AsyncClient, ClientError, Retry, Unavailable
from headgate.client.retry import NoReply
from headgate.transport.http1 import Response
from headgate.transport.http_pool import NoResponse, PoolOptions, ServerAddress
from headgate.transport.pool_async import AsyncHttpPool
from headgate.transport.pool_blocking import BlockingHttpPool
from tests.client.kit import ALLOWED, HANG_UP, Answer, Script, play, response, scripted
from tests.service.server.kit import Papers

GOOD = response(200, ALLOWED)
QUICK = Retry(base_ms=1, cap_ms=1)
CHECK = b"POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n"


def held(answer: bytes = GOOD) -> tuple[threading.Event, Answer]:
    """An answer that is sent when the event is set."""
    go_on = threading.Event()

    def send(one: socket.socket) -> None:
        go_on.wait(5)
        one.sendall(answer)

    return go_on, send


async def _check(client: Any, times: int = 1) -> Any:
    for _ in range(times):
        answer = await client.check("alice", "api.search", 1)
    return answer


def test_one_connection_serves_many_calls(mode: str) -> None:
    with scripted(GOOD) as script:
        url = f"{script.url}/limits/"
        play(mode, url, lambda client: _check(client, 5), api_key="k1", namespace="eu")
        assert (script.connections, len(script.requests)) == (1, 5)
        head = script.requests[0].partition(b"\r\n\r\n")[0].decode().split("\r\n")
        assert head[0] == "POST /limits/v1/ratelimit/check HTTP/1.1", "behind a path before ours"
        assert f"host: 127.0.0.1:{script.port}" in head
        assert "authorization: Bearer k1" in head
        assert script.documents[0] == {
            "identifier": "alice", "resource": "api.search", "tokens": 1, "scope": "user",
            "namespace": "eu",
        }  # fmt: skip


def test_chunks_and_bodies_without_length(mode: str) -> None:
    body = GOOD.partition(b"\r\n\r\n")[2]
    chunked = b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"

    def unmeasured(one: socket.socket) -> None:
        one.sendall(b"HTTP/1.1 200 X\r\n\r\n" + body)
        one.shutdown(socket.SHUT_RDWR)

    with scripted(chunked % (len(body), body), unmeasured) as script:
        assert play(mode, script.url, lambda client: _check(client, 2)).allowed


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    "answer",
    [
        HANG_UP,
        GOOD[:-1] + HANG_UP,
        b"SSH-2.0-OpenSSH_9\r\n\r\n",
        b"HTTP/1.1 200 X\r\ncontent-length: 99999999999\r\n\r\n",
    ],
)
def test_an_answer_that_is_none_is_not_asked_again(mode: str, answer: bytes) -> None:
    def cut(one: socket.socket) -> None:
        one.sendall(answer)
        one.shutdown(socket.SHUT_RDWR)

    async def flow(client: Any) -> None:
        with pytest.raises(Unavailable) as told:
            await _check(client)
        assert told.value.maybe_applied

    with scripted(cut if answer else HANG_UP) as script:
        play(mode, script.url, flow, retry=QUICK)
        assert len(script.requests) == 1


def test_no_answer_in_time(mode: str) -> None:
    """A byte now and then does not buy more time."""
    stop, to_the_end = threading.Event(), threading.Event()

    def drip(one: socket.socket) -> None:
        one.sendall(b"HTTP/1.1 200 X\r\na: ")
        for _ in range(500):
            one.sendall(b"x")
            if stop.wait(0.005):
                return
        to_the_end.set()

    async def flow(client: Any) -> None:
        with pytest.raises(Unavailable, match=r"no answer within [0-9]+ ms") as told:
            await _check(client)
        assert told.value.maybe_applied
        assert not to_the_end.is_set()

    with scripted(drip) as script:
        try:
            play(mode, script.url, flow, attempt_timeout_s=0.2)
        finally:
            stop.set()


def test_every_connection_busy() -> None:
    go_on, answer = held()

    async def whole() -> None:
        async with AsyncClient(script.url, connections=1) as client:
            first = asyncio.create_task(_check(client))
            await _until(lambda: len(script.requests) == 1)
            found = await client._flow.port.attempt(b"GET / HTTP/1.1\r\n\r\n", 20, False)
            assert isinstance(found, NoReply)
            assert "no connection was free" in found.reason
            assert not found.sent
            first.cancel()

    with scripted(answer) as script:
        asyncio.run(whole())
        assert len(script.requests) == 1
    go_on.set()


def _options(script: Script, connections: int = 1) -> PoolOptions:
    return PoolOptions(ServerAddress("127.0.0.1", script.port, None), connections, 60.0, 10_000)


def test_what_would_hardly_be_answered_is_not_sent(mode: str) -> None:
    """It would be lost; the connection that was made for it serves the next."""

    async def flow() -> None:
        pool = AsyncHttpPool(_options(script)) if mode == "async" else blocking
        due_s = pool.now_s() + 60
        late = await pool.ask(CHECK, due_s, reserve_s=61)
        assert isinstance(late, NoResponse)
        assert not late.maybe_sent
        assert script.requests == []
        for _ in range(2):
            assert isinstance(await pool.ask(CHECK, due_s, reserve_s=1), Response)
        await pool.close()

    with scripted(GOOD) as script:
        blocking = BlockingHttpPool(_options(script))
        asyncio.run(flow())
        assert script.connections == 1


def test_a_connection_that_becomes_free_too_late_sends_nothing() -> None:
    """A loop that was busy reads the answer before its timers say what is late."""

    async def flow() -> None:
        pool = AsyncHttpPool(_options(script))
        now_s = pool.now_s()
        first = asyncio.ensure_future(pool.ask(CHECK, now_s + 60))
        await _until(lambda: len(script.requests) == 1)
        send_by_s = pool.now_s() + 0.05
        late = asyncio.ensure_future(pool.ask(CHECK, now_s + 60, reserve_s=now_s + 60 - send_by_s))
        await asyncio.sleep(0)
        go_on.set()
        assert sent.wait(5)
        while pool.now_s() < send_by_s + 0.01:
            pass
        assert isinstance(await late, NoResponse)
        assert isinstance(await first, Response)
        await pool.close()

    go_on, sent = threading.Event(), threading.Event()

    def held(one: socket.socket) -> None:
        go_on.wait(5)
        one.sendall(GOOD)
        sent.set()

    with scripted(held) as script:
        asyncio.run(flow())
        assert len(script.requests) == 1


def test_who_has_the_least_time_is_next_in_line() -> None:
    go_on, answer = held()

    async def flow() -> None:
        pool = AsyncHttpPool(_options(script))
        now_s = pool.now_s()
        first = asyncio.ensure_future(pool.ask(CHECK, now_s + 60))
        await _until(lambda: len(script.requests) == 1)
        line = [asyncio.ensure_future(pool.ask(CHECK, now_s + s)) for s in (60, 40, 50, 45, 60)]
        await asyncio.sleep(0)
        waiting = [call.send_by_s - now_s for call in pool._waiting]
        assert waiting == pytest.approx([40, 45, 50, 60, 60])
        go_on.set()
        await asyncio.gather(first, *line)
        await pool.close()

    with scripted(answer) as script:
        asyncio.run(flow())
        assert script.connections == 1


def test_a_cancelled_check_ends_at_once_and_costs_its_connection() -> None:
    go_on, answer = held()

    async def whole() -> None:
        async with AsyncClient(script.url, connections=1) as client:
            task = asyncio.create_task(_check(client))
            await _until(lambda: len(script.requests) == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await _check(client)).allowed

    with scripted(answer, GOOD) as script:
        asyncio.run(whole())
        assert script.connections == 2
    go_on.set()


LEASE = {"lease_id": "l1", "expires_at": None, "held": {"tokens": 1}}
OPENED = response(201, {**ALLOWED, **LEASE, "state": "open"})
RELEASED = response(200, {**LEASE, "state": "released"})


@pytest.mark.parametrize("late_call", [1, 2], ids=["acquiring", "giving back"])
def test_a_cancelled_acquire_gives_back_what_it_got(late_call: int) -> None:
    """The answer of an acquire is waited for, because only it says what to give back. A second
    cancellation while the lease goes back does not keep it from going back."""
    go_on, late = held(OPENED if late_call == 1 else RELEASED)
    leases: list[Any] = []

    async def work(client: AsyncClient) -> None:
        async with client.acquire("alice", "api.search") as lease:
            leases.append(lease)
            await asyncio.Event().wait()

    async def whole() -> None:
        async with AsyncClient(script.url) as client:
            task = asyncio.create_task(work(client))
            await _until(lambda: bool(leases) or len(script.requests) == late_call)
            task.cancel()
            if late_call == 2:
                await _until(lambda: len(script.requests) == 2)
                task.cancel()
            await asyncio.sleep(0)
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task

    with scripted(*((late, RELEASED) if late_call == 1 else (OPENED, late))) as script:
        asyncio.run(whole())
        assert script.requests[1].startswith(b"POST /v1/leases/l1/release ")
    assert (leases[0].answer.state, leases[0].trouble) == ("released", None)


def test_one_client_in_one_loop_after_another() -> None:
    with scripted(response(200, ALLOWED, fields="connection: close\r\n")) as script:
        client = AsyncClient(script.url)
        for _ in range(2):
            assert asyncio.run(_check(client)).allowed


def test_a_closed_client_says_so(mode: str) -> None:
    async def flow(client: Any) -> None:
        await client.close()
        with pytest.raises(ClientError, match="closed"):
            await _check(client)

    with scripted(GOOD) as script:
        play(mode, script.url, flow)


def test_no_such_host(mode: str) -> None:
    async def flow(client: Any) -> None:
        for _ in range(3):  # a place that led nowhere is free again
            with pytest.raises(Unavailable, match="no connection to") as told:
                await _check(client)
            assert not told.value.maybe_applied

    url = f"http://{'a' * 64}.invalid"
    play(mode, url, flow, retry=Retry(attempts=1), connections=1)


def test_tls(mode: str, papers: Papers) -> None:
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*papers.pair("server"))
    trusting = ssl.create_default_context(cafile=papers.pair("ca")[0])

    async def stranger(client: Any) -> None:
        with pytest.raises(Unavailable) as told:
            await _check(client)
        assert not told.value.maybe_applied

    with scripted(GOOD) as plain:  # a server that speaks no TLS gets nothing, either
        url = plain.url.replace("http:", "https:")
        play(mode, url, stranger, retry=Retry(attempts=1), attempt_timeout_s=0.2, tls=trusting)
    with scripted(GOOD, tls=serving) as script:
        answer = play(mode, script.url, lambda client: _check(client, 3), tls=trusting)
        assert answer.allowed
        assert (script.connections, len(script.requests)) == (1, 3)
        play(mode, script.url, stranger, retry=Retry(attempts=1))
        assert len(script.requests) == 3, "nothing was sent under nobody's certificate"
