"""Demand, Verdict and decide: who wants how much, and whether all of it fits at once."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headgate.core.errors import longest_wait_ms
from headgate.core.history import iso_time_or_none
from headgate.core.limits import Limit
from headgate.core.record import (
    CASCADED,
    CELLS,
    CONSUMED,
    EPOCH,
    EVENTS,
    STRIDE,
    TERMS,
    TOKENS,
    BucketKey,
    Cascaded,
    Record,
    Terms,
    apply_terms,
    cell_of,
    give_limit,
    new_record,
    take_two,
)
from headgate.core.refill import bucket
from headgate.core.refill.bucket import MILLI
from headgate.core.refill.resets import count_resets

Amounts = tuple[int | None, ...]


@dataclass(slots=True, eq=False, repr=False)
class Demand:
    """One bucket and how much of each of its limits is wanted, in the order of `terms.specs`.

    Amounts are millitokens; None leaves a limit out. For `adjust` they are signed: a debit is
    positive, a credit negative.

    `counted` is for an adjustment that moves the consumption by other amounts than the tokens. A
    limit whose consumption alone moves has 0 among the amounts, not None. `parts` is for a demand
    of several parts of a request on one bucket: how many of them want each limit.

    `cascaded` is the part of what it adds to the consumption that came by cascade, from a child of
    the bucket's entity; None where the entity was asked for itself. A bucket that is asked both
    ways in one request has `halves`: the demand for itself, and the one by cascade.
    """

    key: BucketKey
    terms: Terms
    amounts: Amounts
    counted: Amounts | None = None
    parts: tuple[int, ...] | None = None
    cascaded: Amounts | None = None
    halves: tuple[Demand, Demand] | None = None

    def __repr__(self) -> str:
        return f"Demand({self.key.text!r}, {dict(self.named())})"

    def named(self) -> Iterator[tuple[str, int]]:
        """The limits that are wanted, by name."""
        for spec, amount in zip(self.terms.specs, self.amounts, strict=True):
            if amount is not None:
                yield spec.name, amount

    def counts(self) -> Iterator[tuple[str, int]]:
        """What it adds to the consumption, by name."""
        for spec, amount in zip(self.terms.specs, self.counted or self.amounts, strict=True):
            if amount is not None:
                yield spec.name, amount

    def cascades(self) -> Iterator[tuple[str, int]]:
        """The part of it that came by cascade, by name."""
        for spec, amount in zip(self.terms.specs, self.cascaded or (), strict=False):
            if amount is not None:
                yield spec.name, amount

    @property
    def is_cascaded(self) -> bool:
        """Whether all of it came by cascade: nobody asked for this entity itself."""
        return self.cascaded is not None and self.cascaded == (self.counted or self.amounts)

    def amounts_for(self, held: Terms, *, counted: bool = False) -> Amounts:
        """The amounts in the order of the terms a bucket is kept under; `counted`: what it adds to
        the consumption."""
        line = self.counted or self.amounts if counted else self.amounts
        if held.core is self.terms:
            return line
        named = {spec.name: amount for spec, amount in zip(self.terms.specs, line, strict=True)}
        return tuple(named.get(spec.name) for spec in held.specs)

    def inverse(self) -> Demand:
        """The credit that undoes this debit, where all of it was taken; see `credit_of`."""
        cascaded = self.cascaded and _negative(self.cascaded)
        return Demand(self.key, self.terms, _negative(self.amounts), cascaded=cascaded)


def _negative(amounts: Amounts) -> Amounts:
    return tuple(None if amount is None else -amount for amount in amounts)


class LimitStatus(NamedTuple):
    """One limit after a decision, as the library, the service and the integrations tell it.

    Amounts are whole tokens. `retry_after_ms` is the least wait until this demand fits: 0 where it
    did, None where no refill will help. `next_ms` is the time until there is one token more, None
    where the limit is full or never refills; `reset_at_ms` is when it is full, or a quota is reset.
    """

    entity_id: str
    resource: str
    limit_name: str
    limit: Limit
    available: int
    requested: int
    exceeded: bool
    retry_after_ms: int | None
    source: str
    next_ms: int | None = None
    reset_at_ms: int | None = None

    @property
    def retry_after_seconds(self) -> float:
        """The least wait; infinite where no refill will help."""
        return math.inf if self.retry_after_ms is None else self.retry_after_ms / 1000

    @property
    def wait_ms(self) -> int | None:
        """The time until there is more: enough for this demand, or a token where it did fit."""
        return self.retry_after_ms if self.exceeded else self.next_ms

    @property
    def window_s(self) -> int | None:
        """The time to fill the limit from empty; None where it never refills. Of a quota it is the
        length of the window that runs."""
        limit = self.limit
        if limit.resets is not None:
            return limit.resets.window_s(self.reset_at_ms)
        if not limit.refill_amount:
            return None
        return bucket.div_ceil(limit.capacity * limit.refill_period_seconds, limit.refill_amount)

    @property
    def refuses(self) -> bool:
        """Whether the demand fails on this limit; a soft one never refuses."""
        return self.exceeded and not self.limit.soft

    @property
    def fraction_left(self) -> float:
        """What is left of the capacity; negative in debt."""
        return self.available / self.limit.capacity

    @property
    def deficit(self) -> int:
        return max(0, self.requested - self.available)

    @property
    def never(self) -> bool:
        """Whether the demand is larger than the limit can ever hold."""
        return self.requested > self.limit.capacity

    def as_dict(self) -> dict[str, Any]:
        """The status as plain data, as a 429 tells it."""
        limit, wait_ms = self.limit, self.retry_after_ms
        return {
            "entity_id": self.entity_id,
            "resource": self.resource,
            "limit_name": self.limit_name,
            "capacity": limit.capacity,
            "available": self.available,
            "requested": self.requested,
            "exceeded": self.exceeded,
            "retry_after_seconds": None if wait_ms is None else wait_ms / 1000,
            "reset_at": iso_time_or_none(self.reset_at_ms),
            "resets": None if limit.resets is None else limit.resets.to_dict(),
            "source": self.source,
        }


def nearest_of(statuses: Sequence[LimitStatus]) -> LimitStatus | None:
    """The limit that stands in the way, or will first; a soft one only where there is no other."""

    def distance(status: LimitStatus) -> tuple[bool, bool, float, float]:
        wait_s = status.retry_after_seconds if status.refuses else 0.0
        left = status.available // max(1, status.requested)
        return status.limit.soft, not status.refuses, -wait_s or left, status.fraction_left

    return min(statuses, key=distance, default=None)


class Verdict:
    """Allowed or not, decided over all demands together at one moment.

    `records` are the buckets after the decision, `before` the same ones before it, under the same
    terms. A dry run decides the same and keeps nothing.
    `outdated` says that a bucket holds a newer configuration than its demand came with.
    """

    __slots__ = ("allowed", "before", "demands", "now_ms", "outdated", "records")

    # Whether the records alone tell the waits; a store that keeps a bucket in parts says no.
    exact_records = True

    # Whether it is about the very demands that were asked, so that whoever asked needs nothing
    # beside it. A verdict that let pass what it did not take has no demands, and says no.
    is_plain = True

    def __init__(
        self,
        allowed: bool,
        demands: Sequence[Demand],
        records: Sequence[Record],
        now_ms: int,
        before: Sequence[Record] = (),
    ) -> None:
        self.allowed = allowed
        self.demands = demands
        self.records = records
        self.now_ms = now_ms
        self.before = before or records
        self.outdated = False

    def __bool__(self) -> bool:
        return self.allowed

    def later(self, demands: Sequence[Demand], elapsed_ms: int) -> Verdict | None:
        """This refusal of the same demands so much later, if nobody acted; None where that is not
        known. A store whose records do not tell the waits says it."""
        return None

    def __repr__(self) -> str:
        return f"Verdict(allowed={self.allowed}, {self.statuses!r})"

    @property
    def statuses(self) -> list[LimitStatus]:
        """One status per wanted limit, in the order asked."""
        return [
            build_limit_status(self, index, name, wanted)
            for index, (demand, record) in enumerate(zip(self.demands, self.records, strict=True))
            for name, wanted in demand.named()
            if name in record[TERMS].index
        ]

    @property
    def fits_capacity(self) -> bool:
        """Whether it was decided under the very terms that the demands were checked against. Under
        others a limit may be too small by now to ever hold what is wanted."""
        for demand, record in zip(self.demands, self.records, strict=False):
            if record[TERMS].core is not demand.terms:
                return False
        return True

    @property
    def violations(self) -> list[LimitStatus]:
        return [status for status in self.statuses if status.refuses]

    @property
    def nearest(self) -> LimitStatus | None:
        """The limit that refused, for the longest; of an admission the one that the next such
        requests meet first, be it a parent's. None where no limit was asked."""
        return nearest_of(self.statuses)

    @property
    def untaken(self) -> Sequence[tuple[int, str]]:
        """The soft limits that had not got what was wanted, as the place of their demand and their
        name: it was counted, and nothing was taken."""
        for record in self.records:
            if record[TERMS].soft:
                return self._untaken() if self.allowed else ()
        return ()

    def _untaken(self) -> list[tuple[int, str]]:
        found = []
        for place, (demand, before) in enumerate(zip(self.demands, self.before, strict=True)):
            for name, wanted in demand.named():
                cell = cell_of(before, name)
                if cell is not None and cell.spec.soft and wanted > cell.level_milli(self.now_ms):
                    found.append((place, name))
        return found

    @property
    def retry_after_ms(self) -> int | None:
        """0 if allowed; else the least wait; None where no wait will do."""
        return longest_wait_ms(self.violations)

    @property
    def retry_after_seconds(self) -> float:
        wait_ms = self.retry_after_ms
        return math.inf if wait_ms is None else wait_ms / 1000


