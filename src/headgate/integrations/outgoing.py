"""Outgoing calls: what each takes, and what the other side's refusals teach us."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from headgate.core.decision import Verdict
from headgate.core.engine import Engine
from headgate.core.errors import HeadgateError
from headgate.core.levels import OnUnavailable
from headgate.core.limits import Limit, parse_amount, parse_resource
from headgate.core.plan import Each
from headgate.integrations.gate import Rates, parse_rates
from headgate.integrations.keys import scoped
from headgate.integrations.llm.provider import ProviderLimit, debit_for, read_headers

RETRY_MS_MAX = 3_600_000
WAIT_S = 30.0
BUSY = (429, 503)

_log = logging.getLogger("headgate")


class Call(NamedTuple):
    """A request about to be sent."""

    method: str
    url: str
    host: str


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

    def glance(self, call: Call) -> tuple[Any, ...]:
        """The same request for nothing: how the bucket stands."""
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
    """The options, checked. `wait` is how long a call queues before RateLimitExceeded."""
    fixed = cost if callable(cost) else parse_amount("cost", cost)
    return OutgoingRules(
        parse_rates(limits), key, parse_resource(resource), fixed, wait, on_unavailable
    )


def requested_wait_ms(status: int, headers: Mapping[str, Any], now_ms: int) -> int | None:
    """How long the other side wants to be left alone; bounded, as it may say anything."""
    if status not in BUSY:
        return None
    wait_ms = read_headers(headers, now_ms).retry_after_ms
    if wait_ms is None:
        wait_ms = _ms_until(str(headers.get("retry-after", "")), now_ms)
    return None if wait_ms is None else min(wait_ms, RETRY_MS_MAX)


def debits(verdict: Verdict, wait_ms: int) -> dict[str, int]:
    """What to take from each limit so that its next token comes when the wait is over."""
    nothing = ProviderLimit(None, None)
    found = {one.limit_name: debit_for(one, nothing, wait_ms) for one in verdict.statuses}
    return {name: debit for name, debit in found.items() if debit}


@contextmanager
def logging_failures(engine: Engine, glance: tuple[Any, ...]) -> Iterator[None]:
    """The wait is taken down inside. Trouble with it is told and logged, never raised: the call
    was made, and its response is the caller's."""
    try:
        yield
    except HeadgateError as error:
        entity_id, resource, *_ = glance
        engine.notify("debit_lost", entity_id, resource, str(error))
        _log.warning("that %s asked to be left alone was not kept: %s", entity_id, error)


def _ms_until(text: str, now_ms: int) -> int | None:
    """Of an HTTP date; those without a zone are in UTC."""
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1000) - now_ms)
