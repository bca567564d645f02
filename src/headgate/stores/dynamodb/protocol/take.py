"""Taking from one shard of a bucket: plan on the state seen, write once, learn from the answer.

A warm take is one conditional write, also when refill is due. A bucket that is not known yet is
created, and where it turns out to exist, the failed creation has told its state.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection
from dataclasses import dataclass

from headgate.core.decision import Demand, fits
from headgate.core.errors import Contended, StoreTrouble
from headgate.core.limits import Spec
from headgate.core.record import (
    CELLS,
    EVENTS,
    STRIDE,
    TERMS,
    TOKENS,
    BucketKey,
    Record,
    Terms,
    apply_terms,
    cells_of,
    new_record,
)
from headgate.core.refill.resets import count_resets
from headgate.stores.dynamodb.catalog.items import TTL
from headgate.stores.dynamodb.client.calls import ConditionFailed, EncodedRequest, Flow
from headgate.stores.dynamodb.protocol import limit_moves
from headgate.stores.dynamodb.protocol import writes as expressions
from headgate.stores.dynamodb.protocol.item import (
    GENERATION,
    VERSION,
    WRITTEN,
    BucketView,
    ItemState,
    bucket_key,
    names_of,
    new_generation,
    new_item_state,
)
from headgate.stores.dynamodb.protocol.limit_moves import band_milli
from headgate.stores.dynamodb.protocol.update_expression import UpdateExpression
from headgate.stores.dynamodb.protocol.writes import MARGIN_S
from headgate.stores.dynamodb.schema import PK, SK, layout_of
from headgate.stores.dynamodb.sharding.shares import share_of
from headgate.stores.dynamodb.table import requests as ask


class Landed:
    """Taken; the bucket before and after, and the terms it is kept under now."""

    __slots__ = ("after", "before", "terms")

    is_whole = True  # the bucket is in one piece: its record tells its waits

    def __init__(self, before: Record, after: Record) -> None:
        self.before = before
        self.after = after
        self.terms: Terms = after[TERMS]

    def overdrawn(self, demand: Demand, now_ms: int) -> Collection[str]:
        """The soft limits that had not got what was wanted: nothing was taken of them."""
        return _overdrawn(demand, self.before, now_ms)


class SingleWriteTake(Landed):
    """A take by one write. Hardly anybody reads how the bucket was before, so that is made when
    somebody does."""

    __slots__ = ("_demand", "_now_ms", "_stood")

    def __init__(self, after: Record, demand: Demand, stood: Record, now_ms: int) -> None:
        self.after = after
        self.terms = after[TERMS]
        self._demand = demand
        self._stood = stood
        self._now_ms = now_ms

    @property
    def before(self) -> Record:  # type: ignore[override]
        overdrawn = self.overdrawn(self._demand, self._now_ms)
        return _record_before(self.after, self._demand, overdrawn)

    def overdrawn(self, demand: Demand, now_ms: int) -> Collection[str]:
        """As the write had it, which was planned on what was seen."""
        return _overdrawn(demand, self._stood, now_ms)


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing taken; the bucket as it stands, under the terms that count."""

    record: Record
    waits_ms: dict[str, int | None] | None = None  # by limit, where the record cannot tell


def record_under(seen: ItemState, demand: Demand, now_ms: int) -> Record:
    """The shard's record under the terms that count."""
    return apply_terms(seen.record, share_of(demand.terms, seen.shard, seen.depth), now_ms)


def aligned_amounts(demand: Demand, held: Terms) -> list[int | None]:
    """What is wanted of each limit the bucket holds, also of those it only remembers."""
    if held.specs == demand.terms.specs:
        return [*demand.amounts]
    amounts = demand.amounts_for(held)
    return [*amounts, *([None] * (len(held.specs) - len(amounts)))]


def _record_before(after: Record, demand: Demand, overdrawn: Collection[str]) -> Record:
    """The record as the demand found it: what it took put back, but for soft limits it passed."""
    cells = [*after]
    cells[EVENTS] = 0
    terms = after[TERMS]
    at = CELLS + TOKENS
    for spec, wanted in zip(terms.specs, aligned_amounts(demand, terms), strict=True):
        if wanted is not None and spec.name not in overdrawn:
            cells[at] += wanted
        at += STRIDE
    return tuple(cells)


