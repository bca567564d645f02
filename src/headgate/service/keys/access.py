"""Who may do what: a caller, a need, and the refusal where they do not fit. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from headgate.core.errors import HeadgateError
from headgate.service.keys.key import ANY_NAMESPACE, Grant, Scope

# Keys kept in the store live in a namespace of their own, which no caller can name.
KEYS_NAMESPACE = "headgate.keys"


class Because(StrEnum):
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
    Because.UNAVAILABLE: "STORAGE_UNAVAILABLE",
    Because.DENIED: "STORAGE_DENIED",
    Because.NAMESPACE: "NOT_FOUND",  # what one may not see looks as if it were not there
    Because.ENTITY: "NOT_FOUND",
    Because.SCOPE: "FORBIDDEN",
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

    because: Because
    denial: Denial | None = field(default=None, compare=False)
    trouble: HeadgateError | None = field(default=None, compare=False)

    @property
    def code(self) -> str:
        return _CODES.get(self.because, "UNAUTHENTICATED")


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who was recognised; `principal` is what audit events name."""

    principal: str
    grant: Grant

    def refuses(self, need: Scope, namespace: str | None, entity_id: str | None) -> Refusal | None:
        """Why this caller may not; None where they may.

        `namespace=None` is the service as a whole, `entity_id=None` a namespace as a whole: a
        grant that is bound to less does not reach it. Where is asked before what, so that the
        answer never tells that a foreign namespace exists.
        """
        grant = self.grant
        if namespace == KEYS_NAMESPACE or grant.namespace not in (ANY_NAMESPACE, namespace):
            return Refusal(Because.NAMESPACE)
        if grant.entity_prefix is not None and (
            entity_id is None or not entity_id.startswith(grant.entity_prefix)
        ):
            return Refusal(Because.ENTITY)
        if need in grant.scopes:
            return None
        return Refusal(Because.SCOPE, Denial(self.principal, need, namespace))


# Without keys, on the loopback interface, in dev mode only: the server says so when it starts.
DEV_CALLER = Caller("dev", Grant(frozenset(Scope), ANY_NAMESPACE))
