"""What DynamoDB bills for a request, by its published rules, from the items before and after.

A write is a unit per kB of the larger of the item before and after it, also if its condition
failed, and twice that in a transaction, where a check alone counts as a write. Every index in which
the item's projection changes bills its own write; a changed index key is a deletion and a new
entry. A read is a unit per 4 kB, half of one where it may be eventually consistent; what is not
there is billed as the smallest item.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Item = dict[str, dict[str, Any]]

WRITE_BYTES, READ_BYTES = 1024, 4096


@dataclass(frozen=True, slots=True)
class Index:
    keys: frozenset[str]
    kept: frozenset[str] | None  # the attributes it holds; None for all

    def image(self, item: Item | None) -> Item | None:
        """The item as this index has it; None where it is not in it."""
        if item is None or not self.keys <= item.keys():
            return None
        if self.kept is None:
            return item
        return {name: value for name, value in item.items() if name in self.kept}

    def units(self, before: Item | None, after: Item | None) -> int:
        old, new = self.image(before), self.image(after)
        if old == new:
            return 0
        if old is None or new is None:
            return write_units(old or new)
        if any(old[name] != new[name] for name in self.keys):
            return write_units(old) + write_units(new)
        return max(write_units(old), write_units(new))


def indexes_of(described: dict[str, Any]) -> list[Index]:
    """The secondary indexes of a table, from what DescribeTable says of it."""
    table = described["Table"]
    of_table = {key["AttributeName"] for key in table["KeySchema"]}
    found = []
    for one in (
        *(table.get("GlobalSecondaryIndexes") or ()),
        *(table.get("LocalSecondaryIndexes") or ()),
    ):
        keys = frozenset(key["AttributeName"] for key in one["KeySchema"])
        kind = one["Projection"]["ProjectionType"]
        more = one["Projection"].get("NonKeyAttributes", ())
        found.append(Index(keys, None if kind == "ALL" else keys | of_table | set(more)))
    return found


def written(before: Item | None, after: Item | None, indexes: Iterable[Index], times: int) -> int:
    """`times` is 2 in a transaction, which the indexes take no part in."""
    own = max(write_units(before), write_units(after)) * times
    return own + sum(index.units(before, after) for index in indexes)


def write_units(item: Item | None) -> int:
    return max(1, -(-bytes_of(item) // WRITE_BYTES))


def read_units(size: int, *, consistent: bool) -> float:
    return max(1, -(-size // READ_BYTES)) * (1.0 if consistent else 0.5)


def bytes_of(item: Item | None) -> int:
    """Names and texts by their bytes, a number by its digits."""
    if item is None:
        return 0
    return sum(len(name.encode()) + _value_bytes(value) for name, value in item.items())


def _value_bytes(value: dict[str, Any]) -> int:
    [(kind, content)] = value.items()
    if kind == "N":
        digits = content.lstrip("-").strip("0.")
        return (len(digits) + 1) // 2 + 1 + content.startswith("-")
    if kind == "S":
        return len(content.encode())
    if kind == "B":
        return len(content) * 3 // 4
    if kind in ("SS", "NS", "BS"):
        return sum(_value_bytes({kind[0]: one}) for one in content)
    if kind == "M":
        return 3 + sum(1 + len(name.encode()) + _value_bytes(one) for name, one in content.items())
    if kind == "L":
        return 3 + sum(1 + _value_bytes(one) for one in content)
    return 1  # BOOL, NULL
