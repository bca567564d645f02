"""Keys of this process, for tests that need no file and no store."""

from __future__ import annotations

from headgate.service.keys.file import page_of, with_key, with_key_revoked
from headgate.service.keys.key import Key


class MemoryKeys:
    def __init__(self, keys: tuple[Key, ...] = ()) -> None:
        self._keys = {key.id: key for key in keys}

    async def get(self, key_id: str) -> Key | None:
        return self._keys.get(key_id)

    async def put(self, key: Key) -> None:
        self._keys = with_key(self._keys, key)

    async def revoke(self, key_id: str, principal: str | None, now_ms: int) -> bool:
        revoked = with_key_revoked(self._keys, key_id, principal, now_ms)
        self._keys = revoked or self._keys
        return revoked is not None

    async def list_keys(
        self, *, limit: int, cursor: str | None = None
    ) -> tuple[list[Key], str | None]:
        return page_of(self._keys, limit, cursor)
