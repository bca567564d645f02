"""All shards of one bucket seen together: what they hold, and when they will hold enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.core.decision import Demand, LimitStatus, Verdict, judge
from headgate.core.errors import StoreTrouble, Throttled
from headgate.core.levels import Page
from headgate.core.record import CELLS, HOUR_MS, BucketKey, LimitCell, Record, Terms, cell_of
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.items import Item, Key, key_of
from headgate.stores.dynamodb.client.calls import Flow
from headgate.stores.dynamodb.protocol.flow import ATTEMPTS_MAX, commit, too_contended
from headgate.stores.dynamodb.protocol.item import GENERATION, BucketView, ItemState, bucket_key
from headgate.stores.dynamodb.protocol.limit_moves import (
    full_at_ms,
    is_session,
    is_session_over,
    window_start_ms,
)
from headgate.stores.dynamodb.protocol.update_expression import UpdateExpression
from headgate.stores.dynamodb.sharding.shares import DEPTH_MAX, children_of
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.table import Table

Waits = dict[str, int | None]  # by limit: the least wait, None for never


class ShardPool:
    """Shards, each with its record under its share of the same terms."""

    def __init__(self, whole: Terms, records: Sequence[Record]) -> None:
        self.whole = whole
        self.records = records

    @classmethod
    def of(cls, shards: Sequence[ItemState]) -> ShardPool:
        newest = max(shards, key=lambda seen: seen.whole.version)
        return cls(newest.whole, [seen.record for seen in shards])

    def cells(self, name: str) -> list[LimitCell]:
        found = (cell_of(record, name) for record in self.records)
        return [cell for cell in found if cell is not None]

    def level_milli(self, name: str, now_ms: int) -> int:
        return sum(cell.level_milli(now_ms) for cell in self.cells(name))

    def wait_ms(self, name: str, wanted: int, now_ms: int) -> int | None:
        """The least wait until the shards hold so much together; one that is full gains nothing."""
        if self.level_milli(name, now_ms) >= wanted:
            return 0
        ends = [full_at_ms(cell, cell.tokens_milli) for cell in self.cells(name)]
        low_ms, high_ms = 0, max([end - now_ms for end in ends if end is not None], default=0)
        if high_ms <= 0 or self.level_milli(name, now_ms + high_ms) < wanted:
            return None
        while high_ms - low_ms > 1:
            middle_ms = (low_ms + high_ms) // 2
            if self.level_milli(name, now_ms + middle_ms) >= wanted:
                high_ms = middle_ms
            else:
                low_ms = middle_ms
        return high_ms

    def waits_ms(self, demand: Demand, now_ms: int) -> Waits:
        return {name: self.wait_ms(name, wanted, now_ms) for name, wanted in demand.named()}

    def record(self, now_ms: int) -> Record:
        """One record that holds what all shards hold at this moment."""
        cells: list[Any] = [self.whole, now_ms // HOUR_MS, 0, None]
        for spec in self.whole.specs:
            parts = self.cells(spec.name)
            consumed = sum(cell.consumed_milli for cell in parts)
            epoch_ms = now_ms
            if is_session(spec):  # so that it tells the first end of a window that is under way
                starts = (
                    window_start_ms(part, now_ms)
                    for part in parts
                    if is_session(part.spec) and not is_session_over(part, now_ms)
                )
                epoch_ms = min(starts, default=now_ms)
            cells += (epoch_ms, sum(cell.level_milli(now_ms) for cell in parts), consumed, consumed)
        assert len(cells) >= CELLS
        return tuple(cells)


class PooledVerdict(Verdict):
    """A verdict on buckets in several shards, whose waits one record cannot tell."""

    __slots__ = ("waits",)

    exact_records = False

    def __init__(self, waits: dict[str, Waits], *verdict: Any) -> None:
        """`waits` by the buckets' texts."""
        super().__init__(*verdict)
        self.waits = waits

    def later(self, demands: Sequence[Demand], elapsed_ms: int) -> Verdict | None:
        """None once every wait is over: then it has to be tried."""
        if elapsed_ms < 0 or self.allowed:
            return None
        waits = {
            text: {name: _left(wait_ms, elapsed_ms) for name, wait_ms in by_limit.items()}
            for text, by_limit in self.waits.items()
        }
        if all(wait_ms == 0 for by_limit in waits.values() for wait_ms in by_limit.values()):
            return None
        now_ms = self.now_ms + elapsed_ms
        return PooledVerdict(waits, False, demands, self.records, now_ms, self.before)

    @property
    def statuses(self) -> list[LimitStatus]:
        keys = {(demand.key.entity_id, demand.key.resource): demand.key for demand in self.demands}
        return [
            self._told(status, self.waits.get(keys[status.entity_id, status.resource].text))
            for status in super().statuses
        ]

    def _told(self, status: LimitStatus, waits: Waits | None) -> LimitStatus:
        if waits is None or status.limit_name not in waits:
            return status
        wait_ms = waits[status.limit_name]
        return status._replace(retry_after_ms=wait_ms, exceeded=wait_ms != 0)


def _left(wait_ms: int | None, elapsed_ms: int) -> int | None:
    return None if wait_ms is None else max(0, wait_ms - elapsed_ms)


