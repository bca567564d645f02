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
from typing import NamedTuple, TypeVar, Unpack

from headgate.core.decision import Demand, Verdict, fits
from headgate.core.record import TERMS, BucketKey, Record
from headgate.core.runtime import Clock
from headgate.core.store import Outcome, PeekResult, Store, consume_each
from headgate.layers.layer import AdjustOptions, Layer

TRUST_MS = 1000
ENTRIES_MAX = 10_000
ROUNDING_MS = 2  # two clocks of whole milliseconds, half a millisecond apart after a second

Value = TypeVar("Value")


class SeenState(NamedTuple):
    """What the store said of a bucket: its record, the store's time of it, our time before we asked
    and after the answer, and our time when the store last refused something of this bucket.

    `refusal` is set for a bucket that the store keeps in several parts, of which no single record
    tells how long to wait. It is repeated for the very same demand, with the wait that much
    shorter; for any other amount the store has to be asked.
    """

    record: Record
    store_ms: int
    sent_ms: int
    received_ms: int
    refused_ms: int
    refusal: Verdict | None


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

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        sent_ms = self._clock() if now_ms is None else now_ms
        known = bool(self._seen) and self._knows(demands)
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
        return sighting

    async def forget(self, keys: Sequence[BucketKey]) -> None:
        try:
            await self.inner.forget(keys)
        finally:
            self._drop(keys)

    def _knows(self, demands: Sequence[Demand]) -> bool:
        return any(demand.key.text in self._seen for demand in demands)

    def _refusal(
        self, demands: Sequence[Demand], now_ms: int | None, local_ms: int
    ) -> Verdict | None:
        """The refusal the store would certainly give; None where it has to be asked."""
        for demand in demands:
            seen = self._seen.get(demand.key.text)
            if seen is None or not self._is_trusted(seen, demand, local_ms):
                continue
            if seen.refusal is not None:
                return self._repeat(seen, seen.refusal, demands, now_ms, local_ms)
            # Refused even if the store's clock is as late as it can be.
            latest_ms = seen.store_ms + local_ms - seen.sent_ms + ROUNDING_MS
            if not fits(seen.record, demand, latest_ms if now_ms is None else now_ms):
                return self._build_refusal(demands, now_ms, local_ms)
        return None

    def _is_trusted(self, seen: SeenState, demand: Demand, local_ms: int) -> bool:
        """Whether the state is fresh and was kept under the same terms as the demand."""
        if not 0 <= local_ms - seen.sent_ms < self._trust_ms:
            return False
        core = seen.record[TERMS].core if seen.refusal is None else seen.refusal.demands[0].terms
        return core is demand.terms or bool(core == demand.terms)

    def _repeat(
        self,
        seen: SeenState,
        refusal: Verdict,
        demands: Sequence[Demand],
        now_ms: int | None,
        local_ms: int,
    ) -> Verdict | None:
        """The same refusal now, of the same demand."""
        if len(demands) != 1 or refusal.demands[0].amounts != demands[0].amounts:
            return None
        if now_ms is not None:
            told = refusal.later(demands, now_ms - refusal.now_ms)
        elif refusal.later(demands, local_ms - seen.sent_ms + ROUNDING_MS) is None:
            return None  # if the store's clock is as late as it can be, it might be admitted
        else:
            told = refusal.later(demands, max(0, local_ms - seen.received_ms - ROUNDING_MS))
        if told is not None:
            with self._lock:
                self.refused += 1
        return told

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
            if (
                seen is None
                or seen.refusal is not None
                or not self._is_trusted(seen, demand, local_ms)
            ):
                return None
            records.append(seen.record)
            elapsed_ms = max(0, local_ms - seen.received_ms - ROUNDING_MS)
            earliest_ms.append(seen.store_ms + elapsed_ms)
        with self._lock:
            self.refused += 1
        return Verdict(False, demands, records, min(earliest_ms) if now_ms is None else now_ms)

    def _note(self, verdict: Verdict, sent_ms: int, received_ms: int, drops: int) -> None:
        """Remembers a refusal, because another may follow, and keeps its state up to date while it
        is fresh. A state whose key was dropped after we had asked for it may be too low, so it is
        not kept.
        """
        in_parts = not verdict.exact_records
        # Of a bucket in parts only a refusal that was its own can be repeated.
        forget = in_parts and (verdict.allowed or verdict.outdated or len(verdict.demands) > 1)
        with self._lock:
            for demand, record in zip(verdict.demands, verdict.records, strict=True):
                text = demand.key.text
                old = self._seen.pop(text, None)
                refused_ms = sent_ms
                if verdict.allowed:
                    # The sum of a bucket's parts does not tell a wait: a full part gains nothing.
                    if old is None or old.refusal is not None:
                        continue
                    if not 0 <= sent_ms - old.refused_ms < self._trust_ms:
                        continue
                    refused_ms = old.refused_ms
                if self._dropped.get(text, 0) <= drops and not forget:
                    refusal = verdict if in_parts else None
                    seen = SeenState(
                        record, verdict.now_ms, sent_ms, received_ms, refused_ms, refusal
                    )
                    _put(self._seen, text, seen, self._entries_max)

    def _drop(self, keys: Iterable[BucketKey]) -> None:
        with self._lock:
            self._drops += 1
            for key in keys:
                self._seen.pop(key.text, None)
                _put(self._dropped, key.text, self._drops, self._entries_max)


def _put(entries: dict[str, Value], text: str, value: Value, entries_max: int) -> None:
    """Adds an entry as the newest; the oldest makes room."""
    entries.pop(text, None)
    if len(entries) >= entries_max:
        del entries[next(iter(entries))]
    entries[text] = value
