"""Who is limited: which scopes and identifiers there can be, and the entity ids they make.

`headgate.core.http_fields__scoped` writes them. '@' followed by neither two hex digits nor another '@' is the
service's own: nobody's identifier is written like that.
"""

from __future__ import annotations

import re

from headgate.core.http_fields__scoped import entity_id_of

__all__ = ["entity_id_of", "identity_of", "is_identifier", "is_scope", "shared_entity_id"]

SCOPE_LENGTH_MAX = 64
IDENTIFIER_LENGTH_MAX = 256

_SCOPE = re.compile(r"[a-zA-Z][a-zA-Z0-9_.\-]*")
_WRITTEN = re.compile(r"(?:[a-zA-Z0-9_.\-:]|@[0-9a-f]{2})+")
_BYTE = re.compile(r"@([0-9a-f]{2})")


def is_scope(text: object) -> bool:
    return (
        type(text) is str and len(text) <= SCOPE_LENGTH_MAX and _SCOPE.fullmatch(text) is not None
    )


def is_identifier(text: object) -> bool:
    """Whether it can name somebody: text of a bounded length without control characters."""
    return type(text) is str and 0 < len(text) <= IDENTIFIER_LENGTH_MAX and text.isprintable()


def shared_entity_id(scope: str) -> str:
    """The bucket of everybody in the scope who has none of their own."""
    return f"{scope}:@shared"


def identity_of(entity_id: str) -> tuple[str, str] | None:
    """The scope and identifier an entity id was made of; None where it does not tell."""
    scope, colon, written = entity_id.partition(":")
    if not colon or not is_scope(scope) or _WRITTEN.fullmatch(written) is None:
        return None
    text = _BYTE.sub(lambda found: chr(int(found[1], 16)), written)
    try:
        identifier = text.encode("latin-1").decode()
    except UnicodeDecodeError:
        return None
    return (scope, identifier) if entity_id_of(scope, identifier) == entity_id else None
