"""Stream records as they come in, parsed at the door: changes of buckets, and expired audit events.

Lambda and the streams API tell the same in slightly different words; both are understood. All else
that happens in the table, this program's own writes among it, is none of its business.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, NamedTuple

from headgate.aws.aggregator.records__states import NOTHING, State, state_of
from headgate.core.errors import Damaged
from headgate.core.history import AuditEvent, event_time_ms
from headgate.core.record import BucketKey
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.items import Item
from headgate.stores.dynamodb.catalog.items__items_history import event_from_item

SEQUENCE_DIGITS_MAX = 40
EXPIRY = "dynamodb.amazonaws.com"  # who deletes what has expired


class Change(NamedTuple):
    """One write to one shard of a bucket: what it was before and after.

    `image` is the whole item after it; None where it is gone.
    """

    sequence: int
    at_ms: int
    key: BucketKey
    shard: int
    before: State
    after: State
    image: Item | None = None


class Expired(NamedTuple):
    """An audit event that has come to its end."""

    sequence: int
    namespace: str
    event: AuditEvent


def parsed(record: Mapping[str, Any]) -> Change | Expired | None:
    """What a record says; None where it is about something else, Damaged if it cannot be read."""
    try:
        body = record["dynamodb"]
        pk, sk = body["Keys"][schema.PK]["S"], body["Keys"][schema.SK]["S"]
        if sk == schema.STATE:
            return _change(record["eventName"], body, pk)
        if sk.startswith(schema.AUDIT) and _has_expired(record):
            return _expired(body, pk)
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
    """When a record that was read came into the stream."""
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
        NOTHING if old is None else state_of(old),
        NOTHING if new is None else state_of(new),
        new,
    )


def _expired(body: Mapping[str, Any], pk: str) -> Expired:
    event = event_from_item(body["OldImage"])
    event_time_ms(event)  # its day must be known
    return Expired(_sequence(body), pk.partition("/")[0], event)


def _has_expired(record: Mapping[str, Any]) -> bool:
    """Whether it is gone because its time was over, not because somebody deleted it."""
    who = record.get("userIdentity") or {}
    principal = who.get("principalId", who.get("PrincipalId"))
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
