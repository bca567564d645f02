"""All calls to DynamoDB: one call, one request, async or blocking.

botocore finds credentials, region and endpoint. The call itself is ours, since botocore spends ten
times as much on it: JSON, a prepared signature, HTTP/1.1 over connections that are kept. The flow
is written once; it awaits a wire, which does the waiting and never suspends when it blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from headgate.core.errors import StoreTrouble
from headgate.stores.dynamodb.client import errors as trouble
from headgate.stores.dynamodb.client.account import CredentialProvider, find_endpoint
from headgate.stores.dynamodb.client.call import (
    DynamoClient,
    DynamoPort,
    DynamoRequest,
    EncodedRequest,
)
from headgate.stores.dynamodb.client.clock import ServiceClock
from headgate.stores.dynamodb.client.errors import (
    AccessRefused,
    ConditionFailed,
    NotApplied,
    Rejected,
    TableMissing,
    TransactionCancelled,
)
from headgate.stores.dynamodb.client.http import DynamoTransport
from headgate.stores.dynamodb.client.pool_async import AsyncDynamoPool
from headgate.stores.dynamodb.client.pool_blocking import BlockingDynamoPool
from headgate.transport.ownership import PerLoop, PerProcess

# --------------------------------------------------------------------------------------------------
# The port, async and blocking: each event loop, and each process, has connections of its own.


class DynamoPerLoopPort:
    """Passes every call to the flow of here and now, whose coroutine it is."""

    def __init__(self, clock: ServiceClock, here: Callable[[], DynamoClient]) -> None:
        self.now_ms = clock.now_ms
        self._here = here

    def call(self, request: DynamoRequest) -> Coroutine[Any, Any, dict[str, Any]]:
        try:
            return self._here().call(request)
        except StoreTrouble as closed:
            return _raise(closed)

    def call_all(
        self, requests: Sequence[DynamoRequest]
    ) -> Coroutine[Any, Any, list[dict[str, Any] | StoreTrouble]]:
        try:
            return self._here().call_all(requests)
        except StoreTrouble as closed:
            return _raise(closed)


async def _raise(trouble: StoreTrouble) -> Any:
    raise trouble


class AsyncDynamoPort(DynamoPerLoopPort):
    def __init__(
        self,
        clock: ServiceClock,
        make: Callable[[DynamoTransport], DynamoClient],
        wire: Callable[[], AsyncDynamoPool],
    ) -> None:
        def leave(flow: DynamoClient) -> None:
            cast(AsyncDynamoPool, flow.wire).abandon()

        self._own = PerLoop(lambda: make(wire()), leave, trouble.store_closed)
        super().__init__(clock, self._own.here)

    async def close(self) -> None:
        mine = self._own.close()
        if mine is not None:
            await mine.close()


class BlockingDynamoPort(DynamoPerLoopPort):
    def __init__(self, clock: ServiceClock, make: Callable[[], DynamoClient]) -> None:
        self._own = PerProcess(make, trouble.store_closed)
        super().__init__(clock, self._own.here)

    async def close(self) -> None:
        flow = self._own.close()
        if flow is not None:
            await flow.close()


__all__ = [
    "AccessRefused",
    "ConditionFailed",
    "DynamoPort",
    "DynamoRequest",
    "EncodedRequest",
    "NotApplied",
    "Rejected",
    "TableMissing",
    "TransactionCancelled",
    "open_port",
]


def open_port(
    *,
    region: str | None,
    endpoint: str | None,
    blocking: bool,
    timeout_ms: int = 2000,
    connections: int = 16,
) -> DynamoPort:
    """The port to a region or an endpoint; nothing is contacted before the first call."""
    place = find_endpoint(region, endpoint)
    clock = ServiceClock()

    def flow(wire: DynamoTransport) -> DynamoClient:
        return DynamoClient(wire, place, CredentialProvider(place), clock, timeout_ms)

    if blocking:
        return BlockingDynamoPort(
            clock, lambda: flow(BlockingDynamoPool(place, timeout_ms, connections))
        )
    return AsyncDynamoPort(clock, flow, lambda: AsyncDynamoPool(place, timeout_ms, connections))
