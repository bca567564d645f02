"""A bucket's item as it was last seen, and items of buckets as they are made.

`g`, the generation, moves whenever something changes that an acquire leaves alone: the limits,
their epochs, the shard's depth. So whoever finds `g` unchanged knows the whole item but for its
counters, and those only ever move by what others took or gave. Why a number of its own: a write
must fail if it was planned on other limits or epochs, and must not fail because somebody took a
token meanwhile. One condition on `g` says exactly that, however many attributes an item has.

    rf                   when the item was made: the epoch of every limit without one of its own
    g, cv, lo            generation, newest configuration version, layout of the limits
    b_{limit}_cp|ra|rp   capacity, refill amount (if another), period, of the whole bucket
    b_{limit}_tk|tc|rf   tokens at the epoch, net consumption, an epoch of its own; a quota always
                         has one: the number of the window that its tokens are counted from
    b_{limit}_mg         the part of the consumption that came with shards that were merged into it
    b_{limit}_cc         the part of the consumption that came by cascade, from children; absent: 0.
                         The aggregator alone reads it, and from each shard: none is merged into it
    b_wcu_tc             how often it was written; it is no limit and is shown to nobody
    sd, sp               depth, and when that was changed last
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple

from headgate.core.decision import Demand
from headgate.core.errors import Damaged
from headgate.core.limits import Spec
from headgate.core.record import CELLS, HOUR_MS, STRIDE, TERMS, BucketKey, Record, Terms
from headgate.core.refill.resets import schedule_of
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.items import (
    TTL,
    Item,
    Key,
    index_attributes,
    number,
    purge_attributes,
    unreadable_item,
)
from headgate.stores.dynamodb.schema import NO_REFILL, layout_of, limits_in, terms_from
from headgate.stores.dynamodb.sharding.shares import leaf_of, share_of

EPOCH = "rf"
GENERATION = "g"
VERSION = "cv"
LAYOUT = "lo"
DEPTH = "sd"
SPLIT_AT = "sp"
WRITTEN = "b_wcu_tc"


class AttributeNames(NamedTuple):
    """A limit's attributes."""

    tokens: str
    consumed: str
    capacity: str
    amount: str
    period: str
    epoch: str
    merged: str
    cascaded: str


class ItemState(NamedTuple):
    """One shard of a bucket. Its record is kept under the shard's share of the terms."""

    record: Record
    whole: Terms
    layout: str
    shard: int
    depth: int
    generation: int
    epoch_ms: int
    ttl_s: int | None
    written: int
    split_at_ms: int


@functools.lru_cache(maxsize=4096)
def names_of(limit: str) -> AttributeNames:
    return AttributeNames(
        *(f"b_{limit}_{part}" for part in ("tk", "tc", "cp", "ra", "rp", "rf", "mg", "cc"))
    )


def new_generation() -> int:
    """A number that no earlier item under the same key had, as far as chance allows.

    Why by chance: an item may expire and be made again while a client still plans on the old one.
    If generations began at 1, the new item could reach the number that client remembers, its write
    would pass the condition, and it would count refill from an epoch that is gone. 46 random bits,
    from which later generations count up, make that as good as impossible, and stay exact in JSON.
    """
    return random.getrandbits(46)


def bucket_key(key: BucketKey, shard: int = 0) -> Key:
    return _bucket_key(key.namespace, key.entity_id, key.resource, shard)


@functools.lru_cache(maxsize=16_384)
def _bucket_key(namespace: str, entity_id: str, resource: str, shard: int) -> Key:
    return schema.pk_bucket(namespace, entity_id, resource, shard), schema.STATE


def new_item_state(record: Record, layout: str, generation: int, now_ms: int) -> ItemState:
    """A bucket that is made at this moment, but for its counters."""
    return ItemState(record, record[TERMS], layout, 0, 0, generation, now_ms, None, 0, 0)


