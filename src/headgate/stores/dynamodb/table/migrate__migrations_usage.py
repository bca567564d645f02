"""Schema 0 to 1: usage rows get their window's type into the key.

Before, a row was `#USAGE#{resource}#{start}` with the type in the attribute `window`, so that the
hour, the day and the month that begin at the same moment shared one row. Its counters were whole
tokens, in attributes called as the limits are.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from headgate.core.bucket import MILLI
from headgate.core.errors import StoreTrouble
from headgate.core.history import WINDOW_TYPES, Usage, parse_time_ms
from headgate.core.limits__names import SEPARATOR
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.items import Item, key_of, unreadable
from headgate.stores.dynamodb.catalog.items__items_history import (
    EVENTS,
    TTL,
    usage_attributes,
    usage_counters,
    usage_key,
)
from headgate.stores.dynamodb.catalog.items__retention import USAGE_KEPT_MS
from headgate.stores.dynamodb.client.port import Request, TransactionCancelled
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.table import Changed, Table, contended

MOVES_AT_ONCE = 16
ATTEMPTS_MAX = 8


def usage_walk(table: str) -> Request:
    """Every usage row, of either shape."""
    return Request(
        "Scan",
        {
            "TableName": table,
            "ConsistentRead": True,
            "FilterExpression": "begins_with(#sk, :usage)",
            "ExpressionAttributeNames": {"#sk": schema.SK},
            "ExpressionAttributeValues": {":usage": {"S": schema.USAGE}},
        },
    )


async def move_usage(table: Table, items: Sequence[Item], dry_run: bool) -> int:
    """The rows among the items whose key lacks the type are under the key that has it."""
    old = [item for item in items if _is_old(item)]
    moves = [moving(item, table.port.now_ms()) for item in old]
    if dry_run:
        return len(old)
    for at in range(0, len(moves), MOVES_AT_ONCE):
        await _move(table, moves[at : at + MOVES_AT_ONCE])
    return len(old)


def moving(item: Item, now_ms: int) -> list[ask.Write]:
    """What the old row counted is added to the new one, and the old one is gone, in one step."""
    pk, sk = key_of(item)
    namespace, entity_id = pk.partition("/")[0], schema.entity_of_pk(pk)
    resource, start = sk.removeprefix(schema.USAGE).split(SEPARATOR)
    usage = _usage(item, start)
    row = ask.update(
        usage_key(namespace, entity_id, resource, usage),
        sets=usage_attributes(
            namespace, entity_id, resource, usage, now_ms, USAGE_KEPT_MS[usage.window_type]
        ),
        adds=usage_counters(usage),
    )
    return [row, ask.delete((pk, sk), ask.PRESENT)]


async def _move(table: Table, moves: Sequence[list[ask.Write]]) -> None:
    """All at once; what somebody else was in the way of is tried on its own."""
    requests = [ask.transaction(table.name, move, secrets.token_hex(16)) for move in moves]
    outcomes = await table.port.call_all(requests)
    for move, outcome in zip(moves, outcomes, strict=True):
        if isinstance(outcome, TransactionCancelled):
            await _move_alone(table, move)
        elif isinstance(outcome, StoreTrouble):
            raise outcome


async def _move_alone(table: Table, move: list[ask.Write]) -> None:
    old = key_of(move[1]["Delete"]["Key"])
    for attempt in range(ATTEMPTS_MAX):
        if await table.get(old) is None:
            return  # somebody else has moved it
        try:
            await table.transact(move)
            return
        except Changed:
            await table.pause(attempt)
    raise contended(ATTEMPTS_MAX)


def _is_old(item: Item) -> bool:
    return len(key_of(item)[1].removeprefix(schema.USAGE).split(SEPARATOR)) == 2


def _usage(item: Item, start: str) -> Usage:
    try:
        window_type = item["window"]["S"]
        start_ms = parse_time_ms("window_start", start)
        counters = {
            name: int(value["N"]) * MILLI
            for name, value in item.items()
            if "N" in value and name not in (EVENTS, TTL)
        }
        events = int(item[EVENTS]["N"])
        if window_type not in WINDOW_TYPES or start_ms is None:
            raise ValueError(f"window {window_type!r}")
    except (KeyError, ValueError) as error:
        raise unreadable("usage row", item, error) from error
    return Usage(window_type, start_ms, counters, events)
