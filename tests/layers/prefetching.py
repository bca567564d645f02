"""A world for tests of prefetch: one client behind the layer, the store seen without it."""

from __future__ import annotations

from headgate.core.limits import Limit
from headgate.core.record import cell_of
from headgate.layers.prefetch import Prefetch
from headgate.testing import FakeClock
from tests.layers.kit import Buckets, Client, recorded

FAST = Buckets(Limit.per_second("rps", 10_000))
STILL = Buckets(Limit.custom("n", 1000, 0, 1))  # never refills: every token can be counted


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = recorded(self.clock)
        self.layer = Prefetch(self.store, self.clock)
        self.client = Client(self.layer, self.clock)
        self.other = Client(self.store.store, self.clock)

    def level(self, buckets: Buckets, entity_id: str = "key-1") -> int | None:
        """Whole tokens of the first limit as the store has them."""
        record = self.other.peek(buckets.key(entity_id)).records[0]
        cell = None if record is None else cell_of(record, buckets.terms.specs[0].name)
        return None if cell is None else cell.level_milli(self.clock()) // 1000

    def held(self, buckets: Buckets, entity_id: str = "key-1") -> int:
        held = self.layer.held_milli(buckets.key(entity_id))
        return sum(held.values()) // 1000

    def warm(self, buckets: Buckets = FAST, calls: int = 50) -> int:
        """Some demand, one token a millisecond; how much was admitted."""
        admitted = 0
        for _ in range(calls):
            self.clock.advance(1)
            admitted += self.client.take(buckets.want(1)).allowed
        return admitted
