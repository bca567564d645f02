"""Buckets in a dict under one lock; bounded.

A full bucket carries no information, so it makes room when the store is at its bound. Where no
bucket that was looked at is full, a new one is refused: making room by forgetting a bucket in use
would admit more than was promised. Only a stand-in for a store that is away (`gives_way`) forgets
the fullest of those it looked at instead: it must serve whoever comes. Such a stand-in keeps no
usage history, which nobody could read: at a million keys it had been most of what an outage cost.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from headgate.core.decision import (
    Demand,
    Verdict,
    adjust_record,
    decide,
    is_credit_only,
    needs_write,
    take,
)
from headgate.core.errors import Full, HeadgateError
from headgate.core.history import has_uncounted_usage, mark_counted
from headgate.core.levels import Page
from headgate.core.limits import SEPARATOR
from headgate.core.record import (
    HOUR,
    HOUR_MS,
    TERMS,
    BucketKey,
    Record,
    after_clock_step,
    cells_of,
    full_at_ms,
    new_record,
)
from headgate.core.runtime import Clock
from headgate.core.store import Outcome, PeekResult
from headgate.stores.memory.ledger import USAGE_ROWS_MAX, MemoryLedger
from headgate.transport.gates import steady_clock

BUCKETS_MAX = 1_000_000
STAND_IN_BUCKETS_MAX = 10_000
LOOKS_PER_INSERT = 8
LOOKS_AT_BOUND = 64
ONCE_MS = 24 * HOUR_MS
ONCE_MAX = 100_000


class MemoryStore:
    """All buckets of this process."""

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        ledger: MemoryLedger | None = None,
        buckets_max: int = BUCKETS_MAX,
        gives_way: bool = False,
    ) -> None:
        self._clock = clock or steady_clock()
        self._ledger = ledger or MemoryLedger(usage_rows_max=0 if gives_way else USAGE_ROWS_MAX)
        self._ledger.live = self.flush
        self._buckets_max = buckets_max
        self._gives_way = gives_way
        self._buckets: dict[str, Record] = {}
        self._to_look_at: list[str] = []
        self._once: dict[tuple[str, str, str], int] = {}
        self._lock = threading.RLock()  # a thread may come in again, see _has_moved

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        return self.consume_local(demands, self._clock() if now_ms is None else now_ms)

    def consume_local(self, demands: Sequence[Demand], now_ms: int) -> Verdict:
        """`consume` without waiting: this store is the process's own.

        One bucket is looked at and decided without the lock, which a refusal never takes; a new
        record is written only in place of the very one that was decided on. So threads wait for a
        write and not for each other's arithmetic.
        """
        if len(demands) == 1:
            demand = demands[0]
            text = demand.key.text
            buckets = self._buckets
            record = buckets.get(text)
            if (
                record is not None
                and record[TERMS].core is demand.terms
                and record[HOUR] == now_ms // HOUR_MS
            ):
                after = take(record, demand, now_ms)
                if after is None:
                    return Verdict(False, demands, (record,), now_ms)
                with self._lock:
                    # No call between look and write: after one, the interpreter may collect garbage
                    # and so come in again on this thread, see _has_moved.
                    is_unmoved = text in buckets and buckets[text] is record
                    if is_unmoved:
                        buckets[text] = after
                if is_unmoved:
                    return Verdict(True, demands, (after,), now_ms, (record,))
        with self._lock:
            verdict = self._consume_kept(demands, now_ms)
            return self._consume_all(demands, now_ms) if verdict is None else verdict

    async def consume_each(
        self, groups: Sequence[Sequence[Demand]], now_ms: int | None
    ) -> list[Outcome]:
        if now_ms is None:
            now_ms = self._clock()
        found: list[Outcome] = []
        with self._lock:
            for demands in groups:
                try:
                    found.append(self.consume_local(demands, now_ms))
                except HeadgateError as error:
                    found.append(error)
        return found

    def _consume_kept(self, demands: Sequence[Demand], now_ms: int) -> Verdict | None:
        """What `_consume_all` says of buckets that are all there, in this hour and under the terms
        they are asked by, which leaves nothing to be worked out but their levels: three of them
        take 3.1 us so and 4.8 the other way. None where some bucket is not like that."""
        buckets, hour = self._buckets, now_ms // HOUR_MS
        found: list[Record] = []
        changed: dict[str, Record] = {}
        allowed = True
        for demand in demands:
            text = demand.key.text
            record = buckets.get(text)
            if record is None or record[HOUR] != hour or record[TERMS].core is not demand.terms:
                return None
            found.append(record)
            if allowed:
                taken = take(record, demand, now_ms)
                if taken is None:
                    allowed = False
                else:
                    changed[text] = taken
        if not allowed:
            return Verdict(False, demands, found, now_ms)
        if [*map(buckets.get, changed)] != found:  # see _has_moved
            return None
        buckets.update(changed)
        return Verdict(True, demands, [*changed.values()], now_ms, found)

    def _consume_all(self, demands: Sequence[Demand], now_ms: int) -> Verdict:
        while True:
            found = [self._in_this_hour(demand.key, now_ms) for demand in demands]
            verdict, after = decide(demands, found, now_ms)
            if verdict.allowed:
                self._make_room(sum(record is None for record in found), now_ms)
            changed = {
                demand.key.text: record
                for demand, before, record in zip(demands, found, after, strict=True)
                if needs_write(verdict, before, record)
            }
            if not self._has_moved(demands, found):
                self._buckets.update(changed)
                return verdict

    async def adjust(
        self,
        demands: Sequence[Demand],
        now_ms: int | None,
        *,
        metered: bool = True,
        once: str | None = None,
    ) -> bool:
        if now_ms is None:
            now_ms = self._clock()
        with self._lock:
            while True:
                found = [self._in_this_hour(demand.key, now_ms) for demand in demands]
                after = {
                    demand.key.text: adjust_record(
                        record or new_record(demand.terms, now_ms), demand, now_ms, metered=metered
                    )
                    for demand, record in zip(demands, found, strict=True)
                    if record is not None or not is_credit_only(demand)
                }
                self._make_room(sum(text not in self._buckets for text in after), now_ms)
                if once is not None and not self._claim(demands[0].key, once, now_ms):
                    return False
                once = None
                if not self._has_moved(demands, found):
                    self._buckets.update(after)
                    return True

    def _has_moved(self, demands: Sequence[Demand], found: Sequence[Record | None]) -> bool:
        """Whether a bucket changed under the lock. Collecting garbage may end a generator that has
        a lease, and so give back in the middle of whatever this thread does here: between two lines
        of Python, but not within one list, nor after it before the next call."""
        records = map(self._buckets.get, [demand.key.text for demand in demands])
        return [*records] != found

    async def peek(self, keys: Sequence[BucketKey], now_ms: int | None) -> PeekResult:
        now_ms = self._clock() if now_ms is None else now_ms
        found = [self._buckets.get(key.text) for key in keys]
        return PeekResult(now_ms, [one and after_clock_step(one, now_ms) for one in found])

    def peek_local(self, key: BucketKey) -> Record | None:
        """The record now, without waiting: this store is the process's own."""
        return self._buckets.get(key.text)

    async def forget(self, keys: Sequence[BucketKey]) -> None:
        with self._lock:
            for key in keys:
                record = self._buckets.pop(key.text, None)
                if record is not None:
                    self._ledger.count(key, record)

    async def find(
        self,
        namespace: str,
        *,
        entity_id: str | None = None,
        resource: str | None = None,
        limit: int,
        cursor: str | None = None,
    ) -> Page:
        with self._lock:
            texts = sorted(
                text
                for text in list(self._buckets)
                if _matches(text, namespace, entity_id, resource) and text > (cursor or "")
            )
        page = tuple(BucketKey.from_text(text) for text in texts[:limit])
        return Page(page, page[-1].text if len(texts) > limit else None)

    async def close(self) -> None:
        return None

    def flush(
        self, namespace: str, entity_id: str | None, resource: str | None, now_ms: int | None
    ) -> None:
        """Usage history holds all that the buckets know."""
        now_ms = self._clock() if now_ms is None else now_ms
        with self._lock:
            for text in list(self._buckets):
                record = self._buckets.get(text)
                if (
                    record is not None
                    and _matches(text, namespace, entity_id, resource)
                    and has_uncounted_usage(record)
                ):
                    self._count_usage(BucketKey.from_text(text), now_ms)

    def clear(self) -> None:
        with self._lock:
            self._buckets.clear()
            self._to_look_at.clear()
            self._once.clear()

    def drop_namespace(self, namespace: str) -> int:
        with self._lock:
            texts = [text for text in list(self._buckets) if text.startswith(namespace + SEPARATOR)]
            for text in texts:
                self._buckets.pop(text, None)
        return len(texts)

    def __len__(self) -> int:
        return len(self._buckets)

    def _in_this_hour(self, key: BucketKey, now_ms: int) -> Record | None:
        """The record; what it consumed in an hour that has passed goes to usage history."""
        record = self._buckets.get(key.text)
        if record is None or record[HOUR] == now_ms // HOUR_MS:
            return record
        return self._count_usage(key, now_ms)

    def _count_usage(self, key: BucketKey, now_ms: int) -> Record | None:
        """The record, after usage history has got what it consumed: in this order, so that whoever
        comes in between finds what is still to be counted, and nothing that was."""
        text, buckets = key.text, self._buckets
        while (record := buckets.get(text)) is not None:
            marked = mark_counted(record, now_ms)
            is_unmoved = text in buckets and buckets[text] is record  # no call before the write
            if is_unmoved:
                buckets[text] = marked
                self._ledger.count(key, record)
                return marked
        return None

    def _make_room(self, new: int, now_ms: int) -> None:
        if not new or len(self._buckets) + new <= self._buckets_max // 2:
            return
        free = self._buckets_max - len(self._buckets)
        looks = LOOKS_PER_INSERT if free >= new else LOOKS_AT_BOUND
        in_use: list[str] = []
        for _ in range(looks * new):
            self._to_look_at = self._to_look_at or list(self._buckets)
            if not self._to_look_at:
                break
            text = self._to_look_at.pop()
            if not self._evict_if_full(text, now_ms):
                in_use.append(text)
        over = len(self._buckets) + new - self._buckets_max
        if over > 0 and self._gives_way:
            self._evict_fullest(in_use, over, now_ms)
        elif over > 0:
            raise Full(
                f"the memory store is at its bound of {self._buckets_max} buckets in use; open it "
                f"with memory://?buckets_max=… or use a shared store"
            )

    def _evict_if_full(self, text: str, now_ms: int) -> bool:
        record = self._buckets.get(text)
        if record is None:
            return True
        full_ms = full_at_ms(record)
        if full_ms is None or full_ms > now_ms:
            return False
        buckets = self._buckets
        is_unmoved = text in buckets and buckets[text] is record  # no call before the deletion
        if is_unmoved:
            del buckets[text]
            self._ledger.count(BucketKey.from_text(text), record)
        return is_unmoved

    def _evict_fullest(self, texts: list[str], count: int, now_ms: int) -> None:
        known = {text: record for text in texts if (record := self._buckets.get(text)) is not None}
        by_fill = sorted(known, key=lambda text: -_fill(known[text], now_ms))
        for text in by_fill[:count]:
            record = self._buckets.pop(text, None)
            if record is not None:
                self._ledger.count(BucketKey.from_text(text), record)

    def _claim(self, key: BucketKey, once: str, now_ms: int) -> bool:
        """The oldest makes room. Repetitions come soon; and if new keys were refused, whoever makes
        up many would keep all others from charging."""
        name = key.namespace, key.entity_id, once
        if self._once.get(name, now_ms) > now_ms:
            return False
        self._once.pop(name, None)
        if len(self._once) >= ONCE_MAX:
            del self._once[next(iter(self._once))]
        self._once[name] = now_ms + ONCE_MS
        return True


def stand_in(clock: Clock) -> MemoryStore:
    """The buckets of this process that decide while the store is away, where that was chosen."""
    return MemoryStore(clock, buckets_max=STAND_IN_BUCKETS_MAX, gives_way=True)


def _fill(record: Record, now_ms: int) -> float:
    """How full the emptiest limit is, 1.0 at the brim."""
    return min(cell.level_milli(now_ms) / cell.spec.capacity_milli for cell in cells_of(record))


def _matches(text: str, namespace: str, entity_id: str | None, resource: str | None) -> bool:
    prefix = namespace + SEPARATOR
    if entity_id is not None:
        prefix += entity_id + SEPARATOR
    return text.startswith(prefix) and (resource is None or text.endswith(SEPARATOR + resource))
