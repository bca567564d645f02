"""Parses stream records: changes of buckets, and audit events that have expired.

Lambda and the streams API differ a little in form; both are understood. All other records are
ignored, among them those of this program's own writes.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from headgate.core.errors import Damaged
from headgate.core.history import AuditEvent, add_counters, event_time_ms
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


NOTHING: Mapping[str, int] = {}
CASCADED = ("b_", "_cc")  # what the attribute begins and ends with; a limit's name is between


class ConsumptionState(NamedTuple):
    """`name` is empty where there is no bucket; `own` is what the item itself has consumed, and
    `cascaded` the part of that which came from children, of every limit it was ever counted for."""

    name: str
    writes: int
    own_milli: Mapping[str, int]
    cascaded_milli: Mapping[str, int] = NOTHING


class Amount(NamedTuple):
    """What was consumed, in millitokens by limit, and by how many writes; and the part of both that
    came by cascade."""

    counters_milli: dict[str, int]
    events: int
    cascaded_milli: Mapping[str, int] = NOTHING
    cascaded_events: int = 0

    def __bool__(self) -> bool:
        moved = (*self.counters_milli.values(), *self.cascaded_milli.values())
        return bool(self.events) or any(moved)


NO_STATE = ConsumptionState("", 0, {})


def state_of(item: Item) -> ConsumptionState:
    """The state an image shows; NO_STATE if the item is not a complete bucket yet."""
    if EPOCH not in item:
        return NO_STATE
    try:
        writes = number_of(item, WRITTEN)
        own = {name: _own_milli(item, name) for name in names_in(item[LAYOUT]["S"])}
        state = f"{int(item[GENERATION]['N'])}.{writes}"
        return ConsumptionState(state, writes, own, _cascaded_milli(item))
    except (KeyError, TypeError, ValueError) as error:
        raise unreadable_item("bucket", item, error) from error


def _own_milli(item: Item, limit: str) -> int:
    """What the item consumed itself, without what merged shards brought: that was counted there."""
    names = names_of(limit)
    return int(item[names.consumed]["N"]) - number_of(item, names.merged)


def _cascaded_milli(item: Item) -> Mapping[str, int]:
    """What came by cascade, whatever limits the item holds now: it may have been written by one
    that did not know of this counter, and left it behind with a limit it dropped."""
    stem, end = CASCADED
    return {
        name[len(stem) : -len(end)]: number_of(item, name)
        for name in item
        if name.startswith(stem) and name.endswith(end)
    }


def amount_between(before: ConsumptionState, after: ConsumptionState) -> Amount:
    """What one write consumed. A limit that is new begins at 0; one that was dropped, or a bucket
    that is gone, gives nothing back. A write that raised no consumption is no event, and one that
    raised none but by cascade is an event by cascade."""
    counters, cascaded = {}, {}
    for name, own in after.own_milli.items():
        if moved := own - before.own_milli.get(name, 0):
            counters[name] = moved
        if part := after.cascaded_milli.get(name, 0) - before.cascaded_milli.get(name, 0):
            cascaded[name] = part
    event = any(moved > 0 for moved in counters.values())
    asked = any(moved > cascaded.get(name, 0) for name, moved in counters.items())
    return Amount(counters, int(event), cascaded, int(event and not asked))


def sum_amounts(amounts: Iterable[Amount]) -> Amount:
    counters: dict[str, int] = {}
    cascaded: dict[str, int] = {}
    events = cascaded_events = 0
    for amount in amounts:
        events += amount.events
        cascaded_events += amount.cascaded_events
        add_counters(counters, amount.counters_milli)
        add_counters(cascaded, amount.cascaded_milli)
    return Amount(counters, events, cascaded, cascaded_events)


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
