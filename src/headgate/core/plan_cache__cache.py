"""A bounded cache whose entries live for a while; the clock is passed in."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

Value = TypeVar("Value")

ENTRIES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class CacheStats:
    """How often the cache of limits was asked, how often it had the answer, and what it holds."""

    hits: int
    misses: int
    size: int
    ttl_seconds: float


class Cache(Generic[Value]):
    """At most `entries_max` values, each for `ttl_ms`; the oldest entry makes room.

    What was looked up and not found is a value like any other (a negative entry).
    """

    __slots__ = ("_entries", "entries_max", "hits", "misses", "ttl_ms")

    def __init__(self, ttl_ms: int, entries_max: int = ENTRIES_MAX) -> None:
        self.ttl_ms = ttl_ms
        self.entries_max = entries_max
        self.hits = 0
        self.misses = 0
        self._entries: dict[Hashable, tuple[int, Value]] = {}

    def get(self, key: Hashable, now_ms: int) -> Value | None:
        entry = self._entries.get(key)
        if entry is not None and now_ms < entry[0]:
            self.hits += 1
            return entry[1]
        self.misses += 1
        return None

    def stale(self, key: Hashable) -> Value | None:
        """The value even past its time: better than nothing while its source is away."""
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    def put(self, key: Hashable, value: Value, now_ms: int) -> None:
        if self.ttl_ms <= 0 or self.entries_max <= 0:
            return
        self._entries.pop(key, None)
        if len(self._entries) >= self.entries_max:
            self._make_room()
        self._entries[key] = (now_ms + self.ttl_ms, value)

    def _make_room(self) -> None:
        """The oldest sixteenth goes, at least one: the head of a dict is slow to find singly."""
        oldest = list(islice(list(self._entries), max(1, self.entries_max // 16)))
        for key in oldest:
            self._entries.pop(key, None)

    def drop(self, key: Hashable) -> None:
        self._entries.pop(key, None)

    def invalidate(self) -> None:
        self._entries.clear()

    def stats(self) -> CacheStats:
        return CacheStats(self.hits, self.misses, len(self._entries), self.ttl_ms / 1000)
