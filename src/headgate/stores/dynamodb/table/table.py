"""One table: reading many items, walking queries, transactions; each loop has its bound.

Everything the catalog and the ledger say to DynamoDB goes through here, so this is where what a
batch left undone is asked for again, and where a transaction whose answer was lost is sent again:
its token makes the service do it once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headgate.core.errors import StoreTrouble, Throttled
from headgate.stores.dynamodb.catalog.items import Item, Key, key_of
from headgate.stores.dynamodb.catalog.retention import Retention, RetentionPeriods
from headgate.stores.dynamodb.client.calls import (
    DynamoPort,
    DynamoRequest,
    TransactionCancelled,
    run_flow,
)
from headgate.stores.dynamodb.protocol.flow import reasons_of, send
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.records import RecordsChanged
from headgate.transport.gates import GateFactory

BATCH_GET_MAX = 100
BATCH_WRITE_MAX = 25
BATCHES_AT_ONCE = 8
TRANSACTION_MAX = 100
ROUNDS_MAX = 12  # of asking for what a batch left undone
PAUSE_MS = 20
PAUSE_MS_MAX = 1000


class ItemsChanged(RecordsChanged):
    """Somebody changed what this change was decided on; nothing was written."""


class Table:
    """A table's name, the port to it and the pace at which to try again."""

    def __init__(
        self, port: DynamoPort, name: str, pace: GateFactory, retention: Retention | None = None
    ) -> None:
        self.port = port
        self.name = name
        self.retention = retention or Retention()
        self._pace = pace
        self._fraction: Callable[[], float] = random.random

    async def call(self, operation: str, **params: Any) -> dict[str, Any]:
        return await self.port.call(DynamoRequest(operation, {"TableName": self.name, **params}))

    async def pause(self, attempt: int) -> None:
        """Longer with every attempt, and never as long as whoever else tries again."""
        wait_ms = min(PAUSE_MS * 2**attempt, PAUSE_MS_MAX)
        await self._pace.gate().wait(1 + int(wait_ms * self._fraction()))

    async def periods(self) -> RetentionPeriods:
        """How long history is kept in this table."""
        return await self.retention.periods(self.get, self.port.now_ms())

    async def get(self, key: Key) -> Item | None:
        reply = await self.port.call(ask.get(self.name, key))
        return reply.get("Item") or None

    async def get_all(self, keys: Iterable[Key]) -> dict[Key, Item]:
        """The items that exist, each as it is now; in one call up to BATCH_GET_MAX keys."""
        wanted = list(dict.fromkeys(keys))
        found: dict[Key, Item] = {}
        for at in range(0, len(wanted), BATCH_GET_MAX):
            await self._get_some(wanted[at : at + BATCH_GET_MAX], found)
        return found

    async def _get_some(self, keys: list[Key], found: dict[Key, Item]) -> None:
        for attempt in range(ROUNDS_MAX):
            reply = await self.port.call(ask.batch_get(self.name, keys))
            items = reply.get("Responses", {}).get(self.name, [])
            found.update((key_of(item), item) for item in items)
            undone = reply.get("UnprocessedKeys", {}).get(self.name, {}).get("Keys")
            if not undone:
                return
            keys = [key_of(key) for key in undone]
            await self.pause(attempt)
        raise _left_undone("BatchGetItem", self.name)

    async def delete_all(self, keys: Sequence[Key]) -> int:
        """None of the items is left; how many keys that were."""
        left = list(keys)
        for attempt in range(ROUNDS_MAX):
            undone: list[Key] = []
            for at in range(0, len(left), BATCH_WRITE_MAX * BATCHES_AT_ONCE):
                undone += await self._delete_some(left[at : at + BATCH_WRITE_MAX * BATCHES_AT_ONCE])
            if not undone:
                return len(keys)
            left = undone
            await self.pause(attempt)
        raise _left_undone("BatchWriteItem", self.name)

    async def _delete_some(self, keys: Sequence[Key]) -> list[Key]:
        """The keys that the service has not got to."""
        requests = [
            ask.batch_delete(self.name, keys[at : at + BATCH_WRITE_MAX])
            for at in range(0, len(keys), BATCH_WRITE_MAX)
        ]
        return [
            key_of(part["DeleteRequest"]["Key"])
            for reply in await self.together(*requests)
            for part in reply.get("UnprocessedItems", {}).get(self.name, [])
        ]

    async def write(self, write: ask.Write) -> None:
        await self.port.call(ask.single_write(self.name, write))

    async def transact(self, writes: Sequence[ask.Write]) -> None:
        """All of it happened, or it is Changed because somebody was faster."""
        assert 0 < len(writes) <= TRANSACTION_MAX
        outcome = await run_flow(
            self.port, send(ask.transaction(self.name, writes), is_guarded=True)
        )
        if isinstance(outcome, TransactionCancelled) and reasons_of(outcome) is not None:
            raise ItemsChanged from outcome
        if isinstance(outcome, StoreTrouble):
            raise outcome

    async def page(
        self, request: DynamoRequest, start: Item | None = None
    ) -> tuple[list[Item], Any]:
        """What one Query or Scan finds, and where the next begins."""
        params = request.params if start is None else {
            **request.params, "ExclusiveStartKey": start,
        }  # fmt: skip
        reply = await self.port.call(DynamoRequest(request.operation, params))
        return reply.get("Items", []), reply.get("LastEvaluatedKey") or None

    async def every(self, request: DynamoRequest, enough: int | None = None) -> list[Item]:
        """All that a Query finds, page by page; at least `enough` if that many exist."""
        reply = await self.port.call(request)
        return await self.rest(request, reply, enough)

    async def rest(
        self, request: DynamoRequest, first: dict[str, Any], enough: int | None = None
    ) -> list[Item]:
        """As `every`, for a Query whose first reply is here."""
        found, start = list(first.get("Items", [])), first.get("LastEvaluatedKey")
        while start and (enough is None or len(found) < enough):
            more, start = await self.page(request, start)
            found += more
        return found

    async def together(self, *requests: DynamoRequest) -> list[dict[str, Any]]:
        """The replies to requests sent at once; the first trouble, once all have come back."""
        outcomes = await self.port.call_all(requests)
        replies = []
        for outcome in outcomes:
            if isinstance(outcome, StoreTrouble):
                raise outcome
            replies.append(outcome)
        return replies


def _left_undone(operation: str, name: str) -> Throttled:
    return Throttled(
        f"DynamoDB left part of a {operation} on {name} undone {ROUNDS_MAX} times in a row; the "
        f"table is over its capacity: try later"
    )
