"""How many writes a second the server bears for one key; beyond that it holds the key back."""

from __future__ import annotations

from collections.abc import Hashable

WINDOW_MS = 1000


class Meter:
    def __init__(self, most: int) -> None:
        self.most = most  # a second and key; 0 bears everything
        self._counts: dict[Hashable, tuple[int, int]] = {}

    def over(self, key: Hashable, now_ms: int) -> bool:
        """Counts a write; whether it is one too many."""
        if not self.most:
            return False
        window = now_ms // WINDOW_MS
        known, count = self._counts.get(key, (window, 0))
        count = count + 1 if known == window else 1
        self._counts[key] = window, count
        return count > self.most
