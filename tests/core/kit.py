"""What the laws are tried on: a limit as a store would keep it, and numbers of every size."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st

from headgate.core.refill import bucket
from headgate.core.refill.bucket import Rate
from proof.size import sized
from tests.core.oracle import Oracle

LAW = settings(deadline=None, max_examples=sized(80, 400, 2000), derandomize=True, database=None)

DAY_MS = 86_400_000
DECADES_MS = 40 * 366 * DAY_MS
HUGE_MILLI = (2**53 - 1) * 1000

ONE_PER_DAY = Rate(1_000, 1_000, DAY_MS)
FAST = Rate(100_000_000, 100_000_000, 1_000)
NEVER = Rate(5_000, 0, 1_000)
HUGE = Rate(HUGE_MILLI, HUGE_MILLI, 10 * 366 * DAY_MS)
NAMED = (
    ONE_PER_DAY,
    FAST,
    NEVER,
    HUGE,
    Rate(500_000, 500_000, DAY_MS),
    Rate(100_000, 100_000, 60_000),
)

small_rates = st.builds(Rate, st.integers(1, 50), st.integers(0, 20), st.integers(1, 30), st.none())
any_rates = st.builds(
    Rate,
    st.integers(1, HUGE_MILLI),
    st.integers(0, HUGE_MILLI),
    st.integers(1, 10 * 366 * DAY_MS),
    st.none(),
)
rates = st.one_of(small_rates, st.sampled_from(NAMED), any_rates)
gaps_ms = st.one_of(st.integers(0, 40), st.integers(0, DAY_MS), st.integers(0, DECADES_MS))


class Step(NamedTuple):
    gap_ms: int
    verb: str
    percent: int

    def amount(self, rate: Rate) -> int:
        """The amount as a share of the capacity, so that every size of limit is driven hard."""
        return share(rate.capacity_milli, self.percent)


def share(capacity_milli: int, percent: int) -> int:
    return capacity_milli * percent // 100


percents = st.one_of(st.sampled_from((100, 0)), st.integers(0, 150))
verbs = st.sampled_from(("take", "take", "take", "look", "debit", "credit"))
steps = st.lists(st.builds(Step, gaps_ms, verbs, percents), max_size=12)
tight_rates = st.builds(Rate, st.integers(1, 8), st.integers(1, 5), st.integers(2, 12), st.none())
tight_takes = st.lists(
    st.builds(Step, st.integers(0, 15), st.just("take"), st.sampled_from((100, 25))),
    min_size=2,
    max_size=6,
)  # fmt: skip
takes = st.lists(st.builds(Step, gaps_ms, st.just("take"), percents), min_size=1, max_size=12)


class Kept(NamedTuple):
    """One limit as stored, with the verbs of `headgate.core.refill.bucket` applied to it.

    The only place of these tests that knows what the bucket functions take and return.
    """

    rate: Rate
    tokens_milli: int
    epoch_ms: int

    @classmethod
    def full(cls, rate: Rate, epoch_ms: int = 0) -> Kept:
        return cls(rate, rate.capacity_milli, epoch_ms)

    def level(self, now_ms: int) -> int:
        return bucket.refill_bucket(self.tokens_milli, self.epoch_ms, now_ms, self.rate)

    def take(self, now_ms: int, wanted: int) -> tuple[bool, Kept, int | None]:
        taken = bucket.try_consume(self.tokens_milli, self.epoch_ms, now_ms, self.rate, wanted)
        return taken.allowed, Kept(self.rate, taken.tokens_milli, taken.epoch_ms), taken.wait_ms

    def force(self, now_ms: int, debit: int) -> Kept:
        epoch_ms, tokens = bucket.force_consume(
            self.tokens_milli, self.epoch_ms, now_ms, self.rate, debit
        )
        return Kept(self.rate, tokens, epoch_ms)

    def wait_ms(self, now_ms: int, wanted: int) -> int | None:
        return bucket.calculate_retry_after(
            self.tokens_milli, self.epoch_ms, now_ms, self.rate, wanted
        )

    def full_at_ms(self) -> int | None:
        return bucket.full_at_ms(self.tokens_milli, self.epoch_ms, self.rate)

    def rebased(self, new_epoch_ms: int) -> Kept:
        """The level stored at a later epoch, as a split of a bucket into shards does it."""
        after = bucket.refill_bucket(self.tokens_milli, self.epoch_ms, new_epoch_ms, self.rate)
        return self._replace(tokens_milli=after, epoch_ms=new_epoch_ms)

    def carried(self, now_ms: int, new: Rate) -> Kept:
        epoch_ms, tokens = bucket.carry_over(
            self.tokens_milli, self.epoch_ms, now_ms, self.rate, new
        )
        return Kept(new, tokens, epoch_ms)


def oracle_for(kept: Kept) -> Oracle:
    """An oracle that starts where the limit stands at its epoch."""
    level = min(kept.tokens_milli, kept.rate.capacity_milli)
    return Oracle(*kept.rate[:3], level, kept.epoch_ms)


def played(kept: Kept, played_steps: list[Step]) -> tuple[Kept, Oracle, list[tuple[int, int]], int]:
    """The limit and the oracle after the same history, what was admitted when, and the time."""
    oracle, now_ms = oracle_for(kept), kept.epoch_ms
    admitted: list[tuple[int, int]] = []
    for step in played_steps:
        now_ms += step.gap_ms
        amount = step.amount(kept.rate)
        if step.verb == "take":
            allowed, kept, _ = kept.take(now_ms, amount)
            if allowed:
                oracle.debit(now_ms, amount)
                admitted.append((now_ms, amount))
        elif step.verb != "look":
            signed = amount if step.verb == "debit" else -amount
            kept = kept.force(now_ms, signed)
            oracle.debit(now_ms, signed)
    return kept, oracle, admitted, now_ms


# any state a store may hold: full, empty, between or deep in debt, at any epoch
states = st.builds(
    lambda rate, percent, epoch_ms: Kept(rate, share(rate.capacity_milli, percent), epoch_ms),
    rates,
    st.integers(-300, 100),
    st.sampled_from((0, 1, 999, 1_700_000_000_000)),
)
