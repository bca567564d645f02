"""The usual first take, spelled out: a bucket that nobody has used, under plain limits.

It makes the request that `expressions.creation` makes. All but the names and a few numbers is the
same for every bucket under the same terms, so it is made once, with places for those.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from headgate.core.decision import Demand
from headgate.core.record import BucketKey, Terms, opened
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.items import Value
from headgate.stores.dynamodb.client.port import Written
from headgate.stores.dynamodb.protocol.fast_take import is_plain, quoted, start_of
from headgate.stores.dynamodb.protocol.item import bucket_key, static_attributes
from headgate.stores.dynamodb.protocol.writes import MARGIN_S, creation
from headgate.stores.dynamodb.schema__layout import layout_of

TERMS_MAX = 1024
NUMBERS, NAMES = 2, 6  # that go first: epoch and generation; then, after a 1, the indexes' keys


class Opening(NamedTuple):
    """What all buckets under the same terms begin with; it keeps the terms alive."""

    terms: Terms
    layout: str
    body: bytes | None  # after the key, as a template; None where the limits are not plain


_openings: dict[int, Opening] = {}  # by the identity of terms


def opening_of(terms: Terms) -> Opening:
    found = _openings.get(id(terms))
    if found is None:
        if len(_openings) >= TERMS_MAX:
            _openings.clear()
        body = _template(terms) if terms.specs and is_plain(terms) else None
        found = _openings[id(terms)] = Opening(terms, layout_of(terms), body)
    return found


def usual_opening(table: str, demand: Demand, generation: int, now_ms: int) -> Written | None:
    """The write for a demand that fits a full bucket; None where it is not a usual one."""
    body = opening_of(demand.terms).body
    if body is None:
        return None
    numbers: list[int] = []
    latest_ms = now_ms
    for wanted, (_, capacity, amount, period_ms, _) in zip(
        demand.amounts, demand.terms.specs, strict=True
    ):
        debit = wanted or 0
        numbers += (capacity - debit, debit)
        latest_ms = max(latest_ms, now_ms - (-debit * period_ms // amount))
    key = demand.key
    namespace, entity_id, resource = key.namespace, key.entity_id, key.resource
    pk = bucket_key(key)[0]
    names = (
        schema.gsi2_pk_resource(namespace, resource),
        schema.gsi2_sk_bucket(entity_id, 0),
        schema.gsi3_pk_entity(namespace, entity_id),
        schema.gsi3_sk_bucket(resource, 0),
        schema.gsi4_pk(namespace),
        schema.gsi4_sk(pk),
    )
    filled = body % (
        now_ms,
        generation,
        *[quoted(name).encode() for name in names],
        *numbers,
        MARGIN_S - (-latest_ms // 1000),
    )
    return Written("UpdateItem", start_of(table, namespace, entity_id, resource) + filled)


def _template(terms: Terms) -> bytes:
    nobody = BucketKey("", "", "")
    draft = creation(nobody, opened(terms, 0), (None,) * len(terms.specs), 0, 0)
    write = draft.write(("", ""))
    values: dict[str, Value] = write.pop("ExpressionAttributeValues")
    del write["Key"]
    rest = json.dumps({**write, "ReturnValues": "ALL_NEW"}).replace("%", "%%")
    first_name = NUMBERS + 1
    first_rate = first_name + NAMES
    first_counter = NUMBERS + 1 + len(static_attributes(nobody, 0, terms, 0))
    parts = []
    for number, (place, value) in enumerate(values.items()):
        if number < NUMBERS or number >= first_counter:
            parts.append(f'"{place}": {{"N": "%d"}}')
        elif first_name <= number < first_rate:
            parts.append(f'"{place}": {{"S": %b}}')
        else:
            parts.append(f'"{place}": {json.dumps(value)}'.replace("%", "%%"))
    return f'{rest[1:-1]}, "ExpressionAttributeValues": {{{", ".join(parts)}}}}}'.encode()
