"""A bucket in several shards: which one to ask, when to divide it further, when to put it together.

A partition of DynamoDB bears about a thousand writes a second. A shard that comes near that, or
that the service holds back, is split; two whose writes one could bear are merged. A take asks one
shard; where that is drained, another; where no single one has enough, all of them together.
"""

from __future__ import annotations

from headgate.core.decision import Demand, fits
from headgate.core.errors import Throttled
from headgate.core.record import cell_of
from headgate.stores.dynamodb.client.calls import DynamoRequest
from headgate.stores.dynamodb.protocol.flow import Flow, is_committed
from headgate.stores.dynamodb.protocol.item import ItemState, bucket_key
from headgate.stores.dynamodb.protocol.outcome import (
    Attempt,
    Landed,
    Refused,
    ShardTake,
    contention_error,
    record_under,
)
from headgate.stores.dynamodb.protocol.state_cache import BucketView, StateCache
from headgate.stores.dynamodb.sharding.gather import gather
from headgate.stores.dynamodb.sharding.pool import read_items, read_shards
from headgate.stores.dynamodb.sharding.shares import children_of
from headgate.stores.dynamodb.sharding.split import (
    can_merge,
    can_split,
    is_lossless,
    merge_request,
    split_request,
)

SPLIT_ABOVE = 800  # writes a second to one item; its partition bears a thousand
SETTLE_MS = 20  # after a split, before being held back is a reason for another
LOOK_MS = 10_000  # between looks at whether shards could be merged
MERGE_BELOW = 250  # writes a second of two shards together
ELSEWHERE_MAX = 2  # shards that are asked one by one
ATTEMPTS_MAX = 12


