"""The only door to DynamoDB: one call, one request, in either colour.

botocore finds credentials, region and endpoint. The call itself is ours, since botocore spends ten
times as much on it: JSON, a prepared signature, HTTP/1.1 over connections that are kept. The flow
is written once; it awaits a wire, which does the waiting and never suspends in the blocking colour.
"""

from __future__ import annotations

from headgate.stores.dynamodb.client.account import Account, find_place
from headgate.stores.dynamodb.client.call import Flow
from headgate.stores.dynamodb.client.call__port_calls import Port, Request, Written
from headgate.stores.dynamodb.client.clock import ServiceClock
from headgate.stores.dynamodb.client.errors import (
    ConditionFailed,
    NotApplied,
    Refused,
    Rejected,
    TableMissing,
    TransactionCancelled,
)
from headgate.stores.dynamodb.client.http import Wire
from headgate.stores.dynamodb.client.pool_async import AsyncWire
from headgate.stores.dynamodb.client.pool_blocking import BlockingWire
from headgate.stores.dynamodb.client.port__port_faces import AsyncPort, BlockingPort

__all__ = [
    "ConditionFailed",
    "NotApplied",
    "Port",
    "Refused",
    "Rejected",
    "Request",
    "TableMissing",
    "TransactionCancelled",
    "Written",
    "open_port",
]


def open_port(
    *,
    region: str | None,
    endpoint: str | None,
    blocking: bool,
    timeout_ms: int = 2000,
    connections: int = 16,
) -> Port:
    """The port to a region or an endpoint; nothing is contacted before the first call."""
    place = find_place(region, endpoint)
    clock = ServiceClock()

    def flow(wire: Wire) -> Flow:
        return Flow(wire, place, Account(place), clock, timeout_ms)

    if blocking:
        return BlockingPort(clock, lambda: flow(BlockingWire(place, timeout_ms, connections)))
    return AsyncPort(clock, flow, lambda: AsyncWire(place, timeout_ms, connections))
