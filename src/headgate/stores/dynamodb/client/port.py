"""The only door to DynamoDB: one call, one request, in either colour.

botocore finds credentials, region and endpoint. The call itself is ours, since botocore spends ten
times as much on it: JSON, a prepared signature, HTTP/1.1 over connections that are kept. The flow
is written once; it awaits a wire, which does the waiting and never suspends in the blocking colour.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from headgate.core.errors import StoreTrouble
from headgate.stores.dynamodb.client import errors as trouble
from headgate.stores.dynamodb.client.account import Account, find_place
from headgate.stores.dynamodb.client.call import Flow, Port, Request, Written
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
from headgate.transport.ownership import PerLoop, PerProcess

# --------------------------------------------------------------------------------------------------
# The port in both colours: each event loop, and each process, has connections of its own.


class Face:
    """Passes every call to the flow of here and now, whose coroutine it is."""

    def __init__(self, clock: ServiceClock, here: Callable[[], Flow]) -> None:
        self.now_ms = clock.now_ms
        self._here = here

    def call(self, request: Request) -> Coroutine[Any, Any, dict[str, Any]]:
        try:
            return self._here().call(request)
        except StoreTrouble as closed:
            return _raising(closed)

    def call_all(
        self, requests: Sequence[Request]
    ) -> Coroutine[Any, Any, list[dict[str, Any] | StoreTrouble]]:
        try:
            return self._here().call_all(requests)
        except StoreTrouble as closed:
            return _raising(closed)


async def _raising(trouble: StoreTrouble) -> Any:
    raise trouble


class AsyncPort(Face):
    def __init__(
        self,
        clock: ServiceClock,
        make: Callable[[Wire], Flow],
        wire: Callable[[], AsyncWire],
    ) -> None:
        def leave(flow: Flow) -> None:
            cast(AsyncWire, flow.wire).abandon()

        self._own = PerLoop(lambda: make(wire()), leave, trouble.closed)
        super().__init__(clock, self._own.here)

    async def close(self) -> None:
        mine = self._own.close()
        if mine is not None:
            await mine.close()


class BlockingPort(Face):
    def __init__(self, clock: ServiceClock, make: Callable[[], Flow]) -> None:
        self._own = PerProcess(make, trouble.closed)
        super().__init__(clock, self._own.here)

    async def close(self) -> None:
        flow = self._own.close()
        if flow is not None:
            await flow.close()


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
