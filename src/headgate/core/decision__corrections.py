"""Demands that say more than amounts: what was only counted, and what several parts asked together.

A soft limit that is passed counts what was wanted and takes nothing. Whoever undoes that gives no
tokens back, or the bucket would gain what it never gave; the consumption alone is put right.
"""

from __future__ import annotations

from collections.abc import Collection

from headgate.core.decision import Amounts, Demand, Verdict
from headgate.core.record import BucketKey, Terms


class Correction(Demand):
    """An adjustment that moves the consumption by other amounts than the tokens.

    A limit whose consumption alone moves has 0 among the amounts, not None.
    """

    __slots__ = ("counted",)

    def __init__(self, key: BucketKey, terms: Terms, amounts: Amounts, counted: Amounts) -> None:
        super().__init__(key, terms, amounts)
        self.counted = counted


class Joint(Demand):
    """A demand of several parts of a request on one bucket: how many of them want each limit."""

    __slots__ = ("parts",)

    def __init__(
        self, key: BucketKey, terms: Terms, amounts: Amounts, parts: tuple[int, ...]
    ) -> None:
        super().__init__(key, terms, amounts)
        self.parts = parts


def credit_of(demand: Demand, passed: Collection[str]) -> Demand:
    """What undoes a take that passed these soft limits."""
    credit = demand.negated()
    if not passed:
        return credit
    tokens = tuple(
        0 if amount and spec.name in passed else amount
        for amount, spec in zip(credit.amounts, demand.terms.specs, strict=True)
    )
    return Correction(demand.key, demand.terms, tokens, credit.amounts)


def credits_of(verdict: Verdict) -> list[Demand]:
    """What undoes all that the verdict took, and gives no more."""
    untaken = verdict.untaken
    return [
        credit_of(demand, [name for at, name in untaken if at == place])
        for place, demand in enumerate(verdict.demands)
    ]
