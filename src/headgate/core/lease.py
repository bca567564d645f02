"""What an acquire took and what is still owed; pure bookkeeping, no store is called here.

Each bucket of a lease has its own account, for they may have been asked different amounts, and a
soft limit of one may have been passed: then it was counted there, and nothing was taken.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from headgate.core.bucket import MILLI
from headgate.core.decision import Demand
from headgate.core.decision__corrections import Correction
from headgate.core.errors import LeaseExpiredError, ValidationError
from headgate.core.lease__debits import Debit, less, more, total_milli, without
from headgate.core.limits import AMOUNT_MAX, Spec, parse_amount
from headgate.core.store import Store

if TYPE_CHECKING:
    from headgate.core.lease__settling import Settlements

Spot = tuple[int, str]  # a bucket, by the place of its demand, and one of its limits
Changes = dict[Spot, int]  # millitokens: debits are positive, credits negative

NOWHERE = -1  # the place of what is noted on a lease without buckets


class LeaseBook:
    """The account of one lease: what it took, when, and which limits are settled.

    `demands` is what the acquire took, but for soft limits that were passed (`untaken`). `standing`
    has the debits of limits that were changed since; it stays None for the many leases that never
    change.
    """

    __slots__ = (
        "at_ms", "closed", "degraded", "demands", "keep", "owed", "settled",
        "settlements", "standing", "store", "untaken",
    )  # fmt: skip

    def __init__(
        self,
        settlements: Settlements,
        store: Store,
        demands: Sequence[Demand],
        at_ms: int,
        keep: bool,
        degraded: bool = False,
        untaken: Collection[Spot] = (),
    ) -> None:
        self.settlements = settlements
        self.store = store
        self.demands = demands
        self.at_ms = at_ms
        self.keep = keep
        self.degraded = degraded
        self.untaken = untaken
        self.closed = False
        self.standing: dict[Spot, list[Debit]] | None = None
        self.settled: set[str] | None = None
        self.owed: Changes | None = None  # debits the store did not take

    @property
    def consumed(self) -> dict[str, int]:
        """What the lease holds by limit, in whole tokens."""
        names = [name for demand in self.demands for name, _ in demand.named()]
        names += [name for _, name in self.standing or ()]
        return {name: self.held_milli(name) // MILLI for name in dict.fromkeys(names)}

    def held_milli(self, name: str) -> int:
        """How much of a limit the lease holds now: the most that one of its buckets gave."""
        spots = self._spots(name)
        return max((total_milli(self.debits(spot)) // times for spot, times in spots), default=0)

    def debits(self, spot: Spot) -> Sequence[Debit]:
        """What stands on one limit of one bucket, the oldest first."""
        if self.standing is not None and spot in self.standing:
            return self.standing[spot]
        place, name = spot
        if place == NOWHERE:
            return ()
        demand = self.demands[place]
        at = demand.terms.index.get(name)
        amount = None if at is None else demand.amounts[at]
        return (Debit(self.at_ms, amount, spot not in self.untaken),) if amount else ()

    def spread(self, amounts_milli: Mapping[str, int]) -> Changes:
        """A change of limits on each bucket it concerns."""
        return {
            spot: milli * times
            for name, milli in amounts_milli.items()
            for spot, times in self._spots(name)
        }

    def missing(self, actual_milli: Mapping[str, int]) -> Changes:
        """What makes each bucket concerned hold exactly the actual amounts."""
        return {
            spot: milli * times - total_milli(self.debits(spot))
            for name, milli in actual_milli.items()
            for spot, times in self._spots(name)
        }

    def _spots(self, name: str) -> list[tuple[Spot, int]]:
        """The buckets that were asked for the limit (all that have it, where none was), and how
        often an amount counts for each: where parts of the request share one of them and not the
        others, such as the parent of two, it counts there for each part."""
        if not self.demands:
            return [((NOWHERE, name), 1)]
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

    def debit(self, changes: Changes, at_ms: int, untaken: Collection[Spot] = ()) -> None:
        """Notes what is taken, or of passed soft limits counted."""
        for spot, milli in changes.items():
            if milli:
                debit = Debit(at_ms, milli, spot not in untaken)
                self._keep(spot, more(self.debits(spot), debit))

    def strike(self, changes: Changes, at_ms: int) -> None:
        """What was noted did not happen."""
        for spot, milli in changes.items():
            left = list(self.debits(spot))
            if Debit(at_ms, milli) in left:
                left.remove(Debit(at_ms, milli))
            else:  # it is part of another by now
                left = without(left, milli)
            self._keep(spot, left)

    def give_back(self, changes: Changes) -> list[Demand]:
        """The credits to send, off the books: at most what stands, and tokens only of debits that
        took some and that the store has. Of the others the consumption goes back."""
        tokens: Changes = {}
        counted: Changes = {}
        for spot, milli in changes.items():
            left, taken, only_counted = less(self.debits(spot), -milli)
            self._keep(spot, left)
            owed = min(taken, (self.owed or {}).get(spot, 0))
            if owed:
                self.owe({spot: -owed})
            if taken - owed + only_counted:
                tokens[spot] = owed - taken
                counted[spot] = owed - taken - only_counted
        return self.demands_for(tokens, counted)

    def owe(self, changes: Changes) -> None:
        """Debits the store did not take are written at the end of the block."""
        self.owed = self.owed or {}
        for spot, milli in changes.items():
            self.owed[spot] = self.owed.get(spot, 0) + milli

    def lose(self, changes: Changes) -> None:
        """Debits that were noted and never written: no refund may give them back."""
        for spot, milli in changes.items():
            self._keep(spot, without(self.debits(spot), milli))

    def _keep(self, spot: Spot, debits: list[Debit]) -> None:
        if self.standing is None:
            self.standing = {}
        self.standing[spot] = debits

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
            if line == count:
                found.append(Demand(demand.key, demand.terms, line))
            else:
                found.append(Correction(demand.key, demand.terms, line, count))
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
                credit = sum(_refund(one, spec, now_ms) for one in debits if one.taken)
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
                raise ValidationError(
                    "limit",
                    name,
                    f"is not a limit of this lease; it has {', '.join(sorted(known))}",
                )
            if signed and type(amount) is int and -AMOUNT_MAX <= amount < 0:
                found[name] = amount * MILLI
            else:
                found[name] = parse_amount(name, amount) * MILLI
        return found


def _refund(debit: Debit, spec: Spec, now_ms: int) -> int:
    """Less what has fully arrived since: a part of a millitoken that has not is not there yet, and
    who tries again at once would be refused for it."""
    refilled = max(0, now_ms - debit.at_ms) * spec.amount_milli // spec.period_ms
    return max(0, debit.milli - refilled)
