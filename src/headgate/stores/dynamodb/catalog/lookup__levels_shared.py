"""Levels that every lookup brings along: an item that is as it was is not read again.

Entities without limits of their own get by on the resource's and the system's. Those items come
with every lookup and hardly ever change; comparing them costs less than reading them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headgate.core.levels__entities import Stored
from headgate.stores.dynamodb.catalog.items import LEVEL_VERSION, Item, Key, level_from_item
from headgate.stores.dynamodb.catalog.records import Head
from headgate.stores.dynamodb.catalog.records__catalog_recent import changes_in

LEVELS_MAX = 1024


class Home(NamedTuple):
    """What the system item says to a lookup."""

    item: Item
    version: int
    level: Stored | None
    changes: Mapping[Key, str]  # the last one of each key that the item tells of


_homes: dict[str, Home] = {}
_levels: dict[Key, tuple[Item, Stored | None]] = {}


def home_of(namespace: str, item: Item | None) -> Home:
    """The home of a namespace that may be used."""
    known = _homes.get(namespace)
    if known is not None and known.item == item:
        return known
    head = Head.of(namespace, item)
    level = level_from_item(head.item, LEVEL_VERSION)
    home = Home(head.item, head.version, level, changes_in(namespace, head.item))
    if len(_homes) >= LEVELS_MAX:
        _homes.clear()
    _homes[namespace] = home
    return home


def shared_level(key: Key, item: Item | None) -> Stored | None:
    """As `level_from_item`."""
    if item is None:
        return None
    known = _levels.get(key)
    if known is not None and known[0] == item:
        return known[1]
    stored = level_from_item(item)
    if len(_levels) >= LEVELS_MAX:
        _levels.clear()
    _levels[key] = (item, stored)
    return stored
