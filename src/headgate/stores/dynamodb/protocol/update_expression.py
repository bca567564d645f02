"""An UpdateItem in the making: what is set, added and removed, and under which conditions.

The texts of a write depend on its shape alone: which clauses there are, on which attributes. So a
draft keeps the shape apart from the values, and a text is made once per shape.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from headgate.stores.dynamodb.catalog.items import Key, Value, key_attributes, number
from headgate.stores.dynamodb.client.calls import DynamoRequest

SHAPES_MAX = 2048

Part = tuple[str, str]  # a form and the attribute it is about


class ClauseForm(NamedTuple):
    """Which clause a part goes to, its text with the attribute's place first, and its values."""

    clause: str
    text: str
    values: int


FORMS = {
    "set": ClauseForm("SET", "{} = {}", 1),
    "add": ClauseForm("ADD", "{} {}", 1),
    "remove": ClauseForm("REMOVE", "{}", 0),
    "equal": ClauseForm("IF", "{} = {}", 1),
    "above": ClauseForm("IF", "{} > {}", 1),
    "below": ClauseForm("IF", "{} < {}", 1),
    "at_least": ClauseForm("IF", "{} >= {}", 1),
    "at_most": ClauseForm("IF", "{} <= {}", 1),
    "between": ClauseForm("IF", "{} BETWEEN {} AND {}", 2),
    "absent": ClauseForm("IF", "attribute_not_exists({})", 0),
    "set_once": ClauseForm("SET", "{0} = if_not_exists({0}, {1})", 1),
    "absent_or_begins": ClauseForm("IF", "(attribute_not_exists({0}) OR begins_with({0}, {1}))", 1),
}


class ExpressionTexts(NamedTuple):
    """What a shape is written as. `names` is shared by all drafts of that shape."""

    update: str
    condition: str
    names: dict[str, str]
    places: tuple[str, ...]  # of the values, in the order of the draft


class UpdateExpression:
    """Collects clauses; every attribute goes by a placeholder, so none is a reserved word."""

    __slots__ = ("_parts", "_values")

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._values: list[Value] = []

    def _put(self, form: str, name: str, *values: Value) -> None:
        self._parts.append((form, name))
        self._values += values

    def set(self, name: str, value: Value) -> None:
        self._put("set", name, value)

    def set_number(self, name: str, amount: int) -> None:
        self._put("set", name, number(amount))

    def set_once(self, name: str, value: Value) -> None:
        self._put("set_once", name, value)

    def add(self, name: str, amount: int) -> None:
        if amount:
            self._put("add", name, number(amount))

    def touch(self, name: str) -> None:
        """Leaves it as it is, and has an answer of what was moved tell it."""
        self._put("add", name, number(0))

    def remove(self, name: str) -> None:
        self._put("remove", name)

    def equal(self, name: str, amount: int) -> None:
        self._put("equal", name, number(amount))

    def same(self, name: str, value: Value) -> None:
        self._put("equal", name, value)

    def above(self, name: str, amount: int) -> None:
        self._put("above", name, number(amount))

    def below(self, name: str, amount: int) -> None:
        self._put("below", name, number(amount))

    def at_least(self, name: str, amount: int) -> None:
        self._put("at_least", name, number(amount))

    def at_most(self, name: str, amount: int) -> None:
        self._put("at_most", name, number(amount))

    def between(self, name: str, low: int, high: int) -> None:
        self._put("between", name, number(low), number(high))

    def absent(self, name: str) -> None:
        self._put("absent", name)

    def absent_or_begins(self, name: str, prefix: Value) -> None:
        self._put("absent_or_begins", name, prefix)

    def write(self, key: Key) -> dict[str, Any]:
        """The update, as UpdateItem and TransactWriteItems both take it."""
        return {**self.check(key), "UpdateExpression": texts_of(tuple(self._parts)).update}

    def check(self, key: Key) -> dict[str, Any]:
        """The conditions alone, as a deletion takes them."""
        texts = texts_of(tuple(self._parts))
        return {
            "Key": key_attributes(key),
            "ConditionExpression": texts.condition,
            "ExpressionAttributeNames": texts.names,
            "ExpressionAttributeValues": dict(zip(texts.places, self._values, strict=True)),
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }

    def request(self, table: str, key: Key, *, credit: bool = False) -> DynamoRequest:
        """One write that answers with the whole item, whether it was done or not."""
        params = {"TableName": table, **self.write(key), "ReturnValues": "ALL_NEW"}
        return DynamoRequest("UpdateItem", params, credit)


@functools.lru_cache(maxsize=SHAPES_MAX)
def texts_of(parts: tuple[Part, ...]) -> ExpressionTexts:
    names: dict[str, str] = {}
    places: list[str] = []
    clauses: dict[str, list[str]] = {"SET": [], "ADD": [], "REMOVE": [], "IF": []}
    for kind, attribute in parts:
        form = FORMS[kind]
        name = names.setdefault(attribute, f"#{len(names)}")
        values = [f":{len(places) + offset}" for offset in range(form.values)]
        places += values
        clauses[form.clause].append(form.text.format(name, *values))
    conditions = clauses.pop("IF")
    return ExpressionTexts(
        " ".join(f"{verb} {', '.join(texts)}" for verb, texts in clauses.items() if texts),
        " AND ".join(conditions),
        {place: attribute for attribute, place in names.items()},
        tuple(places),
    )
