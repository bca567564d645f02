"""Who may do what: a caller, a need, and the refusal where they do not fit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from headgate.core.errors import HeadgateError, ValidationError
from headgate.service.decide.problems import Code
from headgate.service.keys.key import ANY_NAMESPACE, Grant, KeyScope

# Keys kept in the store live in a namespace of their own, which no caller can name.
KEYS_NAMESPACE = "headgate.keys"


class DenyReason(StrEnum):
    """Why a caller was turned away: for logs and metrics, never for the caller."""

    NO_KEY = "no_key"
    MALFORMED = "malformed"
    UNKNOWN = "unknown"
    WRONG_SECRET = "wrong_secret"
    REVOKED = "revoked"
    NO_CERTIFICATE = "no_certificate"
    AMBIGUOUS_CERTIFICATE = "ambiguous_certificate"
    UNAVAILABLE = "unavailable"
    DENIED = "denied"  # to the service itself: the store does not let it read its keys
    NAMESPACE = "namespace"
    ENTITY = "entity"
    SCOPE = "scope"


_CODES = {
    DenyReason.UNAVAILABLE: Code.STORAGE_UNAVAILABLE,
    DenyReason.DENIED: Code.STORAGE_DENIED,
    DenyReason.NAMESPACE: Code.NOT_FOUND,  # what one may not see looks as if it were not there
    DenyReason.ENTITY: Code.NOT_FOUND,
    DenyReason.SCOPE: Code.FORBIDDEN,
}


class Denial(NamedTuple):
    """Somebody who was recognised and may not: who, what they would need, and where."""

    principal: str
    need: str
    namespace: str | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """`code` is what the caller is told: the same for a missing, unknown, wrong or revoked key.
    `denial` is there where the answer is 403, `trouble` where keys could not be looked up."""

    reason: DenyReason
    denial: Denial | None = field(default=None, compare=False)
    trouble: HeadgateError | None = field(default=None, compare=False)

    @property
    def code(self) -> Code:
        return _CODES.get(self.reason, Code.UNAUTHENTICATED)


@dataclass(frozen=True, slots=True)
class ApiCaller:
    """Somebody who was recognised; `principal` is what audit events name."""

    principal: str
    grant: Grant

    def refusal_for(
        self, need: KeyScope, namespace: str | None, entity_id: str | None
    ) -> Refusal | None:
        """Why this caller may not; None where they may.

        `namespace=None` is the service as a whole, `entity_id=None` a namespace as a whole: a
        grant that is bound to less does not reach it. Where is asked before what, so that the
        answer never tells that a foreign namespace exists.
        """
        grant = self.grant
        if namespace == KEYS_NAMESPACE or grant.namespace not in (ANY_NAMESPACE, namespace):
            return Refusal(DenyReason.NAMESPACE)
        if grant.entity_prefix is not None and (
            entity_id is None or not entity_id.startswith(grant.entity_prefix)
        ):
            return Refusal(DenyReason.ENTITY)
        if need in grant.scopes:
            return None
        return Refusal(DenyReason.SCOPE, Denial(self.principal, need, namespace))


# Without keys, on the loopback interface, in dev mode only: the server says so when it starts.
DEV_CALLER = ApiCaller("dev", Grant(frozenset(KeyScope), ANY_NAMESPACE))


# --------------------------------------------------------------------------------------------------
# Callers by client certificate: the subject alternative names of a peer that TLS has verified.

SANS_MAX = 64
SAN_LENGTH_MAX = 512
KINDS = ("DNS", "URI", "email", "IP")
_KIND_OF = {"DNS": "DNS", "URI": "URI", "email": "email", "IP Address": "IP"}


def sans_of(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Names like `DNS:checkout.internal` or `URI:spiffe://corp/checkout`, from what
    `SSLSocket.getpeercert()` gives. The subject's common name is not looked at."""
    found = (certificate or {}).get("subjectAltName", ())
    pairs = [(kind, name) for kind, name in found[:SANS_MAX] if kind in _KIND_OF]
    return tuple(_normal(_KIND_OF[kind], name) for kind, name in pairs)


def parse_san(text: object) -> str:
    """A name as a table of certificates holds it; exact, without wildcards."""
    kind, _, name = text.partition(":") if isinstance(text, str) else ("", "", "")
    if kind not in KINDS or not name or len(name) > SAN_LENGTH_MAX or "*" in name:
        raise ValidationError(
            "san", text,
            "must be DNS:name, URI:uri, email:address or IP:address, whole and without wildcards",
        )  # fmt: skip
    return _normal(kind, name)


def caller_of(sans: Iterable[str], table: Mapping[str, Grant]) -> ApiCaller | Refusal:
    """The caller whose name the table has. A certificate that fits two entries fits none: nobody
    can tell which of the two grants was meant."""
    found = [san for san in dict.fromkeys(sans) if san in table]
    if not found:
        return Refusal(DenyReason.NO_CERTIFICATE)
    if len(found) > 1:
        return Refusal(DenyReason.AMBIGUOUS_CERTIFICATE)
    return ApiCaller(f"cert:{found[0]}", table[found[0]])


def _normal(kind: str, name: str) -> str:
    """Host names are the same in any case; the other names are not."""
    return f"{kind}:{name.lower().rstrip('.') if kind == 'DNS' else name}"
