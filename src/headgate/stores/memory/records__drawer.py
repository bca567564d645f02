"""Small texts in memory; at most so many."""

from __future__ import annotations

import threading

from headgate.core.errors import Contended
from headgate.core.store import Kept

TEXTS_MAX = 100_000


class MemoryDrawer:
    def __init__(self, texts_max: int = TEXTS_MAX) -> None:
        self._texts: dict[tuple[str, str], Kept] = {}
        self._texts_max = texts_max
        self._lock = threading.Lock()

    async def put(
        self, namespace: str, name: str, text: str, until_ms: int, *, seen: int | None
    ) -> int | None:
        with self._lock:
            found = self._texts.get((namespace, name))
            if (None if found is None else found.version) != seen:
                return None
            if found is None and len(self._texts) >= self._texts_max:
                raise Contended(f"{self._texts_max} texts are kept already; nothing was kept")
            version = 1 + (seen or 0)
            self._texts[namespace, name] = Kept(text, until_ms, version)
            return version

    async def get(self, namespace: str, name: str) -> Kept | None:
        return self._texts.get((namespace, name))

    async def drop(self, namespace: str, name: str, *, seen: int) -> bool:
        with self._lock:
            found = self._texts.get((namespace, name))
            if found is None or found.version != seen:
                return False
            del self._texts[namespace, name]
            return True

    async def due(self, namespace: str, before_ms: int, limit: int) -> list[tuple[str, Kept]]:
        with self._lock:
            found = [
                (name, kept)
                for (owner, name), kept in self._texts.items()
                if owner == namespace and kept.until_ms < before_ms
            ]
        return sorted(found, key=lambda pair: (pair[1].until_ms, pair[0]))[:limit]

    def drop_namespace(self, namespace: str) -> None:
        with self._lock:
            for place in [place for place in self._texts if place[0] == namespace]:
                del self._texts[place]
