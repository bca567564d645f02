"""The usual take, spelled out: a bucket, or one of its shards, under the very terms of the demand.

It makes the write that `expressions.taking` makes, without the steps between: the text of a write
depends on its shape alone, so the body of a shape is made once, with places for its numbers.

Where it takes of every limit, what it moved and the version tell all that may have changed under
its generation, so the answer is asked to say no more than that: a fifth of the item.
"""

from __future__ import annotations

import functools
import json

from headgate.core.decision import Demand
from headgate.core.record import CELLS, STRIDE, TERMS, TOKENS, BucketKey, Terms
from headgate.stores.dynamodb.catalog.items import TTL
from headgate.stores.dynamodb.client.calls import EncodedRequest
from headgate.stores.dynamodb.protocol.item import (
    GENERATION,
    VERSION,
    WRITTEN,
    ItemState,
    bucket_key,
    names_of,
)
from headgate.stores.dynamodb.protocol.limit_moves import band_milli
from headgate.stores.dynamodb.protocol.update_expression import UpdateExpression
from headgate.stores.dynamodb.protocol.writes import MARGIN_S
from headgate.stores.dynamodb.schema import PK, SK

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
    terms = demand.terms
    if whole is not terms or (record[TERMS] is not terms and not depth):
        return None
    _, bodies = _bodies.get(id(terms)) or _bodies_of(terms)
    if bodies is None:
        return None
    shape = latest_ms = 0
    values = [generation, 1]
    at = CELLS
    for wanted, (_, capacity, amount, period_ms, _) in zip(
        demand.amounts, record[TERMS].specs, strict=True
    ):
        shape *= 3
        if wanted is not None:
            epoch_ms, tokens = record[at], record[at + TOKENS]
            arrived = (now_ms - epoch_ms) * amount // period_ms
            if not 0 < wanted <= capacity or wanted > tokens + arrived:
                return None
            full = capacity - arrived
            band = band_milli(capacity, amount, period_ms) if crowded else 0
            if band and tokens > full - band // 2 and wanted - arrived <= full - band:
                full -= band  # a band is a brim that is lower
                shape += BRIM
                values += (full - wanted, full, wanted)
            elif tokens > full:
                shape += BRIM
                values += (full - wanted, full, wanted)
            else:
                shape += TAKE
                values += (-wanted, wanted - arrived, full, wanted)
            full_ms = epoch_ms - (-(capacity + arrived) * period_ms // amount)
            if full_ms > latest_ms:  # noqa: PLR1730 - max() costs a call
                latest_ms = full_ms
        at += STRIDE
    if not shape:
        return None
    shape *= 2
    if ttl_s is not None:
        needed_s = MARGIN_S - (-latest_ms // 1000)
        if ttl_s < needed_s:
            shape += 1
            values += (needed_s + MARGIN_S, needed_s + MARGIN_S)
    body = bodies.get(shape) or _make_body(bodies, shape, terms)
    key = demand.key
    start = body_start(table, key.namespace, key.entity_id, key.resource, shard)
    return EncodedRequest("UpdateItem", start + body % (*values,))


def _bodies_of(terms: Terms) -> tuple[Terms, dict[int, bytes] | None]:
    if len(_bodies) >= TERMS_MAX:
        _bodies.clear()
    found = _bodies[id(terms)] = (terms, {} if is_plain(terms) else None)
    return found


def is_plain(terms: Terms) -> bool:
    """Whether every limit refills and refuses, and none is only remembered."""
    return terms.core is terms and all(spec.amount_milli and not spec.soft for spec in terms.specs)


def _make_body(bodies: dict[int, bytes], shape: int, terms: Terms) -> bytes:
    """The body after the key, as a template."""
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
    bodies[shape] = body
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