def decide(
    demands: Sequence[Demand], found: Sequence[Record | None], now_ms: int
) -> tuple[Verdict, list[Record]]:
    """The verdict on all demands together, and the buckets as they stand after it.

    A refusal takes nothing, but a bucket that exists and came under new terms must be kept under
    them: the wait that was told counts on their pace. `needs_write` says which to write.
    """
    held = _current_records(demands, found, now_ms)
    after: list[Record] = []
    for demand, record in zip(demands, held, strict=True):
        taken = take(record, demand, now_ms)
        if taken is None:
            return _mark_stale(Verdict(False, demands, held, now_ms)), held
        after.append(taken)
    return _mark_stale(Verdict(True, demands, after, now_ms, held)), after


def judge(demands: Sequence[Demand], found: Sequence[Record | None], now_ms: int) -> Verdict:
    """What `decide` would say, with the buckets as they stand: a dry run."""
    record = found[0]
    if len(demands) == 1 and record is not None and record[TERMS].core is demands[0].terms:
        return Verdict(fits(record, demands[0], now_ms), demands, (record,), now_ms)
    held = _current_records(demands, found, now_ms)
    pairs = zip(demands, held, strict=True)
    allowed = all(fits(record, demand, now_ms) for demand, record in pairs)
    return _mark_stale(Verdict(allowed, demands, held, now_ms))


