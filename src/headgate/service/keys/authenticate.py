"""Authentication: from the text of a key to a caller, with a bounded memory of who was seen.

A revoked key opens nothing once its entry has expired: `ttl_ms` is the longest it can take. Keys
that do not exist are remembered apart from those that do, so that somebody who tries many cannot
push the good ones out.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence

from headgate.core.errors import HeadgateError, StoreDenied
from headgate.core.plan_cache import Cache
from headgate.core.runtime import Clock
from headgate.service.keys.access import DEV_CALLER, ApiCaller, DenyReason, Refusal, caller_of
from headgate.service.keys.key import Grant, Key, PresentedKey, parse_presented
from headgate.service.keys.stored import KeyStore

TTL_MS = 10_000
UNKNOWN_TTL_MS = 1_000  # a key that was tried a moment too early works a second later
KNOWN_MAX = 10_000
UNKNOWN_MAX = 10_000

_NO_DIGEST = "sha256:" + "0" * 64  # what an unknown id is compared with: the work is the same


class KeyAuthenticator:
    """Recognises callers. The clock is passed in and never steps back."""

    def __init__(
        self,
        store: KeyStore,
        clock: Clock,
        *,
        ttl_ms: int = TTL_MS,
        known_max: int = KNOWN_MAX,
        unknown_max: int = UNKNOWN_MAX,
    ) -> None:
        self.store = store
        self._clock = clock
        self._known: Cache[tuple[Key, ApiCaller]] = Cache(ttl_ms, known_max)
        self._unknown: Cache[bool] = Cache(min(ttl_ms, UNKNOWN_TTL_MS), unknown_max)

    async def authenticate(self, key_text: str | None) -> ApiCaller | Refusal:
        """Whose key it is, whatever they may do. A request that needs several things asks the
        caller about each."""
        if not key_text:
            return Refusal(DenyReason.NO_KEY)
        shown = parse_presented(key_text)
        if shown is None:
            return Refusal(DenyReason.MALFORMED)
        now_ms = self._clock()
        entry = self._known.get(shown.id, now_ms)
        if entry is None and self._unknown.get(shown.id, now_ms) is None:
            try:
                entry = await self._fetch(shown.id, now_ms)
            except HeadgateError as error:  # whatever it is, nobody was recognised
                denied = isinstance(error, StoreDenied)
                because = DenyReason.DENIED if denied else DenyReason.UNAVAILABLE
                return Refusal(because, trouble=error)
        return _verify(shown, entry)

    def forget(self, key_id: str) -> None:
        """The next request asks the store: for whoever has just changed a key."""
        self._known.drop(key_id)
        self._unknown.drop(key_id)

    async def _fetch(self, key_id: str, now_ms: int) -> tuple[Key, ApiCaller] | None:
        key = await self.store.get(key_id)
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


# --------------------------------------------------------------------------------------------------
# Who is calling, by key, by client certificate, or in dev mode by being here.

NO_CERTIFICATES: Mapping[str, Grant] = {}


class Authenticator:
    """Recognises callers for every wire. Without keys it is dev mode: whoever calls from this
    machine may do everything, and nobody else anything."""

    def __init__(
        self,
        authenticator: KeyAuthenticator | None,
        certificates: Callable[[], Mapping[str, Grant]] = lambda: NO_CERTIFICATES,
    ) -> None:
        self._authenticator = authenticator
        self._certificates = certificates

    @property
    def is_dev(self) -> bool:
        return self._authenticator is None

    @property
    def store(self) -> KeyStore | None:
        """Where keys are kept; None in dev mode."""
        return None if self._authenticator is None else self._authenticator.store

    async def authenticate(
        self, key_text: str | None, *, sans: Sequence[str] = (), local: bool = False
    ) -> ApiCaller | Refusal:
        """Whose request it is. A key that was sent decides alone, also when it is wrong; `sans`
        are the names in a client certificate that TLS has verified, `local` says that the peer
        is on this machine."""
        if self._authenticator is None:
            return DEV_CALLER if local else Refusal(DenyReason.NO_KEY)
        if key_text is None and sans:
            return caller_of(sans, self._certificates())
        return await self._authenticator.authenticate(key_text)

    def forget(self, key_id: str) -> None:
        """The next request with this key asks the store."""
        if self._authenticator is not None:
            self._authenticator.forget(key_id)
