"""One limit told exactly: its level as a rational number, replayed from its whole history.

Nothing here is shared with `headgate.core.refill.bucket`: no epoch, no floor, no stored tokens. A
level is computed by going through every event since the beginning, filling continuously in between
and losing at each moment what would pass the brim.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


class Oracle:
    """The exact level of one limit at any moment not before its last event."""

    def __init__(
        self, capacity: int, amount: int, period_ms: int, level: int, start_ms: int
    ) -> None:
        self.capacity = Fraction(capacity)
        self.per_ms = Fraction(amount, period_ms)
        self.start = Fraction(level)
        self.start_ms = start_ms
        self.events: list[tuple[int, int]] = []

    def debit(self, at_ms: int, amount: int) -> None:
        """A take that was admitted, or a debit; a credit is a negative one."""
        assert not self.events or at_ms >= self.events[-1][0], "history only grows at its end"
        self.events.append((at_ms, amount))

    def level(self, at_ms: int) -> Fraction:
        level, since_ms = self.start, self.start_ms
        for event_ms, amount in [*self.events, (at_ms, 0)]:
            level = min(self.capacity, level + self.per_ms * (event_ms - since_ms))
            level = min(self.capacity, level - amount)
            since_ms = event_ms
        return level

    def first_ms_with(self, wanted: int, from_ms: int) -> int | None:
        """The first moment the level covers what is wanted, found by bisection; None if never."""
        if self.level(from_ms) >= wanted:
            return from_ms
        if wanted > self.capacity or self.per_ms == 0:
            return None
        low_ms, span_ms = from_ms, 1
        while self.level(from_ms + span_ms) < wanted:
            low_ms, span_ms = from_ms + span_ms, span_ms * 2
        high_ms = from_ms + span_ms
        while high_ms - low_ms > 1:
            middle_ms = (low_ms + high_ms) // 2
            if self.level(middle_ms) >= wanted:
                high_ms = middle_ms
            else:
                low_ms = middle_ms
        return high_ms


def worst_excess(
    admitted: Sequence[tuple[int, int]], capacity: Fraction | int, per_ms: Fraction
) -> Fraction:
    """Over every interval between two admissions: what was admitted beyond capacity + rate * T.

    Not above zero is promise S1; an interval that starts or ends elsewhere is only longer.
    """
    worst = Fraction(-capacity)
    for first, (from_ms, _) in enumerate(admitted):
        total = 0
        for until_ms, amount in admitted[first:]:
            total += amount
            worst = max(worst, total - capacity - per_ms * (until_ms - from_ms))
    return worst
