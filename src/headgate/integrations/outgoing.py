"""Outgoing calls: what each takes, and what the other side's refusals teach us. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from headgate.decision import Verdict
from headgate.entities import OnUnavailable
from headgate.integrations.keys import scoped
from headgate.integrations.llm_provider import Told, debit_for, read_headers
from headgate.integrations.rates import Rates, parse_rates
from headgate.limits import Limit, parse_amount
from headgate.names import parse_resource
from headgate.plan import Each

RETRY_MS_MAX = 3_600_000
WAIT_S = 30.0
BUSY = (429, 503)


class Call(NamedTuple):
    """A request about to be sent."""

    method: str
    url: str
    host: str


class Outgoing(NamedTuple):
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

    def glance(self, call: Call) -> tuple[Any, ...]:
        """The same request for nothing: how the bucket stands."""
        return self.key(call), self.resource, Each(0), self.limits


def by_host(call: Call) -> str:
    """One bucket for each host that is called."""
    return scoped("host", call.host.lower() or "unknown")


def outgoing(
    limits: Rates = None,
    *,
    key: Callable[[Call], str] = by_host,
    resource: str = "outgoing",
    cost: int | Callable[[Call], int] = 1,
    wait: float | None = WAIT_S,
    on_unavailable: OnUnavailable | None = None,
) -> Outgoing:
    """The options, checked. `wait` is how long a call queues before RateLimitExceeded."""
    fixed = cost if callable(cost) else parse_amount("cost", cost)
    return Outgoing(parse_rates(limits), key, parse_resource(resource), fixed, wait, on_unavailable)


def told_wait_ms(status: int, headers: Mapping[str, Any], now_ms: int) -> int | None:
    """How long the other side wants to be left alone; bounded, as it may say anything."""
    if status not in BUSY:
        return None
    wait_ms = read_headers(headers, now_ms).retry_after_ms
    if wait_ms is None:
        wait_ms = _until(str(headers.get("retry-after", "")), now_ms)
    return None if wait_ms is None else min(wait_ms, RETRY_MS_MAX)


def debits(verdict: Verdict, wait_ms: int) -> dict[str, int]:
    """What to take from each limit so that its next token comes when the wait is over."""
    nothing = Told(None, None)
    found = {one.limit_name: debit_for(one, nothing, wait_ms) for one in verdict.statuses}
    return {name: debit for name, debit in found.items() if debit}


def _until(text: str, now_ms: int) -> int | None:
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0, int(moment.timestamp() * 1000) - now_ms)
