"""Telling a torn read: DynamoDB reads the items of a batch one after the other.

A version must never go with limits that are older than it, or a process would hold its old limits
against everybody's new ones for as long as it keeps them. So the system item, which counts the
version, also says which items the last changes touched. Whoever reads it together with others sees
whether one of them was read before its change, or after a change the count does not know yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.stores.dynamodb.catalog.items import CONFIG_VERSION, Item, Key, Value, number_of, text

RECENT = "recent"
TOUCHED_MAX = 16  # keys; that many changes do not happen while one batch is read

PUT, GONE = "+", "-"


def noted(system: Item, version: int, touched: Sequence[tuple[str, Key]]) -> Value:
    """The list after a change, newest last: where items were put and where they are gone."""
    known = list(system.get(RECENT, {}).get("L", []))
    added = [text(f"{sign}{version} {_short(key)}") for sign, key in touched]
    return {"L": (known + added)[-TOUCHED_MAX:]}


def changes_in(namespace: str, system: Item) -> dict[Key, str]:
    """The last change of each key that the system item tells of."""
    last: dict[Key, str] = {}
    for entry in system.get(RECENT, {}).get("L", []):
        change, pk, sk = entry["S"].split(" ", 2)
        last[f"{namespace}/{pk}", sk] = change
    return last


def is_torn(version: int, changes: Mapping[Key, str], found: Mapping[Key, Item | None]) -> bool:
    """Whether some item is not of the moment that the system item's version tells."""
    for key, item in found.items():
        if item is not None and number_of(item, CONFIG_VERSION) > version:
            return True
        if key in changes and _before(item, changes[key]):
            return True
    return False


def _before(item: Item | None, change: str) -> bool:
    """Whether an item was read before a change of it."""
    sign, changed_at = change[0], int(change[1:])
    return sign == PUT if item is None else number_of(item, CONFIG_VERSION) < changed_at


def _short(key: Key) -> str:
    """The key without its namespace, as one text; no PK holds a blank."""
    return f"{key[0].partition('/')[2]} {key[1]}"
