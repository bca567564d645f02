"""Promise S1 as one number per limit: what was taken of late beyond what the rate gives.

The excess is the most over all intervals that end now of what was admitted in them less rate times
their length; it falls with time and rises with every debit. An interval admits too much exactly
when the excess passes the capacity.
"""

from __future__ import annotations

from collections.abc import Sequence

from proof.model.buckets import Part

ROUNDING_MILLI = 2  # a split may drop parts of millitokens, never make some


class Gauge:
    """Of one limit of one bucket; the largest lateness of a writer's clock either way is kept."""

    def __init__(self) -> None:
        self.excess = 0.0
        self.capacity = 0
        self.capacity_max = 0
        self._at_ms = 0
        self._per_ms = 0.0
        self._per_ms_max = 0.0
        self._behind_ms = 0
        self._ahead_ms = 0
        self._changed = False
        self._shards = 1

    def _fall(self, at_ms: int) -> None:
        self.excess = max(0.0, self.excess - (at_ms - self._at_ms) * self._per_ms)
        self._at_ms = at_ms

    def moved(self, amount: int, parts: Sequence[Part], at_ms: int) -> None:
        """Debits are positive; a credit makes room for as much again."""
        self._fall(at_ms)
        self.excess = max(0.0, self.excess + amount)
        if not parts:
            return
        capacity = sum(part.capacity for part in parts)
        per_ms = sum(part.amount / part.period_ms for part in parts)
        known = bool(self.capacity)
        self._changed = known and (capacity, round(per_ms, 9)) != (
            self.capacity,
            round(self._per_ms, 9),
        )
        self._shards = len(parts)
        self.capacity, self._per_ms = capacity, per_ms
        self._per_ms_max = max(self._per_ms_max, per_ms)
        self.capacity_max = max(self.capacity_max, capacity)

    def emptied(self, at_ms: int) -> None:
        """An operator gave a full bucket."""
        self._fall(at_ms)
        self.excess = 0.0

    def judged(self, level: int | None, late_ms: int, *, take: bool) -> str:
        """What is wrong; empty if nothing is. A debit may pass the capacity, into debt; a take
        must not."""
        self._behind_ms = max(self._behind_ms, late_ms)
        self._ahead_ms = max(self._ahead_ms, -late_ms)
        there = self.capacity if level is None else level
        if self._changed:  # an interval over two capacities is held against the new one only
            self.excess = min(self.excess, max(0.0, self.capacity - there))
        rounding = ROUNDING_MILLI * self._shards + 8
        slack = self._behind_ms * self._per_ms_max + rounding
        if there + self.excess > self.capacity + slack:
            return (
                f"has {there} and {self.excess:.0f} were taken beyond its pace, with a capacity "
                f"of {self.capacity} and {slack:.0f} for clocks and delays"
            )
        most = slack + self._ahead_ms * self._per_ms_max
        if take and self.excess > self.capacity + most:
            return f"{self.excess:.0f} were taken beyond its pace; at most {self.capacity + most}"
        return ""
