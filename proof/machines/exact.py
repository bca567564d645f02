"""Buckets told exactly: levels are rational numbers, and nothing is shared with the arithmetic of
headgate. No epoch, no stored tokens, no floor before somebody looks.

The clock never goes back here; what a clock that does may do is said in the laws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor
from typing import NamedTuple

from headgate.core.decision import Demand
from headgate.core.limits import Spec
from headgate.core.record import BucketKey, Terms


class Row(tuple[str, int, bool, int | None]):
    """What a caller is told about one limit; and, of a row that was worked out, how many
    millitokens were missing and how long one takes to arrive."""

    missing: Fraction
    step_ms: int

    def __new__(cls, name: str, available: int, exceeded: bool, wait_ms: int | None) -> Row:
        return super().__new__(cls, (name, available, exceeded, wait_ms))

    @property
    def name(self) -> str:
        return self[0]

    @property
    def available(self) -> int:
        return self[1]

    @property
    def exceeded(self) -> bool:
        return self[2]

    @property
    def wait_ms(self) -> int | None:
        return self[3]


class Told(NamedTuple):
    allowed: bool
    outdated: bool
    rows: list[Row]


class Spent(NamedTuple):
    """A demand that was admitted, and the soft limits it passed."""

    demand: Demand
    passed: set[str]


@dataclass(frozen=True)
class Gauge:
    """One limit: its level at a moment, and what was consumed of it in all."""

    spec: Spec
    level: Fraction
    at_ms: int
    consumed: int = 0

    @property
    def per_ms(self) -> Fraction:
        return Fraction(self.spec.amount_milli, self.spec.period_ms)

    def now(self, now_ms: int) -> Gauge:
        """The same gauge, read later."""
        arrived = self.per_ms * max(0, now_ms - self.at_ms)
        level = min(Fraction(self.spec.capacity_milli), self.level + arrived)
        return replace(self, level=level, at_ms=now_ms)

    def less(self, amount: int) -> Gauge:
        level = min(Fraction(self.spec.capacity_milli), self.level - amount)
        return replace(self, level=level)

    def counted(self, amount: int) -> Gauge:
        return replace(self, consumed=self.consumed + amount)

    def under(self, spec: Spec) -> Gauge:
        """The level goes along, cut at the brim. A part of a millitoken that is under way becomes
        whole milliseconds at the new pace, and is nothing where a limit was full."""
        whole, part = floor(self.level), self.level - floor(self.level)
        after = replace(self, spec=spec)
        if whole >= min(self.spec.capacity_milli, spec.capacity_milli):
            return replace(after, level=Fraction(min(whole, spec.capacity_milli)))
        if after.per_ms == self.per_ms:
            return after
        begun = floor(part / after.per_ms) * after.per_ms if after.per_ms else 0
        return replace(after, level=whole + Fraction(begun))

    def row(self, wanted: int, after: Gauge) -> Row:
        missing = wanted - self.level
        wait_ms: int | None = 0
        if missing > 0:
            never = wanted > self.spec.capacity_milli or not self.per_ms
            wait_ms = None if never else ceil(missing / self.per_ms)
        row = Row(self.spec.name, floor(after.level) // 1000, wait_ms != 0, wait_ms)
        row.missing = Fraction(missing)
        row.step_ms = ceil(1 / self.per_ms) if self.per_ms else 0
        return row


@dataclass
class Bucket:
    """All limits that a bucket knows, also those that nobody asks for at present."""

    terms: Terms
    version: int
    gauges: dict[str, Gauge]


class Exact:
    """The store as it should be."""

    def __init__(self) -> None:
        self.buckets: dict[BucketKey, Bucket] = {}
        self._once: dict[tuple[str, str], int] = {}
        self.spent: list[Spent] = []  # by the last call that was allowed

    def consume(self, demands: Sequence[Demand], now_ms: int) -> Told:
        held = [self._held(demand, now_ms) for demand in demands]
        taken = [_taken(bucket, demand) for bucket, demand in zip(held, demands, strict=True)]
        allowed = None not in taken
        rows: list[Row] = []
        outdated = False
        for demand, bucket, gauges in zip(demands, held, taken, strict=True):
            after = gauges if allowed and gauges is not None else bucket.gauges
            rows += [
                bucket.gauges[name].row(wanted, after[name])
                for name, wanted in demand.named()
                if name in bucket.gauges
            ]
            outdated = outdated or (not demand.terms.own and demand.terms.version < bucket.version)
            if allowed or demand.key in self.buckets:
                self.buckets[demand.key] = replace(bucket, gauges=after)
        if allowed:
            self.spent = [
                Spent(
                    demand,
                    {name for name, wanted in demand.named() if _passes(bucket, name, wanted)},
                )
                for demand, bucket in zip(demands, held, strict=True)
            ]
        return Told(allowed, outdated, rows)

    def undo(self, spent: Sequence[Spent], now_ms: int) -> None:
        """What was taken comes back; what was only counted is counted no longer."""
        for demand, passed in spent:
            if demand.key not in self.buckets:
                continue
            bucket = self._held(demand, now_ms)
            for limit, amount in demand.named():
                if limit in bucket.gauges:
                    gauge = bucket.gauges[limit].counted(-amount)
                    bucket.gauges[limit] = gauge if limit in passed else gauge.less(-amount)
            self.buckets[demand.key] = bucket

    def adjust(
        self, demands: Sequence[Demand], now_ms: int, *, metered: bool, once: str | None
    ) -> bool:
        if once is not None:
            name = (demands[0].key.namespace, once)
            if self._once.get(name, now_ms) > now_ms:
                return False
            self._once[name] = now_ms + 86_400_000
        for demand in demands:
            gives_only = all(amount <= 0 for _, amount in demand.named())
            if gives_only and demand.key not in self.buckets:
                continue
            bucket = self._held(demand, now_ms)
            for limit, amount in demand.named():
                if limit in bucket.gauges:
                    gauge = bucket.gauges[limit].less(amount)
                    bucket.gauges[limit] = gauge.counted(amount) if metered else gauge
            self.buckets[demand.key] = bucket
        return True

    def forget(self, key: BucketKey) -> None:
        self.buckets.pop(key, None)

    def full(self, key: BucketKey, now_ms: int) -> bool:
        """Whether the bucket carries no information: it may be gone without anybody noticing."""
        return all(
            gauge.now(now_ms).level == gauge.spec.capacity_milli
            for gauge in self.buckets[key].gauges.values()
        )

    def _held(self, demand: Demand, now_ms: int) -> Bucket:
        """A copy of the bucket at this moment, under the terms that count."""
        found, asked = self.buckets.get(demand.key), demand.terms
        if found is None:
            return Bucket(
                asked, asked.version, {spec.name: _fresh(spec, now_ms) for spec in asked.specs}
            )
        gauges = {name: gauge.now(now_ms) for name, gauge in found.gauges.items()}
        if not asked.own and asked.version < found.version:
            return Bucket(found.terms, found.version, gauges)
        for spec in asked.specs:
            gauge = gauges.get(spec.name)
            gauges[spec.name] = _fresh(spec, now_ms) if gauge is None else gauge.under(spec)
        return Bucket(asked, max(found.version, asked.version), gauges)


def _fresh(spec: Spec, now_ms: int) -> Gauge:
    return Gauge(spec, Fraction(spec.capacity_milli), now_ms)


def _passes(bucket: Bucket, name: str, wanted: int) -> bool:
    gauge = bucket.gauges.get(name)
    return gauge is not None and gauge.spec.soft and wanted > gauge.level


def _taken(bucket: Bucket, demand: Demand) -> dict[str, Gauge] | None:
    after = dict(bucket.gauges)
    for name, wanted in demand.named():
        gauge = after.get(name)
        if gauge is None:
            continue
        if wanted <= gauge.level:
            gauge = gauge.less(wanted)
        elif not gauge.spec.soft:
            return None
        after[name] = gauge.counted(wanted)
    return after
