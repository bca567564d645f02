"""A take, from a bucket in one piece or in several shards: which shard to ask, when to divide it
further, when to put it together.

A partition of DynamoDB bears about a thousand writes a second. A shard that comes near that, or
that the service holds back, is split; two whose writes one could bear are merged. A take asks one
shard; where that is drained, another; where no single one has enough, all of them together.
"""

from __future__ import annotations

from collections.abc import Collection

from headgate.core.decision import Demand, fits
from headgate.core.errors import Throttled
from headgate.core.record import Record, Terms, cell_of
from headgate.stores.dynamodb.client.calls import DynamoRequest, Flow
from headgate.stores.dynamodb.protocol.flow import ATTEMPTS_MAX, reasons_of, too_contended
from headgate.stores.dynamodb.protocol.item import ASKED_MS, BucketView, ItemState, StateCache
from headgate.stores.dynamodb.protocol.take import (
    Landed,
    Refused,
    SingleWriteTake,
    attempt,
    create,
    fast_take_request,
    learn,
    record_under,
)
from headgate.stores.dynamodb.sharding.gather import gather
from headgate.stores.dynamodb.sharding.pool import ShardPool, read_shard, read_shards
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


class ShardTake(Landed):
    """A take from one shard, as seen from the whole bucket, when somebody looks at it."""

    __slots__ = ("_now_ms", "_shard", "_shards", "_taken")

    is_whole = False

    def __init__(
        self, taken: Landed, shard: int, shards: dict[int, ItemState], whole: Terms, now_ms: int
    ) -> None:
        """`shards` are all of them, as far as they are known, and nobody else's to change."""
        self._taken = taken
        self._shard = shard
        self._shards = shards
        self.terms = whole
        self._now_ms = now_ms

    @property
    def before(self) -> Record:  # type: ignore[override]
        return self._pooled(self._taken.before)

    @property
    def after(self) -> Record:  # type: ignore[override]
        return self._pooled(self._taken.after)

    def _pooled(self, record: Record) -> Record:
        others = [seen.record for number, seen in self._shards.items() if number != self._shard]
        return ShardPool(self.terms, [record, *others]).record(self._now_ms)

    def overdrawn(self, demand: Demand, now_ms: int) -> Collection[str]:
        """As the shard had it: the others may have had enough."""
        return self._taken.overdrawn(demand, now_ms)


