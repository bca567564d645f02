"""What is sent again and what never is, counted at the server."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest

from headgate.core.errors import Unreachable
from headgate.stores.dynamodb.client.calls import (
    AccessRefused,
    DynamoPort,
    DynamoRequest,
    NotApplied,
)
from headgate.stores.dynamodb.client.errors import CredentialsExpired
from headgate.transport import pool_blocking
from headgate.transport.pool_async import AsyncHttpPool
from tests.stores.dynamodb.client.kit import (
    CREDIT,
    READ,
    TAKE,
    Answer,
    Canned,
    error,
    free_port,
    outcome,
    using,
)

pytestmark = pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])


def dials(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When a connection was asked for, in either colour."""
    made: list[float] = []
    dial_async, dial_blocking = AsyncHttpPool._dial, pool_blocking._dial

    async def counted(self: Any, due_s: float) -> None:
        made.append(time.monotonic())
        await dial_async(self, due_s)

    def counted_too(address: Any, due_s: float) -> Any:
        made.append(time.monotonic())
        return dial_blocking(address, due_s)

    monkeypatch.setattr(AsyncHttpPool, "_dial", counted)
    monkeypatch.setattr(pool_blocking, "_dial", counted_too)
    return made


@pytest.mark.parametrize(("request_", "attempts"), [(TAKE, 2), (READ, 2), (CREDIT, 1)])
def test_a_refused_connection_is_tried_once_more(
    monkeypatch: pytest.MonkeyPatch,
    credentials: None,
    blocking: bool,
    request_: DynamoRequest,
    attempts: int,
) -> None:
    made = dials(monkeypatch)
    endpoint = f"http://127.0.0.1:{free_port()}"
    trouble = using(endpoint, lambda port: outcome(port.call(request_)), blocking=blocking)
    assert isinstance(trouble, NotApplied)
    assert "nothing was sent" in str(trouble)
    assert len(made) == attempts


@pytest.mark.parametrize("request_", [TAKE, CREDIT, READ])
def test_what_was_sent_is_not_sent_again(
    canned: Canned, blocking: bool, request_: DynamoRequest
) -> None:
    canned.tell(Answer(cut=True))
    trouble = using(canned.endpoint, lambda port: outcome(port.call(request_)), blocking=blocking)
    assert isinstance(trouble, Unreachable)
    assert not isinstance(trouble, NotApplied)
    assert "unknown" in str(trouble)
    assert len(canned.seen) == 1


def test_of_several_only_what_was_not_sent_is_sent_again(canned: Canned, blocking: bool) -> None:
    canned.default = Answer(cut=True)

    async def test(port: DynamoPort) -> Any:
        return await port.call_all([TAKE, CREDIT, READ])

    outcomes = using(canned.endpoint, test, blocking=blocking)
    assert all(isinstance(each, Unreachable) for each in outcomes)
    assert len(canned.seen) == 3


def test_several_to_nobody(credentials: None, blocking: bool) -> None:
    async def test(port: DynamoPort) -> Any:
        return await port.call_all([TAKE, CREDIT] * 10)

    endpoint = f"http://127.0.0.1:{free_port()}"
    outcomes = using(endpoint, test, blocking=blocking)
    assert all(isinstance(each, NotApplied) for each in outcomes)


@pytest.mark.parametrize("request_", [TAKE, CREDIT])
def test_a_connection_closed_while_idle_is_not_used(
    canned: Canned, blocking: bool, request_: DynamoRequest
) -> None:
    async def test(port: DynamoPort) -> None:
        await port.call(TAKE)
        canned.hang_up()
        time.sleep(0.05)  # the loop, if there is one, has not seen it yet
        await port.call(request_)

    using(canned.endpoint, test, blocking=blocking)
    assert len(canned.seen) == 2
    assert canned.connections == 2


def test_the_last_reply_of_a_connection_ends_it(canned: Canned, blocking: bool) -> None:
    canned.tell(Answer(goodbye=True))

    async def test(port: DynamoPort) -> None:
        for _ in range(3):
            await port.call(CREDIT)

    using(canned.endpoint, test, blocking=blocking)
    assert len(canned.seen) == 3
    assert canned.connections == 2


