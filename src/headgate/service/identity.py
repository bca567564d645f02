"""Who is limited: (scope, identifier) as an entity id, injectively.

    entity id = scope ":" written identifier

A scope has no ':', so the first one ends it. An identifier is written as it is where every
character may stand in an entity id; any other character, and '@' itself, is written as '@' and two
hex digits per UTF-8 byte. What would be too long is written as '@@' and a digest. '@' followed by
neither is the service's own: nobody's identifier is written like that.
"""

from __future__ import annotations

import hashlib
import re

from headgate.names import ENTITY_LENGTH_MAX

SCOPE_LENGTH_MAX = 64
IDENTIFIER_LENGTH_MAX = 256

_SCOPE = re.compile(r"[a-zA-Z][a-zA-Z0-9_.\-]*")
_PLAIN = re.compile(r"[a-zA-Z0-9_.\-:]+")
_SPECIAL = re.compile(rb"[^a-zA-Z0-9_.\-:]")
_WRITTEN = re.compile(r"(?:[a-zA-Z0-9_.\-:]|@[0-9a-f]{2})+")
_BYTE = re.compile(r"@([0-9a-f]{2})")


def is_scope(text: object) -> bool:
    return (
        type(text) is str and len(text) <= SCOPE_LENGTH_MAX and _SCOPE.fullmatch(text) is not None
    )


def is_identifier(text: object) -> bool:
    """Whether it can name somebody: text of a bounded length without control characters."""
    return type(text) is str and 0 < len(text) <= IDENTIFIER_LENGTH_MAX and text.isprintable()


def entity_id_of(scope: str, identifier: str) -> str:
    """The entity id; different pairs never share one."""
    if len(identifier) <= 128 and _PLAIN.fullmatch(identifier) is not None:
        return f"{scope}:{identifier}"
    raw = identifier.encode()
    written = _SPECIAL.sub(lambda found: b"@%02x" % found.group()[0], raw).decode()
    if len(scope) + 1 + len(written) > ENTITY_LENGTH_MAX:
        written = "@@" + hashlib.sha256(raw).hexdigest()
    return f"{scope}:{written}"


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