def judge_pools(
    demands: Sequence[Demand],
    records: Sequence[Record | None],
    pools: dict[str, ShardPool],
    now_ms: int,
) -> Verdict:
    """A dry run on buckets of which some are pools: those have waits of their own."""
    plain = judge(demands, records, now_ms)
    waits = {
        demand.key.text: pools[demand.key.text].waits_ms(demand, now_ms)
        for demand in demands
        if demand.key.text in pools and demand.terms.specs == pools[demand.key.text].whole.specs
    }
    if plain.allowed or not waits:
        return plain
    found = PooledVerdict(waits, False, demands, plain.records, now_ms, plain.before)
    found.outdated = plain.outdated
    return found


# --------------------------------------------------------------------------------------------------
# Reading a bucket that is kept in several shards: all of them, as they are now.

ROUNDS_MAX = 4  # of asking for what a batch left out, and of reading a bucket that changes shape


def read_items(table: str, keys: Sequence[Key]) -> Flow[dict[Key, Item]]:
    """The items that exist, in one call; more where the service leaves some out."""
    found: dict[Key, Item] = {}
    left = list(keys)
    for _ in range(ROUNDS_MAX):
        outcome = yield ask.batch_get(table, left)
        if isinstance(outcome, StoreTrouble):
            raise outcome
        items = outcome.get("Responses", {}).get(table, [])
        found.update((key_of(item), item) for item in items)
        undone = outcome.get("UnprocessedKeys", {}).get(table, {}).get("Keys")
        if not undone:
            return found
        left = [key_of(key) for key in undone]
    raise Throttled(f"DynamoDB left part of a BatchGetItem on {table} undone; try again later")


def read_shard(table: str, known: BucketView, shard: int, now_ms: int) -> Flow[None]:
    """One shard is known as it is now."""
    key = bucket_key(known.key, shard)
    items = yield from read_items(table, [key])
    known.note(shard, items.get(key), now_ms)


def read_shards(table: str, known: BucketView, now_ms: int) -> Flow[list[ItemState]]:
    """All shards of the bucket, from one answer; none where there is no bucket.

    It begins with those that are known. Where they tell of others all are read again: tokens go
    from shard to shard, so states of different moments may lack what at no moment was missing.
    """
    wanted = {0, *known.shards}
    for _ in range(ROUNDS_MAX + DEPTH_MAX):
        places = {bucket_key(known.key, shard): shard for shard in sorted(wanted)}
        items = yield from read_items(table, list(places))
        found: dict[int, ItemState] = {}
        for key, shard in places.items():
            seen = known.note(shard, items[key], now_ms) if key in items else None
            if seen is not None:
                found[shard] = seen
        if 0 not in found:
            known.note(0, None, now_ms)
            return []
        wanted = reachable_shards(found)
        if wanted <= found.keys():
            known.shards = {shard: found[shard] for shard in sorted(wanted)}
            return list(known.shards.values())
    raise Throttled(
        f"the bucket of {known.key.entity_id} on {known.key.resource} is being divided or put "
        f"together; nothing was changed: try again in a moment"
    )


def reachable_shards(found: dict[int, ItemState]) -> set[int]:
    """The shards that the first one leads to, also those that are not read yet."""
    told, ahead = set(), [0]
    while ahead:
        shard = ahead.pop()
        told.add(shard)
        if shard in found:
            ahead += children_of(shard, found[shard].depth)
    return told


# Deleting a bucket with all its shards in one step: none is left behind without the first.


def forget(table: str, known: BucketView) -> Flow[None]:
    """The bucket is gone, as if never used."""
    for _ in range(ATTEMPTS_MAX):
        shards = yield from read_shards(table, known, 0)
        if not shards:
            return
        if (yield from commit(table, [_deletion(known, seen) for seen in shards])) is None:
            return  # else it was split, merged or put under other limits meanwhile
    raise too_contended(known.key)


def _deletion(known: BucketView, seen: ItemState) -> ask.Write:
    draft = UpdateExpression()
    draft.equal(GENERATION, seen.generation)
    return {"Delete": draft.check(bucket_key(known.key, seen.shard))}


# --------------------------------------------------------------------------------------------------
# Which buckets exist: keys from an index, page by page; an index answers a moment late.

SPARE = 8  # items read beyond a page's size: shards of the same buckets


async def bucket_page(
    table: Table,
    namespace: str,
    entity_id: str | None,
    resource: str | None,
    limit: int,
    cursor: str | None,
) -> Page:
    """Each bucket once, whatever number of shards it has."""
    if entity_id is not None:
        index, pk = schema.GSI3, schema.pk_entity(namespace, entity_id)
        stem = "BUCKET#" if resource is None else f"BUCKET#{resource}#"
    elif resource is not None:
        index, pk, stem = schema.GSI2, schema.pk_resource(namespace, resource), "BUCKET#"
    else:
        index, pk, stem = schema.GSI4, namespace, f"{namespace}/BUCKET#"
    low = stem if cursor is None else max(stem, schema.clip_cursor(cursor) + schema.JUST_AFTER)
    span = ask.between(low, stem[:-1] + schema.NEXT)
    request = ask.query(table.name, pk, span, index=index, limit=limit + SPARE)
    found: list[tuple[str, BucketKey]] = []
    start: Item | None = None
    while len(found) <= limit:
        items, start = await table.page(request, start)
        for item in items:
            place = schema.parse_bucket_pk(key_of(item)[0])
            key = BucketKey(place.namespace, place.entity_id, place.resource)
            if not place.shard and resource in (None, key.resource):
                found.append((item[f"{index}SK"]["S"], key))
        if start is None:
            break
    following = found[limit - 1][0] if len(found) > limit else None
    return Page(tuple(key for _, key in found[:limit]), following)
