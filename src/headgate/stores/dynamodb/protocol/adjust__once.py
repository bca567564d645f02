"""Adjustments that happen once for a caller's key: the key and the buckets in one transaction."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import Any

from headgate.core.decision import Demand
from headgate.core.errors import Throttled, Unreachable
from headgate.core.record import HOUR_MS, BucketKey
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.items import in_namespace, keyed, number
from headgate.stores.dynamodb.catalog.items__items_history import TTL
from headgate.stores.dynamodb.client.port import NotApplied, Request, TransactionCancelled
from headgate.stores.dynamodb.protocol.adjust import Adjuster
from headgate.stores.dynamodb.protocol.flow import alone
from headgate.stores.dynamodb.protocol.state_cache import Book
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.table import Table

ONCE_MS = 24 * HOUR_MS
ONCE_ATTEMPTS_MAX = 8
SENDS_MAX = 2


class Once:
    def __init__(self, table: Table, book: Book, adjuster: Adjuster) -> None:
        self._table = table
        self._book = book
        self._adjuster = adjuster

    async def adjust(
        self, demands: Sequence[Demand], now_ms: int, *, metered: bool, once: str
    ) -> bool:
        """False where the key was used within a day: then nothing is done."""
        for attempt in range(ONCE_ATTEMPTS_MAX):
            writes: list[ask.Write] = [remembered(demands[0].key, once, now_ms)]
            places: list[tuple[int, int]] = []
            for at, demand in enumerate(demands):
                known = self._book.open(demand.key)
                flow = self._adjuster.planned(known, demand, now_ms, attempt, metered=metered)
                for one in await alone(self._table.port, flow):
                    writes.append({"Update": one.draft.write(one.key)})
                    places.append((at, one.shard))
            reasons = await self._sent(writes)
            if reasons is None:
                for at, _ in places:
                    self._book.drop(demands[at].key)  # its state after it was not told
                return True
            if reasons[0][0] == "ConditionalCheckFailed":
                return False
            for (at, shard), (_, item) in zip(places, reasons[1:], strict=True):
                known = self._book.open(demands[at].key)
                known.forget() if item is None else known.note(shard, item, now_ms)
            await self._table.pause(attempt)
        raise Throttled(
            f"{demands[0].key.entity_id} on {demands[0].key.resource} was changed by others in "
            f"each of {ONCE_ATTEMPTS_MAX} attempts; nothing was written: try again in a moment"
        )

    async def _sent(self, writes: list[ask.Write]) -> list[tuple[str, Any]] | None:
        """None once it is done; else why not, per write. Its token makes sending it again safe."""
        request: Request = ask.transaction(self._table.name, writes, secrets.token_hex(16))
        for send in range(SENDS_MAX):
            try:
                await self._table.port.call(request)
                return None
            except TransactionCancelled as trouble:
                if trouble.throttled:
                    raise Throttled(str(trouble)) from trouble
                return trouble.reasons
            except NotApplied:
                raise
            except Unreachable:
                if send == SENDS_MAX - 1:
                    raise
        raise AssertionError("every send returned or raised")


def remembered(key: BucketKey, once: str, now_ms: int) -> ask.Write:
    """The caller's key for this entity, hashed: it may be of any length. It counts for a day."""
    named = f"{key.entity_id}\n{once}"  # no entity's id has a line's end in it
    digest = hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()
    pk = schema.pk_once(key.namespace, digest)
    free = ask.Guard(
        "attribute_not_exists(#until) OR #until <= :now",
        {"#until": "until_ms"},
        {":now": number(now_ms)},
    )
    return ask.put(
        {
            **keyed((pk, schema.sk_once())),
            **in_namespace(key.namespace, pk),
            "until_ms": number(now_ms + ONCE_MS),
            TTL: number((now_ms + ONCE_MS) // 1000 + 60),
        },
        free,
    )
