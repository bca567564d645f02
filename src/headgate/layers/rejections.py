"""Rejections: refuses without a store call what the store would certainly refuse again.

The last state seen of a bucket is an upper bound: until somebody gives tokens back, the bucket
never holds more than it did then plus what has been refilled since. So the store would refuse a
demand beyond that, with the wait that follows from the state. The exceptions are refunds and new
limits from other processes, so a state is trusted for one second. Our own refunds forget it.

Where the store's own clock counts, we know its time only within bounds: if we asked at our time a,
got the answer at b, and it told the store's time s, then it is between s + (now - b) and
s + (now - a) there now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar, Unpack

from headgate.core.decision import Demand, Verdict, fits
from headgate.core.record import TERMS, BucketKey, Record
from headgate.core.runtime import Clock
from headgate.core.store import Outcome, PeekResult, Store, consume_each
from headgate.layers.layer import AdjustOptions, Layer

# --------------------------------------------------------------------------------------------------
# Buckets that a store keeps in several parts: no single record tells how long to wait.
#
# What the store said of a demand is repeated for the very same demand, with the wait that much
# shorter; for any other amount the store has to be asked.

TimedRefusal = tuple[Verdict, int, int]  # and our time before we asked and after the answer


class RememberedRefusals:
    """The last refusal of each bucket, bounded. The caller holds a lock."""

    def __init__(self, trust_ms: int, rounding_ms: int, entries_max: int) -> None:
        self._trust_ms = trust_ms
        self._rounding_ms = rounding_ms
        self._entries_max = entries_max
        self.refusals: dict[str, TimedRefusal] = {}

    def knows(self, demands: Sequence[Demand]) -> bool:
        return len(demands) == 1 and demands[0].key.text in self.refusals

    def refusal(
        self, demands: Sequence[Demand], now_ms: int | None, local_ms: int
    ) -> Verdict | None:
        """The same refusal now; None where the store has to be asked."""
        found = self.refusals.get(demands[0].key.text) if len(demands) == 1 else None
        if found is None:
            return None
        verdict, sent_ms, received_ms = found
        asked, wanted = verdict.demands[0], demands[0]
        if asked.terms is not wanted.terms or asked.amounts != wanted.amounts:
            return None
        if not 0 <= local_ms - sent_ms < self._trust_ms:
            return None
        if now_ms is not None:
            return verdict.later(demands, now_ms - verdict.now_ms)
        if verdict.later(demands, local_ms - sent_ms + self._rounding_ms) is None:
            return None  # if the store's clock is as late as it can be, it might be admitted
        return verdict.later(demands, max(0, local_ms - received_ms - self._rounding_ms))

    def note(self, verdict: Verdict, sent_ms: int, received_ms: int) -> None:
        if (
            len(verdict.demands) != 1
            or verdict.allowed
            or verdict.outdated
            or verdict.exact_records
        ):
            for demand in verdict.demands:
                self.drop(demand.key.text)
            return
        text = verdict.demands[0].key.text
        _put(self.refusals, text, (verdict, sent_ms, received_ms), self._entries_max)

    def drop(self, text: str) -> None:
        self.refusals.pop(text, None)


TRUST_MS = 1000
ENTRIES_MAX = 10_000
ROUNDING_MS = 2  # two clocks of whole milliseconds, half a millisecond apart after a second

# A state, the store's time of it, our time before we asked and after the answer, and our time when
# the store last refused something of this bucket.
SeenState = tuple[Record, int, int, int, int]
Value = TypeVar("Value")


class Rejections(Layer):
    """Repeats refusals that must still hold. `refused` counts the calls the store was spared.

    Only buckets that refused are remembered: one that has enough costs one dict lookup.
    """

    def __init__(
        self,
        inner: Store,
        clock: Clock,
        *,
        trust_ms: int = TRUST_MS,
        entries_max: int = ENTRIES_MAX,
    ) -> None:
        super().__init__(inner)
        self.refused = 0
        self._clock = clock
        self._trust_ms = trust_ms
        self._entries_max = entries_max
        self._seen: dict[str, SeenState] = {}
        self._drops = 0
        self._dropped: dict[str, int] = {}  # by which drop a key was last dropped
        self._remembered = RememberedRefusals(trust_ms, ROUNDING_MS, entries_max)

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        sent_ms = self._clock() if now_ms is None else now_ms
        known = bool(self._seen or self._remembered.refusals) and self._knows(demands)
        if known:
            refusal = self._refusal(demands, now_ms, sent_ms)
            if refusal is not None:
                return refusal
        drops = self._drops
        verdict = await self.inner.consume(demands, now_ms)
        if known or not verdict.allowed:
            received_ms = self._clock() if now_ms is None else now_ms
            self._note(verdict, sent_ms, received_ms, drops)
        return verdict

    async def consume_each(
        self, groups: Sequence[Sequence[Demand]], now_ms: int | None
    ) -> list[Outcome]:
        """Refuses here what must be refused again, and asks the store about the others. It also
        asks about buckets that an earlier group may take from, because their wait gets longer."""
        sent_ms = self._clock() if now_ms is None else now_ms
        found: list[Outcome | None] = [None] * len(groups)
        asked: list[int] = []
        moving: set[str] = set()
        for place, demands in enumerate(groups):
            if self._seen and moving.isdisjoint(demand.key.text for demand in demands):
                found[place] = self._refusal(demands, now_ms, sent_ms)
            if found[place] is None:
                asked.append(place)
                if self._seen:
                    moving.update(demand.key.text for demand in demands)
        drops = self._drops
        told = await consume_each(self.inner, [groups[place] for place in asked], now_ms)
        received_ms = self._clock() if now_ms is None else now_ms
        for place, outcome in zip(asked, told, strict=True):
            found[place] = outcome
            if not isinstance(outcome, Verdict) or not outcome.exact_records:
                continue
            if not outcome.allowed or (self._seen and self._knows(groups[place])):
                self._note(outcome, sent_ms, received_ms, drops)
        return found  # type: ignore[return-value]

    async def adjust(
        self, demands: Sequence[Demand], now_ms: int | None, **options: Unpack[AdjustOptions]
    ) -> bool:
        try:
            return await self.inner.adjust(demands, now_ms, **options)
        finally:  # also where the answer was lost: the store may have done it
            self._drop(demand.key for demand in demands)

    async def peek(self, keys: Sequence[BucketKey], now_ms: int | None) -> PeekResult:
        """Asks the store; a remembered refusal that could contradict the answer is forgotten."""
        sighting = await self.inner.peek(keys, now_ms)
        with self._lock:
            for key in keys:
                self._seen.pop(key.text, None)
                self._remembered.drop(key.text)
        return sighting

    async def forget(self, keys: Sequence[BucketKey]) -> None:
        try:
            await self.inner.forget(keys)
        finally:
            self._drop(keys)

    def _knows(self, demands: Sequence[Demand]) -> bool:
        for demand in demands:
            if demand.key.text in self._seen:
                return True
        return self._remembered.knows(demands)

    def _refusal(
        self, demands: Sequence[Demand], now_ms: int | None, local_ms: int
    ) -> Verdict | None:
        """The refusal the store would certainly give; None where it has to be asked."""
        with self._lock:
            told = self._remembered.refusal(demands, now_ms, local_ms)
            if told is not None:
                self.refused += 1
                return told
        for demand in demands:
            seen = self._seen.get(demand.key.text)
            if seen is not None and self._refuses(seen, demand, now_ms, local_ms):
                return self._build_refusal(demands, now_ms, local_ms)
        return None

    def _refuses(self, seen: SeenState, demand: Demand, now_ms: int | None, local_ms: int) -> bool:
        """Whether the demand is refused even if the store's clock is as late as it can be."""
        record, store_ms, sent_ms, _, _ = seen
        if not self._is_trusted(seen, demand, local_ms):
            return False
        latest_ms = store_ms + local_ms - sent_ms + ROUNDING_MS if now_ms is None else now_ms
        return not fits(record, demand, latest_ms)

    def _is_trusted(self, seen: SeenState, demand: Demand, local_ms: int) -> bool:
        """Whether the state is fresh and was kept under the same terms as the demand."""
        record, _, sent_ms, _, _ = seen
        if not 0 <= local_ms - sent_ms < self._trust_ms:
            return False
        core = record[TERMS].core
        return core is demand.terms or bool(core == demand.terms)

    def _build_refusal(
        self, demands: Sequence[Demand], now_ms: int | None, local_ms: int
    ) -> Verdict | None:
        """The refusal as the store would give it; None where the state of some bucket is unknown.

        It assumes that the store's clock is as early as it can be, so the wait is never too short.
        """
        records: list[Record] = []
        earliest_ms: list[int] = []
        for demand in demands:
            seen = self._seen.get(demand.key.text)
            if seen is None or not self._is_trusted(seen, demand, local_ms):
                return None
            record, store_ms, _, received_ms, _ = seen
            records.append(record)
            earliest_ms.append(store_ms + max(0, local_ms - received_ms - ROUNDING_MS))
        with self._lock:
            self.refused += 1
        return Verdict(False, demands, records, min(earliest_ms) if now_ms is None else now_ms)

    def _note(self, verdict: Verdict, sent_ms: int, received_ms: int, drops: int) -> None:
        """Remembers a refusal, because another may follow, and keeps its state up to date while it
        is fresh. A state whose key was dropped after we had asked for it may be too low, so it is
        not kept.
        """
        with self._lock:
            if all(self._dropped.get(one.key.text, 0) <= drops for one in verdict.demands):
                self._remembered.note(verdict, sent_ms, received_ms)
            if not verdict.exact_records:
                return
            for demand, record in zip(verdict.demands, verdict.records, strict=True):
                text = demand.key.text
                old = self._seen.pop(text, None)
                refused_ms = sent_ms
                if verdict.allowed:
                    if old is None or not 0 <= sent_ms - old[-1] < self._trust_ms:
                        continue
                    refused_ms = old[-1]
                if self._dropped.get(text, 0) <= drops:
                    seen = (record, verdict.now_ms, sent_ms, received_ms, refused_ms)
                    _put(self._seen, text, seen, self._entries_max)

    def _drop(self, keys: Iterable[BucketKey]) -> None:
        with self._lock:
            self._drops += 1
            for key in keys:
                self._seen.pop(key.text, None)
                self._remembered.drop(key.text)
                _put(self._dropped, key.text, self._drops, self._entries_max)


def _put(entries: dict[str, Value], text: str, value: Value, entries_max: int) -> None:
    """Adds an entry as the newest; the oldest makes room."""
    entries.pop(text, None)
    if len(entries) >= entries_max:
        del entries[next(iter(entries))]
    entries[text] = value
