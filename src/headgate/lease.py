"""What an acquire took and what is still owed; pure bookkeeping, no store is called here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headgate.bucket import MILLI, div_ceil
from headgate.decision import Demand
from headgate.errors import LeaseExpiredError, ValidationError
from headgate.limits import AMOUNT_MAX, parse_amount
from headgate.store import Store

if TYPE_CHECKING:
    from headgate.settling import Settlements


class LeaseBook:
    """The account of one lease: what it took, when, and which limits are settled.

    `demands` is what the acquire took. `later` lists further debits and credits by limit name,
    newest last; it stays None for the many leases that never change.
    """

    __slots__ = (
        "at_ms", "closed", "degraded", "demands", "keep", "later", "owed", "settled",
        "settlements", "store",
    )  # fmt: skip

    def __init__(
        self,
        settlements: Settlements,
        store: Store,
        demands: Sequence[Demand],
        at_ms: int,
        keep: bool,
        degraded: bool = False,
    ) -> None:
        self.settlements = settlements
        self.store = store
        self.demands = demands
        self.at_ms = at_ms
        self.keep = keep
        self.degraded = degraded
        self.closed = False
        self.later: list[tuple[int, str, int]] | None = None
        self.settled: set[str] | None = None
        self.owed: dict[str, int] | None = None  # debits the store did not take, by limit

    def held_milli(self, name: str) -> int:
        """How much of a limit the lease holds now."""
        taken = 0
        for demand in self.demands:
            place = demand.terms.index.get(name)
            if place is not None and demand.amounts[place] is not None:
                taken = demand.amounts[place] or 0
                break
        return taken + sum(milli for _, other, milli in self.later or () if other == name)

    def returnable_milli(self, name: str) -> int:
        """How much of a limit every bucket concerned can get back without being given more than it
        gave."""
        taken = [
            demand.amounts[demand.terms.index[name]] or 0
            for demand in self.demands
            if self._concerns(demand, name)
        ]
        changed = sum(milli for _, other, milli in self.later or () if other == name)
        return max(0, min(taken, default=0) + changed)

    @property
    def consumed(self) -> dict[str, int]:
        """What the lease holds by limit, in whole tokens."""
        names = [name for demand in self.demands for name, _ in demand.named()]
        names += [name for _, name, _ in self.later or ()]
        return {name: self.held_milli(name) // MILLI for name in dict.fromkeys(names)}

    def note(self, name: str, milli: int, at_ms: int) -> None:
        if self.later is None:
            self.later = []
        self.later.append((at_ms, name, milli))

    def strike(self, name: str, milli: int, at_ms: int) -> None:
        """What was noted did not happen."""
        if self.later is not None and (at_ms, name, milli) in self.later:
            self.later.remove((at_ms, name, milli))

    def owe(self, name: str, milli: int) -> None:
        """A debit the store did not take is written at the end of the block."""
        self.owed = self.owed or {}
        self.owed[name] = self.owed.get(name, 0) + milli

    def less_owed(self, name: str, credit_milli: int) -> int:
        """What is left to give back once debits are struck out that the store never took."""
        owed = min(credit_milli, (self.owed or {}).get(name, 0))
        if owed:
            self.owe(name, -owed)
        return credit_milli - owed

    def check_open(self) -> None:
        """Raises LeaseExpiredError once the block has ended."""
        if self.closed:
            raise LeaseExpiredError

    def demands_for(self, amounts_milli: Mapping[str, int]) -> list[Demand]:
        """Demands on every bucket of the lease that was asked for the limit; on every bucket that
        has it, where none was asked."""
        found = []
        for demand in self.demands:
            line = tuple(
                amounts_milli[spec.name]
                if spec.name in amounts_milli and self._concerns(demand, spec.name)
                else None
                for spec in demand.terms.specs
            )
            if any(line):
                found.append(Demand(demand.key, demand.terms, line))
        return found

    def refunds(self, now_ms: int) -> list[Demand]:
        """The credits that undo the lease, less what has been refilled since each debit.

        A late refund is cut by what the limit refilled meanwhile: the bucket may have been full
        without it, and must not get a burst that it would never have had.
        """
        found = []
        for demand in self.demands:
            line = tuple(
                self._refund(demand, place, now_ms) for place in range(len(demand.amounts))
            )
            if any(line):
                found.append(Demand(demand.key, demand.terms, line))
        return found

    def _refund(self, demand: Demand, place: int, now_ms: int) -> int | None:
        spec = demand.terms.specs[place]
        if self.settled is not None and spec.name in self.settled:
            return None
        credit = 0
        for at_ms, milli in self._debits(demand, place):
            refilled = div_ceil(max(0, now_ms - at_ms) * spec.amount_milli, spec.period_ms)
            credit += max(0, milli - refilled)
        return -credit or None

    def _debits(self, demand: Demand, place: int) -> list[tuple[int, int]]:
        """The debits still standing on one limit of one bucket; credits undo the newest first."""
        name = demand.terms.specs[place].name
        standing = [(self.at_ms, demand.amounts[place] or 0)]
        if self._concerns(demand, name):
            for at_ms, other, milli in self.later or ():
                if other == name and milli >= 0:
                    standing.append((at_ms, milli))
                elif other == name:
                    standing = _less(standing, -milli)
        return standing

    def _concerns(self, demand: Demand, name: str) -> bool:
        place = demand.terms.index.get(name)
        if place is None:
            return False
        return demand.amounts[place] is not None or not self._asked(name)

    def _asked(self, name: str) -> bool:
        for demand in self.demands:
            place = demand.terms.index.get(name)
            if place is not None and demand.amounts[place] is not None:
                return True
        return False

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


def _less(standing: list[tuple[int, int]], credit: int) -> list[tuple[int, int]]:
    left = list(standing)
    while credit > 0 and left:
        at_ms, milli = left.pop()
        if milli > credit:
            left.append((at_ms, milli - credit))
        credit -= milli
    return left
