"""Who is asking and what they may do: callers, refusals, and how a caller is recognised."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from headgate.core.errors import HeadgateError, StoreDenied, ValidationError
from headgate.core.history import valid_principal
from headgate.core.plan import Cache
from headgate.core.runtime import Clock, wall_clock_ms
from headgate.service.decide.problems import (
    STORE_RETRY_MS,
    Code,
    ServiceError,
    not_found,
    storage_denied,
)
from headgate.service.keys.key import (
    ANY_NAMESPACE,
    Grant,
    Key,
    KeyScope,
    PresentedKey,
    parse_presented,
)
from headgate.service.leases.leases import Leases, lease_not_found

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

    def permit(self, namespace: str, entities: Callable[..., Iterable[str]], *request: Any) -> None:
        """Passes a caller who may check all that a request touches; AccessDenied else. `entities`
        tells their ids, and is asked only where they make a difference."""
        touched = (None,) if self.grant.entity_prefix is None else entities(*request)
        for entity_id in touched:
            refusal = self.refusal_for(KeyScope.CHECK, namespace, entity_id)
            if refusal is not None:
                raise AccessDenied(refusal)

    async def permit_lease(self, leases: Leases, lease_id: str, namespace: str) -> None:
        """Passes a caller who may change the lease: another's looks as if it were not there."""
        prefix = self.grant.entity_prefix
        entity_id = prefix  # a lease that holds nothing is nobody's
        if prefix is not None:
            entity_id = await leases.owner_of(lease_id) or prefix
        refusal = self.refusal_for(KeyScope.CHECK, namespace, entity_id)
        if refusal is not None:
            hidden = refusal.code is Code.NOT_FOUND
            raise AccessDenied(refusal, told=lease_not_found() if hidden else None)


class AccessDenied(ServiceError):
    """What a caller who was turned away is told: `told`, or what fits the refusal, which itself is
    for counters and the audit and not for the caller."""

    def __init__(
        self, refusal: Refusal, need: KeyScope = KeyScope.CHECK, told: ServiceError | None = None
    ) -> None:
        problem = told or _denial_problem(refusal.code, need)
        super().__init__(problem.code, problem.detail, retry_after_ms=problem.retry_after_ms)
        self.refusal = refusal


def _denial_problem(code: Code, need: KeyScope) -> ServiceError:
    if code is Code.NOT_FOUND:
        return not_found()
    if code is Code.FORBIDDEN:
        return ServiceError(code, f"the key needs the scope '{need}' for this")
    if code is Code.STORAGE_UNAVAILABLE:
        return ServiceError(
            code, "keys cannot be looked up now; try again", retry_after_ms=STORE_RETRY_MS
        )
    if code is Code.STORAGE_DENIED:
        return storage_denied()
    return ServiceError(code, "send a key as 'authorization: Bearer hg_…' or 'x-api-key: hg_…'")


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
    return ApiCaller(valid_principal(f"cert:{found[0]}"), table[found[0]])


def _normal(kind: str, name: str) -> str:
    """Host names are the same in any case; the other names are not."""
    return f"{kind}:{name.lower().rstrip('.') if kind == 'DNS' else name}"


# --------------------------------------------------------------------------------------------------
# Authentication: from a key, a client certificate or an address to a caller.
#
# Keys that were looked up are remembered for a while, so a revoked key may still open for `ttl_ms`,
# and no longer. Keys that do not exist are remembered apart from those that do: somebody who tries
# many cannot push the good ones out.

TTL_MS = 10_000
UNKNOWN_TTL_MS = 1_000  # a key that was tried a moment too early works a second later
KNOWN_MAX = 10_000
UNKNOWN_MAX = 10_000
NO_CERTIFICATES: Mapping[str, Grant] = {}

# An unknown id is compared with this, so that the answer takes as long as for a wrong secret.
_NO_DIGEST = "sha256:" + "0" * 64


