"""Whether a call is sent again, and when: a pure function of what became of it.

A call that takes tokens is repeated only after an outcome that proves it took none: nothing was
sent, or the service itself refused. Where its fate is not known, only calls that can be said twice
are said twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.client.requests import Effect
from headgate.client.retry__replies import Outcome, Reply, Trouble
from headgate.core.errors import ValidationError

LIMITED, UNAVAILABLE, CONFLICT = 429, 503, 409
PASSING = frozenset({408, 502, 503, 504})  # what another attempt may not meet again
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
    effect: Effect,
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
        if attempt >= retry.attempts or not _may_repeat(effect, outcome):
            return None
    asked_ms = outcome.retry_after_ms if isinstance(outcome, Reply) else None
    return _pause_ms(_ceiling_ms(retry, attempt), asked_ms, last_ms - now_ms, fraction)


def took_nothing(outcome: Outcome) -> bool:
    """Whether it is known that the call had no effect.

    A bare 503 may be a proxy's that lost the connection after the service had acted.
    """
    if isinstance(outcome, Trouble):
        return not outcome.sent
    if outcome.status == UNAVAILABLE:
        return outcome.code is not None
    return outcome.status < 500


def _may_repeat(effect: Effect, outcome: Outcome) -> bool:
    if isinstance(outcome, Reply) and outcome.status not in PASSING:
        # Another call is changing the lease; one that is over says no time.
        told = outcome.status == CONFLICT and outcome.retry_after_ms is not None
        return told and effect is Effect.REPEATABLE
    return effect is Effect.REPEATABLE or took_nothing(outcome)


def _ceiling_ms(retry: Retry, attempt: int) -> int:
    return min(retry.cap_ms, retry.base_ms << min(attempt - 1, 20))


def _pause_ms(ceiling_ms: int, asked_ms: int | None, room_ms: int, fraction: float) -> int | None:
    """Never less than was asked; the dice spread callers who were refused together. A dice roll
    that would miss the end is cut to it."""
    if asked_ms is None:
        least_ms, spread_ms = ceiling_ms // 2, ceiling_ms - ceiling_ms // 2
    else:
        least_ms, spread_ms = asked_ms, ceiling_ms
    if least_ms > room_ms:
        return None
    return max(1, min(least_ms + int(fraction * spread_ms), room_ms))
