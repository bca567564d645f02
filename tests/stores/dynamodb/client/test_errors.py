"""Every complaint of the service in headgate's words, in both colours."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

import pytest

from headgate.core.errors import Contended, StoreDenied, StoreTrouble, Throttled, Unreachable
from headgate.stores.dynamodb.client.calls import (
    AccessRefused,
    ConditionFailed,
    DynamoPort,
    DynamoRequest,
    NotApplied,
    Rejected,
    TableMissing,
    TransactionCancelled,
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
    outcome,
    using,
)
from tests.stores.dynamodb.engine import free_port

pytestmark = pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])

ITEM = {"PK": {"S": "a"}, "tk": {"N": "12"}}
UNKNOWN = "whether it was applied is unknown"


async def said_to(
    canned: Canned, port: DynamoPort, answer: Answer, request: DynamoRequest = TAKE
) -> Any:
    canned.tell(answer)
    return await outcome(port.call(request))


async def test_a_failed_condition_brings_the_item(canned: Canned, port: DynamoPort) -> None:
    trouble = await said_to(canned, port, error("ConditionalCheckFailedException", Item=ITEM))
    assert isinstance(trouble, ConditionFailed)
    assert trouble.item == ITEM
    trouble = await said_to(canned, port, error("ConditionalCheckFailedException"))
    assert isinstance(trouble, ConditionFailed)
    assert trouble.item is None
    assert len(canned.seen) == 2


async def test_a_cancelled_transaction_says_why_per_part(canned: Canned, port: DynamoPort) -> None:
    reasons = [{"Code": "None"}, {"Code": "ConditionalCheckFailed", "Message": "m", "Item": ITEM}]
    answer = error("TransactionCanceledException", CancellationReasons=reasons)
    trouble = await said_to(canned, port, answer, DynamoRequest("TransactWriteItems", {}))
    assert isinstance(trouble, TransactionCancelled)
    assert trouble.reasons == [("None", None), ("ConditionalCheckFailed", ITEM)]


@pytest.mark.parametrize(
    ("code", "status", "kind", "text"),
    [
        ("ProvisionedThroughputExceededException", 400, Throttled, ""),
        ("ThrottlingException", 503, Throttled, ""),
        ("Throttling", 400, Throttled, ""),
        ("RequestLimitExceeded", 400, Throttled, ""),
        ("TransactionConflictException", 400, Contended, ""),
        ("TransactionInProgressException", 400, Contended, ""),
        ("ResourceNotFoundException", 400, TableMissing, "create_table"),
        ("ValidationException", 400, Rejected, "so it is"),
        ("NewOne", 400, Rejected, "so it is"),
        ("AccessDeniedException", 400, AccessRefused, "dynamodb:UpdateItem on the table limits"),
        ("UnrecognizedClientException", 400, AccessRefused, "access key"),
        ("InvalidSignatureException", 400, AccessRefused, "secret key"),
        ("MissingAuthenticationTokenException", 400, AccessRefused, "credentials"),
        ("ExpiredToken", 400, CredentialsExpired, "expired"),
        ("ExpiredTokenException", 400, CredentialsExpired, "expired"),
        ("InternalServerError", 500, Unreachable, UNKNOWN),
        ("ServiceUnavailable", 500, Unreachable, UNKNOWN),
    ],
)
async def test_what_a_complaint_is_and_that_it_is_not_sent_again(
    canned: Canned, port: DynamoPort, code: str, status: int, kind: type[StoreTrouble], text: str
) -> None:
    trouble = await said_to(canned, port, error(code, status))
    assert type(trouble) is kind
    assert text in str(trouble)
    assert len(canned.seen) == 1


def test_what_kinds_of_trouble_are(blocking: bool) -> None:
    """A refusal is no outage, expired credentials are: whoever issues them is away."""
    assert issubclass(AccessRefused, StoreDenied)
    assert issubclass(Rejected, StoreDenied)
    assert not issubclass(AccessRefused, Unreachable)
    assert issubclass(CredentialsExpired, NotApplied)
    assert not issubclass(CredentialsExpired, StoreDenied)


async def test_the_missing_right_is_named_as_aws_says_it(canned: Canned, port: DynamoPort) -> None:
    right = "dynamodb:TransactWriteItems on resource: arn:aws:dynamodb:eu-west-1:1:table/limits"
    said = f"User: arn:aws:iam::1:user/gate is not authorized to perform: {right} because no policy"
    answer = error("AccessDeniedException", message=said)
    trouble = await said_to(canned, port, answer, DynamoRequest("TransactWriteItems", {}))
    assert isinstance(trouble, StoreDenied)
    assert f"allow it {right.replace('resource: ', '')} (" in str(trouble)


@pytest.mark.parametrize("request_", [TAKE, CREDIT, READ])
async def test_a_gateway_that_fails_leaves_the_outcome_open(
    canned: Canned, port: DynamoPort, request_: DynamoRequest
) -> None:
    trouble = await said_to(canned, port, Answer(502, b"<html>Bad Gateway</html>"), request_)
    assert type(trouble) is Unreachable
    assert UNKNOWN in str(trouble)
    assert len(canned.seen) == 1


async def test_what_is_no_dynamodb(canned: Canned, port: DynamoPort) -> None:
    trouble = await said_to(canned, port, Answer(404, b"not here"), CREDIT)
    assert isinstance(trouble, NotApplied)
    assert "endpoint" in str(trouble)


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no HTTP/1.1 head"),
        (OK + b"\r\n", "without a length"),
        (OK + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", "not one number"),
        (OK + b"Content-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n", "more than one response"),
        (CHUNKED + b"zz\r\n", "a chunk has no size"),
        (OK + b"Content-Length: 5\r\n\r\nhello", ""),
        (OK + b"Content-Length: 9\r\n\r\n[1, 2, 3]", ""),
    ],
)
async def test_replies_that_are_none(
    canned: Canned, port: DynamoPort, raw: bytes, reason: str
) -> None:
    """The reason matters: a reply that nobody refuses is waited for until the deadline. What else
    cannot be used is shown with the parser, in tests/transport/test_http1.py."""
    trouble = await said_to(canned, port, Answer(raw=(raw,)))
    assert isinstance(trouble, Unreachable)
    assert UNKNOWN in str(trouble)
    assert reason in str(trouble)
    assert len(canned.seen) == 1


@pytest.mark.parametrize(
    "stray",
    [
        OK + b"X-Stray: ",  # would end as a field of the next reply
        OK + b'Content-Length: 9\r\n\r\n{"b":666}',  # would answer the next call
    ],
    ids=["head", "reply"],
)
@pytest.mark.parametrize("turns", [0, 5], ids=["unread", "read"])
async def test_what_nobody_asked_for_is_no_part_of_the_next_reply(
    canned: Canned, port: DynamoPort, blocking: bool, stray: bytes, turns: int
) -> None:
    """Neither while it waits in the socket, nor once an event loop has read it."""
    whole = OK + b'Content-Length: 7\r\n\r\n{"a":1}'
    canned.tell(Answer(raw=(whole, b"", stray)), Answer(body=b'{"c":3}'))
    first = await outcome(port.call(TAKE))
    canned.wait_for(1)
    canned.wait_sent(1)
    for _ in range(0 if blocking else turns):
        await asyncio.sleep(0)
    assert (first, await outcome(port.call(TAKE))) == ({"a": 1}, {"c": 3})
    assert canned.connections == 2


@pytest.mark.parametrize(
    "raw",
    [
        (b"H", b"TTP/1.1 200 OK\r\ncontent-length:7\r\n\r\n", b'{"a":1}'),
        (CHUNKED + b'3\r\n{"', b"a\r\n", b'4\r\n":1}\r', b"\n0\r\n", b"\r\n"),
    ],
)
async def test_replies_in_pieces(canned: Canned, port: DynamoPort, raw: tuple[bytes, ...]) -> None:
    assert await said_to(canned, port, Answer(raw=raw)) == {"a": 1}


async def test_large_replies(canned: Canned, port: DynamoPort) -> None:
    text = "x" * 3_000_000
    answer = Answer(body=b'{"a":"' + text.encode() + b'"}')
    assert await said_to(canned, port, answer) == {"a": text}


def test_outcomes_are_values_in_the_order_asked(canned: Canned, blocking: bool) -> None:
    requests = [DynamoRequest("GetItem", {"TableName": "limits", "n": n}) for n in range(40)]

    async def test(port: DynamoPort) -> list[Any]:
        return await port.call_all(requests)

    canned.tell(*(error("ThrottlingException") for _ in range(40)))
    outcomes = using(canned.endpoint, test, blocking=blocking, connections=7)
    assert all(isinstance(each, Throttled) for each in outcomes)
    assert canned.open_max <= 7
    assert sorted(seen.body["n"] for seen in canned.seen) == list(range(40))
    canned.default = error("ValidationException")
    outcomes = using(canned.endpoint, test, blocking=blocking)
    assert [type(each) for each in outcomes] == [Rejected] * 40
    assert using(canned.endpoint, lambda port: port.call_all([]), blocking=blocking) == []


async def test_a_closed_port_refuses(port: DynamoPort) -> None:
    await port.call(TAKE)
    await port.close()
    await port.close()
    trouble = await outcome(port.call(TAKE))
    assert isinstance(trouble, StoreTrouble)
    assert "closed" in str(trouble)


# What is sent again and what never is, counted at the server.


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
async def test_what_was_sent_is_not_sent_again(
    canned: Canned, port: DynamoPort, request_: DynamoRequest
) -> None:
    canned.tell(Answer(cut=True))
    trouble = await outcome(port.call(request_))
    assert isinstance(trouble, Unreachable)
    assert not isinstance(trouble, NotApplied)
    assert "unknown" in str(trouble)
    assert len(canned.seen) == 1


async def test_of_several_only_what_was_not_sent_is_sent_again(
    canned: Canned, port: DynamoPort
) -> None:
    canned.default = Answer(cut=True)
    outcomes = await port.call_all([TAKE, CREDIT, READ])
    assert all(isinstance(each, Unreachable) for each in outcomes)
    assert len(canned.seen) == 3


def test_several_to_nobody(credentials: None, blocking: bool) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    outcomes = using(endpoint, lambda p: p.call_all([TAKE, CREDIT] * 10), blocking=blocking)
    assert all(isinstance(each, NotApplied) for each in outcomes)


@pytest.mark.parametrize("request_", [TAKE, CREDIT])
async def test_a_connection_closed_while_idle_is_not_used(
    canned: Canned, request_: DynamoRequest, port: DynamoPort
) -> None:
    await port.call(TAKE)
    canned.hang_up()
    time.sleep(0.05)  # the loop, if there is one, has not seen it yet
    await port.call(request_)
    assert len(canned.seen) == 2
    assert canned.connections == 2


async def test_the_last_reply_of_a_connection_ends_it(canned: Canned, port: DynamoPort) -> None:
    canned.tell(Answer(goodbye=True))
    for _ in range(3):
        await port.call(CREDIT)
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
async def test_expired_credentials_are_looked_for_once_more(
    canned: Canned,
    monkeypatch: pytest.MonkeyPatch,
    request_: DynamoRequest,
    sent: int,
    port: DynamoPort,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "first")
    await port.call(TAKE)
    os.environ["AWS_ACCESS_KEY_ID"] = "second"
    canned.tell(error("ExpiredTokenException"))
    came = await outcome(port.call(request_))
    await port.call(TAKE)
    keys = [seen.headers["authorization"].split("=")[1].split("/")[0] for seen in canned.seen]
    assert keys == ["first", "first", *["second"] * (sent - 1), "second"]
    assert isinstance(came, NotApplied) == (request_ is CREDIT)


async def test_of_several_the_expired_are_signed_anew(canned: Canned, port: DynamoPort) -> None:
    await port.call(TAKE)
    os.environ["AWS_ACCESS_KEY_ID"] = "second"
    canned.tell(*(error("ExpiredTokenException") for _ in range(3)))
    outcomes = await port.call_all([TAKE, CREDIT, READ])
    assert [type(each) for each in outcomes] == [dict, CredentialsExpired, dict]
    assert len(canned.seen) == 1 + 3 + 2


async def test_credentials_that_stay_refused_are_not_sent_for_ever(
    canned: Canned, port: DynamoPort
) -> None:
    canned.default = error("UnrecognizedClientException")
    for _ in range(3):
        assert isinstance(await outcome(port.call(TAKE)), AccessRefused)
    assert len(canned.seen) == 3


async def test_a_host_whose_clock_is_far_off_learns_the_time_from_the_refusal(
    canned: Canned, monkeypatch: pytest.MonkeyPatch, port: DynamoPort
) -> None:
    ahead_s = 3600
    canned.now_s = lambda: time.time() + ahead_s
    refusal = error("InvalidSignatureException", message="Signature expired: it is later than that")
    canned.tell(refusal)
    await port.call(TAKE)
    now_ms = port.now_ms()
    assert abs(now_ms - (time.time() + ahead_s) * 1000) < 2000
    first, second = (seen.headers["x-amz-date"] for seen in canned.seen)
    assert second > first


@pytest.mark.parametrize("options", [{"timeout_ms": 700}])
@pytest.mark.parametrize("request_", [TAKE, CREDIT])
async def test_a_call_has_its_time_and_no_more(
    canned: Canned, request_: DynamoRequest, port: DynamoPort
) -> None:
    gate = threading.Event()
    canned.tell(Answer(gate=gate))
    took_s: list[float] = []
    began_s = time.monotonic()
    trouble = await outcome(port.call(request_))
    took_s.append(time.monotonic() - began_s)
    assert await port.call(READ) == {"Attributes": {}}  # over another connection
    gate.set()
    assert isinstance(trouble, Unreachable)
    assert "700 ms" in str(trouble)
    assert "unknown" in str(trouble)
    assert took_s[0] > 0.69
    assert len(canned.seen) == 2