class KeyStore(Protocol):
    """Keys at rest. Trouble of the engine below is raised as `StoreTrouble`."""

    async def get(self, key_id: str) -> Key | None: ...

    async def put(self, key: Key) -> None:
        """The key is kept; one with the same id is a ValidationError."""
        ...

    async def revoke(self, key_id: str, principal: str | None, now_ms: int) -> bool:
        """The key opens nothing any more, for good; False if there is none or it was so before.
        The record stays: audit events name it."""
        ...

    async def list_keys(
        self, *, limit: int, cursor: str | None = None
    ) -> tuple[list[Key], str | None]:
        """Keys in the order of their ids, and where to go on."""
        ...


class Authenticator:
    """Recognises callers for every wire. Without a store of keys it is dev mode: whoever calls
    from this machine may do everything, and nobody else anything."""

    def __init__(
        self,
        store: KeyStore | None,
        clock: Clock = wall_clock_ms,
        certificates: Callable[[], Mapping[str, Grant]] = lambda: NO_CERTIFICATES,
        *,
        ttl_ms: int = TTL_MS,
        known_max: int = KNOWN_MAX,
        unknown_max: int = UNKNOWN_MAX,
    ) -> None:
        """`certificates` gives the callers that may come with a certificate instead of a key."""
        self.store = store
        self._clock = clock
        self._certificates = certificates
        self._known: Cache[tuple[Key, ApiCaller]] = Cache(ttl_ms, known_max)
        self._unknown: Cache[bool] = Cache(min(ttl_ms, UNKNOWN_TTL_MS), unknown_max)

    @property
    def is_dev(self) -> bool:
        return self.store is None

    async def authenticate(
        self, key_text: str | None, *, sans: Sequence[str] = (), local: bool = False
    ) -> ApiCaller | Refusal:
        """Who sent a request, whatever they may do. A key that was sent decides alone, also when it
        is wrong. `sans` are the names in a client certificate that TLS has verified; `local` says
        that the peer is on this machine."""
        found = self.recognise(key_text, sans=sans, local=local)
        if found is not None:
            return found
        shown = parse_presented(key_text or "")
        assert shown is not None and self.store is not None  # noqa: PT018  # else it was told above
        try:
            return _verify(shown, await self._fetch(self.store, shown.id, self._clock()))
        except HeadgateError as error:  # whatever it is, nobody was recognised
            denied = isinstance(error, StoreDenied)
            reason = DenyReason.DENIED if denied else DenyReason.UNAVAILABLE
            return Refusal(reason, trouble=error)

    def recognise(
        self, key_text: str | None, *, sans: Sequence[str] = (), local: bool = False
    ) -> ApiCaller | Refusal | None:
        """The same without waiting; None where a key must be looked up."""
        if self.store is None:
            return DEV_CALLER if local else Refusal(DenyReason.NO_KEY)
        if key_text is None and sans:
            return caller_of(sans, self._certificates())
        if not key_text:
            return Refusal(DenyReason.NO_KEY)
        shown = parse_presented(key_text)
        if shown is None:
            return Refusal(DenyReason.MALFORMED)
        now_ms = self._clock()
        entry = self._known.get(shown.id, now_ms)
        if entry is None and self._unknown.get(shown.id, now_ms) is None:
            return None
        return _verify(shown, entry)

    def forget(self, key_id: str) -> None:
        """The next request with this key asks the store: for whoever has just changed the key."""
        self._known.drop(key_id)
        self._unknown.drop(key_id)

    async def _fetch(
        self, store: KeyStore, key_id: str, now_ms: int
    ) -> tuple[Key, ApiCaller] | None:
        key = await store.get(key_id)
        if key is None:
            self._unknown.put(key_id, True, now_ms)
            return None
        entry = (key, ApiCaller(f"key:{key.id}", key.grant))
        self._known.put(key_id, entry, now_ms)
        return entry


def _verify(shown: PresentedKey, entry: tuple[Key, ApiCaller] | None) -> ApiCaller | Refusal:
    same = hmac.compare_digest(shown.digest, _NO_DIGEST if entry is None else entry[0].digest)
    if entry is None:
        return Refusal(DenyReason.UNKNOWN)
    key, caller = entry
    if not same:
        return Refusal(DenyReason.WRONG_SECRET)
    return caller if key.revoked_ms is None else Refusal(DenyReason.REVOKED)
