"""An UpdateItem in the making: what is set, added and removed, and under which conditions."""

from __future__ import annotations

from typing import Any

from headgate.stores.dynamodb.items import Item, Key, Value, keyed, number
from headgate.stores.dynamodb.port import Request


class Draft:
    """Collects clauses; every attribute goes by a placeholder, so none is a reserved word."""

    __slots__ = ("_adds", "_conditions", "_names", "_places", "_removes", "_sets", "_values")

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._places: dict[str, str] = {}
        self._values: Item = {}
        self._sets: list[str] = []
        self._adds: list[str] = []
        self._removes: list[str] = []
        self._conditions: list[str] = []

    def set(self, name: str, value: Value) -> None:
        self._sets.append(f"{self._name(name)} = {self._value(value)}")

    def set_number(self, name: str, amount: int) -> None:
        self._sets.append(f"{self._name(name)} = {self._value(number(amount))}")

    def add(self, name: str, amount: int) -> None:
        if amount:
            self._adds.append(f"{self._name(name)} {self._value(number(amount))}")

    def remove(self, name: str) -> None:
        self._removes.append(self._name(name))

    def equal(self, name: str, amount: int) -> None:
        self._conditions.append(f"{self._name(name)} = {self._value(number(amount))}")

    def above(self, name: str, amount: int) -> None:
        self._conditions.append(f"{self._name(name)} > {self._value(number(amount))}")

    def below(self, name: str, amount: int) -> None:
        self._conditions.append(f"{self._name(name)} < {self._value(number(amount))}")

    def at_least(self, name: str, amount: int) -> None:
        self._conditions.append(f"{self._name(name)} >= {self._value(number(amount))}")

    def at_most(self, name: str, amount: int) -> None:
        self._conditions.append(f"{self._name(name)} <= {self._value(number(amount))}")

    def between(self, name: str, low: int, high: int) -> None:
        first, last = self._value(number(low)), self._value(number(high))
        self._conditions.append(f"{self._name(name)} BETWEEN {first} AND {last}")

    def absent(self, name: str) -> None:
        self._conditions.append(f"attribute_not_exists({self._name(name)})")

    def write(self, key: Key) -> dict[str, Any]:
        """The update, as UpdateItem and TransactWriteItems both take it."""
        clauses = (("SET", self._sets), ("ADD", self._adds), ("REMOVE", self._removes))
        return {
            "Key": keyed(key),
            "UpdateExpression": " ".join(
                f"{verb} {', '.join(parts)}" for verb, parts in clauses if parts
            ),
            "ConditionExpression": " AND ".join(self._conditions),
            "ExpressionAttributeNames": self._names,
            "ExpressionAttributeValues": self._values,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }

    def check(self, key: Key) -> dict[str, Any]:
        """The conditions alone, as a deletion takes them."""
        return {
            "Key": keyed(key),
            "ConditionExpression": " AND ".join(self._conditions),
            "ExpressionAttributeNames": self._names,
            "ExpressionAttributeValues": self._values,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }

    def request(self, table: str, key: Key, *, credit: bool = False) -> Request:
        """One write that answers with the whole item, whether it was done or not."""
        params = {"TableName": table, **self.write(key), "ReturnValues": "ALL_NEW"}
        return Request("UpdateItem", params, credit)

    def _name(self, attribute: str) -> str:
        place = self._places.get(attribute)
        if place is None:
            place = self._places[attribute] = f"#{len(self._places)}"
            self._names[place] = attribute
        return place

    def _value(self, value: Value) -> str:
        place = f":{len(self._values)}"
        self._values[place] = value
        return place
