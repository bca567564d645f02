"""Dividing a shard before its partition holds it back, with the store's own transaction.

Every client does the same when it sees a shard run hot; here it is seen without a client that
writes often. The transaction is conditional: one that comes too late changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.aws.aggregator.hot_shards import Hot, Paces
from headgate.core.errors import StoreTrouble
from headgate.stores.dynamodb.client.port import Refused
from headgate.stores.dynamodb.protocol.item import bucket_key, seen_from_item
from headgate.stores.dynamodb.sharding.split import may_split, splitting
from headgate.stores.dynamodb.table.table import Table

SETTLE_MS = 2000  # a stream tells of a shard's pace that late
SPLITS_MAX = 8  # of one batch


class Splits:
    """A role that may not write buckets is told so once, and then left alone."""

    def __init__(self, table: Table, *, enabled: bool) -> None:
        self.paces = Paces()
        self.enabled = enabled
        self._table = table

    async def divide(self, found: Sequence[Hot]) -> int:
        """How many of the hot shards were divided; trouble with it is nobody's but its own."""
        done = 0
        for hot in sorted(found, key=lambda one: -one.per_s)[:SPLITS_MAX]:
            if not self.enabled:
                break
            try:
                done += await self._divide(hot)
            except Refused:
                self.enabled = False
            except StoreTrouble:
                continue  # somebody was faster, or the partition is busy: the next batch tells
        return done

    async def _divide(self, hot: Hot) -> bool:
        item = await self._table.get(bucket_key(hot.key, hot.shard))
        now_ms = self._table.port.now_ms()
        seen = seen_from_item(item, hot.shard, None, now_ms)
        if seen is None or now_ms - seen.split_at_ms < SETTLE_MS:
            return False
        if not may_split(seen, hot.largest_milli):
            return False
        self.paces.drop(hot)
        await self._table.port.call(splitting(self._table.name, hot.key, seen, now_ms))
        return True
