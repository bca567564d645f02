"""Limits on outgoing calls: what each takes, and what happens when the other side says "not now".

A call waits for its turn. Once sent it counts, whatever becomes of it; a connection that was never
made does not count. After a 429 or 503 with Retry-After no further call is sent for that long.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, Protocol, TypeVar

from headgate.core.decision import Verdict
from headgate.core.engine import Engine
from headgate.core.errors import HeadgateError
from headgate.core.levels import OnUnavailable
from headgate.core.limits import Limit, parse_amount, parse_resource
from headgate.core.plan import Each
from headgate.integrations.gate import Rates, is_off, parse_rates
from headgate.integrations.keys import scoped
from headgate.integrations.llm.provider import ProviderLimit, debit_for, read_headers
from headgate.sync import SyncRateLimiter

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


class OutgoingRules(NamedTuple):
    """How calls are counted; `key` and `cost` are asked for each."""

    limits: tuple[Limit, ...] | None
    key: Callable[[Call], str]
    resource: str
    cost: int | Callable[[Call], int]
    wait_s: float | None
    on_unavailable: OnUnavailable | None

    def want(self, call: Call) -> tuple[Any, ...]:
        cost = self.cost(call) if callable(self.cost) else self.cost
        return self.key(call), self.resource, Each(parse_amount("cost", cost)), self.limits

    def status(self, call: Call) -> tuple[Any, ...]:
        """The same request for nothing, to ask how full the bucket is."""
        return self.key(call), self.resource, Each(0), self.limits


def by_host(call: Call) -> str:
    """One bucket for each host that is called."""
    return scoped("host", call.host.lower() or "unknown")


def outgoing_rules(
    limits: Rates = None,
    *,
    key: Callable[[Call], str] = by_host,
    resource: str = "outgoing",
    cost: int | Callable[[Call], int] = 1,
    wait: float | None = WAIT_S,
    on_unavailable: OnUnavailable | None = None,
) -> OutgoingRules:
    """The options, checked. `wait` is how many seconds a call queues before RateLimitExceeded."""
    fixed = cost if callable(cost) else parse_amount("cost", cost)
    return OutgoingRules(
        parse_rates(limits), key, parse_resource(resource), fixed, wait, on_unavailable
    )


def send_within_limit(
    limiter: SyncRateLimiter,
    rules: OutgoingRules,
    call: Call,
    send: Callable[[], Received],
    was_never_sent: Callable[[Exception], bool],
) -> Received:
    """Waits for the call's turn and sends it; AsyncLimitedTransport does the same for asyncio."""
    if is_off():
        return send()
    with limiter.acquire_many(
        [rules.want(call)], rules.on_unavailable, on_error="keep", wait=rules.wait_s
    ) as lease:
        try:
            response = send()
        except Exception as error:
            if was_never_sent(error):
                lease.settle(**dict.fromkeys(lease.consumed, 0))
            raise
        wait_ms = requested_wait_ms(response.status_code, response.headers, limiter.engine.clock())
        if wait_ms is not None:
            status = rules.status(call)
            with logging_failures(limiter.engine, status):
                lease.adjust(**debits(limiter.check_many([status]), wait_ms))
        return response


def requested_wait_ms(status: int, headers: Mapping[str, Any], now_ms: int) -> int | None:
    """How long the other side asks us to wait; bounded, because it may say anything."""
    if status not in BUSY:
        return None
    wait_ms = read_headers(headers, now_ms).retry_after_ms
    if wait_ms is None:
        wait_ms = _ms_until(str(headers.get("retry-after", "")), now_ms)
    return None if wait_ms is None else min(wait_ms, RETRY_MS_MAX)


def debits(verdict: Verdict, wait_ms: int) -> dict[str, int]:
    """What to take from each limit so that its next token arrives when the wait is over."""
    nothing = ProviderLimit(None, None)
    found = {one.limit_name: debit_for(one, nothing, wait_ms) for one in verdict.statuses}
    return {name: debit for name, debit in found.items() if debit}


@contextmanager
def logging_failures(engine: Engine, status: tuple[Any, ...]) -> Iterator[None]:
    """Around noting a wait that was asked for: errors are reported and logged, never raised,
    because the call was made and the caller must get its response."""
    try:
        yield
    except HeadgateError as error:
        entity_id, resource, *_ = status
        engine.notify("debit_lost", entity_id, resource, str(error))
        _log.warning("%s asked us to wait, which could not be noted: %s", entity_id, error)


def _ms_until(text: str, now_ms: int) -> int | None:
    """The time until an HTTP date; one without a zone is in UTC."""
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1000) - now_ms)
