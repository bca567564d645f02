"""One field of a request each: what it must look like, and the error that says so.

Values are never repeated in an error: they may be huge, secret or hostile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.core.errors import ValidationError
from headgate.core.limits__names import parse_namespace, parse_resource
from headgate.service.decide.problems import invalid
from headgate.service.decide.targets__identity import (
    IDENTIFIER_LENGTH_MAX,
    SCOPE_LENGTH_MAX,
    is_identifier,
    is_scope,
)

METADATA_MAX = 16
METADATA_KEY_LENGTH_MAX = 64
METADATA_VALUE_LENGTH_MAX = 256
ENDPOINT_LENGTH_MAX = 256


def parse_object(
    values: object, known: frozenset[str], nullable: frozenset[str] = frozenset()
) -> Mapping[str, Any]:
    """An object with these fields. Null is a value only where a field is `nullable`: elsewhere a
    client that sends it means something that nobody can guess."""
    if not isinstance(values, Mapping):
        raise invalid("request", "must be an object")
    if not values.keys() <= known:
        unknown = min(str(name) for name in values.keys() - known)
        shown = unknown[:64] if unknown.isprintable() else "request"
        raise invalid(shown, f"is not a field here; there are {', '.join(sorted(known))}")
    if None in values.values():
        for name, value in values.items():
            if value is None and name not in nullable:
                raise invalid(name, "must not be null; leave it out instead")
    return values


def parse_list(values: object, field: str, most: int) -> list[Any] | tuple[Any, ...]:
    if not isinstance(values, (list, tuple)) or not 1 <= len(values) <= most:
        raise invalid(field, f"must be a list of 1 to {most} items")
    return values


def parse_scope(value: object) -> str:
    if not is_scope(value):
        raise invalid(
            "scope",
            f"must start with a letter and continue with letters, digits and _ . -, at most "
            f"{SCOPE_LENGTH_MAX}",
        )
    return value  # type: ignore[return-value]


def parse_identifier(value: object) -> str:
    if not is_identifier(value):
        raise invalid(
            "identifier",
            f"must be text of 1 to {IDENTIFIER_LENGTH_MAX} characters without control characters",
        )
    return value  # type: ignore[return-value]


def parse_resource_field(value: object) -> str:
    try:
        return parse_resource(value)
    except ValidationError as error:
        raise invalid("resource", error.reason) from None


def parse_namespace_field(value: object) -> str:
    try:
        return parse_namespace(value)
    except ValidationError as error:
        raise invalid("namespace", error.reason) from None


def parse_whole(value: object, field: str, least: int, most: int) -> int:
    """A whole number; not a bool, not a float, not a number in quotes."""
    if type(value) is not int or not least <= value <= most:
        raise invalid(field, f"must be a whole number from {least} to {most}")
    return value


def parse_flag(value: object, field: str) -> bool:
    if type(value) is not bool:
        raise invalid(field, "must be true or false")
    return value


def parse_endpoint(value: object) -> str | None:
    if value is None:
        return None
    if (
        type(value) is not str
        or not 0 < len(value) <= ENDPOINT_LENGTH_MAX
        or not value.isprintable()
    ):
        raise invalid("endpoint", f"must be text of 1 to {ENDPOINT_LENGTH_MAX} characters")
    return value


def parse_metadata(values: object) -> Mapping[str, str]:
    if values is None:
        return {}
    if not isinstance(values, Mapping) or len(values) > METADATA_MAX:
        raise invalid("metadata", f"must be an object of at most {METADATA_MAX} entries")
    for name, value in values.items():
        if type(name) is not str or not 0 < len(name) <= METADATA_KEY_LENGTH_MAX:
            raise invalid(
                "metadata", f"has a key of more than {METADATA_KEY_LENGTH_MAX} or of none"
            )
        if type(value) is not str or len(value) > METADATA_VALUE_LENGTH_MAX:
            raise invalid(
                "metadata", f"has a value that is not text of {METADATA_VALUE_LENGTH_MAX} at most"
            )
    return dict(values)