class Taker:
    """Takes from buckets of one table; `strict` gives away no burst to crowded buckets."""

    def __init__(self, table: str, cache: StateCache, *, strict: bool = False) -> None:
        self.table = table
        self.cache = cache
        self.strict = strict

    def take(self, demand: Demand, now_ms: int) -> Flow[Landed | Refused]:
        known = self.cache.buckets.get(demand.key.text) or self.cache.open(demand.key)
        if demand is not known.last_demand or not 0 <= now_ms - known.asked_since_ms < ASKED_MS:
            known.note_demand(demand, now_ms)
        confirmed: set[int] = set()  # the first shard, once its state is an answer to this call
        out: set[int] = set()  # shards that had not enough, or were held back
        has_split = False
        for _ in range(ATTEMPTS_MAX):
            result: Landed | Refused | None
            seen = known.shards.get(0)
            if seen is None or seen.depth:
                seen, result = yield from self._find(known, demand, out, confirmed, now_ms)
                if result is not None:
                    return result
            if seen is None:
                continue
            pace = known.paces.get(seen.shard)
            is_hot = pace is not None and pace.per_s > SPLIT_ABOVE
            if is_hot and not has_split and can_split(seen, known.largest):
                has_split = True
                yield from self.split(known, seen, now_ms)
                continue
            told = set() if seen.depth else confirmed
            terms = demand.terms
            seen = seen if seen.whole is terms else known.adopt_terms(seen, terms)
            crowded = now_ms < known.crowded_until_ms and not self.strict
            request = fast_take_request(self.table, seen, demand, now_ms, crowded)
            try:
                if request is None:
                    result = yield from attempt(
                        self.table, known, seen, demand, now_ms, told, crowded=crowded
                    )
                else:
                    outcome = yield request
                    after = (
                        known.note(seen.shard, outcome["Attributes"], now_ms, seen)
                        if type(outcome) is dict  # it was done, as nearly always
                        else learn(known, seen.shard, outcome, now_ms, told)
                    )
                    result = after and SingleWriteTake(after.record, demand, seen.record, now_ms)
            except Throttled:
                yield from self._relieve(known, seen, out, now_ms)
                continue
            if result is not None:
                if not seen.depth:
                    return result
                if isinstance(result, Landed):
                    return self._as_whole(known, seen, result, now_ms)
                out.add(seen.shard)  # whether all of them refuse, gathering will tell
        raise too_contended(demand.key)

    def _find(
        self,
        known: BucketView,
        demand: Demand,
        out: set[int],
        confirmed: set[int],
        now_ms: int,
    ) -> Flow[tuple[ItemState | None, Landed | Refused | None]]:
        """The shard to ask, where that is not simply the first; or what the take came to without
        asking a single one: it made the bucket, or all shards decided together."""
        if 0 not in known.shards:
            return None, (yield from create(self.table, known, demand, now_ms, confirmed))
        yield from self._merge_cold(known, now_ms)
        others: list[ItemState] = []
        if len(out) < ELSEWHERE_MAX:
            shard = self.cache.route(known)
            if shard not in known.shards:
                yield from read_shard(self.table, known, shard, now_ms)
            routed = known.shards.get(shard)
            if routed is not None and not out and _has_enough(routed, demand, now_ms):
                return routed, None
            others = [
                seen
                for seen in list(known.shards.values())
                if seen.shard not in out and _has_enough(seen, demand, now_ms)
            ]
        if not others:
            return None, (yield from gather(self.table, known, demand, now_ms))
        return max(others, key=lambda seen: _level(seen, demand, now_ms)), None

    def _relieve(
        self, known: BucketView, seen: ItemState, out: set[int], now_ms: int
    ) -> Flow[None]:
        """After the service held a shard back: half of it goes elsewhere, or the caller does.

        Where neither helps, that stays what it is: this key is held back.
        """
        if now_ms - seen.split_at_ms >= SETTLE_MS and can_split(seen, known.largest):
            done = yield from self.split(known, seen, now_ms)
            if done:
                return
            # So that the next take tries to split it first.
            known.note_throttled(seen.shard, now_ms)
        out.add(seen.shard)
        if len(out) >= ELSEWHERE_MAX or not seen.depth:
            raise Throttled(
                f"DynamoDB holds back {known.key.entity_id} on {known.key.resource}: more is "
                f"written than its partitions bear; nothing was taken: try again in a moment"
            )

    def split(self, known: BucketView, seen: ItemState, now_ms: int) -> Flow[bool]:
        """Whether this call divided the shard; how it stands is known either way."""
        request = split_request(self.table, known.key, seen, now_ms)
        done = yield from try_change(request)
        known.paces.pop(seen.shard, None)  # it was measured before
        child = children_of(seen.shard, seen.depth + 1)[-1]
        yield from read_shard(self.table, known, seen.shard, now_ms)
        if done:
            yield from read_shard(self.table, known, child, now_ms)
        return done

    def _as_whole(self, known: BucketView, seen: ItemState, result: Landed, now_ms: int) -> Landed:
        """The take as seen from the whole bucket, as far as that is known."""
        shards = known.shards.copy()
        whole = (shards.get(seen.shard) or next(iter(shards.values()), seen)).whole
        return ShardTake(result, seen.shard, shards, whole, now_ms)

    def _merge_cold(self, known: BucketView, now_ms: int) -> Flow[None]:
        """Once in a while: shards whose writes one could bear are put together."""
        if 0 <= now_ms - known.looked_at_ms < LOOK_MS:
            return
        since_ms, known.looked_at_ms = known.looked_at_ms, now_ms
        shards = yield from read_shards(self.table, known, now_ms)
        before, known.written = known.written, {seen.shard: seen.written for seen in shards}
        if not since_ms or now_ms - since_ms < LOOK_MS:
            return
        for elder in shards:
            child = _youngest(known, elder)
            if child is None or not self._is_cold(elder, child, before, now_ms - since_ms, now_ms):
                continue
            request = merge_request(self.table, known.key, elder, child, now_ms)
            if (yield from try_change(request)):
                known.shards.pop(child.shard, None)
                yield from read_shard(self.table, known, elder.shard, now_ms)

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
        return reasons_of(outcome) is None
    except Throttled:
        return False


def _youngest(known: BucketView, elder: ItemState) -> ItemState | None:
    """The shard that this one gave half to last."""
    children = children_of(elder.shard, elder.depth)
    return known.shards.get(children[-1]) if children else None


def _has_enough(seen: ItemState, demand: Demand, now_ms: int) -> bool:
    return fits(record_under(seen, demand, now_ms), demand, now_ms)


def _level(seen: ItemState, demand: Demand, now_ms: int) -> int:
    """How much the shard has of what is wanted, where that is least."""
    cells = [cell_of(seen.record, name) for name, _ in demand.named()]
    return min([cell.level_milli(now_ms) for cell in cells if cell is not None], default=0)
