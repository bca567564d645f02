"""Attribute values and items as immutable, hashable Python values; numbers are ints."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping
from typing import Any

Value = tuple[str, Any]  # its DynamoDB type and what it is: ("N", 12), ("S", "text")

DIGITS_MAX = 38
ORDERED = frozenset({"N", "S", "B"})


class Invalid(Exception):
    """The service would refuse the request as it is: ValidationException."""


class Unfit(Invalid):
    """The request is well, but not for the item it meets."""


def freeze(wire: Mapping[str, Any]) -> Value:
    """A value as it comes in a request."""
    if len(wire) != 1:
        raise Invalid("Supplied AttributeValue has more than one datatypes set")
    [(kind, found)] = wire.items()
    match kind:
        case "N":
            return kind, exact(int(found))
        case "S" | "BOOL" | "NULL":
            return kind, found
        case "B":
            return kind, base64.b64decode(found)
        case "L":
            return kind, tuple(freeze(part) for part in found)
        case _:
            raise NotImplementedError(f"the model has no values of type {kind}")


def thaw(value: Value) -> dict[str, Any]:
    """The value as it goes into a reply."""
    kind, found = value
    match kind:
        case "N":
            return {kind: str(found)}
        case "B":
            return {kind: base64.b64encode(found).decode()}
        case "L":
            return {kind: [thaw(part) for part in found]}
        case _:
            return {kind: found}


def exact(number: int) -> int:
    """The number, if DynamoDB can keep all of its digits."""
    if len(str(abs(number)).rstrip("0")) > DIGITS_MAX:
        raise Invalid("Attempting to store more than 38 significant digits in a Number")
    return number


def ordered(value: Value) -> Any:
    """What values of one type are sorted by: text by its UTF-8."""
    return value[1].encode() if value[0] == "S" else value[1]


class Row:
    """An item. It is never changed, so it is hashed once."""

    __slots__ = ("_hash", "values")

    def __init__(self, values: dict[str, Value]) -> None:
        self.values = values
        self._hash: int | None = None

    @classmethod
    def of(cls, wire: Mapping[str, Any]) -> Row:
        return cls({name: freeze(value) for name, value in wire.items()})

    def wire(self, kept: Collection[str] | None = None) -> dict[str, Any]:
        """As it goes into a reply: all of it, or the attributes that are kept."""
        return {
            name: thaw(value) for name, value in self.values.items() if kept is None or name in kept
        }

    def number(self, name: str, default: int = 0) -> int:
        value = self.values.get(name)
        return default if value is None else int(value[1])

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Row) and self.values == other.values)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self.values.items()))
        return self._hash

    def __repr__(self) -> str:
        return f"Row({ {name: value[1] for name, value in sorted(self.values.items())} })"
