"""Limits on outgoing calls: what each takes, and what happens when the other side says "not now".

A call waits for its turn. Once sent it counts, whatever becomes of it; a connection that was never
made does not count. After a 429 or 503 with Retry-After no further call is sent for that long.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from headgate.core.decision import LimitStatus
from headgate.core.engine import Request
from headgate.core.errors import HeadgateError
from headgate.core.levels import OnUnavailable
from headgate.core.limits import parse_amount, parse_resource
from headgate.core.plan import Each
from headgate.core.runtime import run
from headgate.integrations.gate import AwaitableLease, AwaitableLimiter, Rates, is_off, parse_rates
from headgate.integrations.keys import scoped
from headgate.limiter import Lease, RateLimiter
from headgate.transport.quota import parse_retry_after_ms

RETRY_MS_MAX = 3_600_000
WAIT_S = 30.0
BUSY = (429, 503)

_log = logging.getLogger("headgate")


class Call(NamedTuple):
    """A request about to be sent."""

    method: str
    url: str
    host: str


class ReceivedResponse(Protocol):
    """What httpx and requests have in common."""

    @property
    def status_code(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, Any]: ...


Received = TypeVar("Received", bound=ReceivedResponse)


def by_host(call: Call) -> str:
    """One bucket for each host that is called."""
    return scoped("host", call.host.lower() or "unknown")


class OutgoingRules:
    """How calls are counted; `key` and `cost` are asked for each. `wait` is how many seconds a
    call queues before RateLimitExceeded."""

    def __init__(
        self,
        limiter: RateLimiter | AwaitableLimiter,
        limits: Rates = None,
        *,
        key: Callable[[Call], str] = by_host,
        resource: str = "outgoing",
        cost: int | Callable[[Call], int] = 1,
        wait: float | None = WAIT_S,
        on_unavailable: OnUnavailable | None = None,
    ) -> None:
        self.limiter = limiter
        self.limits = parse_rates(limits)
        self.key = key
        self.resource = parse_resource(resource)
        self.cost = cost if callable(cost) else parse_amount("cost", cost)
        self.wait_s = wait
        self.on_unavailable = on_unavailable

    async def send(
        self,
        call: Call,
        send: Callable[[], Awaitable[Received]],
        was_never_sent: Callable[[Exception], bool],
    ) -> Received:
        """Waits for the call's turn and sends it."""
        if is_off():
            return await send()
        cost = self.cost(call) if callable(self.cost) else self.cost
        async with self.limiter.acquire_many(
            [self._request(call, parse_amount("cost", cost))],
            self.on_unavailable,
            on_error="keep",
            wait=self.wait_s,
        ) as lease:
            try:
                response = await send()
            except Exception as error:
                if was_never_sent(error):
                    await lease.settle(**dict.fromkeys(lease.consumed, 0))
                raise
            now_ms = self.limiter.engine.clock()
            wait_ms = requested_wait_ms(response.status_code, response.headers, now_ms)
            if wait_ms is not None:
                await self._keep_wait(lease, call, wait_ms)
            return response

    def send_blocking(
        self,
        call: Call,
        send: Callable[[], Received],
        was_never_sent: Callable[[Exception], bool],
    ) -> Received:
        """The same on this thread, with an AwaitableLimiter."""

        async def send_here() -> Received:
            return send()

        return run(self.send(call, send_here, was_never_sent))

    def _request(self, call: Call, cost: int) -> Request:
        return self.key(call), self.resource, Each(cost), self.limits

    async def _keep_wait(self, lease: Lease | AwaitableLease, call: Call, wait_ms: int) -> None:
        """Takes so much from each limit that its next token arrives when the wait is over.

        Errors are reported and logged, never raised, because the call was made and the caller must
        get its response.
        """
        status = self._request(call, 0)  # for nothing, to ask how full the bucket is
        try:
            verdict = await self.limiter.check_many([status])
            debits = {one.limit_name: debit_for(one, None, wait_ms) for one in verdict.statuses}
            await lease.adjust(**{name: debit for name, debit in debits.items() if debit})
        except HeadgateError as error:
            entity_id = status[0]
            self.limiter.engine.notify("debit_lost", entity_id, self.resource, str(error))
            _log.warning("%s asked us to wait, which could not be noted: %s", entity_id, error)


def requested_wait_ms(status: int, headers: Mapping[str, Any], now_ms: int) -> int | None:
    """How long the other side asks us to wait; bounded, because it may say anything."""
    wait_ms = parse_retry_after_ms(headers, now_ms) if status in BUSY else None
    return None if wait_ms is None else min(wait_ms, RETRY_MS_MAX)


def debit_for(status: LimitStatus, remaining: int | None, wait_ms: int | None) -> int:
    """How much to take from our bucket so that it holds no more than the other side says remains.

    Never negative: if the other side has more, we still do not admit more than was configured. With
    a wait, the bucket gets its next token when the wait is over. A quota is a budget and no pace:
    what were taken from it for a wait of seconds would be missing until its reset, so it is left as
    it is, and so is a limit that never refills.
    """
    limit, target = status.limit, status.available
    if not limit.refill_amount:
        return 0
    if remaining is not None:
        target = min(target, remaining)
    if wait_ms is not None:
        refill = wait_ms * limit.refill_amount // (limit.refill_period_seconds * 1000)
        target = min(target, 1 - refill)
    return max(0, status.available - target)
