"""Clients that keep within a limit: httpx and requests against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
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
from tests.client.kit import Script, response, scripted
from tests.integrations.kit import blocking, limiter

RATE = [Limit.per_second("rps", 2)]
AWAY = "redis://127.0.0.1:1/0"


BUSY = response(429, fields="retry-after: 7\r\n")


@pytest.fixture
def server() -> Iterator[Script]:
    with scripted(response(200)) as found:
        yield found


@pytest.fixture
def busy() -> Iterator[Script]:
    """A server that wants its first caller to wait."""
    with scripted(BUSY, response(200)) as found:
        yield found


def visitor(kind: str, gate: Any, **options: Any) -> Any:
    if kind == "httpx":
        return httpx.Client(transport=LimitedTransport(gate, RATE, **options))
    session = requests.Session()
    session.mount("http://", LimitedAdapter(gate, RATE, **options))
    return session


KINDS = pytest.mark.parametrize("kind", ["httpx", "requests"])


@KINDS
def test_calls_wait_for_their_turn(kind: str, server: Script) -> None:
    clock = FakeClock()
    with visitor(kind, blocking(clock)) as client:
        assert [client.get(server.url).status_code for _ in range(6)] == [200] * 6
    assert clock() == FakeClock()() + 2000  # two at once, then one every half second
    assert len(server.requests) == 6


@KINDS
def test_without_waiting_they_are_refused_unsent(kind: str, server: Script) -> None:
    with visitor(kind, blocking(), wait=None) as client:
        client.get(server.url)
        client.get(server.url)
        with pytest.raises(RateLimitExceeded):
            client.get(server.url)
        with limits_off():
            client.get(server.url)
    assert len(server.requests) == 3


@KINDS
def test_retry_after_of_the_other_side_is_kept(kind: str, busy: Script) -> None:
    clock = FakeClock()
    gate = blocking(clock)
    with visitor(kind, gate) as client:
        assert client.get(busy.url).status_code == 429
        assert gate.time_until_available("host:127.0.0.1", "outgoing", {"rps": 1}, RATE) == 7
        client.get(busy.url)
    assert clock() == FakeClock()() + 7000


@KINDS
def test_a_connection_that_was_never_made_has_not_counted(kind: str) -> None:
    gate = blocking()
    with scripted(BUSY) as gone:
        pass
    with (
        visitor(kind, gate) as client,
        pytest.raises((httpx.ConnectError, requests.ConnectionError)),
    ):
        client.get(gone.url)
    assert gate.available("host:127.0.0.1", "outgoing", limits=RATE) == {"rps": 2}


async def test_cancelled_in_flight_has_counted_and_cancelled_in_line_has_not() -> None:
    gate = limiter()
    sent: list[httpx.Request] = []

    class Hanging(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            sent.append(request)
            await asyncio.Event().wait()
            raise AssertionError

    transport = AsyncLimitedTransport(gate, RATE, transport=Hanging())
    async with httpx.AsyncClient(transport=transport) as client:
        tasks = [asyncio.ensure_future(client.get("http://h/")) for _ in range(3)]
        for _ in range(50):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    assert len(sent) == 2
    assert await gate.available("host:h", "outgoing", limits=RATE) == {"rps": 0}


async def test_async_retry_after_and_connections_never_made() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/away":
            raise httpx.ConnectError("refused")
        return httpx.Response(429, headers={"retry-after": "7"})

    gate = limiter()
    transport = AsyncLimitedTransport(gate, RATE, wait=None, transport=httpx.MockTransport(answer))
    async with httpx.AsyncClient(transport=transport) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("http://h/away")
        assert await gate.available("host:h", "outgoing", RATE) == {"rps": 2}
        assert (await client.get("http://h/busy")).status_code == 429
        with pytest.raises(RateLimitExceeded) as refused:
            await client.get("http://h/busy")
        assert refused.value.retry_after_ms == 7000


@KINDS
def test_a_response_is_never_lost_to_the_store(kind: str, busy: Script, caplog: Any) -> None:
    events: list[Event] = []
    gate = SyncRateLimiter(AWAY, on_unavailable=OnUnavailable.ALLOW, observer=events.append)
    with gate, visitor(kind, gate) as client:
        assert client.get(busy.url).status_code == 429
    assert [one.entity_id for one in events if one.kind == "debit_lost"] == ["host:127.0.0.1"]
    assert "host:127.0.0.1 asked us to wait" in caplog.text


async def test_an_async_response_is_never_lost_to_the_store(busy: Script) -> None:
    events: list[Event] = []
    gate = RateLimiter(AWAY, on_unavailable=OnUnavailable.ALLOW, observer=events.append)
    transport = AsyncLimitedTransport(gate, RATE)
    async with gate, httpx.AsyncClient(transport=transport) as client:
        assert (await client.get(busy.url)).status_code == 429
    assert [one.kind for one in events].count("debit_lost") == 1


@pytest.mark.parametrize(
    ("status", "said", "wait_ms"),
    [
        (429, "Tue, 14 Nov 2023 22:13:30 GMT", 10_000),
        (429, "Tue Nov 14 22:13:30 2023", 10_000),
        (503, "1", 1000),
        (200, "1", None),
        (429, "soon", None),
        (429, "", None),
        (429, "999999999", 3_600_000),
        (429, "Wed, 21 Oct 99999999999999999999 07:28:00 GMT", None),
        (429, "Wed, 21 Oct 2015 07:28:00 +99999999999999", None),
        (429, "Wed, 21 Oct 2015 07:28:00 +9999", None),
        (429, "Wed, 99 Oct 2015 07:28:00 GMT", None),
        (429, "Mon, 01 Jan 0001 00:00:00", 0),
        (429, "Mon, 01 Jan 0001 00:00:00 +2359", 0),
        (429, "Fri, 31 Dec 9999 23:59:59 GMT", 3_600_000),
    ],
)
def test_what_the_other_side_says(status: int, said: str, wait_ms: int | None) -> None:
    assert requested_wait_ms(status, {"retry-after": said}, 1_700_000_000_000) == wait_ms


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


def test_a_wait_of_the_other_side_costs_no_budget(busy: Script) -> None:
    """What were taken from a quota for seven seconds would be missing for the rest of its month;
    the limit beside it keeps the wait."""
    limits = [
        *RATE, Limit.quota("month", 100, every="month"), Limit.custom("grant", 50, 0, 1),
    ]  # fmt: skip
    gate = blocking(FakeClock())
    with httpx.Client(transport=LimitedTransport(gate, limits)) as client:
        assert client.get(busy.url).status_code == 429
    left = gate.available("host:127.0.0.1", "outgoing", limits)
    assert left == {"rps": -13, "month": 99, "grant": 49}
