"""What this process has consumed and usage history does not hold yet.

History is kept by whoever reads the table's stream. Where nobody does, each process adds what it
took itself: before usage is read, when it closes, and when it holds much. A process that dies takes
with it what it had not added; the buckets themselves lose nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence

from headgate.core.decision import Demand
from headgate.core.errors import StoreTrouble
from headgate.core.history import WINDOW_TYPES, WindowUsage, window_around
from headgate.core.record import HOUR_MS, BucketKey

_log = logging.getLogger("headgate.dynamodb")

HOURS_MAX = 2000  # of buckets held; beyond it the oldest go to history, as many as come

Add = Callable[[str, str, str, Iterable[WindowUsage]], Awaitable[None]]


class UsageBuffer:
    def __init__(self, add: Add) -> None:
        self._add = add
        self._lock = threading.Lock()
        self.held: dict[tuple[str, int], tuple[dict[str, int], list[int]]] = {}

    def count(self, demands: Sequence[Demand], now_ms: int, events: int) -> None:
        """Adds what these demands consumed."""
        for demand in demands:
            place = demand.key.text, now_ms // HOUR_MS
            amounts = demand.counted or demand.amounts
            with self._lock:
                counters, count = self.held.setdefault(place, ({}, [0]))
                count[0] += events
                for spec, amount in zip(demand.terms.specs, amounts, strict=True):
                    if amount is not None:
                        counters[spec.name] = counters.get(spec.name, 0) + amount

    async def live(
        self, namespace: str, entity_id: str | None, resource: str | None, now_ms: int | None
    ) -> None:
        await self.flush(namespace, entity_id, resource)

    async def shed(self, count: int) -> None:
        """Makes room for so many more where much is held: the oldest goes to history.

        Before a decision, not after it: what was taken must be reported whatever comes of this.
        """
        if len(self.held) < HOURS_MAX:
            return
        with contextlib.suppress(StoreTrouble):  # history may lose what nobody could tell it
            for text, hour in list(itertools.islice(self.held, count)):
                await self._send(BucketKey.from_text(text), hour)

    async def flush(
        self,
        namespace: str | None = None,
        entity_id: str | None = None,
        resource: str | None = None,
    ) -> None:
        """All that is held of what is asked for is in history, each bit sent once."""
        for text, hour in list(self.held):
            key = BucketKey.from_text(text)
            if (
                namespace in (None, key.namespace)
                and entity_id in (None, key.entity_id)
                and resource in (None, key.resource)
            ):
                await self._send(key, hour)

    async def leave(self) -> None:
        """The last flush. A history that cannot be told is no trouble of whoever closes."""
        try:
            await self.flush()
        except StoreTrouble as trouble:
            _log.warning("usage of %d bucket hours is lost: %s", len(self.held) + 1, trouble)

    async def _send(self, key: BucketKey, hour: int) -> None:
        with self._lock:
            held = self.held.pop((key.text, hour), None)
        if held is None:
            return
        counters, (events,) = held
        used = {name: amount for name, amount in counters.items() if amount}
        if not used and not events:
            return
        usages = [
            WindowUsage(window_type, window_around(window_type, hour * HOUR_MS)[0], used, events)
            for window_type in WINDOW_TYPES
        ]
        await self._add(key.namespace, key.entity_id, key.resource, usages)