def needs_write(verdict: Verdict, before: Record | None, after: Record) -> bool:
    """Whether a record has to be written: it was taken from, or it came under new terms."""
    return after is not before and (verdict.allowed or before is not None)


def fits(record: Record, demand: Demand, now_ms: int) -> bool:
    """Whether `take` would give what is wanted, without making the record it would leave."""
    terms: Terms = record[TERMS]
    amounts = demand.amounts if terms.core is demand.terms else demand.amounts_for(terms)
    at = CELLS
    for wanted, (_, capacity, amount, period_ms, soft, resets) in zip(amounts, terms.specs):  # noqa: B905
        if wanted is not None and not soft:
            level = record[at + TOKENS] + (now_ms - record[at]) * amount // period_ms
            if resets is not None:
                level += count_resets(resets, record[at], now_ms) * capacity
            if wanted > level or wanted > capacity:
                return False
        at += STRIDE
    return True


def _mark_stale(verdict: Verdict) -> Verdict:
    for demand, record in zip(verdict.demands, verdict.records, strict=True):
        if demand.terms.version < record[TERMS].version and not demand.terms.own:
            verdict.outdated = True
    return verdict


def _current_records(
    demands: Sequence[Demand], found: Sequence[Record | None], now_ms: int
) -> list[Record]:
    return [
        new_record(demand.terms, now_ms)
        if record is None
        else apply_terms(record, demand.terms, now_ms)
        for demand, record in zip(demands, found, strict=True)
    ]


def take(record: Record, demand: Demand, now_ms: int) -> Record | None:
    """The record after the demand, or None where some limit cannot give what is wanted."""
    terms: Terms = record[TERMS]
    amounts = demand.amounts if terms.core is demand.terms else demand.amounts_for(terms)
    if demand.cascaded is None:
        if len(record) == CELLS + STRIDE:
            return take_one(record, amounts[0], now_ms)
        if len(amounts) == 2 and len(record) == CELLS + 2 * STRIDE:  # none is remembered besides
            return take_two(record, amounts, now_ms)
    cells = [*record]
    at = CELLS
    for wanted, spec in zip(amounts, terms.specs):  # noqa: B905
        if wanted is not None:
            given = give_limit(spec, cells[at], cells[at + TOKENS], wanted, now_ms)
            if given is None:
                return None
            cells[at], cells[at + TOKENS] = given
            cells[at + CONSUMED] += wanted
        at += STRIDE
    cells[EVENTS] += 1
    if demand.cascaded is not None:
        cells[CASCADED] = _cascaded_with(record, demand, int(demand.is_cascaded))
    return tuple(cells)


