"""Structured header fields (RFC 9651), as far as rate-limit fields need them.

A field that does not parse to its end is ignored as a whole, as the RFC has it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

FIELD_LENGTH_MAX = 4096
MEMBERS_MAX = 32
PARAMETERS_MAX = 16

_BARE = (
    r'"(?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*"'
    r"|-?[0-9]{1,15}(?:\.[0-9]{1,3})?"
    r"|:[A-Za-z0-9+/=]*:"
    r"|\?[01]"
    r"|[A-Za-z*][A-Za-z0-9!#$%&'*+\-.^_`|~:/]*"
)
_KEY = r"[a-z*][a-z0-9_\-.*]*"
_NAMED = re.compile(rf"({_KEY})=({_BARE})")
_VALUE = re.compile(rf"({_BARE})")
_PARAMETER = re.compile(rf"; *({_KEY})(?:=({_BARE}))?")
_ESCAPED = re.compile(r"\\(.)")
_COMMA = re.compile(r"[ \t]*,[ \t]*")


class Member(NamedTuple):
    """One member of a list or dictionary; `key` is None in a list."""

    key: str | None
    value: str
    parameters: dict[str, str]


def members(text: str | None) -> list[Member]:
    """The members of a list or dictionary in order, values as text; none where it does not
    parse."""
    if text is None or len(text) > FIELD_LENGTH_MAX:
        return []
    text = text.strip(" ")
    found: list[Member] = []
    at = 0
    while at < len(text) and len(found) < MEMBERS_MAX:
        member, at = _member(text, at)
        if member is None:
            return []
        found.append(member)
        if at == len(text):
            return found
        comma = _COMMA.match(text, at)
        if comma is None or comma.end() == len(text):
            return []
        at = comma.end()
    return found


def _member(text: str, at: int) -> tuple[Member | None, int]:
    named = _NAMED.match(text, at)
    plain = None if named else _VALUE.match(text, at)
    if named is not None:
        key, value, at = named[1], named[2], named.end()
    elif plain is not None:
        key, value, at = None, plain[1], plain.end()
    else:
        return None, at
    parameters: dict[str, str] = {}
    while (found := _PARAMETER.match(text, at)) and len(parameters) < PARAMETERS_MAX:
        parameters[found[1]] = _unquoted(found[2] or "?1")
        at = found.end()
    return Member(key, _unquoted(value), parameters), at


def _unquoted(value: str) -> str:
    if not value.startswith('"'):
        return value
    return _ESCAPED.sub(r"\1", value[1:-1])