def _overdrawn(demand: Demand, stood: Record, now_ms: int) -> Collection[str]:
    """The soft limits that had not got what was wanted."""
    if not stood[TERMS].soft:
        return ()
    return {
        cell.spec.name
        for cell, wanted in zip(cells_of(stood), aligned_amounts(demand, stood[TERMS]), strict=True)
        if wanted is not None and limit_moves.is_overdrawn(cell, wanted, now_ms)
    }


def attempt(
    table: str,
    known: BucketView,
    seen: ItemState,
    demand: Demand,
    now_ms: int,
    confirmed: set[int],
    *,
    crowded: bool,
) -> Flow[Landed | Refused | None]:
    """One write to one shard, where it is no usual one; None where it was not done and the state is
    known better now.

    A whole bucket refuses by a state that was told in this call, which `confirmed` knows by its
    shard; what one shard of several refuses, all of them together have to confirm. A `crowded`
    bucket gives away some burst.
    """
    standing = record_under(seen, demand, now_ms)
    spare = limit_moves.SPARE_MILLI if seen.depth else 0
    fitting = fits(standing, demand, now_ms) and _has_spare(standing, demand, spare, now_ms)
    whole = expressions.whole_terms(seen, demand, standing)
    if not fitting and whole.specs == seen.whole.specs:
        if not seen.depth and 0 not in confirmed:  # tokens may have been given back since
            yield from look(table, known, now_ms, confirmed)
            return None
        return Refused(standing)
    # A refusal under new terms keeps them: the wait it tells counts on their pace.
    amounts = aligned_amounts(demand, standing[TERMS]) if fitting else [None] * len(whole.specs)
    draft = expressions.take_update(
        seen, standing, whole, amounts, now_ms, crowded=crowded, spare=spare,
        cascaded=expressions.cascaded_part(demand, standing[TERMS].specs, amounts),
    )  # fmt: skip
    outcome = yield draft.request(table, bucket_key(demand.key, seen.shard))
    after = learn(known, seen.shard, outcome, now_ms, confirmed)
    if after is None:
        return None
    if not fitting:  # as far as was known: what others gave back since came with the answer
        fitting = fits(after.record, demand, now_ms)
        fitting = fitting and _has_spare(after.record, demand, spare, now_ms)
        return None if fitting else Refused(after.record)
    return SingleWriteTake(after.record, demand, standing, now_ms)


def look(table: str, known: BucketView, now_ms: int, confirmed: set[int]) -> Flow[ItemState | None]:
    """The first shard, as it is now."""
    outcome = yield ask.get(table, bucket_key(known.key))
    if isinstance(outcome, StoreTrouble):
        raise outcome
    confirmed.add(0)
    return known.note(0, outcome.get("Item"), now_ms)


def create(
    table: str, known: BucketView, demand: Demand, now_ms: int, confirmed: set[int]
) -> Flow[Landed | Refused | None]:
    """The first take of a bucket; None where it exists after all, and its state is known now."""
    record = new_record(demand.terms, now_ms)
    if not fits(record, demand, now_ms):
        found = yield from look(table, known, now_ms, confirmed)
        return Refused(record) if found is None else None
    generation = new_generation()
    cascaded = expressions.cascaded_part(demand, demand.terms.specs, demand.amounts)
    draft = expressions.create_update(
        demand.key, record, demand.amounts, generation, now_ms, cascaded=cascaded
    )
    outcome = yield draft.request(table, bucket_key(demand.key))
    made = new_item_state(record, layout_of(demand.terms), generation, now_ms)
    seen = learn(known, 0, outcome, now_ms, confirmed, made)
    return None if seen is None else SingleWriteTake(seen.record, demand, record, now_ms)


def _has_spare(record: Record, demand: Demand, spare: int, now_ms: int) -> bool:
    """Whether limits from which nothing is taken hold so much, where they can refuse."""
    return not spare or all(
        wanted != 0 or cell.spec.soft or cell.level_milli(now_ms) >= spare
        for cell, wanted in zip(
            cells_of(record), aligned_amounts(demand, record[TERMS]), strict=True
        )
    )


