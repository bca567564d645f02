"""What a bucket's item says of consumption, and what one write to it adds.

The generation and the count of writes name a state: no two states of the items under one key share
them. So one change is known to follow another where it begins with the state that ended in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headgate.stores.dynamodb.catalog.items import Item, number_of, unreadable
from headgate.stores.dynamodb.protocol.item import EPOCH, GENERATION, LAYOUT, WRITTEN, names_of
from headgate.stores.dynamodb.schema__layout import names_in


class State(NamedTuple):
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


NOTHING = State("", 0, {})


def state_of(item: Item) -> State:
    """The state an image shows; part of an item that nobody has made a bucket yet is nothing."""
    if EPOCH not in item:
        return NOTHING
    try:
        writes = number_of(item, WRITTEN)
        own = {name: _own_milli(item, name) for name in names_in(item[LAYOUT]["S"])}
        return State(f"{int(item[GENERATION]['N'])}.{writes}", writes, own)
    except (KeyError, TypeError, ValueError) as error:
        raise unreadable("bucket", item, error) from error


def _own_milli(item: Item, limit: str) -> int:
    """Without what came along with shards that were merged into it: that was counted there."""
    names = names_of(limit)
    return int(item[names.consumed]["N"]) - number_of(item, names.merged)


def amount_between(before: State, after: State) -> Amount:
    """What one write consumed. A limit that is new begins at 0; one that was dropped, or a bucket
    that is gone, gives nothing back. A write that raised no consumption is no event."""
    counters = {}
    for name, own in after.own_milli.items():
        if moved := own - before.own_milli.get(name, 0):
            counters[name] = moved
    return Amount(counters, int(any(moved > 0 for moved in counters.values())))


def together(amounts: Iterable[Amount]) -> Amount:
    counters: dict[str, int] = {}
    events = 0
    for amount in amounts:
        events += amount.events
        for name, milli in amount.counters_milli.items():
            counters[name] = counters.get(name, 0) + milli
    return Amount(counters, events)