class ShardRouter:
    def __init__(self, table: str, cache: StateCache, attempt: Attempt) -> None:
        self._table = table
        self._cache = cache
        self._attempt = attempt

    def take(self, known: BucketView, demand: Demand, now_ms: int) -> Flow[Landed | Refused | None]:
        """None where the bucket is not, or no longer, divided."""
        yield from self._look(known, now_ms)
        out: set[int] = set()  # shards that had not enough, or were held back
        splits = 0
        for _ in range(ATTEMPTS_MAX):
            first = known.shards.get(0)
            if first is None or not first.depth:
                return None
            shard = self._choice(known, demand, out, now_ms)
            if shard is None:
                return (yield from gather(self._table, known, demand, now_ms))
            seen = known.shards.get(shard)
            if seen is None:
                yield from self._read(known, shard, now_ms)
                continue
            if not splits and self.is_hot(known, seen):
                splits += 1
                yield from self.split(known, seen, now_ms)
                continue
            try:
                result = yield from self._attempt(known, seen, demand, now_ms, set())
            except Throttled:
                yield from self.relieve(known, seen, now_ms, out)
                continue
            if isinstance(result, Landed):
                return self._as_whole(known, seen.shard, result, now_ms)
            if result is not None:
                out.add(shard)  # whether all of them refuse, gathering will tell
        raise contention_error(demand)

    def is_hot(self, known: BucketView, seen: ItemState) -> bool:
        """Whether the item takes nearly as many writes as its partition bears."""
        pace = known.paces.get(seen.shard)
        return pace is not None and pace.per_s > SPLIT_ABOVE and can_split(seen, known.largest)

    def relieve(self, known: BucketView, seen: ItemState, now_ms: int, out: set[int]) -> Flow[None]:
        """After the service held a shard back: half of it goes elsewhere, or the caller does.

        Where neither helps, that stays what it is: this key is held back.
        """
        if now_ms - seen.split_at_ms >= SETTLE_MS and can_split(seen, known.largest):
            done = yield from self.split(known, seen, now_ms)
            if done:
                return
            known.note_throttled(
                seen.shard, now_ms
            )  # so that the next take tries to split it first
        out.add(seen.shard)
        if len(out) >= ELSEWHERE_MAX or not seen.depth:
            raise Throttled(
                f"DynamoDB holds back {known.key.entity_id} on {known.key.resource}: more is "
                f"written than its partitions bear; nothing was taken: try again in a moment"
            )

    def split(self, known: BucketView, seen: ItemState, now_ms: int) -> Flow[bool]:
        """Whether this call divided the shard; how it stands is known either way."""
        request = split_request(self._table, known.key, seen, now_ms)
        done = yield from try_change(request)
        known.paces.pop(seen.shard, None)  # it was measured before
        child = children_of(seen.shard, seen.depth + 1)[-1]
        yield from self._read(known, seen.shard, now_ms)
        if done:
            yield from self._read(known, child, now_ms)
        return done

    def _read(self, known: BucketView, shard: int, now_ms: int) -> Flow[None]:
        key = bucket_key(known.key, shard)
        items = yield from read_items(self._table, [key])
        known.note(shard, items.get(key), now_ms)

    def _choice(self, known: BucketView, demand: Demand, out: set[int], now_ms: int) -> int | None:
        """A shard that has enough as far as is known; None where none has."""
        if len(out) >= ELSEWHERE_MAX:
            return None
        shard = self._cache.route(known)
        if not out and self._has_enough(known, shard, demand, out, now_ms):
            return shard
        others = [
            other for other in list(known.shards)
            if self._has_enough(known, other, demand, out, now_ms)
        ]  # fmt: skip
        return max(others, key=lambda other: _fullness(known, other, demand, now_ms), default=None)

    def _has_enough(
        self, known: BucketView, shard: int, demand: Demand, out: set[int], now_ms: int
    ) -> bool:
        seen = known.shards.get(shard)
        if shard in out:
            return False
        return seen is None or fits(record_under(seen, demand, now_ms), demand, now_ms)

    def _as_whole(self, known: BucketView, shard: int, result: Landed, now_ms: int) -> Landed:
        """The take as seen from the whole bucket, as far as that is known."""
        shards = known.shards.copy()
        seen = shards.get(shard) or next(iter(shards.values()))
        return ShardTake(result, shard, shards, seen.whole, now_ms)

    def _look(self, known: BucketView, now_ms: int) -> Flow[None]:
        """Once in a while: shards whose writes one could bear are put together."""
        if 0 <= now_ms - known.looked_at_ms < LOOK_MS:
            return
        since_ms, known.looked_at_ms = known.looked_at_ms, now_ms
        shards = yield from read_shards(self._table, known, now_ms)
        before, known.written = known.written, {seen.shard: seen.written for seen in shards}
        if not since_ms or now_ms - since_ms < LOOK_MS:
            return
        for elder in shards:
            child = _youngest(known, elder)
            if child is None or not self._is_cold(elder, child, before, now_ms - since_ms, now_ms):
                continue
            request = merge_request(self._table, known.key, elder, child, now_ms)
            if (yield from try_change(request)):
                known.shards.pop(child.shard, None)
                yield from self._read(known, elder.shard, now_ms)

    def _is_cold(
        self,
        elder: ItemState,
        child: ItemState,
        before: dict[int, int],
        elapsed_ms: int,
        now_ms: int,
    ) -> bool:
        if not can_merge(elder, child) or not is_lossless(elder, child, now_ms):
            return False
        if now_ms - elder.split_at_ms < LOOK_MS:
            return False
        written = sum(seen.written - before.get(seen.shard, 0) for seen in (elder, child))
        return written * 1000 < MERGE_BELOW * elapsed_ms


def try_change(request: DynamoRequest) -> Flow[bool]:
    """Whether a change of shape was done; one that was in somebody's way can wait."""
    outcome = yield request
    try:
        return is_committed(outcome)
    except Throttled:
        return False


def _youngest(known: BucketView, elder: ItemState) -> ItemState | None:
    """The shard that this one gave half to last."""
    children = children_of(elder.shard, elder.depth)
    return known.shards.get(children[-1]) if children else None


def _fullness(known: BucketView, shard: int, demand: Demand, now_ms: int) -> int:
    """How much the shard has of what is wanted, as far as is known, where that is least."""
    seen = known.shards.get(shard)
    if seen is None:
        return 0
    cells = [cell_of(seen.record, name) for name, _ in demand.named()]
    return min([cell.level_milli(now_ms) for cell in cells if cell is not None], default=0)