def learn(
    known: BucketView,
    shard: int,
    outcome: object,
    now_ms: int,
    confirmed: set[int] | None = None,
    made: ItemState | None = None,
) -> ItemState | None:
    """The state after a write that was done; None where it was not, and may be tried again.

    `made` is what the write made or left, but for its counters. `confirmed` gets the shard where
    the answer told its state. One that met another transaction did not, and what an earlier answer
    told may have made way meanwhile for what another task was told.
    """
    if confirmed is not None:
        confirmed.discard(shard) if isinstance(outcome, Contended) else confirmed.add(shard)
    if type(outcome) is dict:
        return known.note(shard, outcome["Attributes"], now_ms, made)
    if isinstance(outcome, ConditionFailed):
        old = known.shards.get(shard)
        seen = known.note(shard, outcome.item, now_ms)
        if old is not None and seen is not None and old.generation == seen.generation:
            known.note_contention(now_ms)
        return None
    if isinstance(outcome, Contended):
        return None
    assert isinstance(outcome, StoreTrouble)
    raise outcome


# --------------------------------------------------------------------------------------------------
# The usual take, spelled out: a bucket, or one of its shards, under the very terms of the demand.
#
# Why it exists: nearly every take is of this kind, and building its expression clause by clause and
# encoding it as JSON takes 16 us, this 3 us (one limit, orjson). The JSON of a write depends on
# its shape alone: which limits are taken from, which of them at the brim, and whether the item's
# end moves. So the body of a shape is written once, by the same UpdateExpression that makes the
# general write, with a %d for each number, and a take only fills in the numbers. A test holds it
# equal to `writes.take_update` for random states (test_fast_take).
#
# Where it takes of every limit, what it moved and the version tell all that may have changed under
# its generation, so the answer is asked to say no more than that: a fifth of the item.

TERMS_MAX = 1024
SHAPES_MAX = 64  # of each; many limits have more, but few of them at a time
LEAVE, TAKE, BRIM = 0, 1, 2

quoted = json.encoder.encode_basestring_ascii

# By the identity of terms, which an entry keeps alive: bodies by shape. None: not for this path.
_bodies: dict[int, tuple[Terms, dict[int, bytes] | None]] = {}


