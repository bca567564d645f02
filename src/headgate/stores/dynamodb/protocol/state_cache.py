"""What this process knows of buckets: the last state seen of each shard, bounded.

A state is never trusted, only planned on: a write that was planned on an old one fails, and its
answer is the new one.
"""

from __future__ import annotations

import random
from threading import Lock
from typing import NamedTuple

from headgate.core.decision import Demand
from headgate.core.record import BucketKey, Terms
from headgate.stores.dynamodb.catalog.items import Item
from headgate.stores.dynamodb.protocol.item import ItemState, state_from_item, with_counters
from headgate.stores.dynamodb.sharding.shares import leaf_of, share_of

BUCKETS_MAX = 10_000
CROWDED_MS = 10_000
ASKED_MS = 600_000
PACE_MS = 1000
HELD_BACK_PER_S = 1_000_000
ROUTES = 1 << 30


class WriteRate(NamedTuple):
    """How often a shard had been written at a moment, and how fast that grew before it."""

    written: int
    at_ms: int
    per_s: int


class BucketView:
    """One bucket. `absent` says that it was looked for and not there."""

    __slots__ = (
        "_asked",
        "_asked_before",
        "_asked_since_ms",
        "_last",
        "absent",
        "crowded_until_ms",
        "key",
        "looked_at_ms",
        "paces",
        "shards",
        "written",
    )

    def __init__(self, key: BucketKey) -> None:
        self.key = key
        self.shards: dict[int, ItemState] = {}
        self.absent = False
        self.crowded_until_ms = 0
        self._asked: dict[str, int] = {}  # the most that was asked of a limit at once
        self._asked_before: dict[str, int] = {}  # and in the time before
        self._asked_since_ms = 0
        self._last: tuple[Terms, tuple[int | None, ...]] | None = None
        self.looked_at_ms = 0  # when merging was last considered
        self.written: dict[int, int] = {}  # by shard, how often it had been written then
        self.paces: dict[int, WriteRate] = {}

    def note(
        self, shard: int, item: Item | None, now_ms: int, made: ItemState | None = None
    ) -> ItemState | None:
        """Keeps what an answer said. A shard that is gone says that its bucket is no longer
        divided as it was: then only the first shard can tell how."""
        seen = state_from_item(item, shard, made or self.shards.get(shard), now_ms)
        if seen is not None:
            return self._keep(seen, now_ms)
        self.shards.clear()
        if not shard:
            self.absent = True
        return None

    def note_counters(self, planned: ItemState, answer: Item, now_ms: int) -> ItemState:
        """Keeps what a write said that left all but the counters as it was planned on. Of the
        rest, `ttl` may be known better by now."""
        last = self.shards.get(planned.shard)
        if last is None or last.generation != planned.generation:
            last = planned
        return self._keep(with_counters(last, answer, now_ms), now_ms)

    def _keep(self, seen: ItemState, now_ms: int) -> ItemState:
        self.absent = False
        self.shards[seen.shard] = seen
        self._pace(seen, now_ms)
        if not seen.shard and not seen.depth and len(self.shards) > 1:
            self.shards = {0: seen}
        return seen

    def _pace(self, seen: ItemState, now_ms: int) -> None:
        """All writers together, by this process's clock alone: others' may differ."""
        last = self.paces.get(seen.shard)
        if last is None or seen.written < last.written or now_ms < last.at_ms:
            self.paces[seen.shard] = WriteRate(seen.written, now_ms, 0)
        elif now_ms - last.at_ms >= PACE_MS:
            per_s = (seen.written - last.written) * 1000 // (now_ms - last.at_ms)
            self.paces[seen.shard] = WriteRate(seen.written, now_ms, per_s)

    def note_throttled(self, shard: int, now_ms: int) -> None:
        """The service would not take a write: whatever was measured, it is too much."""
        last = self.paces.get(shard)
        self.paces[shard] = WriteRate(0 if last is None else last.written, now_ms, HELD_BACK_PER_S)

    def written_per_s(self, shard: int) -> int:
        pace = self.paces.get(shard)
        return 0 if pace is None else pace.per_s

    def adopt_terms(self, seen: ItemState, terms: Terms) -> ItemState:
        """The same under the caller's own terms where they are equal: what is identical costs no
        comparing from then on."""
        held = seen.whole
        if held.core is not held or held != terms:
            return seen
        share = share_of(terms, seen.shard, seen.depth)
        found = seen._replace(whole=terms, record=(share, *seen.record[1:]))
        if self.shards.get(seen.shard) is seen:
            self.shards[seen.shard] = found
        return found

    def forget(self) -> None:
        self.shards.clear()
        self.absent = False

    def depths(self) -> dict[int, int]:
        return {shard: seen.depth for shard, seen in list(self.shards.items())}

    def note_demand(self, demand: Demand, now_ms: int) -> None:
        """Remembers how much is asked for at once, for a while."""
        if not 0 <= now_ms - self._asked_since_ms < ASKED_MS:
            self._asked_before, self._asked = self._asked, {}
            self._asked_since_ms, self._last = now_ms, None
        last = self._last
        if last is not None and last[0] is demand.terms and last[1] == demand.amounts:
            return
        self._last = (demand.terms, demand.amounts)
        for name, wanted in demand.named():
            if wanted > self._asked.get(name, 0):
                self._asked[name] = wanted

    @property
    def largest(self) -> dict[str, int]:
        """The most that was lately asked of each limit at once."""
        before = self._asked_before
        found = dict(self._asked)
        for name, wanted in before.items():
            found[name] = max(wanted, found.get(name, 0))
        return found

    def note_contention(self, now_ms: int) -> None:
        """A prediction failed because others use the bucket, too."""
        self.crowded_until_ms = now_ms + CROWDED_MS


class StateCache:
    """Buckets by key; the one that was opened longest ago makes room."""

    def __init__(self, buckets_max: int = BUCKETS_MAX, rng: random.Random | None = None) -> None:
        self._known: dict[str, BucketView] = {}
        self._buckets_max = buckets_max
        self._lock = Lock()
        self._rng = rng or random.Random()

    def open(self, key: BucketKey) -> BucketView:
        known = self._known.get(key.text)
        if known is None:
            with self._lock:
                while len(self._known) >= self._buckets_max:
                    del self._known[next(iter(self._known))]
                known = self._known[key.text] = BucketView(key)
        return known

    def drop(self, key: BucketKey) -> None:
        with self._lock:
            self._known.pop(key.text, None)

    def route(self, known: BucketView) -> int:
        """A shard to ask, each as often as its share is large."""
        first = known.shards.get(0)
        if first is None or not first.depth:
            return 0
        return leaf_of(self._rng.randrange(ROUTES), known.depths())
