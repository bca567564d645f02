"""Every complaint of the service in headgate's words, in both colours."""

from __future__ import annotations

import asyncio
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

pytestmark = pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])

ITEM = {"PK": {"S": "a"}, "tk": {"N": "12"}}
UNKNOWN = "whether it was applied is unknown"


def said_to(canned: Canned, answer: Answer, blocking: bool, request: DynamoRequest = TAKE) -> Any:
    canned.tell(answer)

    async def test(port: DynamoPort) -> Any:
        return await outcome(port.call(request))

    return using(canned.endpoint, test, blocking=blocking)


def test_a_failed_condition_brings_the_item(canned: Canned, blocking: bool) -> None:
    trouble = said_to(canned, error("ConditionalCheckFailedException", Item=ITEM), blocking)
    assert isinstance(trouble, ConditionFailed)
    assert trouble.item == ITEM
    trouble = said_to(canned, error("ConditionalCheckFailedException"), blocking)
    assert isinstance(trouble, ConditionFailed)
    assert trouble.item is None
    assert len(canned.seen) == 2


def test_a_cancelled_transaction_says_why_per_part(canned: Canned, blocking: bool) -> None:
    reasons = [{"Code": "None"}, {"Code": "ConditionalCheckFailed", "Message": "m", "Item": ITEM}]
    answer = error("TransactionCanceledException", CancellationReasons=reasons)
    trouble = said_to(canned, answer, blocking, DynamoRequest("TransactWriteItems", {}))
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
def test_what_a_complaint_is_and_that_it_is_not_sent_again(
    canned: Canned, blocking: bool, code: str, status: int, kind: type[StoreTrouble], text: str
) -> None:
    trouble = said_to(canned, error(code, status), blocking)
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


def test_the_missing_right_is_named_as_aws_says_it(canned: Canned, blocking: bool) -> None:
    right = "dynamodb:TransactWriteItems on resource: arn:aws:dynamodb:eu-west-1:1:table/limits"
    said = f"User: arn:aws:iam::1:user/gate is not authorized to perform: {right} because no policy"
    answer = error("AccessDeniedException", message=said)
    trouble = said_to(canned, answer, blocking, DynamoRequest("TransactWriteItems", {}))
    assert isinstance(trouble, StoreDenied)
    assert f"allow it {right.replace('resource: ', '')} (" in str(trouble)


@pytest.mark.parametrize("request_", [TAKE, CREDIT, READ])
def test_a_gateway_that_fails_leaves_the_outcome_open(
    canned: Canned, blocking: bool, request_: DynamoRequest
) -> None:
    trouble = said_to(canned, Answer(502, b"<html>Bad Gateway</html>"), blocking, request_)
    assert type(trouble) is Unreachable
    assert UNKNOWN in str(trouble)
    assert len(canned.seen) == 1


def test_what_is_no_dynamodb(canned: Canned, blocking: bool) -> None:
    trouble = said_to(canned, Answer(404, b"not here"), blocking, CREDIT)
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
def test_replies_that_are_none(canned: Canned, blocking: bool, raw: bytes, reason: str) -> None:
    """The reason matters: a reply that nobody refuses is waited for until the deadline. What else
    cannot be used is shown with the parser, in tests/transport/test_http1.py."""
    trouble = said_to(canned, Answer(raw=(raw,)), blocking)
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
def test_what_nobody_asked_for_is_no_part_of_the_next_reply(
    canned: Canned, blocking: bool, stray: bytes, turns: int
) -> None:
    """Neither while it waits in the socket, nor once an event loop has read it."""
    whole = OK + b'Content-Length: 7\r\n\r\n{"a":1}'
    canned.tell(Answer(raw=(whole, b"", stray)), Answer(body=b'{"c":3}'))

    async def test(port: DynamoPort) -> Any:
        first = await outcome(port.call(TAKE))
        canned.wait_for(1)
        canned.wait_sent(1)
        for _ in range(0 if blocking else turns):
            await asyncio.sleep(0)
        return first, await outcome(port.call(TAKE))

    assert using(canned.endpoint, test, blocking=blocking) == ({"a": 1}, {"c": 3})
    assert canned.connections == 2


@pytest.mark.parametrize(
    "raw",
    [
        (b"H", b"TTP/1.1 200 OK\r\ncontent-length:7\r\n\r\n", b'{"a":1}'),
        (CHUNKED + b'3\r\n{"', b"a\r\n", b'4\r\n":1}\r', b"\n0\r\n", b"\r\n"),
    ],
)
def test_replies_in_pieces(canned: Canned, blocking: bool, raw: tuple[bytes, ...]) -> None:
    assert said_to(canned, Answer(raw=raw), blocking) == {"a": 1}


def test_large_replies(canned: Canned, blocking: bool) -> None:
    text = "x" * 3_000_000
    answer = Answer(body=b'{"a":"' + text.encode() + b'"}')
    assert said_to(canned, answer, blocking) == {"a": text}


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


def test_a_closed_port_refuses(canned: Canned, blocking: bool) -> None:
    async def test(port: DynamoPort) -> Any:
        await port.call(TAKE)
        await port.close()
        await port.close()
        return await outcome(port.call(TAKE))

    trouble = using(canned.endpoint, test, blocking=blocking)
    assert isinstance(trouble, StoreTrouble)
    assert "closed" in str(trouble)
