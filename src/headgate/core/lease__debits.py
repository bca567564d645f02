"""What a lease has debited from one limit of one bucket, and what a credit undoes of it; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

DEBITS_MAX = 64  # of one limit of one bucket; a stream may adjust its lease for hours


class Debit(NamedTuple):
    """One debit that stands. One that passed a soft limit was counted and took nothing."""

    at_ms: int
    milli: int
    taken: bool = True


class Undone(NamedTuple):
    """What stands after a credit, and how much it undid of debits that took, and of those that
    were counted only."""

    left: list[Debit]
    taken_milli: int
    counted_milli: int


def more(standing: Sequence[Debit], debit: Debit) -> list[Debit]:
    """What stands with one more; where that is too many, the two oldest of a kind are one.

    It counts from the older: all that was refilled since is lost to a refund, so it makes no burst.
    """
    found = [*standing, debit]
    if len(found) > DEBITS_MAX:
        first, second = found[:2] if found[0].taken == found[1].taken else _alike(found)
        found.remove(second)
        found[found.index(first)] = first._replace(milli=first.milli + second.milli)
    return found


def _alike(found: Sequence[Debit]) -> tuple[Debit, Debit]:
    """The first two differ: the third is like one of them."""
    one, other, third = found[:3]
    return (one if one.taken == third.taken else other), third


def less(standing: Sequence[Debit], credit_milli: int) -> Undone:
    """The newest debits are undone first."""
    left = list(standing)
    undone = {True: 0, False: 0}
    while credit_milli > 0 and left:
        debit = left.pop()
        part = min(debit.milli, credit_milli)
        if debit.milli > part:
            left.append(debit._replace(milli=debit.milli - part))
        undone[debit.taken] += part
        credit_milli -= part
    return Undone(left, undone[True], undone[False])


def without(standing: Sequence[Debit], lost_milli: int) -> list[Debit]:
    """What stands once it is known that the newest so much was never taken."""
    taken = less([debit for debit in standing if debit.taken], lost_milli).left
    return sorted([*(debit for debit in standing if not debit.taken), *taken])


def total_milli(standing: Sequence[Debit]) -> int:
    return sum(debit.milli for debit in standing)
