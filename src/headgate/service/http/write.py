"""Writing an HTTP response: header fields, problems, and the bytes of an answer.

A plain yes is by far the commonest answer, and most of a check's time would go into saying it by
way of dicts and lists of text. So it is written straight to bytes, from a template for each limit;
a test compares that with the long way, which says everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Self

import msgspec

from headgate.core.decision import LimitStatus
from headgate.core.errors import HeadgateError
from headgate.core.history import iso_time
from headgate.core.http_fields import (
    SF_INTEGER_MAX,
    Headers,
    limit_fields,
    policy_item,
    retry_fields,
    sf_string,
    status_fields,
)
from headgate.service.decide.answers import (
    AcquireResult,
    Admission,
    CheckResult,
    CombinedResult,
    LeaseResult,
    acquire_body,
    batch_item,
    check_body,
    combined_body,
    lease_body,
    tightest_of,
)
from headgate.service.decide.problems import (
    Code,
    ServiceError,
    not_found,
    problem_body,
    storage_denied,
)
from headgate.service.decide.targets import LimitConstants
from headgate.service.keys.access import Refusal
from headgate.service.keys.key import KeyScope

# --------------------------------------------------------------------------------------------------
# From an answer to HTTP header fields, in lower case as HTTP/2, ASGI and gRPC want them.


def check_headers(answer: CheckResult) -> Headers:
    return _headers(answer, answer.limits, answer.retry_after_ms, answer.code is not None)


def combined_headers(answer: CombinedResult) -> Headers:
    limits = [limit for result in answer.results for limit in result.limits]
    found = _headers(answer.foremost, limits, answer.retry_after_ms, answer.code is not None)
    if answer.blocking is not None:
        blocking = answer.results[answer.blocking]
        found.append(("x-ratelimit-blocking-scope", blocking.scope))
        found.append(("x-ratelimit-blocking-resource", blocking.resource))
    return found


def problem_headers(error: ServiceError) -> Headers:
    return retry_fields(error.retry_after_ms)


def _headers(
    answer: CheckResult, limits: Sequence[LimitStatus], retry_after_ms: int | None, refused: bool
) -> Headers:
    found: Headers = []
    if answer.tokens_capacity is not None:
        left = answer.tokens_remaining or 0
        found += status_fields(answer.tokens_capacity, left, answer.reset_at_ms)
    if limits:
        told = limits if len(limits) == 1 else _once_each(limits)
        found += limit_fields(told)
    if answer.degraded:
        found.append(("x-ratelimit-degraded", "true"))
        if answer.degraded_reason is not None:
            found.append(("x-ratelimit-degraded-reason", answer.degraded_reason))
    if refused:
        found += retry_fields(retry_after_ms)
    return found


def _once_each(limits: Sequence[LimitStatus]) -> list[LimitStatus]:
    """A name stands for one policy: of limits that share it, the tightest is told."""
    found: dict[str, LimitStatus] = {}
    for limit in limits:
        twin = found.setdefault(limit.limit_name, limit)
        found[limit.limit_name] = tightest_of((twin, limit)) or limit
    return list(found.values())


# --------------------------------------------------------------------------------------------------
# Problems.

PROBLEM_JSON = b"application/problem+json"
RETRY_MS = 1000

_OWN = {
    "too many headers": (431, "TOO_MANY_HEADERS", "There are too many header fields"),
    "head too large": (431, "HEAD_TOO_LARGE", "The header fields are too large"),
    "malformed": (400, "MALFORMED_REQUEST", "This is no request of HTTP/1.1"),
    "no host": (400, "HOST_MISSING", "A request of HTTP/1.1 needs the header field Host"),
    "request timeout": (408, "REQUEST_TIMEOUT", "The request did not arrive in time"),
}


class HttpProblem(HeadgateError):
    """A problem of HTTP itself, which no other wire can have."""

    def __init__(self, status: int, code: str, title: str) -> None:
        self.status = status
        self.code = code
        self.title = title
        super().__init__(title)

    @classmethod
    def of(cls, name: str) -> Self:
        return cls(*_OWN[name])


def problem_reply(error: ServiceError | HttpProblem) -> tuple[int, dict[str, Any], list[Any]]:
    """Status, document and header fields of a problem."""
    if isinstance(error, HttpProblem):
        name = error.code.lower().replace("_", "-")
        body = {
            "type": f"urn:headgate:problem:{name}",
            "title": error.title,
            "status": error.status,
            "detail": error.title,
            "code": error.code,
        }
        return error.status, body, []
    headers: list[Any] = list(problem_headers(error))
    if error.code is Code.UNAUTHENTICATED:
        headers.append(("www-authenticate", 'Bearer realm="headgate"'))
    return error.code.http_status, problem_body(error), headers


def refusal_error(refusal: Refusal, need: KeyScope | None = None) -> ServiceError:
    """What a caller who was turned away is told."""
    code = refusal.code
    if code is Code.NOT_FOUND:
        return not_found()
    if code is Code.FORBIDDEN:
        return ServiceError(code, f"the key needs the scope '{need}' for this")
    if code is Code.STORAGE_UNAVAILABLE:
        return ServiceError(
            code, "keys cannot be looked up now; try again", retry_after_ms=RETRY_MS
        )
    if code is Code.STORAGE_DENIED:
        return storage_denied()
    return ServiceError(code, "send a key as 'authorization: Bearer hg_…' or 'x-api-key: hg_…'")


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
        return 200, admitted_fields(answer), NO_HEADERS
    assert isinstance(answer, CheckResult)
    return answer.http_status, check_body(answer), check_headers(answer)


def check_reply_lines(answer: Admission | CheckResult) -> Reply:
    """The same with lines for header fields, where they are cheap."""
    if type(answer) is Admission:
        return 200, admitted_lines(answer), NO_HEADERS
    return check_reply(answer)


def batch_reply(results: Sequence[Admission | CheckResult | ServiceError]) -> Reply:
    return 200, encode_content(batch_content(results)), NO_HEADERS


def combined_reply(answer: CombinedResult) -> Reply:
    return answer.http_status, combined_body(answer), combined_headers(answer)


def acquire_reply(answer: AcquireResult) -> Reply:
    status = answer.check.http_status if answer.lease is None else 201
    return status, acquire_body(answer), check_headers(answer.check)


def lease_reply(answer: LeaseResult) -> Reply:
    return 200, lease_body(answer), NO_HEADERS


# --------------------------------------------------------------------------------------------------
# A plain yes, straight to bytes.

CACHED = 4096

_LENGTHS = [(b"content-length", b"%d" % length) for length in range(512)]


class AnswerTemplate:
    """What is always the same in answers about one limit."""

    __slots__ = ("content", "item", "limit", "lines", "policy", "standing")

    def __init__(self, frame: LimitConstants) -> None:
        capacity = b"%d" % frame.capacity
        quoted = sf_string(frame.name)
        policy = policy_item(frame.name, frame.capacity, frame.window_s)
        self.limit = (b"x-ratelimit-limit", capacity)
        self.policy = (b"ratelimit-policy", policy.encode())
        self.standing = _escaped(quoted) + b";r=%d;t=%d"
        rest = (
            b'"allowed":true,"tokens_remaining":%%d,"tokens_capacity":%b,"reset_at":"%%b.%%03dZ",'
            b'"degraded":false}' % capacity
        )
        self.lines = (
            b"content-type: application/json\r\ncontent-length: %%d\r\n"
            b"x-ratelimit-limit: %b\r\nx-ratelimit-remaining: %%d\r\nx-ratelimit-reset: %%d\r\n"
            b"ratelimit-policy: %b\r\nratelimit: %b\r\n"
            % (capacity, _escaped(policy), self.standing)
        )
        self.content = b"{" + rest
        self.item = b'{"status":200,' + rest


def admitted_fields(admitted: Admission) -> tuple[bytes, Fields]:
    """The content and the header fields."""
    frame, remaining, wait_ms, reset_ms = admitted
    wording = frame.wording or _template_for(frame)
    content = wording.content % (remaining, _moment(reset_ms // 1000), reset_ms % 1000)
    left = remaining if remaining > 0 else 0
    return content, [
        JSON,
        _LENGTHS[len(content)],
        wording.limit,
        (b"x-ratelimit-remaining", b"%d" % left),
        (b"x-ratelimit-reset", b"%d" % -(-reset_ms // 1000)),
        wording.policy,
        (b"ratelimit", wording.standing % (
            left if left < SF_INTEGER_MAX else SF_INTEGER_MAX,
            min(-(-wait_ms // 1000), SF_INTEGER_MAX),
        )),
    ]  # fmt: skip


def admitted_lines(admitted: Admission) -> tuple[bytes, bytes]:
    """The content, and the header fields as the lines they are."""
    frame, remaining, wait_ms, reset_ms = admitted
    wording = frame.wording or _template_for(frame)
    content = wording.content % (remaining, _moment(reset_ms // 1000), reset_ms % 1000)
    left = remaining if remaining > 0 else 0
    shown, wait_s = left, -(-wait_ms // 1000)
    if left > SF_INTEGER_MAX or wait_s > SF_INTEGER_MAX:
        shown, wait_s = min(left, SF_INTEGER_MAX), min(wait_s, SF_INTEGER_MAX)
    values = (len(content), left, -(-reset_ms // 1000), shown, wait_s)
    return content, wording.lines % values


def batch_content(results: Sequence[Admission | CheckResult | ServiceError]) -> bytes:
    """The whole document of a batch, most of it the short way."""
    items: list[bytes] = []
    for result in results:
        if isinstance(result, Admission):
            frame, remaining, _, reset_ms = result
            wording = frame.wording or _template_for(frame)
            moment = _moment(reset_ms // 1000)
            items.append(wording.item % (remaining, moment, reset_ms % 1000))
        else:
            items.append(_encode(batch_item(result)))
    return b'{"results":[%b]}' % b",".join(items)


def _template_for(frame: LimitConstants) -> AnswerTemplate:
    frame.wording = wording = AnswerTemplate(frame)
    return wording


@lru_cache(CACHED)
def _moment(second: int) -> bytes:
    """A second as ISO 8601 without its zone."""
    return iso_time(second * 1000)[:19].encode()


def _escaped(text: str) -> bytes:
    """Text that stands in a pattern of `%` as it is."""
    return text.encode().replace(b"%", b"%%")