def fast_take_request(
    table: str, seen: ItemState, demand: Demand, now_ms: int, crowded: bool = False
) -> EncodedRequest | None:
    """The write; None where the take is not a usual one, or does not fit what was seen."""
    record, whole, _, shard, depth, generation, _, ttl_s, _, _ = seen
    terms, cascaded = demand.terms, demand.cascaded
    if (
        whole is not terms
        or (record[TERMS] is not terms and not depth)
        or (cascaded is not None and cascaded != demand.amounts)  # asked for both ways
        or (bodies := (_bodies.get(id(terms)) or _bodies_of(terms))[1]) is None
    ):
        return None
    shape = latest_ms = 0
    values = [generation, 1]
    at = CELLS
    for wanted, spec in zip(demand.amounts, record[TERMS].specs, strict=True):
        shape *= 3
        if wanted is not None:
            _, capacity, amount, period_ms, _, resets = spec
            epoch_ms, tokens = record[at], record[at + TOKENS]
            if resets is None:
                arrived = (now_ms - epoch_ms) * amount // period_ms
                full_ms = epoch_ms - (-(capacity + arrived) * period_ms // amount)
                below = 0
            else:
                arrived, full_ms, below = _window_of(spec, epoch_ms, tokens, now_ms)
            if not 0 < wanted <= capacity or wanted > tokens + arrived:
                return None
            full = capacity - arrived
            band = band_milli(capacity, amount, period_ms) if crowded else 0
            if band and tokens > full - band // 2 and wanted - arrived <= full - band:
                full -= band  # a band is a brim that is lower
            if tokens > full:
                shape += BRIM
                values += (full - wanted, full, wanted)
            else:
                shape += TAKE
                values += (-wanted, wanted - arrived, full - below, wanted)
            if full_ms > latest_ms:  # noqa: PLR1730 - max() costs a call
                latest_ms = full_ms
        at += STRIDE
    if not shape:
        return None
    shape *= 2
    # A take that is not by cascade pays for none of this; the comprehension would cost it a call.
    values += () if cascaded is None else [wanted for wanted in cascaded if wanted is not None]
    needed_s = MARGIN_S - (-latest_ms // 1000)
    if ttl_s is not None and ttl_s < needed_s:
        shape += 1
        values += (needed_s + MARGIN_S, needed_s + MARGIN_S)
    shape = shape if cascaded is None else ~shape
    body = bodies.get(shape) or _make_body(bodies, shape, terms)
    key = demand.key
    start = body_start(table, key.namespace, key.entity_id, key.resource, shard)
    return EncodedRequest("UpdateItem", start + body % (*values,))


def _window_of(spec: Spec, epoch_ms: int, tokens: int, now_ms: int) -> tuple[int, int, int]:
    """What a quota's resets have brought since the epoch, when it is full again whatever was taken,
    and how far below the brim a take may meet it. A session that is over is told as empty: to begin
    one is no usual take."""
    assert spec.resets is not None
    count = count_resets(spec.resets, epoch_ms, now_ms)
    arrived = count * spec.capacity_milli
    below = int(limit_moves.is_session(spec))
    end_ms = limit_moves.reset_end_ms(spec.resets, epoch_ms, count + 1)
    if end_ms is None or (below and tokens + arrived >= spec.capacity_milli):
        return -tokens, 0, 0
    return arrived, end_ms, below


def _bodies_of(terms: Terms) -> tuple[Terms, dict[int, bytes] | None]:
    if len(_bodies) >= TERMS_MAX:
        _bodies.clear()
    found = _bodies[id(terms)] = (terms, {} if is_plain(terms) else None)
    return found


def is_plain(terms: Terms) -> bool:
    """Whether every limit refills and refuses, and none is only remembered."""
    return terms.core is terms and all(
        (spec.amount_milli or spec.resets) and not spec.soft for spec in terms.specs
    )


def _make_body(bodies: dict[int, bytes], shape: int, terms: Terms) -> bytes:
    """The body after the key, as a template; a shape below 0 is that of a take by cascade."""
    by_cascade, place = shape < 0, shape
    if by_cascade:
        shape = ~shape
    draft = UpdateExpression()
    draft.equal(GENERATION, 0)
    draft.add(WRITTEN, 1)
    kinds = _kinds(shape // 2, len(terms.specs))
    for spec, kind in zip(terms.specs, kinds, strict=True):
        names = names_of(spec.name)
        if kind == BRIM:
            draft.set_number(names.tokens, 0)
            draft.above(names.tokens, 0)
        elif kind == TAKE:
            draft.add(names.tokens, 1)
            draft.between(names.tokens, 0, 0)
        if kind != LEAVE:
            draft.add(names.consumed, 1)
    if by_cascade:
        taken = [spec.name for spec, kind in zip(terms.specs, kinds, strict=True) if kind != LEAVE]
        expressions.count_cascaded(draft, dict.fromkeys(taken, 1))
    if shape % 2:
        draft.set_number(TTL, 0)
        draft.at_most(TTL, 0)
    told = "ALL_NEW"
    if LEAVE not in kinds:
        told = "UPDATED_NEW"
        draft.touch(VERSION)
    write = draft.write(("", ""))
    values = write.pop("ExpressionAttributeValues")
    del write["Key"]
    rest = json.dumps({**write, "ReturnValues": told}).replace("%", "%%")
    parts = [f'"{place}": {{"N": "%d"}}' for place in values]
    if told != "ALL_NEW":
        parts[-1] = parts[-1].replace("%d", "0")
    places = ", ".join(parts)
    if len(bodies) >= SHAPES_MAX:
        bodies.clear()
    body = f'{rest[1:-1]}, "ExpressionAttributeValues": {{{places}}}}}'.encode()
    bodies[place] = body
    return body


def _kinds(shape: int, count: int) -> list[int]:
    kinds = []
    for _ in range(count):
        shape, kind = divmod(shape, 3)
        kinds.append(kind)
    return kinds[::-1]


@functools.lru_cache(maxsize=16_384)
def body_start(table: str, namespace: str, entity_id: str, resource: str, shard: int) -> bytes:
    """A body as far as its key."""
    pk, sk = map(quoted, bucket_key(BucketKey(namespace, entity_id, resource), shard))
    key = f'{{"{PK}": {{"S": {pk}}}, "{SK}": {{"S": {sk}}}}}'
    return f'{{"TableName": {quoted(table)}, "Key": {key}, '.encode()
