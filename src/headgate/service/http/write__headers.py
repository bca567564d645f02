"""From an answer to HTTP header fields, in lower case as HTTP/2, ASGI and gRPC want them."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.core.http_fields import (
    Headers,
    policy_item,
    retry_fields,
    standing_fields,
    standing_item,
)
from headgate.service.decide.answers import Applied, CheckAnswer, CombinedAnswer, tightest_of
from headgate.service.decide.problems import ServiceError

__all__ = ["Headers", "check_headers", "combined_headers", "problem_headers"]


def check_headers(answer: CheckAnswer) -> Headers:
    return _headers(answer, answer.limits, answer.retry_after_ms, answer.code is not None)


def combined_headers(answer: CombinedAnswer) -> Headers:
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
    answer: CheckAnswer, limits: Sequence[Applied], retry_after_ms: int | None, refused: bool
) -> Headers:
    found: Headers = []
    if answer.tokens_capacity is not None:
        left = answer.tokens_remaining or 0
        found += standing_fields(answer.tokens_capacity, left, answer.reset_at_ms)
    if limits:
        told = limits if len(limits) == 1 else _once_each(limits)
        policies = [policy_item(one.name, one.capacity, one.window_s) for one in told]
        found.append(("ratelimit-policy", ", ".join(policies)))
        items = [standing_item(one.name, one.remaining, one.wait_ms) for one in told]
        found.append(("ratelimit", ", ".join(items)))
    if answer.degraded:
        found.append(("x-ratelimit-degraded", "true"))
        if answer.degraded_reason is not None:
            found.append(("x-ratelimit-degraded-reason", answer.degraded_reason))
    if refused:
        found += retry_fields(retry_after_ms)
    return found


def _once_each(limits: Sequence[Applied]) -> list[Applied]:
    """A name stands for one policy: of limits that share it, the tightest is told."""
    by_name: dict[str, list[Applied]] = {}
    for limit in limits:
        by_name.setdefault(limit.name, []).append(limit)
    told = [tightest_of(twins) for twins in by_name.values()]
    return [limit for limit in told if limit is not None]
