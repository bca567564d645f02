"""Which shards get more writes than their partition can take, measured from the stream.

A record names the second in which it was written, and the item counts its writes. So the first
record of a second tells the count at the beginning of that second, and two such records tell the
rate between them: of all writers together, and by no clock but DynamoDB's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headgate.aws.aggregator.records import Change, amount_between
from headgate.core.errors import StoreTrouble
from headgate.core.record import BucketKey
from headgate.stores.dynamodb.client.calls import AccessRefused
from headgate.stores.dynamodb.protocol.item import bucket_key, state_from_item
from headgate.stores.dynamodb.sharding.router import SPLIT_ABOVE
from headgate.stores.dynamodb.sharding.split import can_split, split_request
from headgate.stores.dynamodb.table.table import Table

ITEMS_MAX = 10_000

ShardKey = tuple[BucketKey, int]


class HotShard(NamedTuple):
    key: BucketKey
    shard: int
    per_s: int
    largest_milli: dict[str, int]  # the most that one write took, by limit


@dataclass(slots=True)
class _WriteRate:
    """`since` is a second whose first record was seen, `writes` the count before it."""

    second: int
    since: int | None = None
    writes: int = 0
    largest: dict[str, int] = field(default_factory=dict)


class WriteRates:
    """What is remembered of items between batches; the oldest entry makes room for a new one."""

    def __init__(self, items_max: int = ITEMS_MAX) -> None:
        self._items_max = items_max
        self._known: dict[ShardKey, _WriteRate] = {}

    def hot(self, changes: Iterable[Change]) -> list[HotShard]:
        """Items that were written more than 800 times in a second."""
        found: dict[ShardKey, HotShard] = {}
        for change in sorted(changes):
            shard_key = change.key, change.shard
            rate = self._known.get(shard_key)
            if rate is None:
                while len(self._known) >= self._items_max:
                    del self._known[next(iter(self._known))]
                rate = self._known[shard_key] = _WriteRate(change.at_ms // 1000)
            per_s = _writes_per_s(rate, change)
            if per_s > SPLIT_ABOVE:
                found[shard_key] = HotShard(*shard_key, per_s, rate.largest)
        return list(found.values())

    def drop(self, hot: HotShard) -> None:
        """Forgets a shard that was split: what was measured before no longer applies."""
        self._known.pop((hot.key, hot.shard), None)


def _writes_per_s(rate: _WriteRate, change: Change) -> int:
    """The writes per second up to this change, if it is the first of its second; else 0."""
    taken = amount_between(change.before, change.after).counters_milli
    for name, milli in taken.items():
        rate.largest[name] = max(milli, rate.largest.get(name, 0))
    second = change.at_ms // 1000
    if second <= rate.second:
        return 0
    since, writes = rate.since, rate.writes
    rate.second, rate.since, rate.writes = second, second, change.before.writes
    if since is None or change.before.writes < writes:
        return 0
    return (change.before.writes - writes) // (second - since)


# --------------------------------------------------------------------------------------------------
# Splitting a shard before its partition throttles it, with the store's own transaction.
#
# Clients do the same when they see a hot shard. The aggregator also sees one that is hot because
# many clients write a little each. The transaction is conditional: if it comes too late it changes
# nothing.

SETTLE_MS = 2000  # how late the stream tells the rate of a shard
SPLITS_MAX = 8  # of one batch


class ShardSplitter:
    """Splits hot shards; stops trying once AWS says that its role may not write buckets."""

    def __init__(self, table: Table, *, enabled: bool) -> None:
        self.rates = WriteRates()
        self.enabled = enabled
        self._table = table

    async def divide(self, found: Sequence[HotShard]) -> int:
        """How many of the hot shards were split; errors are ignored: nobody waits for it."""
        done = 0
        for hot in sorted(found, key=lambda one: -one.per_s)[:SPLITS_MAX]:
            if not self.enabled:
                break
            try:
                done += await self._divide(hot)
            except AccessRefused:
                self.enabled = False
            except StoreTrouble:
                continue  # a client was faster, or the partition is busy: try with the next batch
        return done

    async def _divide(self, hot: HotShard) -> bool:
        item = await self._table.get(bucket_key(hot.key, hot.shard))
        now_ms = self._table.port.now_ms()
        seen = state_from_item(item, hot.shard, None, now_ms)
        if (
            seen is None
            or now_ms - seen.split_at_ms < SETTLE_MS
            or not can_split(seen, hot.largest_milli)
        ):
            return False
        self.rates.drop(hot)
        await self._table.port.call(split_request(self._table.name, hot.key, seen, now_ms))
        return True
