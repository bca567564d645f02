"""From an answer to HTTP header fields, in lower case as HTTP/2, ASGI and gRPC want them.

`RateLimit` and `RateLimit-Policy` follow draft-ietf-httpapi-ratelimit-headers-11: one item per
limit, `r` what is left, `t` seconds until there is more, `q` the capacity, `w` the seconds it takes
to fill.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.bucket import div_ceil
from headgate.service.answers import Applied, CheckAnswer, CombinedAnswer, tightest_of
from headgate.service.problems import ServiceError

Headers = list[tuple[str, str]]

SF_INTEGER_MAX = 999_999_999_999_999


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
    found: Headers = []
    if error.retry_after_ms is not None:
        _retry(found, error.retry_after_ms)
    return found


def _headers(
    answer: CheckAnswer, limits: Sequence[Applied], retry_after_ms: int | None, refused: bool
) -> Headers:
    found: Headers = []
    if answer.tokens_capacity is not None:
        found.append(("x-ratelimit-limit", str(answer.tokens_capacity)))
        found.append(("x-ratelimit-remaining", str(max(0, answer.tokens_remaining or 0))))
        if answer.reset_at_ms is not None:
            found.append(("x-ratelimit-reset", str(div_ceil(answer.reset_at_ms, 1000))))
    if limits:
        told = limits if len(limits) == 1 else _once_each(limits)
        found.append(("ratelimit-policy", ", ".join([_policy(limit) for limit in told])))
        found.append(("ratelimit", ", ".join([_standing(limit) for limit in told])))
    if answer.degraded:
        found.append(("x-ratelimit-degraded", "true"))
        if answer.degraded_reason is not None:
            found.append(("x-ratelimit-degraded-reason", answer.degraded_reason))
    if refused and retry_after_ms is not None:
        _retry(found, retry_after_ms)
    return found


def _retry(found: Headers, retry_after_ms: int) -> None:
    found.append(("retry-after", str(max(1, div_ceil(retry_after_ms, 1000)))))
    found.append(("retry-after-ms", str(retry_after_ms)))


def _once_each(limits: Sequence[Applied]) -> list[Applied]:
    """A name stands for one policy: of limits that share it, the tightest is told."""
    by_name: dict[str, list[Applied]] = {}
    for limit in limits:
        by_name.setdefault(limit.name, []).append(limit)
    told = [tightest_of(twins) for twins in by_name.values()]
    return [limit for limit in told if limit is not None]


def _policy(limit: Applied) -> str:
    item = f"{sf_string(limit.name)};q={min(limit.capacity, SF_INTEGER_MAX)}"
    return item if limit.window_s is None else f"{item};w={min(limit.window_s, SF_INTEGER_MAX)}"


def _standing(limit: Applied) -> str:
    item = f"{sf_string(limit.name)};r={min(max(0, limit.remaining), SF_INTEGER_MAX)}"
    if limit.wait_ms is None:
        return item
    return f"{item};t={min(div_ceil(limit.wait_ms, 1000), SF_INTEGER_MAX)}"


def sf_string(text: str) -> str:
    """A structured-field string; what it cannot hold becomes '?'."""
    if not (text.isascii() and text.isprintable()):
        text = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
    if '"' in text or "\\" in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
