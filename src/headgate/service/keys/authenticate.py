"""The door: from the text of a key to a caller, with a bounded memory of who was seen.

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
from headgate.service.keys.access import DEV_CALLER, Because, Caller, Refusal, caller_of
from headgate.service.keys.key import Grant, Key, Presented, Scope, presented
from headgate.service.keys.stored import KeyShelf

TTL_MS = 10_000
UNKNOWN_TTL_MS = 1_000  # a key that was tried a moment too early works a second later
KNOWN_MAX = 10_000
UNKNOWN_MAX = 10_000

_NOBODY = "sha256:" + "0" * 64  # what an unknown id is compared with: the work is the same


class Door:
    """Recognises callers. The clock is passed in and never steps back."""

    def __init__(
        self,
        shelf: KeyShelf,
        clock: Clock,
        *,
        ttl_ms: int = TTL_MS,
        known_max: int = KNOWN_MAX,
        unknown_max: int = UNKNOWN_MAX,
    ) -> None:
        self.shelf = shelf
        self._clock = clock
        self._known: Cache[tuple[Key, Caller]] = Cache(ttl_ms, known_max)
        self._unknown: Cache[bool] = Cache(min(ttl_ms, UNKNOWN_TTL_MS), unknown_max)

    async def authorise(
        self,
        key_text: str | None,
        need: Scope,
        namespace: str | None,
        entity_id: str | None,
    ) -> Caller | Refusal:
        """Who it is if they may do this, or why not."""
        found = await self.recognise(key_text)
        if isinstance(found, Refusal):
            return found
        return found.refuses(need, namespace, entity_id) or found

    async def recognise(self, key_text: str | None) -> Caller | Refusal:
        """Whose key it is, whatever they may do. A request that needs several things asks the
        caller about each."""
        if not key_text:
            return Refusal(Because.NO_KEY)
        shown = presented(key_text)
        if shown is None:
            return Refusal(Because.MALFORMED)
        now_ms = self._clock()
        entry = self._known.get(shown.id, now_ms)
        if entry is None and self._unknown.get(shown.id, now_ms) is None:
            try:
                entry = await self._fetched(shown.id, now_ms)
            except HeadgateError as error:  # whatever it is, nobody was recognised
                denied = isinstance(error, StoreDenied)
                because = Because.DENIED if denied else Because.UNAVAILABLE
                return Refusal(because, trouble=error)
        return _recognised(shown, entry)

    def forget(self, key_id: str) -> None:
        """The next request asks the shelf: for whoever has just changed a key."""
        self._known.drop(key_id)
        self._unknown.drop(key_id)

    async def _fetched(self, key_id: str, now_ms: int) -> tuple[Key, Caller] | None:
        key = await self.shelf.get(key_id)
        if key is None:
            self._unknown.put(key_id, True, now_ms)
            return None
        entry = (key, Caller(f"key:{key.id}", key.grant))
        self._known.put(key_id, entry, now_ms)
        return entry


def _recognised(shown: Presented, entry: tuple[Key, Caller] | None) -> Caller | Refusal:
    same = hmac.compare_digest(shown.digest, _NOBODY if entry is None else entry[0].digest)
    if entry is None:
        return Refusal(Because.UNKNOWN)
    key, caller = entry
    if not same:
        return Refusal(Because.WRONG_SECRET)
    return caller if key.revoked_ms is None else Refusal(Because.REVOKED)


# --------------------------------------------------------------------------------------------------
# The entrance: who is calling, by key, by client certificate, or in dev mode by being here.

NO_CERTIFICATES: Mapping[str, Grant] = {}


class Entrance:
    """Recognises callers for every wire. Without a door it is dev mode: whoever calls from this
    machine may do everything, and nobody else anything."""

    def __init__(
        self,
        door: Door | None,
        certificates: Callable[[], Mapping[str, Grant]] = lambda: NO_CERTIFICATES,
    ) -> None:
        self._door = door
        self._certificates = certificates

    @property
    def dev(self) -> bool:
        return self._door is None

    @property
    def shelf(self) -> KeyShelf | None:
        """Where keys are kept; None in dev mode."""
        return None if self._door is None else self._door.shelf

    async def recognise(
        self, key_text: str | None, *, sans: Sequence[str] = (), local: bool = False
    ) -> Caller | Refusal:
        """Whose request it is. A key that was sent decides alone, also when it is wrong; `sans`
        are the names in a client certificate that TLS has verified, `local` says that the peer
        is on this machine."""
        if self._door is None:
            return DEV_CALLER if local else Refusal(Because.NO_KEY)
        if key_text is None and sans:
            return caller_of(sans, self._certificates())
        return await self._door.recognise(key_text)

    async def authorise(
        self,
        key_text: str | None,
        need: Scope,
        namespace: str | None,
        entity_id: str | None,
        *,
        sans: Sequence[str] = (),
        local: bool = False,
    ) -> Caller | Refusal:
        """Who it is if they may do this, or why not."""
        found = await self.recognise(key_text, sans=sans, local=local)
        if isinstance(found, Refusal):
            return found
        return found.refuses(need, namespace, entity_id) or found

    def forget(self, key_id: str) -> None:
        """The next request with this key asks the shelf."""
        if self._door is not None:
            self._door.forget(key_id)
