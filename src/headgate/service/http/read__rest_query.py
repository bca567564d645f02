"""Query strings, read as strictly as bodies: known names, once each, of the right kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from headgate.service.decide.problems import invalid

QUERY_BYTES_MAX = 4096
FIELDS_MAX = 16
VALUE_LENGTH_MAX = 1024
WHOLE_DIGITS_MAX = 15

Kinds = Mapping[str, type]


def query_of(raw: bytes, kinds: Kinds) -> dict[str, Any]:
    """The values by name; ServiceError names the one that is wrong."""
    if not raw:
        return {}
    if len(raw) > QUERY_BYTES_MAX:
        raise invalid("query", f"may have {QUERY_BYTES_MAX} bytes")
    try:
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=FIELDS_MAX,
        )
    except ValueError:
        raise invalid("query", "must be name=value pairs joined by &, in UTF-8") from None
    found: dict[str, Any] = {}
    for name, text in pairs:
        if name not in kinds:
            known = ", ".join(kinds) or "none"
            raise invalid("query", f"has a name that is not known here; there are: {known}")
        if name in found:
            raise invalid(name, "is there twice; say it once")
        found[name] = _value(name, text, kinds[name])
    return found


def _value(name: str, text: str, kind: type) -> Any:
    if len(text) > VALUE_LENGTH_MAX or not text.isprintable():
        raise invalid(name, f"must be at most {VALUE_LENGTH_MAX} printable characters")
    if kind is str:
        return text
    if not (text.isascii() and text.isdigit()) or len(text) > WHOLE_DIGITS_MAX:
        raise invalid(name, "must be a whole number")
    return int(text)
