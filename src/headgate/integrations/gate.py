"""Gate: one limit in front of requests, the same for every framework.

A request that came in counts, whatever becomes of it: if hanging up or making the handler fail
gave the tokens back, that would be a way around the limit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypedDict

from headgate.core.decision import Verdict
from headgate.core.engine import Request
from headgate.core.errors import HeadgateError, ValidationError
from headgate.core.levels import OnUnavailable
from headgate.core.limits import LIMITS_MAX, Limit, parse_amount, parse_limits, parse_resource
from headgate.core.plan import Each
from headgate.core.runtime import run
from headgate.integrations.keys import Caller, Key, by_ip
from headgate.integrations.responses import OFF, Answer, decision_answer, error_answer
from headgate.limiter import RateLimiter
from headgate.sync import SyncLease, SyncPendingAcquire, SyncRateLimiter

# --------------------------------------------------------------------------------------------------
# Limits as people write them beside a route: `"5/minute;100/hour"`.

Rates = str | Limit | Sequence[Limit] | None

TEXT_LENGTH_MAX = 1024


def parse_rates(rates: Rates) -> tuple[Limit, ...] | None:
    """The limits; None means the stored limits and the limiter's defaults."""
    if rates is None:
        return None
    if isinstance(rates, Limit):
        return (rates,)
    if not isinstance(rates, str):
        return parse_limits(list(rates) if isinstance(rates, tuple) else rates)
    if len(rates) > TEXT_LENGTH_MAX:
        raise ValidationError("limits", rates, f"is longer than {TEXT_LENGTH_MAX} characters")
    parts = rates.split(";")
    if len(parts) > LIMITS_MAX:
        raise ValidationError("limits", rates, f"holds more than {LIMITS_MAX} limits")
    return parse_limits([Limit.parse(part) for part in parts])


Cost = int | Callable[[Caller], int]
Resource = str | Callable[[Caller], str]

_lock = threading.Lock()
_times_off = 0


@contextmanager
def limits_off() -> Iterator[None]:
    """For tests: inside the block every gate of this process lets everything pass uncounted."""
    global _times_off  # noqa: PLW0603 - threads of test servers must see it too
    with _lock:
        _times_off += 1
    try:
        yield
    finally:
        with _lock:
            _times_off -= 1


def is_off() -> bool:
    return _times_off > 0


class GateOptions(TypedDict, total=False):
    """The options of a gate; the integration of every framework takes and passes on the same."""

    key: Key | None
    resource: Resource
    cost: Cost
    on_unavailable: OnUnavailable | None
    enabled: bool


class Gate:
    """Decides requests: who makes them (`key`), what they use (`resource`), how much they cost.

    `limits` replaces what is stored, as it does on `acquire`; without it the stored limits and the
    limiter's defaults apply. The cost is taken from every limit.
    """

    def __init__(
        self,
        limiter: RateLimiter | SyncRateLimiter,
        limits: Rates = None,
        *,
        key: Key | None = None,
        resource: Resource = "http",
        cost: Cost = 1,
        on_unavailable: OnUnavailable | None = None,
        enabled: bool = True,
    ) -> None:
        if not isinstance(limiter, (RateLimiter, SyncRateLimiter)):
            raise ValidationError("limiter", limiter, "must be a RateLimiter or SyncRateLimiter")
        self.limiter = limiter
        self.limits = parse_rates(limits)
        self.key = by_ip() if key is None else key
        self.resource = resource if callable(resource) else parse_resource(resource)
        self.cost: Cost = cost if callable(cost) else Each(cost).tokens
        self.on_unavailable = on_unavailable
        self.enabled = enabled

    async def ask(self, caller: Caller) -> Answer:
        """Takes the cost of a request, or says why it may not go on. For asyncio."""
        if (request := self._request(caller)) is None:
            return OFF
        try:
            decision = await self.limiter.engine.consume([request], self.on_unavailable)
        except HeadgateError as error:
            return error_answer(error)
        return decision_answer(decision)

    def ask_blocking(self, caller: Caller) -> Answer:
        """The same on this thread."""
        return run(self.ask(caller))

    def _request(self, caller: Caller) -> Request | None:
        if not self.enabled or is_off():
            return None
        entity_id = self.key(caller)
        if entity_id is None:
            return None
        if not isinstance(entity_id, str):
            raise ValidationError(
                "key", entity_id,
                "is what the key function returned; it must return an entity id (str), or None for "
                "a request without a limit; caller.header(name) is one value of a header, "
                "caller.headers(name) a list of them",
            )  # fmt: skip
        resource = self.resource(caller) if callable(self.resource) else self.resource
        cost = self.cost(caller) if callable(self.cost) else self.cost
        return entity_id, resource, Each(parse_amount("cost", cost)), self.limits


def asyncio_limiter(limiter: object) -> RateLimiter:
    """The limiter, if it is one for asyncio."""
    if not isinstance(limiter, RateLimiter):
        raise ValidationError("limiter", limiter, "must be a RateLimiter, the one for asyncio")
    return limiter


def blocking_limiter(limiter: object) -> SyncRateLimiter:
    """The limiter, if it can be called from a thread."""
    if not isinstance(limiter, SyncRateLimiter):
        raise ValidationError("limiter", limiter, "must be a SyncRateLimiter, the one for threads")
    return limiter


# --------------------------------------------------------------------------------------------------
# A blocking limiter for coroutines that serve asyncio and threads: nothing in it suspends, so
# `run` carries such a coroutine to its end. The RateLimiter inside a SyncRateLimiter would not do:
# it suspends in a task that was cancelled, and blocking code may be called there, too.


class AwaitableLease:
    def __init__(self, lease: SyncLease) -> None:
        self._lease = lease
        self.consumed = lease.consumed

    async def adjust(self, **changes: int) -> None:
        self._lease.adjust(**changes)

    async def settle(self, **actual: int) -> None:
        self._lease.settle(**actual)


class AwaitableAcquire:
    """An acquire that `async with` can enter. It is no generator: one that is dropped would run its
    `finally` whenever garbage is collected, and ask the store from there."""

    def __init__(self, pending: SyncPendingAcquire) -> None:
        self._pending = pending

    async def __aenter__(self) -> AwaitableLease:
        return AwaitableLease(self._pending.__enter__())

    async def __aexit__(self, *error: Any) -> None:
        self._pending.__exit__(*error)


class AwaitableLimiter:
    """A SyncRateLimiter whose calls can be awaited."""

    def __init__(self, limiter: object) -> None:
        self._limiter = blocking_limiter(limiter)
        self.engine = self._limiter.engine

    async def check_many(self, requests: Sequence[tuple[Any, ...]]) -> Verdict:
        return self._limiter.check_many(requests)

    def acquire_many(
        self, requests: Sequence[tuple[Any, ...]], *args: Any, **options: Any
    ) -> AwaitableAcquire:
        return AwaitableAcquire(self._limiter.acquire_many(requests, *args, **options))
