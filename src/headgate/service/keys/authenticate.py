"""Authentication: from a key, a client certificate or an address to a caller.

Keys that were looked up are remembered for a while, so a revoked key may still open for `ttl_ms`,
and no longer. Keys that do not exist are remembered apart from those that do: somebody who tries
many cannot push the good ones out.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence

from headgate.core.errors import HeadgateError, StoreDenied
from headgate.core.plan_cache import Cache
from headgate.core.runtime import Clock, wall_clock_ms
from headgate.service.keys.access import DEV_CALLER, ApiCaller, DenyReason, Refusal, caller_of
from headgate.service.keys.key import Grant, Key, PresentedKey, parse_presented
from headgate.service.keys.stored import KeyStore

TTL_MS = 10_000
UNKNOWN_TTL_MS = 1_000  # a key that was tried a moment too early works a second later
KNOWN_MAX = 10_000
UNKNOWN_MAX = 10_000
NO_CERTIFICATES: Mapping[str, Grant] = {}

# An unknown id is compared with this, so that the answer takes as long as for a wrong secret.
_NO_DIGEST = "sha256:" + "0" * 64


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
            try:
                entry = await self._fetch(self.store, shown.id, now_ms)
            except HeadgateError as error:  # whatever it is, nobody was recognised
                denied = isinstance(error, StoreDenied)
                reason = DenyReason.DENIED if denied else DenyReason.UNAVAILABLE
                return Refusal(reason, trouble=error)
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
