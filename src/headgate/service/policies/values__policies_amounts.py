"""The amounts of a policy: capacity, refill and burst as written, made into an exact limit."""

from __future__ import annotations

from fractions import Fraction

from headgate.core.limits import Limit
from headgate.declare.yaml_fields import Reader
from headgate.declare.yaml_tree import Findings, Node

TOKENS_MAX = 10**12  # what every store keeps exactly, Redis included
FILL_PER_SECOND_MAX = 1000  # a bucket may refill whole a thousand times a second: once a tick
AMOUNTS = ("capacity", "refill_rate", "burst_multiplier", "shadow")


class Amounts:
    """Makes limits; notes what does not fit together, and what has no effect as a warning."""

    def __init__(self, reader: Reader, warnings: Findings) -> None:
        self._reader = reader
        self._warnings = warnings

    def limit(self, given: dict[str, Node], name: str) -> Limit | None:
        reader = self._reader
        capacity = rate = None
        burst: Fraction | None = Fraction(1)
        shadow: bool | None = False
        if "capacity" in given:
            capacity = reader.whole(given["capacity"], "capacity", 1, TOKENS_MAX)
        if "refill_rate" in given:
            rate = reader.rate(given["refill_rate"], "refill_rate")
        if "burst_multiplier" in given:
            burst = reader.decimal(given["burst_multiplier"], "burst_multiplier", 1, 10**6)
        if "shadow" in given:
            shadow = reader.switch(given["shadow"], "shadow")
        if "min_refill_interval_ms" in given:
            self._interval(given["min_refill_interval_ms"])
        if capacity is None or rate is None or burst is None or shadow is None:
            return None
        return self._made(given["refill_rate"], name, capacity, rate, burst, shadow)

    def _made(
        self, at: Node, name: str, capacity: int, rate: Fraction, burst: Fraction, shadow: bool
    ) -> Limit | None:
        whole = int(capacity * burst)  # floor: a part of a token admits nothing
        if rate > capacity * FILL_PER_SECOND_MAX:
            most = capacity * FILL_PER_SECOND_MAX
            self._reader.fault(at, f"refill_rate is more than {most} a second, 1000 times capacity")
            return None
        if whole > TOKENS_MAX or rate.numerator > TOKENS_MAX:
            self._reader.fault(
                at,
                f"capacity {whole} and {rate.numerator} tokens every {rate.denominator} s do not "
                f"fit; each may be {TOKENS_MAX} tokens",
            )
            return None
        return Limit(name, whole, rate.numerator, rate.denominator, shadow)

    def _interval(self, node: Node) -> None:
        if self._reader.whole(node, "min_refill_interval_ms", 0, 10**9) is not None:
            self._warnings.add(
                node, "min_refill_interval_ms has no effect: refill is exact at any interval"
            )