def test_an_old_connection_is_not_used(
    canned: Canned, blocking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.stores.dynamodb.client.calls.IDLE_S_MAX", 0.05)

    async def test(port: DynamoPort) -> None:
        await port.call(TAKE)
        await port.call(TAKE)
        time.sleep(0.1)
        await port.call(TAKE)

    using(canned.endpoint, test, blocking=blocking)
    assert canned.connections == 2


@pytest.mark.parametrize(("request_", "sent"), [(TAKE, 2), (READ, 2), (CREDIT, 1)])
def test_expired_credentials_are_looked_for_once_more(
    canned: Canned,
    blocking: bool,
    monkeypatch: pytest.MonkeyPatch,
    request_: DynamoRequest,
    sent: int,
) -> None:
    async def test(port: DynamoPort) -> Any:
        await port.call(TAKE)
        os.environ["AWS_ACCESS_KEY_ID"] = "second"
        canned.tell(error("ExpiredTokenException"))
        first = await outcome(port.call(request_))
        await port.call(TAKE)
        return first

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "first")
    came = using(canned.endpoint, test, blocking=blocking)
    keys = [seen.headers["authorization"].split("=")[1].split("/")[0] for seen in canned.seen]
    assert keys == ["first", "first", *["second"] * (sent - 1), "second"]
    assert isinstance(came, NotApplied) == (request_ is CREDIT)


def test_of_several_the_expired_are_signed_anew(canned: Canned, blocking: bool) -> None:
    async def test(port: DynamoPort) -> Any:
        await port.call(TAKE)
        os.environ["AWS_ACCESS_KEY_ID"] = "second"
        canned.tell(*(error("ExpiredTokenException") for _ in range(3)))
        return await port.call_all([TAKE, CREDIT, READ])

    outcomes = using(canned.endpoint, test, blocking=blocking)
    assert [type(each) for each in outcomes] == [dict, CredentialsExpired, dict]
    assert len(canned.seen) == 1 + 3 + 2


def test_credentials_that_stay_refused_are_not_sent_for_ever(
    canned: Canned, blocking: bool
) -> None:
    canned.default = error("UnrecognizedClientException")

    async def test(port: DynamoPort) -> None:
        for _ in range(3):
            assert isinstance(await outcome(port.call(TAKE)), AccessRefused)

    using(canned.endpoint, test, blocking=blocking)
    assert len(canned.seen) == 3


def test_a_host_whose_clock_is_far_off_learns_the_time_from_the_refusal(
    canned: Canned, blocking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead_s = 3600
    canned.now_s = lambda: time.time() + ahead_s
    refusal = error("InvalidSignatureException", message="Signature expired: it is later than that")
    canned.tell(refusal)

    async def test(port: DynamoPort) -> int:
        await port.call(TAKE)
        return port.now_ms()

    now_ms = using(canned.endpoint, test, blocking=blocking)
    assert abs(now_ms - (time.time() + ahead_s) * 1000) < 2000
    first, second = (seen.headers["x-amz-date"] for seen in canned.seen)
    assert second > first


@pytest.mark.parametrize("request_", [TAKE, CREDIT])
def test_a_call_has_its_time_and_no_more(
    canned: Canned, blocking: bool, request_: DynamoRequest
) -> None:
    gate = threading.Event()
    canned.tell(Answer(gate=gate))
    took_s: list[float] = []

    async def test(port: DynamoPort) -> Any:
        began_s = time.monotonic()
        trouble = await outcome(port.call(request_))
        took_s.append(time.monotonic() - began_s)
        assert await port.call(READ) == {"Attributes": {}}  # over another connection
        gate.set()
        return trouble

    trouble = using(canned.endpoint, test, blocking=blocking, timeout_ms=700)
    assert isinstance(trouble, Unreachable)
    assert "700 ms" in str(trouble)
    assert "unknown" in str(trouble)
    assert took_s[0] > 0.69
    assert len(canned.seen) == 2
