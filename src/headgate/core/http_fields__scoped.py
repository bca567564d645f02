"""Whoever has a scope and an identifier as an entity id, injectively.

    entity id = scope ":" written identifier

A scope has no ':', so the first one ends it. An identifier is written as it is where every
character may stand in an entity id; any other character, and '@' itself, is written as '@' and two
hex digits per UTF-8 byte. What would be too long is written as '@@' and a digest.
"""

from __future__ import annotations

import hashlib
import re

from headgate.core.limits__names import ENTITY_LENGTH_MAX

_PLAIN = re.compile(r"[a-zA-Z0-9_.\-:]{1,128}")
_SPECIAL = re.compile(rb"[^a-zA-Z0-9_.\-:]")


def entity_id_of(scope: str, identifier: str) -> str:
    """The entity id; different pairs never share one."""
    if _PLAIN.fullmatch(identifier) is not None:
        return f"{scope}:{identifier}"
    raw = identifier.encode(errors="surrogatepass")
    written = _SPECIAL.sub(lambda found: b"@%02x" % found.group()[0], raw).decode()
    if len(scope) + 1 + len(written) > ENTITY_LENGTH_MAX:
        written = "@@" + hashlib.sha256(raw).hexdigest()
    return f"{scope}:{written}"
