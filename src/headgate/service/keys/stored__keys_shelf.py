"""Where keys are kept: a small contract, and the shelf that lives in this process."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Protocol

from headgate.core.errors import ValidationError
from headgate.service.keys.key import Key

KEYS_MAX = 10_000
PAGE_MAX = 1000


class KeyShelf(Protocol):
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


class MemoryShelf:
    """Keys of this process; at most `keys_max`."""

    def __init__(self, keys: tuple[Key, ...] = (), *, keys_max: int = KEYS_MAX) -> None:
        self._keys = {key.id: key for key in keys}
        self._keys_max = keys_max
        self._lock = threading.Lock()

    async def get(self, key_id: str) -> Key | None:
        return self._keys.get(key_id)

    async def put(self, key: Key) -> None:
        with self._lock:
            self._keys = added(self._keys, key, self._keys_max)

    async def revoke(self, key_id: str, principal: str | None, now_ms: int) -> bool:
        with self._lock:
            revoked = revoked_in(self._keys, key_id, principal, now_ms)
            if revoked is None:
                return False
            self._keys = revoked
            return True

    async def list_keys(
        self, *, limit: int, cursor: str | None = None
    ) -> tuple[list[Key], str | None]:
        return page_of(self._keys, limit, cursor)


def added(keys: dict[str, Key], key: Key, keys_max: int) -> dict[str, Key]:
    """The keys with one more."""
    if key.id in keys:
        raise ValidationError("key id", key.id, "is taken; mint another key")
    if len(keys) >= keys_max:
        raise ValidationError("keys", len(keys), f"are as many as fit ({keys_max}); remove some")
    return {**keys, key.id: key}


def revoked_in(
    keys: dict[str, Key], key_id: str, principal: str | None, now_ms: int
) -> dict[str, Key] | None:
    """The keys with one of them revoked; None where that changes nothing."""
    key = keys.get(key_id)
    if key is None or key.revoked_ms is not None:
        return None
    return {**keys, key_id: replace(key, revoked_ms=now_ms, changed_by=principal)}


def page_of(keys: dict[str, Key], limit: int, cursor: str | None) -> tuple[list[Key], str | None]:
    limit = min(limit, PAGE_MAX)
    ids = sorted(key_id for key_id in keys if cursor is None or key_id > cursor)
    page = [keys[key_id] for key_id in ids[:limit]]
    return page, page[-1].id if len(ids) > limit and page else None
