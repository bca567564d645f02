"""Whether a call is sent again, and when: a pure function of what became of it.

A call that takes tokens is repeated only after an outcome that proves it took none: nothing was
sent, or the service itself refused. Where its fate is not known, only calls that can be said twice
are said twice.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from headgate.core.errors import ValidationError
from headgate.transport.http1 import Fields, Response
from headgate.transport.quota import Quota, parse_quota

# --------------------------------------------------------------------------------------------------
# What became of one attempt: the service's reply as a value, or the reason there is none.


class NoReply(NamedTuple):
    """No reply. `sent` is whether the service may have got the call nonetheless."""

    reason: str
    sent: bool


@dataclass(frozen=True)
class Reply:
    """A response and its JSON object; an empty one where the body is none."""

    status: int
    headers: Fields = field(repr=False)
    document: dict[str, Any] = field(repr=False)
    at_ms: int

    @cached_property
    def quota(self) -> Quota:
        return parse_quota(self.headers, self.at_ms)

    @property
    def code(self) -> str | None:
        """The service's word for what is wrong; None where nothing is or it was not the service
        who spoke."""
        stated = self.document.get("code")
        if stated is None:
            error = self.document.get("error")
            stated = error.get("code") if isinstance(error, dict) else None
        return stated if isinstance(stated, str) else None

    @property
    def retry_after_ms(self) -> int | None:
        """How long it asks to wait; None where it says nothing of that."""
        stated = self.quota.retry_after_ms
        return seconds_ms(self.document.get("retry_after_seconds")) if stated is None else stated

    @property
    def never(self) -> bool:
        """Whether it says that no wait will help."""
        return self.document.get("retry_after_seconds", 0) is None


Outcome = Reply | NoReply


def reply_of(response: Response, now_ms: int) -> Reply:
    """The reply; a body that is not a JSON object is read as an empty one."""
    try:
        document = json.loads(response.body) if response.body else {}
    except (ValueError, RecursionError):
        document = {}
    if not isinstance(document, dict):
        document = {}
    return Reply(response.status, response.headers, document, now_ms)


def seconds_ms(value: object) -> int | None:
    """Seconds of a JSON document as whole milliseconds, rounded up; None for anything odd."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not 0 <= value <= 10**10:  # NaN is not in there, either
        return None
    return -int(-value * 1000 // 1)


LIMITED, UNAVAILABLE, CONFLICT = 429, 503, 409
TRANSIENT = frozenset({408, 502, 503, 504})  # what another attempt may not meet again
ATTEMPTS_MAX = 1_000
SEND_MS_LEAST = 50  # with less time left an attempt would hardly be answered


@dataclass(frozen=True, slots=True)
class Retry:
    """How persistent a client is. `attempts` counts all of a call that meets trouble; waiting for
    tokens is bounded by time alone. Back-off doubles from `base_ms` to at most `cap_ms`."""

    attempts: int = 4
    base_ms: int = 50
    cap_ms: int = 2_000

    def __post_init__(self) -> None:
        for name, most in (("attempts", 100), ("base_ms", 60_000), ("cap_ms", 600_000)):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise ValidationError(name, value, f"must be an int from 1 to {most}")


@dataclass(frozen=True, slots=True)
class Schedule:
    """The times of one call: when it must be over, and until when it may wait for tokens."""

    deadline_ms: int
    wait_until_ms: int


def next_pause_ms(
    retry: Retry,
    is_repeatable: bool,
    outcome: Outcome,
    attempt: int,
    now_ms: int,
    schedule: Schedule,
    fraction: float,
) -> int | None:
    """Milliseconds until the next attempt; None where this outcome is the call's.

    `attempt` counts from 1; `fraction`, in [0, 1), is the dice.
    """
    if attempt >= ATTEMPTS_MAX:
        return None
    if isinstance(outcome, Reply) and outcome.status == LIMITED:
        last_ms = schedule.wait_until_ms
        if outcome.never or last_ms <= now_ms:
            return None
    else:
        last_ms = schedule.deadline_ms - SEND_MS_LEAST
        if attempt >= retry.attempts or not _can_repeat(is_repeatable, outcome):
            return None
    # Never less than was asked; the dice spread callers who were refused together. A dice roll
    # that would miss the end is cut to it.
    ceiling_ms = min(retry.cap_ms, retry.base_ms << min(attempt - 1, 20))
    least_ms = outcome.retry_after_ms if isinstance(outcome, Reply) else None
    spread_ms = ceiling_ms
    if least_ms is None:
        least_ms = ceiling_ms // 2
        spread_ms -= least_ms
    if least_ms > last_ms - now_ms:
        return None
    return max(1, min(least_ms + int(fraction * spread_ms), last_ms - now_ms))


def is_unapplied(outcome: Outcome) -> bool:
    """Whether it is known that the call had no effect.

    A bare 503 may be a proxy's that lost the connection after the service had acted.
    """
    if isinstance(outcome, NoReply):
        return not outcome.sent
    if outcome.status == UNAVAILABLE:
        return outcome.code is not None
    return outcome.status < 500


def _can_repeat(is_repeatable: bool, outcome: Outcome) -> bool:
    if isinstance(outcome, Reply) and outcome.status not in TRANSIENT:
        # Another call is changing the lease; one that is over says no time.
        stated = outcome.status == CONFLICT and outcome.retry_after_ms is not None
        return stated and is_repeatable
    return is_repeatable or is_unapplied(outcome)
