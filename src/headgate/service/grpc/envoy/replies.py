"""From an answer to what Envoy reads: a status per descriptor, headers and a body."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from headgate.core.decision import LimitStatus
from headgate.core.http_fields import Headers
from headgate.service.decide.answers import CheckResult, CombinedResult, combined_body, tightest_of
from headgate.service.decide.problems import ServiceError, problem_body
from headgate.service.grpc.proto.envoy import base_pb2
from headgate.service.grpc.proto.envoy import rls_pb2 as pb
from headgate.service.http.write import combined_headers, problem_headers

_Reply = pb.RateLimitResponse
_Unit = _Reply.RateLimit.Unit

UINT32_MAX = 2**32 - 1
CONTENT_TYPE = ("content-type", "application/problem+json")

UNIT_SECONDS: dict[int, int] = {
    _Reply.RateLimit.SECOND: 1,
    _Reply.RateLimit.MINUTE: 60,
    _Reply.RateLimit.HOUR: 3_600,
    _Reply.RateLimit.DAY: 86_400,
    _Reply.RateLimit.MONTH: 30 * 86_400,
    _Reply.RateLimit.YEAR: 365 * 86_400,
    _Reply.RateLimit.WEEK: 7 * 86_400,
}
_UNITS: dict[int, Any] = {seconds: unit for unit, seconds in UNIT_SECONDS.items()}


def allow_all(count: int) -> pb.RateLimitResponse:
    """Nothing is known of any descriptor: all may pass."""
    return _Reply(overall_code=_Reply.OK, statuses=[_unknown() for _ in range(count)])


def decision_reply(
    answer: CombinedResult, places: Sequence[int | None], now_ms: int
) -> pb.RateLimitResponse:
    """The reply to a decision; `places` gives for each descriptor its result, None where it is
    unknown."""
    statuses = [
        _unknown() if place is None else _status(answer.results[place], now_ms) for place in places
    ]
    headers = combined_headers(answer)
    if answer.allowed:
        return _Reply(overall_code=_Reply.OK, statuses=statuses, **_headers_to_add(headers))
    return _Reply(
        overall_code=_Reply.OVER_LIMIT,
        statuses=statuses,
        raw_body=_json(combined_body(answer)),
        **_headers_to_add([*headers, CONTENT_TYPE]),
    )


def refusal_reply(error: ServiceError, places: Sequence[int | None]) -> pb.RateLimitResponse:
    """The reply to a request that no wait would admit: none of its descriptors passes."""
    over = _Reply.DescriptorStatus(code=_Reply.OVER_LIMIT)
    return _Reply(
        overall_code=_Reply.OVER_LIMIT,
        statuses=[_unknown() if place is None else over for place in places],
        raw_body=_json(problem_body(error)),
        **_headers_to_add([*problem_headers(error), CONTENT_TYPE]),
    )


def _unknown() -> pb.RateLimitResponse.DescriptorStatus:
    return _Reply.DescriptorStatus(code=_Reply.OK)


def _status(result: CheckResult, now_ms: int) -> pb.RateLimitResponse.DescriptorStatus:
    status = _Reply.DescriptorStatus(code=_Reply.OK if result.allowed else _Reply.OVER_LIMIT)
    tightest = tightest_of(result.limits)
    if tightest is not None:
        _describe(status.current_limit, tightest)
        status.limit_remaining = min(max(0, tightest.available), UINT32_MAX)
    if result.reset_at_ms is not None:
        until_ms = max(0, result.reset_at_ms - now_ms)
        status.duration_until_reset.seconds = min(until_ms // 1000, 315_576_000_000)
        status.duration_until_reset.nanos = until_ms % 1000 * 1_000_000
    return status


def _describe(limit: pb.RateLimitResponse.RateLimit, applied: LimitStatus) -> None:
    """Capacity per the time it takes to fill; a time that has no unit is a number of seconds."""
    limit.name = applied.limit_name
    limit.requests_per_unit = min(applied.limit.capacity, UINT32_MAX)
    seconds = applied.window_s
    if seconds is None:
        return
    if seconds in _UNITS:
        limit.unit = _UNITS[seconds]
    else:
        limit.unit = _Unit.SECOND
        limit.unit_multiplier.value = min(seconds, UINT32_MAX)


def _headers_to_add(headers: Headers) -> dict[str, Any]:
    return {
        "response_headers_to_add": [
            base_pb2.HeaderValue(key=name, value=value) for name, value in headers
        ]
    }


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
