"""What a provider says about its own limits, in the header fields of its answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from headgate.core.bucket import div_ceil
from headgate.core.decision import LimitStatus

WAIT_MS_MAX = 24 * 3600 * 1000

_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_DURATION = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?(?:ms|s|m|h|d)){1,5}")
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_COUNT = re.compile(r"[0-9]{1,12}")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_REMAINING = ("x-ratelimit-remaining-{}", "anthropic-ratelimit-{}-remaining")
_RESET = ("x-ratelimit-reset-{}", "anthropic-ratelimit-{}-reset")


class ProviderLimit(NamedTuple):
    """One limit of the provider: how much it says is left, and when it has more."""

    remaining: int | None
    reset_ms: int | None


class ProviderLimits(NamedTuple):
    requests: ProviderLimit
    tokens: ProviderLimit
    retry_after_ms: int | None


def read_headers(headers: Mapping[str, Any], now_ms: int) -> ProviderLimits:
    """What the headers say, as far as they can be understood; the rest is ignored."""
    fields = {str(name).lower(): str(value).strip() for name, value in headers.items()}
    exact_ms = fields.get("retry-after-ms", "")
    after_ms = _millis(exact_ms, 1) if exact_ms else _millis(fields.get("retry-after", ""), 1000)
    reported = {}
    for kind in ("requests", "tokens"):
        left = [fields.get(name.format(kind), "") for name in _REMAINING]
        resets = [fields.get(name.format(kind), "") for name in _RESET]
        reported[kind] = ProviderLimit(
            next((int(text) for text in left if _COUNT.fullmatch(text)), None),
            next(
                (ms for ms in (_wait_ms(text, now_ms) for text in resets) if ms is not None), None
            ),
        )
    return ProviderLimits(reported["requests"], reported["tokens"], after_ms)


def debit_for(status: LimitStatus, reported: ProviderLimit, wait_ms: int | None) -> int:
    """How much to take from our bucket so that it holds no more than the provider says.

    Never negative: if the provider has more, we still do not admit more than was configured. With a
    wait, the bucket gets its next token when the wait is over.
    """
    target = status.available
    if reported.remaining is not None:
        target = min(target, reported.remaining)
    limit = status.limit
    if wait_ms is not None:
        refill = wait_ms * limit.refill_amount // (limit.refill_period_seconds * 1000)
        target = min(target, 1 - refill)
    return max(0, status.available - target)


def refused_wait_ms(says: ProviderLimits, reported: ProviderLimit) -> int | None:
    """After a 429: how long this limit is closed; None if another limit was the reason."""
    others_empty = 0 in (says.requests.remaining, says.tokens.remaining) and reported.remaining != 0
    if others_empty:
        return None
    return says.retry_after_ms if says.retry_after_ms is not None else reported.reset_ms


def _wait_ms(text: str, now_ms: int) -> int | None:
    """`6m0s`, `20ms`, `1.5` seconds, or a moment in RFC 3339."""
    if _DURATION.fullmatch(text):
        parts = [float(number) * _UNIT_MS[unit] for number, unit in _PART.findall(text)]
        return min(WAIT_MS_MAX, div_ceil(int(sum(parts) * 1000), 1000))
    if _SECONDS.fullmatch(text):
        return _millis(text, 1000)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    return min(WAIT_MS_MAX, max(0, int(moment.timestamp() * 1000) - now_ms))


def _millis(text: str, unit_ms: int) -> int | None:
    if not _SECONDS.fullmatch(text):
        return None
    return min(WAIT_MS_MAX, div_ceil(int(float(text) * unit_ms * 1000), 1000))
