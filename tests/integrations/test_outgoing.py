"""Clients that keep within a limit: httpx and requests against a real server."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, get_type_hints

import httpx
import pytest
import requests

from headgate import (
    Limit,
    OnUnavailable,
    RateLimiter,
    RateLimitExceeded,
    SyncRateLimiter,
    ValidationError,
)
from headgate.core.runtime import Event
from headgate.integrations.gate import Rates, limits_off
from headgate.integrations.httpx import AsyncLimitedTransport, LimitedTransport
from headgate.integrations.llm.limiter import LlmLimiter
from headgate.integrations.llm.sync import SyncLlmLimiter
from headgate.integrations.outgoing import Call, by_host, requested_wait_ms
from headgate.integrations.requests import LimitedAdapter
from headgate.testing import FakeClock
from tests.integrations.kit import blocking, limiter, run

RATE = [Limit.per_second("rps", 2)]


class Server(ThreadingHTTPServer):
    daemon_threads = True
    visits = 0


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Server)
        self.server.visits += 1
        busy = self.path == "/busy"
        self.send_response(429 if busy else 200)
        if busy:
            self.send_header("Retry-After", "7")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=found.serve_forever, args=(0.01,))
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def url_of(server: Server, path: str = "/") -> str:
    return f"http://127.0.0.1:{server.server_port}{path}"


def closed_url() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/"


def visitor(kind: str, clock: FakeClock, **options: Any) -> tuple[Any, Any]:
    gate = blocking(clock)
    if kind == "httpx":
        return httpx.Client(transport=LimitedTransport(gate, RATE, **options)), gate
    session = requests.Session()
    session.mount("http://", LimitedAdapter(gate, RATE, **options))
    return session, gate


def left(gate: Any) -> int:
    return int(gate.available("host:127.0.0.1", "outgoing", limits=RATE)["rps"])


@pytest.mark.parametrize("kind", ["httpx", "requests"])
def test_calls_wait_for_their_turn(kind: str, server: Server) -> None:
    clock = FakeClock()
    client, _ = visitor(kind, clock)
    with client:
        assert [client.get(url_of(server)).status_code for _ in range(6)] == [200] * 6
    assert clock() == FakeClock()() + 2000  # two at once, then one every half second
    assert server.visits == 6


@pytest.mark.parametrize("kind", ["httpx", "requests"])
def test_without_waiting_they_are_refused_unsent(kind: str, server: Server) -> None:
    client, _ = visitor(kind, FakeClock(), wait=None)
    with client:
        client.get(url_of(server))
        client.get(url_of(server))
        with pytest.raises(RateLimitExceeded):
            client.get(url_of(server))
        with limits_off():
            client.get(url_of(server))
    assert server.visits == 3


@pytest.mark.parametrize("kind", ["httpx", "requests"])
def test_retry_after_of_the_other_side_is_kept(kind: str, server: Server) -> None:
    clock = FakeClock()
    client, gate = visitor(kind, clock)
    with client:
        assert client.get(url_of(server, "/busy")).status_code == 429
        assert gate.time_until_available("host:127.0.0.1", "outgoing", {"rps": 1}, RATE) == 7
        client.get(url_of(server))
    assert clock() == FakeClock()() + 7000


@pytest.mark.parametrize("kind", ["httpx", "requests"])
def test_a_connection_that_was_never_made_has_not_counted(kind: str) -> None:
    client, gate = visitor(kind, FakeClock())
    with client, pytest.raises((httpx.ConnectError, requests.ConnectionError)):
        client.get(closed_url())
    assert left(gate) == 2


def test_many_tasks_at_once(server: Server) -> None:
    clock = FakeClock()
    gate = limiter(clock)
    transport = AsyncLimitedTransport(gate, "5/second", wait=None)

    async def flow() -> int:
        async with httpx.AsyncClient(transport=transport) as client:
            tries = [client.get(url_of(server)) for _ in range(20)]
            answers = await asyncio.gather(*tries, return_exceptions=True)
        return sum(isinstance(answer, httpx.Response) for answer in answers)

    assert run(flow()) == 5
    assert server.visits == 5


def test_cancelled_in_flight_has_counted_and_cancelled_in_line_has_not() -> None:
    gate = limiter()
    sent = 0

    class Hanging(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            nonlocal sent
            sent += 1
            await asyncio.Event().wait()
            raise AssertionError

    async def flow() -> None:
        transport = AsyncLimitedTransport(gate, RATE, transport=Hanging())
        async with httpx.AsyncClient(transport=transport) as client:
            tasks = [asyncio.ensure_future(client.get("http://h/")) for _ in range(3)]
            for _ in range(50):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    run(flow())
    assert sent == 2
    assert run(gate.available("host:h", "outgoing", limits=RATE)) == {"rps": 0}


def test_async_retry_after_and_connections_never_made(server: Server) -> None:
    clock = FakeClock()
    gate = limiter(clock)

    async def flow() -> None:
        transport = AsyncLimitedTransport(gate, RATE, wait=None)
        async with httpx.AsyncClient(transport=transport) as client:
            with pytest.raises(httpx.ConnectError):
                await client.get(closed_url())
            assert await gate.available("host:127.0.0.1", "outgoing", RATE) == {"rps": 2}
            assert (await client.get(url_of(server, "/busy"))).status_code == 429
            with pytest.raises(RateLimitExceeded) as refused:
                await client.get(url_of(server))
            assert refused.value.retry_after_ms == 7000

    run(flow())


AWAY = "redis://127.0.0.1:1/0"


@pytest.mark.parametrize("kind", ["httpx", "requests"])
def test_a_response_is_never_lost_to_the_store(kind: str, server: Server, caplog: Any) -> None:
    events: list[Event] = []
    gate = SyncRateLimiter(AWAY, on_unavailable=OnUnavailable.ALLOW, observer=events.append)
    client: Any = httpx.Client(transport=LimitedTransport(gate, RATE))
    if kind == "requests":
        client = requests.Session()
        client.mount("http://", LimitedAdapter(gate, RATE))
    with gate, client:
        assert client.get(url_of(server, "/busy")).status_code == 429
    assert [one.entity_id for one in events if one.kind == "debit_lost"] == ["host:127.0.0.1"]
    assert "host:127.0.0.1 asked us to wait" in caplog.text


def test_an_async_response_is_never_lost_to_the_store(server: Server) -> None:
    events: list[Event] = []

    async def flow() -> int:
        gate = RateLimiter(AWAY, on_unavailable=OnUnavailable.ALLOW, observer=events.append)
        transport = AsyncLimitedTransport(gate, RATE)
        async with gate, httpx.AsyncClient(transport=transport) as client:
            return (await client.get(url_of(server, "/busy"))).status_code

    assert run(flow()) == 429
    assert [one.kind for one in events].count("debit_lost") == 1


def test_what_the_other_side_says() -> None:
    now_ms = 1_700_000_000_000
    date = {"retry-after": "Tue, 14 Nov 2023 22:13:30 GMT"}
    assert requested_wait_ms(429, date, now_ms) == 10_000
    assert requested_wait_ms(503, {"retry-after": "1"}, now_ms) == 1000
    assert requested_wait_ms(200, date, now_ms) is None
    assert requested_wait_ms(429, {"retry-after": "soon"}, now_ms) is None
    assert requested_wait_ms(429, {}, now_ms) is None
    assert requested_wait_ms(429, {"retry-after": "999999999"}, now_ms) == 3_600_000
    assert requested_wait_ms(429, {"retry-after": "Tue Nov 14 22:13:30 2023"}, now_ms) == 10_000


@pytest.mark.parametrize(
    "date",
    [
        "Wed, 21 Oct 99999999999999999999 07:28:00 GMT",
        "Wed, 21 Oct 2015 07:28:00 +99999999999999",
        "Wed, 21 Oct 2015 07:28:00 +9999",
        "Wed, 99 Oct 2015 07:28:00 GMT",
    ],
)
def test_dates_that_are_none(date: str) -> None:
    assert requested_wait_ms(429, {"retry-after": date}, 1_700_000_000_000) is None


@pytest.mark.parametrize("date", ["Mon, 01 Jan 0001 00:00:00", "Mon, 01 Jan 0001 00:00:00 +2359"])
def test_a_moment_long_ago_is_now(date: str) -> None:
    assert requested_wait_ms(429, {"retry-after": date}, 1_700_000_000_000) == 0


@pytest.mark.parametrize("face", [AsyncLimitedTransport, LimitedTransport, LimitedAdapter])
def test_limits_may_be_any_sequence(face: Any) -> None:
    assert get_type_hints(face.__init__)["limits"] == Rates
    gate = limiter() if face is AsyncLimitedTransport else blocking()
    assert face(gate, tuple(RATE)).rules.limits == tuple(RATE)


def test_options() -> None:
    assert by_host(Call("GET", "", "Example.ORG")) == "host:example.org"
    assert by_host(Call("GET", "", "")) == "host:unknown"
    with pytest.raises(ValidationError):
        LimitedTransport(blocking(), "2/parsec")
    with pytest.raises(ValidationError):
        LimitedAdapter(blocking(), RATE, cost=1.5)
    for make, wrong in (
        (LimitedTransport, limiter()),
        (LimitedAdapter, limiter()),
        (AsyncLimitedTransport, blocking()),
        (LlmLimiter, blocking()),
        (SyncLlmLimiter, limiter()),
    ):
        with pytest.raises(ValidationError, match="limiter"):
            make(wrong)
