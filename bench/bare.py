"""The least a limiter in Python can do: an integer token bucket in a dict under a lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bench.rounds import Contestant, Spin


class BareBuckets:
    """One limit for every key; no names checked, no config, no lease, no bound."""

    def __init__(self, capacity_milli: int, amount_milli: int, period_ms: int) -> None:
        self._capacity_milli = capacity_milli
        self._amount_milli = amount_milli
        self._period_ms = period_ms
        self._buckets: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def take(self, key: str, amount: int) -> bool:
        now_ms = time.monotonic_ns() // 1_000_000
        wanted_milli = amount * 1000
        with self._lock:
            epoch_ms, tokens_milli = self._buckets.get(key) or (now_ms, self._capacity_milli)
            arrived = (now_ms - epoch_ms) * self._amount_milli // self._period_ms
            kept = min(tokens_milli, self._capacity_milli - arrived)
            if wanted_milli > kept + arrived:
                return False
            self._buckets[key] = (epoch_ms, kept - wanted_milli)
            return True

    def __len__(self) -> int:
        return len(self._buckets)


def bare_buckets() -> BareBuckets:
    return BareBuckets(10**12, 10**12, 3_600_000)


@contextmanager
def _open(keys: Sequence[str]) -> Iterator[Spin]:
    take = bare_buckets().take

    def spin(keys: Sequence[str]) -> None:
        for key in keys:
            take(key, 1)

    yield spin


CONTESTANTS = [Contestant("bare integer bucket + lock", "blocking", _open)]