def state_from_item(
    item: Item | None, shard: int, known: ItemState | None, now_ms: int, written: bool = False
) -> ItemState | None:
    """What the item says; None where there is no bucket, or only part of one that can be healed.

    What is `known` of its generation is not read again. Where a write on that state has `written`
    the item, its answer may tell nothing but what it moved. Of the rest, `ttl` may be known better
    by now. And another may have brought a newer version of the same limits: who comes with an older
    one is to hear of it.
    """
    if item is None or (EPOCH not in item and not written):
        return None
    epochs: Iterable[int]
    try:
        if EPOCH not in item:
            assert known is not None
            old, whole, layout, shard, depth, generation, epoch_ms, ttl_s, _, split_at_ms = known
            terms, epochs = old[TERMS], old[CELLS::STRIDE]
            if VERSION in item and int(item[VERSION]["N"]) != whole.version:
                whole = Terms(whole.specs, int(item[VERSION]["N"]), sources=whole.sources)
                terms = share_of(whole, shard, depth)
            if TTL in item:
                ttl_s = int(item[TTL]["N"])
            writes = int(item[WRITTEN]["N"])
        else:
            generation = int(item[GENERATION]["N"])
            version = int(item[VERSION]["N"])
            layout = item[LAYOUT]["S"]
            ttl_s = int(item[TTL]["N"]) if TTL in item else None
            writes = int(item[WRITTEN]["N"]) if WRITTEN in item else 0
            if (
                known is not None
                and known.generation == generation
                and known.whole.version == version
                and known.layout == layout
            ):
                old, whole, _, _, depth, _, epoch_ms, _, _, split_at_ms = known
                terms, epochs = old[TERMS], old[CELLS::STRIDE]
            else:
                depth = int(item[DEPTH]["N"]) if DEPTH in item else 0
                split_at_ms = int(item[SPLIT_AT]["N"]) if SPLIT_AT in item else 0
                whole = _terms(item, layout, version)
                terms = share_of(whole, shard, depth)
                epochs = [_epoch_of(spec, item) for spec in whole.specs]
                epoch_ms = int(item[EPOCH]["N"])
        cells: list[object] = [terms, now_ms // HOUR_MS, 0, None]
        for spec, since_ms in zip(terms.specs, epochs, strict=True):
            names = names_of(spec[0])
            consumed = int(item[names.consumed]["N"])
            cells += (since_ms, int(item[names.tokens]["N"]), consumed, consumed)
        return ItemState(
            tuple(cells), whole, layout, shard, depth, generation, epoch_ms, ttl_s, writes,
            split_at_ms,
        )  # fmt: skip
    except (KeyError, ValueError, TypeError) as error:
        raise unreadable_item("bucket", item, error) from error


def _epoch_of(spec: Spec, item: Item) -> int:
    """A limit's epoch; of a quota it is where this machine has the start of the window.

    Why a quota keeps the number of a window and no moment: two machines whose time zone databases
    differ place a reset at two moments. An epoch between them would be in one window here and in
    another there, and the one that counts a reset less would refuse for good.
    """
    own = names_of(spec.name).epoch
    if spec.resets is None:
        return int(item.get(own, item[EPOCH])["N"])
    return schedule_of(spec.resets).mark_start_ms(int(item[own]["N"]))


def epoch_number(spec: Spec, epoch_ms: int) -> int:
    """A limit's epoch as its item keeps it."""
    return epoch_ms if spec.resets is None else schedule_of(spec.resets).window_mark(epoch_ms)


def _terms(item: Item, layout: str, version: int) -> Terms:
    numbers = []
    for limit, is_quota in limits_in(layout):
        names = names_of(limit)
        capacity = int(item[names.capacity]["N"])
        amount, period_ms = NO_REFILL
        if not is_quota:
            period_ms = int(item[names.period]["N"])
            amount = int(item[names.amount]["N"]) if names.amount in item else capacity
        if capacity < 0 or amount < 0 or period_ms <= 0:
            raise Damaged(f"the limit {limit} of a bucket is {capacity}, {amount}/{period_ms} ms")
        numbers.append((capacity, amount, period_ms))
    return terms_from(layout, version, tuple(numbers))


def static_attributes(key: BucketKey, shard: int, whole: Terms, depth: int) -> Item:
    """All of an item but its key, its generation, its epoch and its counters."""
    found: Item = {
        **index_attributes(
            schema.GSI2,
            schema.pk_resource(key.namespace, key.resource),
            schema.gsi2_sk_bucket(key.entity_id, shard),
        ),
        **index_attributes(
            schema.GSI3,
            schema.pk_entity(key.namespace, key.entity_id),
            schema.gsi3_sk_bucket(key.resource, shard),
        ),
        **purge_attributes(key.namespace, bucket_key(key, shard)[0]),
        VERSION: number(whole.version),
        LAYOUT: {"S": layout_of(whole)},
    }
    for spec in whole.specs:
        found |= rate_attributes(spec)
    if depth:
        found[DEPTH] = number(depth)
    return found


def rate_attributes(spec: Spec) -> Item:
    """Capacity, amount and period; an amount that is the capacity, as it mostly is, goes unsaid.
    A quota has neither of these: the layout says its schedule."""
    names = names_of(spec.name)
    found = {names.capacity: number(spec.capacity_milli)}
    if spec.resets is not None:
        return found
    found[names.period] = number(spec.period_ms)
    if spec.amount_milli != spec.capacity_milli:
        found[names.amount] = number(spec.amount_milli)
    return found


# --------------------------------------------------------------------------------------------------
# What this process knows of buckets: the last state seen of each shard, bounded.
#
# A state is never trusted, only planned on: a write that was planned on an old one fails, and its
# answer is the new one.

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


@dataclass(slots=True, eq=False, repr=False)
class BucketView:
    """One bucket. `absent` says that it was looked for and not there."""

    key: BucketKey
    shards: dict[int, ItemState] = field(default_factory=dict)
    absent: bool = False
    crowded_until_ms: int = 0
    asked_since_ms: int = 0
    last_demand: Demand | None = None
    looked_at_ms: int = 0  # when merging was last considered
    written: dict[int, int] = field(default_factory=dict)  # by shard, how often it had been then
    paces: dict[int, WriteRate] = field(default_factory=dict)
    _asked: dict[str, int] = field(default_factory=dict)  # the most asked of a limit at once
    _asked_before: dict[str, int] = field(default_factory=dict)  # and in the time before

    def note(
        self, shard: int, item: Item | None, now_ms: int, planned: ItemState | None = None
    ) -> ItemState | None:
        """Keeps what an answer said: that of a write, if the state it `planned` on is given. A
        shard that is gone says that its bucket is no longer divided as it was: then only the first
        shard can tell how."""
        known = self.shards.get(shard)
        if planned is not None and (known is None or known.generation != planned.generation):
            known = planned
        seen = state_from_item(item, shard, known, now_ms, planned is not None)
        if seen is None:
            self.shards.clear()
            if not shard:
                self.absent = True
            return None
        self.absent = False
        self.shards[shard] = seen
        if not shard and not seen.depth and len(self.shards) > 1:
            self.shards = {0: seen}
        # How fast all writers together are, by this process's clock alone: others' may differ.
        last = self.paces.get(shard)
        if last is None or seen.written < last.written or now_ms < last.at_ms:
            self.paces[shard] = WriteRate(seen.written, now_ms, 0)
        elif now_ms - last.at_ms >= PACE_MS:
            per_s = (seen.written - last.written) * 1000 // (now_ms - last.at_ms)
            self.paces[shard] = WriteRate(seen.written, now_ms, per_s)
        return seen

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
        """Remembers how much is asked for at once, for a while. Whoever asks for the same again
        within that while (`last_demand`) need not say so."""
        if not 0 <= now_ms - self.asked_since_ms < ASKED_MS:
            self._asked_before, self._asked = self._asked, {}
            self.asked_since_ms = now_ms
        self.last_demand = demand
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
        self.buckets: dict[str, BucketView] = {}
        self._buckets_max = buckets_max
        self._lock = Lock()
        self._rng = rng or random.Random()

    def open(self, key: BucketKey) -> BucketView:
        known = self.buckets.get(key.text)
        if known is None:
            with self._lock:
                while len(self.buckets) >= self._buckets_max:
                    del self.buckets[next(iter(self.buckets))]
                known = self.buckets[key.text] = BucketView(key)
        return known

    def drop(self, key: BucketKey) -> None:
        with self._lock:
            self.buckets.pop(key.text, None)

    def route(self, known: BucketView) -> int:
        """A shard to ask, each as often as its share is large."""
        first = known.shards.get(0)
        if first is None or not first.depth:
            return 0
        return leaf_of(self._rng.randrange(ROUTES), known.depths())
