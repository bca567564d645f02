"""Buckets in DynamoDB: a take is one conditional write; several buckets go in step, with undo."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from headgate.core.decision import Demand, Verdict, credit_of
from headgate.core.errors import Contended, HeadgateError, StoreTrouble, Throttled, Unreachable
from headgate.core.levels import Page
from headgate.core.record import TERMS, BucketKey, Record, Terms, new_record
from headgate.core.store import (
    BucketShard,
    Outcome,
    PeekResult,
    consume_one_by_one,
    raise_adjust_trouble,
    raise_trouble,
)
from headgate.stores.dynamodb.catalog.items import Item
from headgate.stores.dynamodb.client.calls import NotApplied, outcome_of, run_flow, run_flows
from headgate.stores.dynamodb.ledger import UsageBuffer
from headgate.stores.dynamodb.protocol.adjust import Adjuster, adjust_once
from headgate.stores.dynamodb.protocol.item import BucketView, StateCache, bucket_key
from headgate.stores.dynamodb.protocol.take import Landed, Refused, record_under
from headgate.stores.dynamodb.protocol.transaction import take_all
from headgate.stores.dynamodb.sharding.pool import (
    PooledVerdict,
    ShardPool,
    bucket_page,
    forget,
    judge_pools,
    read_shards,
)
from headgate.stores.dynamodb.sharding.router import Taker
from headgate.stores.dynamodb.table.table import Table

# --------------------------------------------------------------------------------------------------
# Which of several decisions may be under way at the same time. Pure.


def independent_rounds(groups: Sequence[Sequence[Demand]]) -> list[list[int]]:
    """The groups by their places, in waves: no bucket twice in one, and each bucket's groups in
    their order from wave to wave."""
    found: list[list[int]] = []
    latest: dict[str, int] = {}  # the last wave that a bucket is in
    for place, demands in enumerate(groups):
        names = [demand.key.text for demand in demands]
        wave = max((latest.get(name, -1) for name in names), default=-1) + 1
        latest.update(dict.fromkeys(names, wave))
        if wave == len(found):
            found.append([])
        found[wave].append(place)
    return found


UNDOS_MAX = 12  # over some seconds: a key is held back for the rest of one
UNDOS_AWAY_MAX = 5  # of them that the store did not answer: each of those may take a whole timeout
UNSENT = (Throttled, Contended, NotApplied)  # certainly not applied


class DynamoStore:
    """All buckets of one table. `usage_buffer` collects usage where no aggregator does."""

    def __init__(
        self,
        table: Table,
        cache: StateCache,
        usage_buffer: UsageBuffer | None,
        *,
        strict: bool = False,
    ) -> None:
        self._table = table
        self._port = table.port
        self._cache = cache
        self._usage = usage_buffer
        self._taker = Taker(table.name, cache, strict=strict)
        self._adjuster = Adjuster(table.name, cache)

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        if self._usage is not None and len(self._usage.held) >= self._usage.hours_max:
            await self._usage.shed(len(demands) + 1)
        moment_ms = self._port.now_ms() if now_ms is None else now_ms
        if len(demands) == 1:
            result = await run_flow(self._port, self._taker.take(demands[0], moment_ms))
            if isinstance(result, Landed):
                verdict: Verdict = TakenVerdict(demands, (result,), moment_ms)
            else:
                verdict = _verdict(demands, [result], moment_ms)
        else:
            verdict = await self._consume_all(demands, moment_ms)
        if self._usage is not None and verdict.allowed:
            self._usage.count(demands, moment_ms, 1)
        return verdict

    async def consume_each(
        self, groups: Sequence[Sequence[Demand]], now_ms: int | None
    ) -> list[Outcome]:
        """Buckets of different names side by side, those of one name one after another."""
        found: dict[int, Outcome] = {}
        for wave in independent_rounds(groups):
            singles = [place for place in wave if len(groups[place]) == 1]
            found.update(await self._side_by_side(groups, singles, now_ms))
            for place in wave:
                if place not in found:
                    found[place] = (await consume_one_by_one(self, [groups[place]], now_ms))[0]
        return [found[place] for place in range(len(groups))]

    async def _side_by_side(
        self, groups: Sequence[Sequence[Demand]], places: Sequence[int], now_ms: int | None
    ) -> dict[int, Outcome]:
        if self._usage is not None:
            await self._usage.shed(len(places) + 1)
        moment_ms = self._port.now_ms() if now_ms is None else now_ms
        flows = [outcome_of(self._taker.take(groups[place][0], moment_ms)) for place in places]
        results: dict[int, Any] = {}
        await run_flows(self._port, flows, results)
        found: dict[int, Outcome] = {}
        for at, place in enumerate(places):
            result = results[at]
            if isinstance(result, HeadgateError):
                found[place] = result
                continue
            verdict = found[place] = _verdict(groups[place], [result], moment_ms)
            if self._usage is not None and verdict.allowed:
                self._usage.count(groups[place], moment_ms, 1)
        return found

    async def adjust(
        self,
        demands: Sequence[Demand],
        now_ms: int | None,
        *,
        metered: bool = True,
        once: str | None = None,
    ) -> bool:
        if self._usage is not None:
            await self._usage.shed(len(demands) + 1)
        moment_ms = self._port.now_ms() if now_ms is None else now_ms
        if once is not None:
            applied = await adjust_once(
                self._table, self._adjuster, demands, moment_ms, metered=metered, once=once
            )
        else:
            applied = await self._adjust(demands, moment_ms, metered)
        if self._usage is not None and metered and applied:
            self._usage.count(applied, moment_ms, 0)
        return applied is not None

    async def peek(self, keys: Sequence[BucketKey], now_ms: int | None) -> PeekResult:
        found = await self._table.get_all(bucket_key(key) for key in keys)
        moment_ms = self._port.now_ms() if now_ms is None else now_ms
        records: list[Record | None] = []
        pools: dict[str, ShardPool] = {}
        for key in keys:
            known = self._cache.open(key)
            seen = known.note(0, found.get(bucket_key(key)), moment_ms)
            if seen is not None and seen.depth:
                pool = await self._pool(known, moment_ms)
                if pool is not None:
                    pools[key.text] = pool
                records.append(None if pool is None else pool.record(moment_ms))
            else:
                records.append(None if seen is None else seen.record)
        if not pools:
            return PeekResult(moment_ms, records)
        return PeekResult(
            moment_ms, records, lambda demands: judge_pools(demands, records, pools, moment_ms)
        )

    async def shards(self, key: BucketKey, now_ms: int | None) -> tuple[int, Sequence[BucketShard]]:
        moment_ms = self._port.now_ms() if now_ms is None else now_ms
        known = self._cache.open(key)
        found = await run_flow(self._port, read_shards(self._table.name, known, moment_ms))
        return moment_ms, [
            BucketShard(seen.shard, seen.depth, known.written_per_s(seen.shard), seen.record)
            for seen in found
        ]

    async def forget(self, keys: Sequence[BucketKey]) -> None:
        for key in keys:
            await run_flow(self._port, forget(self._table.name, self._cache.open(key)))
            self._cache.drop(key)

    async def find(
        self,
        namespace: str,
        *,
        entity_id: str | None = None,
        resource: str | None = None,
        limit: int,
        cursor: str | None = None,
    ) -> Page:
        return await bucket_page(self._table, namespace, entity_id, resource, limit, cursor)

    async def close(self) -> None:
        try:
            if self._usage is not None:
                await self._usage.leave()
        finally:
            await self._port.close()

    def prime(self, key: BucketKey, item: Item | None, now_ms: int) -> None:
        """What a lookup found of a bucket, so that the first take plans on it."""
        known = self._cache.open(key)
        if not known.shards:
            known.note(0, item, now_ms)

    async def _pool(self, known: BucketView, now_ms: int) -> ShardPool | None:
        shards = await run_flow(self._port, read_shards(self._table.name, known, now_ms))
        return ShardPool.of(shards) if shards else None

    async def _consume_all(self, demands: Sequence[Demand], now_ms: int) -> Verdict:
        """All in step; what has landed is given back unless everything has (S6)."""
        if self._taker.strict:
            flow = take_all(self._table.name, self._cache, demands, now_ms)
            results = await run_flow(self._port, flow)
            if results is not None:
                return _verdict(demands, results, now_ms)
        flows = [self._taker.take(demand, now_ms) for demand in demands]
        found: dict[int, Any] = {}
        try:
            await run_flows(self._port, flows, found, Refused, StoreTrouble)
        except BaseException:
            await self._undo(demands, found, now_ms)
            raise
        in_order = map(found.get, range(len(demands)))
        landed = [one for one in in_order if isinstance(one, Landed)]
        if len(landed) == len(demands):
            return TakenVerdict(demands, landed, now_ms)
        kept = await self._undo(demands, found, now_ms)
        refused = any(isinstance(one, Refused) for one in found.values())
        raise_trouble(found.values(), kept, refused=refused)
        for place, demand in enumerate(demands):
            known = self._cache.open(demand.key)
            # Not decided, or given back to shards whose states nobody told: the wait of a refusal
            # counts on how they stand.
            if place not in found or not known.shards:
                with contextlib.suppress(StoreTrouble):  # then what is known has to do
                    await self._pool(known, now_ms)
        return self._refusal(demands, found, now_ms)

    def _refusal(self, demands: Sequence[Demand], results: dict[int, Any], now_ms: int) -> Verdict:
        """The refusal, with the buckets that were given back or not asked as they stand."""
        stand: list[Landed | Refused] = []
        for place, demand in enumerate(demands):
            result = results.get(place)
            if isinstance(result, Refused):
                stand.append(result)
                continue
            shards = list(self._cache.open(demand.key).shards.values())
            records = [record_under(seen, demand, now_ms) for seen in shards]
            if len(records) == 1:
                stand.append(Refused(records[0]))
            elif records:
                # Its shards fill up one by one, so no single record tells how long that takes.
                pool = ShardPool(shards[0].whole, records)
                stand.append(Refused(pool.record(now_ms), pool.waits_ms(demand, now_ms)))
            else:
                stand.append(Refused(new_record(demand.terms, now_ms)))
        return _verdict(demands, stand, now_ms)

    async def _undo(
        self, demands: Sequence[Demand], results: dict[int, Any], now_ms: int
    ) -> StoreTrouble | None:
        """Gives back what landed; returns the trouble if some of it may still be taken.

        Why an undo and no transaction: a transaction costs twice as much for every call, an undo
        only where one of several buckets refuses. In between others may see tokens missing that
        come back: they may be refused too early, and never get too much.

        A credit that certainly was not applied is sent again; one whose answer was lost is not,
        because applied twice it would hand out tokens that were never taken. A cancellation that
        arrives before a credit was sent waits until it is, and is raised then: otherwise a caller
        who gives up would keep what it was refused.
        """
        interrupted: BaseException | None = None
        kept: StoreTrouble | None = None
        away = 0
        left = [
            credit_of(demand, result.overdrawn(demand, now_ms))
            for place, demand in enumerate(demands)
            if isinstance(result := results.get(place), Landed)
        ]
        for attempt in range(UNDOS_MAX):
            if not left:
                break
            flows = [self._adjuster.adjust(demand, now_ms, metered=True) for demand in left]
            undone: dict[int, Any] = {}
            try:
                await run_flows(self._port, flows, undone)
            except BaseException as error:
                if interrupted is not None:
                    raise
                interrupted = error
            again: list[Demand] = []
            for place, demand in enumerate(left):
                result = undone.get(place)
                if place not in undone or isinstance(result, UNSENT):
                    again.append(demand)
                elif isinstance(result, StoreTrouble):
                    kept = result
            left = again
            unsent = [one for one in undone.values() if isinstance(one, UNSENT)]
            away += any(isinstance(one, Unreachable) for one in unsent)
            if left and (attempt == UNDOS_MAX - 1 or away == UNDOS_AWAY_MAX):
                kept = unsent[0] if unsent else kept
                break
            if left and interrupted is None:
                await self._table.pause(attempt)
        if interrupted is not None:
            raise interrupted
        return kept

    async def _adjust(self, demands: Sequence[Demand], now_ms: int, metered: bool) -> list[Demand]:
        """Those that found a bucket: a credit makes none, so it changed nothing where none was."""
        flows = [self._adjuster.adjust(demand, now_ms, metered=metered) for demand in demands]
        if len(flows) == 1:
            return [*demands] if await run_flow(self._port, flows[0]) else []
        results: dict[int, Any] = {}
        await run_flows(self._port, flows, results)
        troubles = [one for one in results.values() if isinstance(one, StoreTrouble)]
        if troubles:
            moved = [demand for place, demand in enumerate(demands) if results[place] is True]
            if self._usage is not None and metered:
                self._usage.count(moved, now_ms, 0)
            unknown = [one for one in troubles if one.maybe_applied]
            raise_adjust_trouble((unknown or troubles)[0], moved=len(troubles) < len(flows))
        return [demand for place, demand in enumerate(demands) if results[place]]


class TakenVerdict(Verdict):
    """Everything landed; how the buckets were and are is made when somebody reads it."""

    __slots__ = ("_landed", "untaken")

    untaken: Sequence[tuple[int, str]]

    def __init__(self, demands: Sequence[Demand], landed: Sequence[Landed], now_ms: int) -> None:
        self.allowed = True
        self.demands = demands
        self.now_ms = now_ms
        self.outdated = has_soft = False
        for demand, one in zip(demands, landed, strict=True):
            terms = one.terms
            if terms.soft:
                has_soft = True
            if demand.terms is not terms and _is_outdated(demand, terms):
                self.outdated = True
        self._landed = landed
        self.untaken = self._untaken() if has_soft else ()

    @property
    def exact_records(self) -> bool:  # type: ignore[override]
        return all(one.is_whole for one in self._landed)

    def __getattr__(self, name: str) -> Any:
        if name == "before":
            self.before = [one.before for one in self._landed]
            return self.before
        if name == "records":
            self.records = [one.after for one in self._landed]
            return self.records
        raise AttributeError(name)

    def _untaken(self) -> list[tuple[int, str]]:
        """As the writes had it: a state that was read again may tell otherwise."""
        return [
            (place, name)
            for place, (demand, one) in enumerate(zip(self.demands, self._landed, strict=True))
            for name in one.overdrawn(demand, self.now_ms)
        ]


def _is_outdated(demand: Demand, held: Terms) -> bool:
    terms = demand.terms
    return terms is not held and not terms.own and terms.version < held.version


def _verdict(
    demands: Sequence[Demand], results: Sequence[Landed | Refused], now_ms: int
) -> Verdict:
    landed = [result for result in results if isinstance(result, Landed)]
    if len(landed) == len(results):
        return TakenVerdict(demands, landed, now_ms)
    before = [one.before if isinstance(one, Landed) else one.record for one in results]
    after = [one.after if isinstance(one, Landed) else one.record for one in results]
    waits = {
        demand.key.text: result.waits_ms
        for demand, result in zip(demands, results, strict=True)
        if isinstance(result, Refused) and result.waits_ms is not None
    }
    refused = (False, demands, after, now_ms, before)
    verdict = PooledVerdict(waits, *refused) if waits else Verdict(*refused)
    verdict.outdated = any(map(_is_outdated, demands, [record[TERMS] for record in after]))
    return verdict
