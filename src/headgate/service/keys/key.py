"""API keys: `hg_<id>_<secret>`, of which only the id and a digest of the secret are kept.

The secret is 256 random bits, so one SHA-256 protects it: there is no dictionary to try against
the digest, and a slow hash (bcrypt, argon2) would add its cost to every request and nothing else.
Those are for passwords, which people choose.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from headgate.core.errors import ValidationError
from headgate.core.history import parse_principal
from headgate.core.limits import parse_namespace

SECRET_BYTES = 32
ID_LENGTH = 12
KEY_LENGTH_MAX = 128
NAME_LENGTH_MAX = 64
PREFIX_LENGTH_MAX = 128
ANY_NAMESPACE = "*"
GRANT_FIELDS = ("scopes", "namespace", "entity_prefix")

ID_PATTERN = re.compile(r"[a-z0-9]{12}")
_KEY = re.compile(r"hg_(?P<id>[a-z0-9]{12})_(?P<secret>[A-Za-z0-9_\-]{43})")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
PREFIX_PATTERN = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-:@]*")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


class KeyScope(StrEnum):
    """What a key may do. Nothing implies anything else: what is not listed is not allowed."""

    CHECK = "check"
    READ = "read"
    ADMIN = "admin"


class PresentedKey(NamedTuple):
    """A key as a caller sent it, in parts; the secret only as its digest."""

    id: str
    digest: str


@dataclass(frozen=True, slots=True)
class Grant:
    """What somebody may do: which verbs, in which namespace ("*" is all), for which entities."""

    scopes: frozenset[KeyScope]
    namespace: str
    entity_prefix: str | None = None

    def as_json(self) -> dict[str, Any]:
        values = (sorted(self.scopes), self.namespace, self.entity_prefix)
        return dict(zip(GRANT_FIELDS, values, strict=True))


@dataclass(frozen=True, slots=True)
class Key:
    """A key at rest."""

    id: str
    digest: str = field(repr=False)
    grant: Grant
    name: str = ""
    created_ms: int = 0
    created_by: str | None = None
    changed_by: str | None = None  # the last principal who touched it
    revoked_ms: int | None = None

    def as_json(self) -> dict[str, Any]:
        """All there is to keep of it; `parse_grant` and the dataclass read it back."""
        return {
            "id": self.id,
            "digest": self.digest,
            "name": self.name,
            **self.grant.as_json(),
            "created_ms": self.created_ms,
            "created_by": self.created_by,
            "changed_by": self.changed_by,
            "revoked_ms": self.revoked_ms,
        }


class MintedKey(NamedTuple):
    """A new key and its only readable copy; `text` is shown once and kept nowhere."""

    key: Key
    text: str

    def __repr__(self) -> str:
        return f"MintedKey({self.key!r}, text=<secret>)"


def mint(grant: Grant, *, name: str = "", principal: str | None = None, now_ms: int) -> MintedKey:
    """A key nobody has had before."""
    parse_principal(principal)
    key_id = "".join(secrets.choice(_ALPHABET) for _ in range(ID_LENGTH))
    secret = secrets.token_urlsafe(SECRET_BYTES)
    digest = digest_of(key_id, secret)
    key = Key(key_id, digest, grant, parse_key_name(name), now_ms, principal, principal)
    return MintedKey(key, f"hg_{key_id}_{secret}")


def parse_presented(text: object) -> PresentedKey | None:
    """The parts of a key as sent; None where it cannot be one."""
    if not isinstance(text, str) or len(text) > KEY_LENGTH_MAX:
        return None
    found = _KEY.fullmatch(text)
    if found is None:
        return None
    return PresentedKey(found["id"], digest_of(found["id"], found["secret"]))


def digest_of(key_id: str, secret: str) -> str:
    """Bound to the id: a digest copied to another key fits nobody."""
    return "sha256:" + hashlib.sha256(f"hg_{key_id}_{secret}".encode()).hexdigest()


def parse_grant(scopes: object, namespace: object, entity_prefix: object = None) -> Grant:
    """A grant from words; what it says cannot be wider than what was written."""
    if isinstance(scopes, str) or not isinstance(scopes, (list, tuple, set, frozenset)):
        raise ValidationError("scopes", scopes, "must be a list of check, read and admin")
    unknown = [scope for scope in scopes if scope not in tuple(KeyScope)]
    if unknown or not scopes:
        raise ValidationError("scopes", scopes, "must be one or more of check, read and admin")
    name = namespace if namespace == ANY_NAMESPACE else parse_namespace(namespace)
    prefix = None if entity_prefix is None else parse_entity_prefix(entity_prefix)
    return Grant(frozenset(KeyScope(scope) for scope in scopes), str(name), prefix)


def parse_entity_prefix(text: object) -> str:
    if (
        not isinstance(text, str)
        or len(text) > PREFIX_LENGTH_MAX
        or not PREFIX_PATTERN.fullmatch(text)
    ):
        raise ValidationError(
            "entity_prefix", text,
            "must be the beginning of an entity id, such as 'team-a:' (end it with the separator, "
            f"or 'team-ab' fits as well), at most {PREFIX_LENGTH_MAX} characters",
        )  # fmt: skip
    return text


def parse_key_id(text: object) -> str:
    if not isinstance(text, str) or not ID_PATTERN.fullmatch(text):
        raise ValidationError(
            "key id", "<not shown>", "must be the 12 letters and digits after 'hg_' of the key"
        )
    return text


def parse_digest(text: object) -> str:
    if not isinstance(text, str) or not _DIGEST.fullmatch(text):
        raise ValidationError(
            "digest", "<not shown>", "must be 'sha256:' and 64 hexadecimal digits; never the secret"
        )
    return text


def parse_key_name(text: object) -> str:
    if not isinstance(text, str) or len(text) > NAME_LENGTH_MAX or not text.isprintable():
        raise ValidationError(
            "name", "<not shown>", f"must be at most {NAME_LENGTH_MAX} printable characters"
        )
    if "hg_" in text and _KEY.search(text):
        raise ValidationError("name", "<not shown>", "holds a key; give it a name for people")
    return text
