"""Throttles for Django REST framework: `throttle_classes = [throttle(limiter, "100/minute")]`."""

from __future__ import annotations

from typing import Any, Unpack

from rest_framework.exceptions import APIException
from rest_framework.throttling import BaseThrottle

from headgate.integrations.django import caller_of
from headgate.integrations.gate import Gate, GateOptions, Rates, blocking_limiter
from headgate.integrations.responses import Answer
from headgate.sync import SyncRateLimiter


class LimitUndecided(APIException):  # type: ignore[misc]
    """The limit could not be decided: the store is away, or an operator switched it off."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.detail)
        self.status_code = answer.status
        self.wait = None if answer.retry_after_ms is None else -(-answer.retry_after_ms // 1000)


def throttle(
    limiter: SyncRateLimiter, limits: Rates = None, **options: Unpack[GateOptions]
) -> type[BaseThrottle]:
    """A throttle class; see Gate for the options. `caller.native` is the framework's request, so
    a key function can use its `user`."""
    gate = Gate(blocking_limiter(limiter), limits, **options)

    class Throttle(BaseThrottle):  # type: ignore[misc]
        answer: Answer

        def allow_request(self, request: Any, view: Any) -> bool:
            self.answer = answer = gate.ask_blocking(caller_of(request))
            # The view puts its own headers on every response, refusals included.
            view.headers.update(dict(answer.headers))
            if answer.status not in (200, 429):
                raise LimitUndecided(answer)
            return answer.allowed

        def wait(self) -> float | None:
            wait_ms = self.answer.retry_after_ms
            return None if wait_ms is None else max(1.0, wait_ms / 1000)

    return Throttle
