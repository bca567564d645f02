"""HTTP messages: requests are read strictly and within bounds, responses are written.

A plain yes is written from a template; see `templates`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from headgate.core import http_fields
from headgate.core.decision import LimitStatus
from headgate.core.http_fields import Headers
from headgate.service.decide import answers
from headgate.service.decide.answers import (
    Admission,
    CheckResult,
    CombinedAdmission,
    CombinedResult,
)
from headgate.service.decide.problems import Code, ServiceError, invalid, problem_body
from headgate.service.decide.request_bodies import BodyT, parse_body
from headgate.service.http import templates
from headgate.service.keys.access import (
    DEV_CALLER,
    AccessDenied,
    ApiCaller,
    Authenticator,
    DenyReason,
    Refusal,
)

# --------------------------------------------------------------------------------------------------
# From an answer to HTTP header fields, in lower case as HTTP/2, ASGI and gRPC want them.


def check_headers(answer: CheckResult) -> Headers:
    return _headers(answer, answer.limits, answer.retry_after_ms, answer.code is not None)


def combined_headers(answer: CombinedResult) -> Headers:
    limits = [limit for result in answer.results for limit in result.limits]
    found = _headers(answer.foremost, limits, answer.retry_after_ms, answer.code is not None)
    if answer.blocking is not None:
        blocking = answer.results[answer.blocking]
        if blocking.scope:
            found.append(("x-ratelimit-blocking-scope", blocking.scope))
        if blocking.entity is not None:
            found.append(("x-ratelimit-blocking-entity", blocking.entity))
        found.append(("x-ratelimit-blocking-resource", blocking.resource))
    return found


def problem_headers(error: ServiceError) -> Headers:
    return http_fields.retry_fields(error.retry_after_ms)


def _headers(
    answer: CheckResult, limits: Sequence[LimitStatus], retry_after_ms: int | None, refused: bool
) -> Headers:
    found: Headers = []
    if answer.tokens_capacity is not None:
        left = answer.tokens_remaining or 0
        found += http_fields.status_fields(answer.tokens_capacity, left, answer.reset_at_ms)
    if limits:
        told = limits if len(limits) == 1 else _once_each(limits)
        found += http_fields.limit_fields(told)
    if answer.degraded:
        found.append(("x-ratelimit-degraded", "true"))
        if answer.degraded_reason is not None:
            found.append(("x-ratelimit-degraded-reason", answer.degraded_reason))
    if refused:
        found += http_fields.retry_fields(retry_after_ms)
    return found


def _once_each(limits: Sequence[LimitStatus]) -> list[LimitStatus]:
    """A name stands for one policy: of limits that share it, the tightest is told."""
    found: dict[str, LimitStatus] = {}
    for limit in limits:
        twin = found.setdefault(limit.limit_name, limit)
        found[limit.limit_name] = answers.tightest_of((twin, limit)) or limit
    return list(found.values())


# --------------------------------------------------------------------------------------------------
# Problems.

PROBLEM_JSON = b"application/problem+json"


def problem_reply(error: ServiceError) -> tuple[int, dict[str, Any], list[Any]]:
    """Status, document and header fields of a problem."""
    headers: list[Any] = list(problem_headers(error))
    if error.code is Code.UNAUTHENTICATED:
        headers.append(("www-authenticate", 'Bearer realm="headgate"'))
    return error.code.http_status, problem_body(error), headers


def method_not_allowed(allowed: str) -> ServiceError:
    return ServiceError(Code.METHOD_NOT_ALLOWED, f"use {allowed}")


def no_such_path() -> ServiceError:
    return ServiceError(Code.NOT_FOUND, "there is nothing at this path; see /openapi.json")


# --------------------------------------------------------------------------------------------------
# Replies: a status, a document (or its bytes with their header fields), and more header fields.

JSON = (b"content-type", b"application/json")
NO_HEADERS: Headers = []

Fields = list[tuple[bytes, bytes]]
EncodedReply = tuple[bytes, Fields | bytes]  # content and header fields, ready to be sent
Reply = tuple[int, dict[str, Any] | EncodedReply, Headers]
RawResponse = tuple[int, bytes, Fields | bytes]  # status, content, and header fields or their lines

_encode = msgspec.json.Encoder().encode
_PROBLEM = (b"content-type", PROBLEM_JSON)


def encode_reply(status: int, body: Any, headers: Headers) -> EncodedReply:
    content, fields = encode_content(_encode(body), JSON if status < 400 else _PROBLEM)
    fields += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    if status == 405:
        fields.append((b"allow", body["detail"].removeprefix("use ").encode()))
    return content, fields


def encode_content(content: bytes, kind: tuple[bytes, bytes] = JSON) -> tuple[bytes, Fields]:
    return content, [kind, (b"content-length", b"%d" % len(content))]


def check_reply(answer: Admission | CheckResult) -> Reply:
    if type(answer) is Admission:
        return 200, templates.admission_bytes(answer), NO_HEADERS
    assert isinstance(answer, CheckResult)
    return answer.http_status, answers.check_body(answer), check_headers(answer)


# Header fields of lines, for servers that are not ours.
fields_of = re.compile(rb"([^:]+): ([^\r]*)\r\n").findall


def batch_reply(results: Sequence[Admission | CheckResult | ServiceError]) -> Reply:
    return 200, encode_content(batch_content(results)), NO_HEADERS


def batch_content(results: Sequence[Admission | CheckResult | ServiceError]) -> bytes:
    """The whole document of a batch, most of it the short way."""
    items = [
        templates.item_bytes(result)
        if isinstance(result, Admission)
        else _encode(answers.batch_item(result))
        for result in results
    ]
    return b'{"results":[%b]}' % b",".join(items)


def combined_reply(answer: CombinedAdmission | CombinedResult) -> Reply:
    if type(answer) is CombinedAdmission:
        return 200, templates.combined_bytes(answer), NO_HEADERS
    assert isinstance(answer, CombinedResult)
    return answer.http_status, answers.combined_body(answer), combined_headers(answer)


def acquire_reply(answer: answers.AdmissionWithLease | answers.AcquireResult) -> Reply:
    if isinstance(answer, answers.AdmissionWithLease):
        return 201, templates.lease_bytes(*answer), NO_HEADERS
    status = answer.check.http_status if answer.lease is None else 201
    return status, answers.acquire_body(answer), check_headers(answer.check)


def charge_reply(answer: answers.ChargeResult) -> Reply:
    found = answer.answer
    headers = check_headers(found) if isinstance(found, CheckResult) else combined_headers(found)
    return found.http_status, answers.charge_body(answer), headers


def lease_reply(answer: answers.LeaseResult) -> Reply:
    return 200, answers.lease_body(answer), NO_HEADERS


# --------------------------------------------------------------------------------------------------
# Reading a request: its head, who sent it, its body within bounds, and its JSON strictly.
#
# JSON has corners where two readers understand different things: repeated keys, NaN, numbers past
# every range, half of a surrogate pair. All of them are errors here, whatever the field.

BODY_BYTES_MAX = 16_384
BATCH_BYTES_MAX = 262_144
HEADERS_MAX = 64
DEPTH_MAX = 16

WHOLE_BODY = "headgate.body"  # in a scope: the body, where it came with the head
HEAD = "headgate.head"  # in a scope: the header fields by name, where the server has them so
SANS = "headgate.sans"  # in a scope's extensions: names of the client certificate, if verified
HOSTS_MAX = 256

Receive = Callable[[], Awaitable[Any]]
Head = dict[bytes, bytes]

_HERE = frozenset({"127.0.0.1", "::1"})
_LOCAL_HOSTS = frozenset({b"localhost", b"127.0.0.1", b"[::1]"})
_ONCE = (b"authorization", b"x-api-key", b"content-type", b"content-length", b"host")
_decode = msgspec.json.Decoder().decode
_unreadable = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


class Gone(Exception):
    """The client left before its request was complete."""


def head_of(scope: Any) -> Head:
    """The header fields by name; a field that decides something must not be there twice."""
    headers = scope["headers"]
    head: Head | None = scope.get(HEAD)
    if head is None:
        head = dict(headers)
    if len(head) != len(headers):
        if len(headers) > HEADERS_MAX:
            raise ServiceError(Code.TOO_MANY_HEADERS)
        names = [name for name, _ in headers]
        for name in _ONCE:
            if name in head and names.count(name) > 1:
                raise invalid(name.decode(), "is there more than once")
    elif len(head) > HEADERS_MAX:
        raise ServiceError(Code.TOO_MANY_HEADERS)
    return head


async def authenticate_request(authenticator: Authenticator, scope: Any, head: Head) -> ApiCaller:
    """The caller; AccessDenied where there is none."""
    caller = known_caller(authenticator, scope, head)
    if caller is not None:
        return caller
    return _accepted(await authenticator.authenticate(_key_text(head)))


def known_caller(authenticator: Authenticator, scope: Any, head: Head) -> ApiCaller | None:
    """The same without waiting; None where a key must be looked up."""
    if authenticator.store is None:  # dev mode: whoever is on this machine
        if is_local(scope, head):
            return DEV_CALLER
        raise AccessDenied(Refusal(DenyReason.NO_KEY))
    text = _key_text(head)
    sans = () if text is not None else (scope.get("extensions") or {}).get(SANS, ())
    found = authenticator.recognise(text, sans=sans)
    return None if found is None else _accepted(found)


def _accepted(found: ApiCaller | Refusal) -> ApiCaller:
    if isinstance(found, Refusal):
        raise AccessDenied(found) from found.trouble
    return found


def _key_text(head: Head) -> str | None:
    """The key that was sent; AccessDenied where two were, or something else."""
    bearer, key = head.get(b"authorization"), head.get(b"x-api-key")
    if bearer is None:
        return None if key is None else key.strip().decode("latin-1")
    kind, _, text = bearer.partition(b" ")
    if key is not None or kind.lower() != b"bearer":
        raise AccessDenied(Refusal(DenyReason.MALFORMED))
    return text.strip().decode("latin-1")


def is_local(scope: Any, head: Head) -> bool:
    """Whether the request began on this machine. A web page can make a browser here send requests
    to a name that points here, and a proxy here speaks for others: neither counts."""
    if b"x-forwarded-for" in head or b"forwarded" in head:
        return False
    client = scope.get("client")
    return (client is None or client[0] in _HERE) and _is_local_name(head.get(b"host"))


@lru_cache(HOSTS_MAX)
def _is_local_name(host: bytes | None) -> bool:
    if host is None or host in _LOCAL_HOSTS:
        return True
    name, colon, port = host.rpartition(b":")
    return (name if colon and port.isdigit() else host).lower() in _LOCAL_HOSTS


async def body_of(receive: Receive, head: Head, bytes_max: int) -> bytes:
    """The whole body; what is too large is refused as early as it shows."""
    length = head.get(b"content-length")
    if length is not None and (not length.isdigit() or int(length[:19]) > bytes_max):
        raise too_large(bytes_max)
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > bytes_max:
            raise too_large(bytes_max)
        parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)


def too_large(bytes_max: int) -> ServiceError:
    return ServiceError(Code.PAYLOAD_TOO_LARGE, f"the body may have {bytes_max} bytes here")


def must_be_json(head: Head) -> None:
    """Raises where the body is said to be something else than JSON, or compressed."""
    told = head.get(b"content-type", b"")
    if told != b"application/json":
        kind, _, rest = told.partition(b";")
        charset = rest.strip().lower().replace(b'"', b"")
        if kind.strip().lower() != b"application/json" or charset not in (b"", b"charset=utf-8"):
            raise ServiceError(
                Code.UNSUPPORTED_MEDIA_TYPE, "send JSON in UTF-8 as content-type: application/json"
            )
    if b"content-encoding" in head and head[b"content-encoding"] not in (b"", b"identity"):
        raise ServiceError(Code.UNSUPPORTED_MEDIA_TYPE, "send the body as it is, not compressed")


def body_reader(
    kind: type[BodyT], build: Callable[[BodyT], object] = repr
) -> Callable[[bytes], BodyT]:
    """What makes a body of this kind of bytes; `build` is what is done with it next, and may know
    better what is wrong. It reads a check in 0.8 µs, where `decode_strictly` and `parse_body` take
    3.5; tests/service/http/test_reading.py holds both equal."""
    decode = msgspec.json.Decoder(kind).decode

    def read(content: bytes) -> BodyT:
        try:
            body = decode(content)
        except _unreadable:
            raise _body_error(content, kind, build) from None
        # A key that came twice would not show. Every key has a colon, so what was understood has
        # fewer colons then than what was sent. An escape could stand for a colon: look closely.
        if b"\\" in content or content.count(b":") != _encode(body).count(b":"):
            decode_strictly(content)
        return body

    return read


def _body_error(body: bytes, kind: type[BodyT], build: Callable[[BodyT], object]) -> ServiceError:
    """Why a body cannot be used, by the field where that can be told: half of a surrogate pair is
    no JSON for one reader and text of a field for another."""
    try:
        build(parse_body(decode_strictly(body), kind))
    except ServiceError as error:
        return error
    return unreadable()


def values_of(body: bytes) -> Any:
    """The JSON value; ServiceError where it is not exactly one, or not plain."""
    decode_strictly(body)
    try:
        values = _decode(body)
        if _depth(values) > DEPTH_MAX + 1:
            raise unreadable()
    except _unreadable:
        raise unreadable() from None
    return values


def decode_strictly(body: bytes) -> Any:
    """The JSON value, read pair by pair so that a repeated key shows."""
    try:
        return json.loads(body.decode(), object_pairs_hook=_distinct, parse_constant=_no_constant)
    except _unreadable:
        raise unreadable() from None


def unreadable() -> ServiceError:
    return invalid(
        "request",
        f"must be one JSON value in UTF-8, at most {DEPTH_MAX} deep, with numbers in range",
    )


def _depth(value: Any) -> int:
    """How many objects and lists are in one another."""
    if type(value) is not dict and type(value) is not list:
        return 0
    return 1 + max(map(_depth, value.values() if type(value) is dict else value), default=0)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        shown = twice[:64] if twice.isprintable() else "request"
        raise invalid(shown, "is there twice in one object; say it once")
    return found


def _no_constant(word: str) -> Any:
    raise ValueError(word)