def take_one(record: Record, wanted: int | None, now_ms: int) -> Record | None:
    """The record of one limit after a take, or None where it cannot give what is wanted."""
    terms, hour, events, cascaded, epoch_ms, tokens, consumed, counted = record
    if wanted is None:
        return (terms, hour, events + 1, cascaded, epoch_ms, tokens, consumed, counted)
    _, capacity, amount, period_ms, soft, resets = terms.specs[0]
    level = tokens + (now_ms - epoch_ms) * amount // period_ms
    if resets is not None:
        level += count_resets(resets, epoch_ms, now_ms) * capacity
    if level < capacity:
        if wanted <= level:
            tokens -= wanted
        elif not soft:
            return None
    elif wanted <= capacity:
        if now_ms > epoch_ms:  # noqa: PLR1730
            epoch_ms = now_ms
        tokens = capacity - wanted
    elif not soft:
        return None
    return (terms, hour, events + 1, cascaded, epoch_ms, tokens, consumed + wanted, counted)


def _cascaded_with(record: Record, demand: Demand, events: int) -> Cascaded:
    """What has come by cascade in the record's hour, this demand included."""
    before, counters = record[CASCADED] or (0, {})
    found = {name: milli for name, milli in demand.cascades() if name in record[TERMS].index}
    for name, milli in counters.items():
        found[name] = found.get(name, 0) + milli
    return before + events, found


def adjust_record(record: Record, demand: Demand, now_ms: int, *, metered: bool = True) -> Record:
    """The record after debits that may go into debt and credits that stop at the brim.

    A credit that is not metered (a grant) leaves the net consumption alone.
    """
    record = apply_terms(record, demand.terms, now_ms)
    terms: Terms = record[TERMS]
    cells = list(record)
    debits, counted = demand.amounts_for(terms), demand.amounts_for(terms, counted=True)
    at = CELLS
    for spec, debit, count in zip(terms.specs, debits, counted):  # noqa: B905
        if debit is not None:
            cells[at + EPOCH], cells[at + TOKENS] = bucket.force_consume(
                cells[at + TOKENS], cells[at + EPOCH], now_ms, spec.rate, debit
            )
            if metered:
                cells[at + CONSUMED] += count
        at += STRIDE
    if metered and demand.cascaded is not None:
        cells[CASCADED] = _cascaded_with(record, demand, 0)
    return tuple(cells)


def is_credit_only(demand: Demand) -> bool:
    """Whether the demand gives back only: on a bucket that is gone there is nothing to give."""
    return all(amount is None or amount <= 0 for amount in demand.amounts)


def build_limit_status(
    verdict: Verdict, index: int, limit_name: str, wanted_milli: int
) -> LimitStatus:
    """How one limit of a verdict's bucket stands: exceeded or not as the decision found it,
    available as the decision left it."""
    key, after = verdict.demands[index].key, verdict.records[index]
    terms: Terms = after[TERMS]
    place = terms.index[limit_name]
    spec = terms.specs[place]
    rate = spec.rate
    at = CELLS + STRIDE * place
    available, next_ms, full_ms = bucket.forecast(
        after[at + TOKENS], after[at], verdict.now_ms, rate
    )
    wait_ms: int | None = 0
    if spec.soft or not verdict.allowed:  # a hard limit of an admission had enough
        before = verdict.before[index]
        wait_ms = bucket.calculate_retry_after(
            before[at + TOKENS], before[at], verdict.now_ms, rate, wanted_milli
        )
    return LimitStatus(
        key.entity_id, key.resource, limit_name, Limit.from_spec(spec), available,
        wanted_milli // MILLI, wait_ms != 0, wait_ms, terms.sources[place], next_ms, full_ms,
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------
# What undoes a take. A soft limit that is passed counts what was wanted and takes nothing. So its
# consumption alone is put right: tokens given back would be tokens that the bucket never gave.


def credit_of(demand: Demand, overdrawn: Collection[str]) -> Demand:
    """What undoes a take that passed these soft limits."""
    credit = demand.inverse()
    if not overdrawn:
        return credit
    tokens = tuple(
        0 if amount and spec.name in overdrawn else amount
        for amount, spec in zip(credit.amounts, demand.terms.specs, strict=True)
    )
    return Demand(demand.key, demand.terms, tokens, credit.amounts, cascaded=credit.cascaded)


def credits_of(verdict: Verdict) -> list[Demand]:
    """What undoes all that the verdict took, and gives no more."""
    untaken = verdict.untaken
    return [
        credit_of(demand, [name for at, name in untaken if at == place])
        for place, demand in enumerate(verdict.demands)
    ]
