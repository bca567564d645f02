"""What the faces are made of: options parsed, connections and flow put together."""

from __future__ import annotations

import os
import random
import ssl
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from headgate.client.connect__address import Address, parse_address
from headgate.client.connect__links import Lines, Link
from headgate.client.flow import TIMEOUT_S_MAX, Flow, Timing, parse_seconds
from headgate.client.pool import Pool
from headgate.client.requests import parse_whole
from headgate.client.retry import Retry
from headgate.core.errors import ValidationError
from headgate.core.limits__names import parse_namespace
from headgate.core.runtime__clock import Clock, steady_clock
from headgate.transport.gates import Pace, pace_for

URL = "http://127.0.0.1:8080"
URL_VARIABLE = "HEADGATE_SERVICE_URL"
KEY_VARIABLE = "HEADGATE_API_KEY"
TIMEOUT_S = 5.0
ATTEMPT_TIMEOUT_S = 2.0
CONNECTIONS = 16
CONNECTIONS_MAX = 10_000


class Colour(NamedTuple):
    """How one kind of caller connects, and what its connections belong to."""

    blocking: bool
    connect: Callable[[Address, int], Awaitable[Link]]
    here: Callable[[], object]


class Built(NamedTuple):
    flow: Flow
    namespace: str | None
    shown: str


def built(
    colour: Colour,
    url: str | None,
    *,
    api_key: str | None,
    namespace: str | None,
    timeout_s: float,
    attempt_timeout_s: float,
    connections: int,
    retry: Retry | None,
    tls: ssl.SSLContext | None,
    clock: Clock | None,
) -> Built:
    """A flow over connections of that colour; everything given is checked here."""
    if url is None:
        url = os.environ.get(URL_VARIABLE) or URL
        api_key = api_key or os.environ.get(KEY_VARIABLE) or None
    address, head = parse_address(url, api_key, tls)
    if retry is not None and not isinstance(retry, Retry):
        raise ValidationError("retry", retry, "must be a Retry")
    most = parse_whole("connections", connections, least=1)
    if most > CONNECTIONS_MAX:
        raise ValidationError("connections", most, f"must be at most {CONNECTIONS_MAX}")
    timing = Timing(
        parse_seconds("timeout_s", timeout_s, TIMEOUT_S_MAX),
        parse_seconds("attempt_timeout_s", attempt_timeout_s, TIMEOUT_S_MAX),
    )
    home = None if namespace is None else parse_namespace(namespace)
    ticks = clock or steady_clock()
    pace: Pace = pace_for(clock, blocking=colour.blocking)
    lines = Lines(
        lambda: Pool(most, pace),
        lambda timeout_ms: colour.connect(address, timeout_ms),
        colour.here,
        ticks,
    )
    flow = Flow(lines, head, timing, retry or Retry(), ticks, pace, random.random)
    return Built(flow, home, f"{'http' if address.tls is None else 'https'}://{address}")
