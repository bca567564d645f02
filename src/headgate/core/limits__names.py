"""What names may look like; '#' is in none of them, so joining with '#' is injective."""

from __future__ import annotations

import re
import secrets

from headgate.core.errors import InvalidIdentifierError, InvalidNameError, ValidationError

ENTITY_LENGTH_MAX = 256
RESOURCE_LENGTH_MAX = 64
LIMIT_LENGTH_MAX = 64
NAMESPACE_LENGTH_MAX = 64
NAMESPACE_ID_LENGTH = 11

DEFAULT_RESOURCE = "_default_"
DEFAULT_NAMESPACE = "default"
RESERVED_LIMITS = frozenset({"wcu"})
SEPARATOR = "#"

_ENTITY = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-:@]*")
_RESOURCE = re.compile(r"[a-zA-Z][a-zA-Z0-9_.\-/:]*")
_LIMIT = re.compile(r"[a-zA-Z][a-zA-Z0-9_.\-]*")
_NAMESPACE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
_NAMESPACE_ID = re.compile(r"[a-zA-Z0-9_\-]{11}")


def parse_entity_id(text: object) -> str:
    return _parse(
        text,
        "entity_id",
        _ENTITY,
        ENTITY_LENGTH_MAX,
        InvalidIdentifierError,
        "must start with a letter or digit and continue with letters, digits and _ . - : @",
    )


def parse_resource(text: object) -> str:
    return _parse(
        text,
        "resource",
        _RESOURCE,
        RESOURCE_LENGTH_MAX,
        InvalidNameError,
        "must start with a letter and continue with letters, digits and _ . - / :",
    )


def parse_config_resource(text: object) -> str:
    """A resource, or `_default_`: the entity's limits for every resource."""
    return DEFAULT_RESOURCE if text == DEFAULT_RESOURCE else parse_resource(text)


def parse_limit_name(text: object) -> str:
    name = _parse(
        text,
        "limit name",
        _LIMIT,
        LIMIT_LENGTH_MAX,
        InvalidNameError,
        "must start with a letter and continue with letters, digits and _ . -",
    )
    if name in RESERVED_LIMITS:
        raise InvalidNameError("limit name", name, "is reserved for headgate; choose another name")
    return name


def parse_namespace(text: object) -> str:
    return _parse(
        text,
        "namespace",
        _NAMESPACE,
        NAMESPACE_LENGTH_MAX,
        InvalidIdentifierError,
        "must start with a letter or digit and continue with letters, digits and _ . -",
    )


def parse_namespace_id(text: object) -> str:
    return _parse(
        text,
        "namespace id",
        _NAMESPACE_ID,
        NAMESPACE_ID_LENGTH,
        InvalidIdentifierError,
        "must be the 11-character id that register_namespace returned",
    )


def new_namespace_id() -> str:
    """An opaque id: a name registered again after deletion never meets its old data. It does not
    begin as an option of a command does."""
    made = secrets.token_urlsafe(8)
    return "A" + made[1:] if made.startswith("-") else made


def _parse(
    text: object,
    field: str,
    pattern: re.Pattern[str],
    length_max: int,
    error: type[ValidationError],
    rule: str,
) -> str:
    if not isinstance(text, str):
        raise error(field, text, f"must be a str, not {type(text).__name__}")
    if not text:
        raise error(field, text, f"is empty; it {rule}")
    if len(text) > length_max:
        raise error(field, text, f"has {len(text)} characters; at most {length_max} are allowed")
    if pattern.fullmatch(text) is None:
        raise error(field, text, rule)
    return text
