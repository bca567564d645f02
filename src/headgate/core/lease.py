"""Leases: what an acquire took, what is still owed, and what becomes of it.

Each bucket of a lease has its own account, for they may have been asked different amounts, and a
soft limit of one may have been passed: then it was counted there, and nothing was taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from headgate.core.decision import Demand, LimitStatus, Verdict
from headgate.core.errors import (
    DemandTooLarge,
    HeadgateError,
    LeaseExpiredError,
    RateLimitExceeded,
    StoreTrouble,
    ValidationError,
    raise_unavailable,
)
from headgate.core.limits import AMOUNT_MAX, Spec, parse_amount
from headgate.core.plan import check_capacity, join_halves
from headgate.core.record import TERMS, cells_of
from headgate.core.refill import bucket
from headgate.core.refill.bucket import MILLI
from headgate.core.refill.resets import SessionResets
from headgate.core.runtime import Clock
from headgate.core.store import Store
from headgate.core.wait_queue import WaitQueues

# --------------------------------------------------------------------------------------------------
# What a lease has debited from one limit of one bucket, and what a credit undoes of it; pure.

DEBITS_MAX = 64  # of one limit of one bucket; a stream may adjust its lease for hours


class Debit(NamedTuple):
    """One debit that stands. One that passed a soft limit was counted and took nothing."""

    at_ms: int
    milli: int
    taken: bool = True


def add_debit(standing: Sequence[Debit], debit: Debit) -> list[Debit]:
    """What stands with one more; where that is too many, the two oldest of a kind are one.

    It counts from the older: all that was refilled since is lost to a refund, so it makes no burst.
    """
    found = [*standing, debit]
    if len(found) > DEBITS_MAX:
        pairs = itertools.combinations(found[:3], 2)  # of three, two are alike
        first, second = next(pair for pair in pairs if pair[0].taken == pair[1].taken)
        found.remove(second)
        found[found.index(first)] = first._replace(milli=first.milli + second.milli)
    return found


def undo_newest(standing: Sequence[Debit], credit_milli: int) -> tuple[list[Debit], int, int]:
    """What stands after a credit, which undoes the newest debits first, and how much it undid of
    debits that took, and of those that were counted only."""
    left = list(standing)
    undone = {True: 0, False: 0}
    while credit_milli > 0 and left:
        debit = left.pop()
        part = min(debit.milli, credit_milli)
        if debit.milli > part:
            left.append(debit._replace(milli=debit.milli - part))
        undone[debit.taken] += part
        credit_milli -= part
    return left, undone[True], undone[False]


def drop_newest(standing: Sequence[Debit], lost_milli: int) -> list[Debit]:
    """What stands once it is known that the newest so much was never taken."""
    taken, _, _ = undo_newest([debit for debit in standing if debit.taken], lost_milli)
    return sorted([*(debit for debit in standing if not debit.taken), *taken])


def total_milli(standing: Sequence[Debit]) -> int:
    return sum(debit.milli for debit in standing)


# --------------------------------------------------------------------------------------------------
# From a verdict or a trouble to the error a caller sees.


def refusal_error(verdict: Verdict, asked_by: str | None = None) -> HeadgateError:
    """RateLimitExceeded; or DemandTooLarge where the bucket's newer limits can never hold it.

    `asked_by` is the entity that asked, where all others are its parents.
    """
    if not verdict.fits_capacity:
        for status in verdict.statuses:
            if status.refuses and status.never:
                return DemandTooLarge(
                    status.entity_id,
                    status.resource,
                    status.limit_name,
                    status.requested,
                    status.limit.capacity,
                )
    return RateLimitExceeded(asked_by=asked_by, verdict=verdict)


LimitRef = tuple[int, str]  # a bucket, by the place of its demand, and one of its limits
Changes = dict[LimitRef, int]  # millitokens: debits are positive, credits negative

NO_BUCKET = -1  # the place of what is noted on a lease without buckets
GROWN_MAX_MILLI = 2**50  # that every store can give back in one call, with as much by cascade


@dataclass(slots=True, eq=False, repr=False)
class LeaseAccount:
    """The account of one lease: what it took, when, and which limits are settled.

    `demands` is what the acquire took, but for soft limits that were passed (`untaken`). `standing`
    has the debits of limits that were changed since; it stays None for the many leases that never
    change, as does `untaken` until it matters: then the verdict says it. A bucket that was asked
    for itself and by cascade is there twice (`split_halves`).
    """

    settlements: Settlements
    store: Store
    demands: Sequence[Demand]
    at_ms: int
    keep: bool
    degraded: bool = False
    untaken: Collection[LimitRef] | None = None
    verdict: Verdict | None = None
    closed: bool = field(default=False, init=False)
    standing: dict[LimitRef, list[Debit]] | None = field(default=None, init=False)
    settled: set[str] | None = field(default=None, init=False)
    owed: Changes | None = field(default=None, init=False)  # debits the store did not take
    windows: Changes | None = field(default=None, init=False)  # see `window_starts`

    @property
    def nearest(self) -> LimitStatus | None:
        """The limit that further requests like this one meet first, as it was when this one was
        admitted: it may be a parent's. None where no limit was asked."""
        return None if self.verdict is None else self.verdict.nearest

    @property
    def consumed(self) -> dict[str, int]:
        """What the lease holds by limit, in whole tokens."""
        if self.standing is None and len(self.demands) == 1:  # as it was taken, from one bucket
            return {name: milli // MILLI for name, milli in self.demands[0].named()}
        names = [name for demand in self.demands for name, _ in demand.named()]
        names += [name for _, name in self.standing or ()]
        return {name: self.held_milli(name) // MILLI for name in dict.fromkeys(names)}

    def held_milli(self, name: str) -> int:
        """How much of a limit the lease holds now: the most that one of its buckets gave."""
        refs = self._limit_refs(name)
        return max((total_milli(self.debits(ref)) // times for ref, times in refs), default=0)

    def debits(self, ref: LimitRef) -> Sequence[Debit]:
        """What stands on one limit of one bucket, the oldest first."""
        if self.standing is not None and ref in self.standing:
            return self.standing[ref]
        place, name = ref
        if place == NO_BUCKET:
            return ()
        demand = self.demands[place]
        at = demand.terms.index.get(name)
        amount = None if at is None else demand.amounts[at]
        return (Debit(self.at_ms, amount, ref not in self.untaken_refs()),) if amount else ()

    def spread(self, amounts_milli: Mapping[str, int]) -> Changes:
        """A change of limits on each bucket it concerns."""
        return {
            ref: milli * times
            for name, milli in amounts_milli.items()
            for ref, times in self._limit_refs(name)
        }

    def missing(self, actual_milli: Mapping[str, int]) -> Changes:
        """What makes each bucket concerned hold exactly the actual amounts."""
        return {
            ref: milli * times - total_milli(self.debits(ref))
            for name, milli in actual_milli.items()
            for ref, times in self._limit_refs(name)
        }

    def split_halves(self) -> Self:
        """The same with both halves of a bucket that was asked for itself and by cascade apart, one
        after the other, so that each is settled by what it was asked for."""
        demands: list[Demand] = []
        untaken: list[LimitRef] = []
        passed = self.untaken_refs()
        for place, demand in enumerate(self.demands):
            for half in demand.halves or (demand,):
                untaken += [(len(demands), name) for at, name in passed if at == place]
                demands.append(half)
        self.demands, self.untaken = demands, untaken
        return self

    def untaken_refs(self) -> Collection[LimitRef]:
        """The soft limits that were passed: they counted what was wanted, and gave nothing."""
        if self.untaken is None:
            self.untaken = () if self.verdict is None else self.verdict.untaken
        return self.untaken

    def window_starts(self) -> Mapping[LimitRef, int]:
        """When the windows of session quotas began that the lease took from; nothing but their
        buckets knows it."""
        if self.windows is None:
            self.windows = {}
            verdict = self.verdict
            taken = zip(verdict.demands, verdict.records, strict=False) if verdict else ()
            for one, record in taken:
                places = [at for at, demand in enumerate(self.demands) if demand.key == one.key]
                for cell in cells_of(record) if record[TERMS].quotas else ():
                    if isinstance(cell.spec.rate.resets, SessionResets):
                        begun = dict.fromkeys(
                            [(at, cell.spec.name) for at in places], cell.epoch_ms
                        )
                        self.windows.update(begun)
        return self.windows

    def _limit_refs(self, name: str) -> list[tuple[LimitRef, int]]:
        """The buckets that were asked for the limit (all that have it, where none was), and how
        often an amount counts for each: where parts of the request share one of them and not the
        others, such as the parent of two, it counts there for each part."""
        if not self.demands:
            return [((NO_BUCKET, name), 1)]
        having = [
            (place, demand, demand.terms.index[name])
            for place, demand in enumerate(self.demands)
            if name in demand.terms.index
        ]
        asked = [row for row in having if row[1].amounts[row[2]] is not None]
        times = [1 if one.parts is None else one.parts[at] or 1 for _, one, at in asked or having]
        if len(set(times)) == 1:
            times = [1] * len(times)
        places = [place for place, _, _ in asked or having]
        return [((place, name), count) for place, count in zip(places, times, strict=True)]

    def debit(self, changes: Changes, at_ms: int, untaken: Collection[LimitRef] = ()) -> None:
        """Notes what is taken, or of passed soft limits counted."""
        for ref, milli in changes.items():
            if milli:
                debit = Debit(at_ms, milli, ref not in untaken)
                self._keep(ref, add_debit(self.debits(ref), debit))

    def revert(self, changes: Changes, at_ms: int) -> None:
        """What was noted did not happen."""
        for ref, milli in changes.items():
            left = list(self.debits(ref))
            if Debit(at_ms, milli) in left:
                left.remove(Debit(at_ms, milli))
            else:  # it is part of another by now
                left = drop_newest(left, milli)
            self._keep(ref, left)

    def give_back(self, changes: Changes) -> list[Demand]:
        """The credits to send, off the books: at most what stands, and tokens only of debits that
        took some and that the store has. Of the others the consumption goes back."""
        tokens: Changes = {}
        counted: Changes = {}
        for ref, milli in changes.items():
            left, taken, only_counted = undo_newest(self.debits(ref), -milli)
            self._keep(ref, left)
            owed = min(taken, (self.owed or {}).get(ref, 0))
            if owed:
                self.owe({ref: -owed})
            if taken - owed + only_counted:
                tokens[ref] = owed - taken
                counted[ref] = owed - taken - only_counted
        return self.demands_for(tokens, counted)

    def owe(self, changes: Changes) -> None:
        """Debits the store did not take are written at the end of the block."""
        self.owed = self.owed or {}
        for ref, milli in changes.items():
            self.owed[ref] = self.owed.get(ref, 0) + milli

    def lose(self, changes: Changes) -> None:
        """Debits that were noted and never written: no refund may give them back."""
        for ref, milli in changes.items():
            self._keep(ref, drop_newest(self.debits(ref), milli))

    def _keep(self, ref: LimitRef, debits: list[Debit]) -> None:
        if self.standing is None:
            self.standing = {}
        self.standing[ref] = debits

    def check_open(self) -> None:
        """Raises LeaseExpiredError once the block has ended."""
        if self.closed:
            raise LeaseExpiredError

    def demands_for(self, tokens: Changes, counted: Changes | None = None) -> list[Demand]:
        """The changes as demands on the lease's buckets."""
        found: list[Demand] = []
        for place, demand in enumerate(self.demands):
            specs = demand.terms.specs
            line = tuple(tokens.get((place, spec.name)) for spec in specs)
            count = tuple((counted or tokens).get((place, spec.name)) for spec in specs)
            if not any(count):
                continue
            apart = None if line == count else count
            cascaded = None if demand.cascaded is None else count
            change = Demand(demand.key, demand.terms, line, apart, cascaded=cascaded)
            if found and cascaded is not None and found[-1].key == demand.key:
                change = join_halves(found.pop(), change)  # its other half comes just before it
            found.append(change)
        return found

    def refunds(self, now_ms: int) -> list[Demand]:
        """The credits that undo the lease, less what has been refilled since each debit.

        A late refund is cut by what the limit refilled meanwhile: the bucket may have been full
        without it, and must not get a burst that it would never have had. What was only counted
        is no longer.
        """
        tokens: Changes = {}
        counted: Changes = {}
        for place, demand in enumerate(self.demands):
            for spec in demand.terms.specs:
                if self.settled is not None and spec.name in self.settled:
                    continue
                debits = self.debits((place, spec.name))
                begun_ms = self.window_starts().get((place, spec.name)) if spec.resets else None
                credit = sum(_refund(one, spec, begun_ms, now_ms) for one in debits if one.taken)
                only_counted = sum(one.milli for one in debits if not one.taken)
                if credit + only_counted:
                    tokens[place, spec.name] = -credit
                    counted[place, spec.name] = -credit - only_counted
        return self.demands_for(tokens, counted)

    def parse_changes(self, changes: Mapping[str, int], *, signed: bool = False) -> dict[str, int]:
        """Amounts by limit in millitokens, checked against the limits the lease knows."""
        self.check_open()
        known = {spec.name for demand in self.demands for spec in demand.terms.specs}
        found = {}
        for name, amount in changes.items():
            if self.demands and name not in known:
                told = f"is not a limit of this lease; it has {', '.join(sorted(known))}"
                raise ValidationError("limit", name, told)
            if signed and type(amount) is int and -AMOUNT_MAX <= amount < 0:
                found[name] = amount * MILLI
            else:
                found[name] = parse_amount(name, amount) * MILLI
        return found


def _refund(debit: Debit, spec: Spec, begun_ms: int | None, now_ms: int) -> int:
    """Less what has fully arrived since: a part of a millitoken that has not is not there yet, and
    who tries again at once would be refused for it. A session quota gives back in the window that
    it took in, and nothing where it is not known when that began."""
    resets = spec.rate.resets
    if isinstance(resets, SessionResets):
        is_over = begun_ms is None or resets.resets_between(begun_ms, now_ms) > 0
        return 0 if is_over else debit.milli
    refilled = bucket.arrived_milli(debit.at_ms, max(now_ms, debit.at_ms), spec.rate)
    return max(0, debit.milli - refilled)


# --------------------------------------------------------------------------------------------------
# What happens to a lease after its acquire: adjust, consume more, release, settle, leave.
#
# Debits that the store did not take are owed and written at the end of the block; a credit is sent
# at most once, because sending it twice could admit more than was promised.

Notify = Callable[..., None]  # the engine's `notify`


def _check_growth(account: LeaseAccount, debits: Changes) -> None:
    """Raises where more would be held than can be given back at once."""
    for ref, milli in debits.items():
        if milli and total_milli(account.debits(ref)) + milli > GROWN_MAX_MILLI:
            told = f"more would make it hold more than {GROWN_MAX_MILLI // MILLI}; use two leases"
            raise ValidationError(ref[1], milli // MILLI, told)


class Settlements:
    """The flows of open leases, in whole units of one engine."""

    def __init__(
        self, clock: Clock, queues: WaitQueues, notify: Notify, *, drives_time: bool
    ) -> None:
        self._clock = clock
        self._queues = queues
        self._notify = notify
        self._drives_time = drives_time

    async def adjust(self, account: LeaseAccount, changes: Mapping[str, int]) -> None:
        """Debits and credits by limit; a lease gives back at most what it holds."""
        await self._apply(account, account.spread(account.parse_changes(changes, signed=True)))

    async def consume(self, account: LeaseAccount, changes: Mapping[str, int]) -> None:
        """More of the same, if it fits; otherwise RateLimitExceeded and nothing is taken."""
        wanted = account.spread(account.parse_changes(changes))
        _check_growth(account, wanted)
        demands = account.demands_for(wanted)
        if not demands:
            return
        for demand in demands:
            check_capacity(demand)
        key = demands[0].key
        now_ms = self._clock()
        try:
            verdict = await account.store.consume(demands, self._store_ms(now_ms))
        except StoreTrouble as trouble:
            raise_unavailable(trouble, key.entity_id, key.resource)
        if not verdict.allowed:
            self._notify("refused", key.entity_id, key.resource, verdict=verdict)
            raise refusal_error(verdict)
        if not verdict.demands:  # let pass by a shadow: nothing was taken
            return
        passed = {(verdict.demands[at].key, name) for at, name in verdict.untaken}
        untaken = {ref for ref in wanted if (account.demands[ref[0]].key, ref[1]) in passed}
        account.debit(wanted, now_ms, untaken)

    async def release(self, account: LeaseAccount, changes: Mapping[str, int]) -> None:
        """Gives back part of what the lease holds."""
        wanted = account.parse_changes(changes)
        for name, milli in wanted.items():
            most = account.held_milli(name)
            if account.demands and milli > most:
                raise ValidationError(
                    name, milli // MILLI,
                    f"is more than the lease holds ({most // MILLI}); release at most that",
                )  # fmt: skip
        await self._apply(account, account.spread({name: -milli for name, milli in wanted.items()}))

    async def settle(self, account: LeaseAccount, actual: Mapping[str, int]) -> None:
        """The lease comes to hold exactly the actual amounts; saying it twice changes nothing."""
        wanted = account.parse_changes(actual)
        await self._apply(account, account.missing(wanted))
        account.settled = (account.settled or set()) | set(wanted)

    async def leave(self, account: LeaseAccount, failed: bool) -> None:
        """The end of the block: what is owed is written, a failure refunds unless kept."""
        if account.closed:
            return
        account.closed = True
        await self._write_owed(account)
        if failed and not account.keep:
            refunds = account.refunds(self._clock())
            if refunds and await self._write(account, refunds, "credit_lost"):
                key = refunds[0].key
                self._notify("refunded", key.entity_id, key.resource, "")

    async def _apply(self, account: LeaseAccount, changes: Changes) -> None:
        debits = {ref: milli for ref, milli in changes.items() if milli > 0}
        credits = {ref: milli for ref, milli in changes.items() if milli < 0}
        _check_growth(account, debits)
        if debits:
            await self._debit(account, debits)
        if not credits:
            return
        standing, owed = account.standing, account.owed
        books = standing and {**standing}, owed and {**owed}
        back = account.give_back(credits)
        try:
            if back:
                await self._write(account, back, "credit_lost")
        except ValidationError:  # the store did not even try, so it still has all of it
            account.standing, account.owed = books
            raise

    async def _debit(self, account: LeaseAccount, debits: Changes) -> None:
        """Owed where the store does not take it; not the lease's where it was not even sent."""
        now_ms = self._clock()
        account.debit(debits, now_ms)
        demands = account.demands_for(debits)
        try:
            taken = not demands or await self._write(account, demands, None)
        except BaseException:
            account.revert(debits, now_ms)
            raise
        if not taken:
            account.owe(debits)

    async def _write_owed(self, account: LeaseAccount) -> None:
        """What stays unwritten was never taken, so no refund may give it back."""
        owed = account.owed or {}
        demands = account.demands_for(owed)
        if demands and not await self._write(account, demands, "debit_lost"):
            account.lose(owed)

    async def _write(self, account: LeaseAccount, demands: list[Demand], lost: str | None) -> bool:
        """Whether the store has it; where not, `lost` names the event to report."""
        try:
            await account.store.adjust(demands, self._store_ms(self._clock()))
        except StoreTrouble as trouble:
            if lost is not None:
                key = demands[0].key
                self._notify(lost, key.entity_id, key.resource, str(trouble))
            return False
        self._queues.wake_first([demand.key.text for demand in demands])
        return True

    def _store_ms(self, now_ms: int) -> int | None:
        return now_ms if self._drives_time else None
