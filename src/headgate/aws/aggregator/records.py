"""Parses stream records: changes of buckets, and audit events that have expired.

Lambda and the streams API differ a little in form; both are understood. All other records are
ignored, among them those of this program's own writes.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from headgate.core.errors import Damaged
from headgate.core.history import AuditEvent, event_time_ms
from headgate.core.record import BucketKey
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.items import Item, event_from_item, number_of, unreadable_item
from headgate.stores.dynamodb.protocol.item import EPOCH, GENERATION, LAYOUT, WRITTEN, names_of
from headgate.stores.dynamodb.schema import names_in

# --------------------------------------------------------------------------------------------------
# What a bucket's item says about consumption, and what one write adds to it.
#
# The generation and the count of writes together name a state: no two states under one key have the
# same name. So one change follows another directly if it begins with the state the other ended in.


class ConsumptionState(NamedTuple):
    """`name` is empty where there is no bucket; `own` is what the item itself has consumed."""

    name: str
    writes: int
    own_milli: Mapping[str, int]


class Amount(NamedTuple):
    """What was consumed, in millitokens by limit, and by how many writes."""

    counters_milli: dict[str, int]
    events: int

    def __bool__(self) -> bool:
        return bool(self.events) or any(self.counters_milli.values())


NO_STATE = ConsumptionState("", 0, {})


def state_of(item: Item) -> ConsumptionState:
    """The state an image shows; NO_STATE if the item is not a complete bucket yet."""
    if EPOCH not in item:
        return NO_STATE
    try:
        writes = number_of(item, WRITTEN)
        own = {name: _own_milli(item, name) for name in names_in(item[LAYOUT]["S"])}
        return ConsumptionState(f"{int(item[GENERATION]['N'])}.{writes}", writes, own)
    except (KeyError, TypeError, ValueError) as error:
        raise unreadable_item("bucket", item, error) from error


def _own_milli(item: Item, limit: str) -> int:
    """What the item consumed itself, without what merged shards brought: that was counted there."""
    names = names_of(limit)
    return int(item[names.consumed]["N"]) - number_of(item, names.merged)


def amount_between(before: ConsumptionState, after: ConsumptionState) -> Amount:
    """What one write consumed. A limit that is new begins at 0; one that was dropped, or a bucket
    that is gone, gives nothing back. A write that raised no consumption is no event."""
    counters = {}
    for name, own in after.own_milli.items():
        if moved := own - before.own_milli.get(name, 0):
            counters[name] = moved
    return Amount(counters, int(any(moved > 0 for moved in counters.values())))


def sum_amounts(amounts: Iterable[Amount]) -> Amount:
    counters: dict[str, int] = {}
    events = 0
    for amount in amounts:
        events += amount.events
        for name, milli in amount.counters_milli.items():
            counters[name] = counters.get(name, 0) + milli
    return Amount(counters, events)


SEQUENCE_DIGITS_MAX = 40
EXPIRY = "dynamodb.amazonaws.com"  # who deletes what has expired


class Change(NamedTuple):
    """One write to one shard of a bucket: what it was before and after."""

    sequence: int
    at_ms: int
    key: BucketKey
    shard: int
    before: ConsumptionState
    after: ConsumptionState


class ExpiredEvent(NamedTuple):
    """An audit event that DynamoDB has deleted because it expired."""

    sequence: int
    namespace: str
    event: AuditEvent


def parse_record(record: Mapping[str, Any]) -> Change | ExpiredEvent | None:
    """What a record says; None where it is about something else, Damaged if it cannot be read."""
    try:
        body = record["dynamodb"]
        pk, sk = body["Keys"][schema.PK]["S"], body["Keys"][schema.SK]["S"]
        if sk == schema.STATE:
            return _change(record["eventName"], body, pk)
        if sk.startswith(schema.AUDIT) and _has_expired(record):
            event = event_from_item(body["OldImage"])
            event_time_ms(event)  # its day must be known
            return ExpiredEvent(_sequence(body), pk.partition("/")[0], event)
        return None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Damaged(
            f"a stream record cannot be read ({error!r}); it was passed over: see what wrote the "
            f"item that it is about"
        ) from error


def sequence_text(record: object) -> str:
    """The record's number as the stream gave it; empty where it has none."""
    body = record.get("dynamodb") if isinstance(record, Mapping) else None
    found = body.get("SequenceNumber") if isinstance(body, Mapping) else None
    return found if isinstance(found, str) else ""


def record_time_ms(record: Mapping[str, Any]) -> int:
    """When a record was written to the stream."""
    return _time_ms(record["dynamodb"]["ApproximateCreationDateTime"])


def _change(name: str, body: Mapping[str, Any], pk: str) -> Change:
    place = schema.parse_bucket_pk(pk)
    old, new = body.get("OldImage"), body.get("NewImage")
    if (new is None) != (name == "REMOVE") or (old is None and name != "INSERT"):
        raise Damaged(
            f"a stream record of {name} lacks an image; the table's stream must be of the type "
            f"NEW_AND_OLD_IMAGES"
        )
    return Change(
        _sequence(body),
        _time_ms(body["ApproximateCreationDateTime"]),
        BucketKey(place.namespace, place.entity_id, place.resource),
        place.shard,
        NO_STATE if old is None else state_of(old),
        NO_STATE if new is None else state_of(new),
    )


def _has_expired(record: Mapping[str, Any]) -> bool:
    """Whether DynamoDB deleted it because it expired, rather than somebody else."""
    identity = record.get("userIdentity") or {}
    principal = identity.get("principalId", identity.get("PrincipalId"))
    return record["eventName"] == "REMOVE" and principal == EXPIRY


def _sequence(body: Mapping[str, Any]) -> int:
    text = body["SequenceNumber"]
    if not (text.isascii() and text.isdigit()) or len(text) > SEQUENCE_DIGITS_MAX:
        raise Damaged(f"a stream record has the sequence number {text[:60]!r}, which is none")
    return int(text)


def _time_ms(moment: Any) -> int:
    if isinstance(moment, datetime.datetime):
        return int(moment.timestamp() * 1000)
    return int(float(moment) * 1000)
