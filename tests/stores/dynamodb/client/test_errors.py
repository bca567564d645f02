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
    "code",
    [
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "Throttling",
        "RequestLimitExceeded",
    ],
)
@pytest.mark.parametrize("status", [400, 503])
def test_throttling_is_no_outage_and_not_retried(
    canned: Canned, blocking: bool, code: str, status: int
) -> None:
    trouble = said_to(canned, error(code, status), blocking)
    assert isinstance(trouble, Throttled)
    assert trouble.wait_ms > 0
    assert len(canned.seen) == 1


@pytest.mark.parametrize("code", ["TransactionConflictException", "TransactionInProgressException"])
def test_transactions_in_each_others_way(canned: Canned, blocking: bool, code: str) -> None:
    assert isinstance(said_to(canned, error(code), blocking), Contended)
    assert len(canned.seen) == 1


def test_a_missing_table_says_how_to_make_it(canned: Canned, blocking: bool) -> None:
    trouble = said_to(canned, error("ResourceNotFoundException"), blocking)
    assert isinstance(trouble, TableMissing)
    assert "limits" in str(trouble)
    assert "create" in str(trouble)


@pytest.mark.parametrize(
    "code", ["ValidationException", "ResourceInUseException", "SerializationException", "NewOne"]
)
def test_a_request_that_cannot_be_done(canned: Canned, blocking: bool, code: str) -> None:
    trouble = said_to(canned, error(code), blocking)
    assert type(trouble) is Rejected
    assert isinstance(trouble, StoreDenied)
    assert trouble.code == code
    assert "so it is" in str(trouble)
    assert len(canned.seen) == 1


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("AccessDeniedException", "dynamodb:UpdateItem on the table limits"),
        ("UnrecognizedClientException", "access key"),
        ("InvalidSignatureException", "secret key"),
        ("MissingAuthenticationTokenException", "credentials"),
    ],
)
def test_who_is_not_let_in_learns_what_to_do(
    canned: Canned, blocking: bool, code: str, advice: str
) -> None:
    trouble = said_to(canned, error(code), blocking)
    assert isinstance(trouble, AccessRefused)
    assert isinstance(trouble, StoreDenied)
    assert not isinstance(trouble, Unreachable), "it is no outage"
    assert advice in str(trouble)
    assert len(canned.seen) == 1  # there are no other credentials to try


def test_the_missing_right_is_named_as_aws_says_it(canned: Canned, blocking: bool) -> None:
    right = "dynamodb:TransactWriteItems on resource: arn:aws:dynamodb:eu-west-1:1:table/limits"
    said = f"User: arn:aws:iam::1:user/gate is not authorized to perform: {right} because no policy"
    answer = error("AccessDeniedException", message=said)
    trouble = said_to(canned, answer, blocking, DynamoRequest("TransactWriteItems", {}))
    assert isinstance(trouble, StoreDenied)
    assert f"allow it {right.replace('resource: ', '')} (" in str(trouble)


@pytest.mark.parametrize("code", ["ExpiredToken", "ExpiredTokenException"])
def test_expired_credentials_are_an_outage_of_who_issues_them(
    canned: Canned, blocking: bool, code: str
) -> None:
    trouble = said_to(canned, error(code), blocking)
    assert isinstance(trouble, NotApplied)
    assert not isinstance(trouble, StoreDenied)
    assert "expired" in str(trouble)
    assert len(canned.seen) == 1


@pytest.mark.parametrize("code", ["InternalServerError", "ServiceUnavailable", ""])
@pytest.mark.parametrize("request_", [TAKE, CREDIT, READ])
def test_a_failing_service_leaves_the_outcome_open(
    canned: Canned, blocking: bool, code: str, request_: DynamoRequest
) -> None:
    answer = error(code, 500) if code else Answer(502, b"<html>Bad Gateway</html>")
    trouble = said_to(canned, answer, blocking, request_)
    assert isinstance(trouble, Unreachable)
    assert not isinstance(trouble, NotApplied)
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
        (b"HTTP/1.1 2x0 OK\r\nContent-Length: 2\r\n\r\n{}", "no HTTP/1.1 head"),
        (OK + b"Content-Length: -1\r\n\r\n", "not one number"),
        (OK + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", "not one number"),
        (OK + b"Content-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n", "more than one response"),
        (OK + OK + b"Content-Length: 2\r\n\r\n{}", "no HTTP/1.1 head"),
        (CHUNKED + b"zz\r\n", "a chunk has no size"),
        (CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n", "a chunk has no size"),
        (CHUNKED + b"2\r\n{}XX0\r\n\r\n", "does not end where it says"),
        (CHUNKED + b"2\r\n{}\r\n0\r\nXX\r\n\r\n", "no field"),
        (OK + b"Content-Length: 5\r\n\r\nhello", ""),
        (OK + b"Content-Length: 9\r\n\r\n[1, 2, 3]", ""),
    ],
)
def test_replies_that_are_none(canned: Canned, blocking: bool, raw: bytes, reason: str) -> None:
    """The reason matters: a reply that nobody refuses is waited for until the deadline."""
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
        (b"HTTP/1.1 200 OK\r\nContent-", b"Length: 7\r\n\r", b'\n{"a"', b":1}"),
        (b"H", b"TTP/1.1 200 OK\r\ncontent-length:7\r\n\r\n", b'{"a":1}'),
        (CHUNKED + b'3\r\n{"a\r\n4;x=y\r\n":1}\r\n0\r\n\r\n',),
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
