"""Keys of this process, for tests that need no file and no store."""

from __future__ import annotations

from dataclasses import replace

from headgate.service.keys.key import Key, MintedKey, mint, parse_grant


class MemoryKeys:
    """Counts how often it is asked for a key, and raises its trouble while it has one."""

    asked = 0
    trouble: Exception | None = None

    def __init__(self, keys: tuple[Key, ...] = ()) -> None:
        self._keys = {key.id: key for key in keys}

    async def get(self, key_id: str) -> Key | None:
        self.asked += 1
        if self.trouble is not None:
            raise self.trouble
        return self._keys.get(key_id)

    async def put(self, key: Key) -> None:
        self._keys[key.id] = key

    async def revoke(self, key_id: str, principal: str | None, now_ms: int) -> bool:
        key = self._keys.get(key_id)
        if key is None or key.revoked_ms is not None:
            return False
        self._keys[key_id] = replace(key, revoked_ms=now_ms, changed_by=principal)
        return True

    async def list_keys(
        self, *, limit: int, cursor: str | None = None
    ) -> tuple[list[Key], str | None]:
        rest = [key for _, key in sorted(self._keys.items()) if cursor is None or key.id > cursor]
        return rest[:limit], rest[limit - 1].id if len(rest) > limit else None


def minted(*scopes: str, namespace: str = "default", prefix: str | None = None) -> MintedKey:
    """A new key with these scopes, for the entities whose ids begin like the prefix."""
    return mint(parse_grant(scopes, namespace, prefix), now_ms=0)
