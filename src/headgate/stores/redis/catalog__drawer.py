"""Small texts in a hash of each namespace, with their ends in a sorted set beside it."""

from __future__ import annotations

from headgate.core.store import Kept
from headgate.stores.redis import keys__catalog_keys as keys
from headgate.stores.redis.client.port import Port
from headgate.stores.redis.scripts import load_script

PUT = load_script("drawer_put")
DROP = load_script("drawer_drop")
DUE = load_script("drawer_due")


class RedisDrawer:
    def __init__(self, port: Port) -> None:
        self._port = port

    async def put(
        self, namespace: str, name: str, text: str, until_ms: int, *, seen: int | None
    ) -> int | None:
        args: list[str | int] = [name, text, until_ms, "" if seen is None else seen]
        version: int = await self._port.script(PUT, _keys(namespace), args)
        return version or None

    async def get(self, namespace: str, name: str) -> Kept | None:
        found = await self._port.command("HGET", keys.drawer(namespace), name)
        return None if found is None else _kept(found)

    async def drop(self, namespace: str, name: str, *, seen: int) -> bool:
        return bool(await self._port.script(DROP, _keys(namespace), [name, seen]))

    async def due(self, namespace: str, before_ms: int, limit: int) -> list[tuple[str, Kept]]:
        found = await self._port.script(DUE, _keys(namespace), [before_ms, limit])
        pairs = zip(found[::2], found[1::2], strict=True)
        return [(name, _kept(text)) for name, text in pairs if text]


def _keys(namespace: str) -> list[str]:
    return [keys.drawer(namespace), keys.drawer_ends(namespace)]


def _kept(found: str) -> Kept:
    version, until_ms, text = found.split(" ", 2)
    return Kept(text, int(until_ms), int(version))
