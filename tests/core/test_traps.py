"""Known traps: the rule that was measured to be wrong, and ours, in the same story.

Each test shows first that the naive rule breaks the promise, so the story is known to bite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headgate.core.bucket import Rate
from headgate.core.decision import Demand, decide
from headgate.core.limits import Limit
from headgate.core.record import BucketKey, Record, Terms, new_record
from tests.core.kit import DAY_MS, Kept

MINUTE_MS = 60_000


class Naive:
    """A level and the time of its last refill. `next_epoch` says how that time moves on; a lazy
    rule refills only once its tokens run out."""

    def __init__(
        self, rate: Rate, tokens: int, next_epoch: Callable[..., int], *, lazy: bool = False
    ) -> None:
        self.rate, self.tokens, self.lazy = rate, tokens, lazy
        self.next_epoch, self.epoch_ms = next_epoch, 0

    def take(self, now_ms: int, wanted: int) -> bool:
        if not self.lazy or self.tokens < wanted:
            arrived = (now_ms - self.epoch_ms) * self.rate.amount_milli // self.rate.period_ms
            self.tokens = min(self.rate.capacity_milli, self.tokens + arrived)
            self.epoch_ms = self.next_epoch(self, arrived, now_ms)
        if self.tokens < wanted:
            return False
        self.tokens -= wanted
        return True


def moved_to_now(rule: Naive, arrived: int, now_ms: int) -> int:
    """Drops what is under way."""
    return now_ms


def moved_by_what_arrived(rule: Naive, arrived: int, now_ms: int) -> int:
    """Rounds the time it has paid for down, and pays it again."""
    return rule.epoch_ms + arrived * rule.rate.period_ms // rule.rate.amount_milli


def one_by_one(rule: Naive, times_ms: Iterable[int]) -> int:
    return sum(rule.take(now_ms, 1_000) for now_ms in times_ms)


def ours(rate: Rate, tokens: int, times_ms: Iterable[int]) -> int:
    kept, admitted = Kept(rate, tokens, 0), 0
    for now_ms in times_ms:
        allowed, kept, _ = kept.take(now_ms, 1_000)
        admitted += allowed
    return admitted


def test_idling_does_not_double_the_burst() -> None:
    rate, burst = Rate(40_000, 40_000, MINUTE_MS), [MINUTE_MS] * 200
    assert one_by_one(Naive(rate, 40_000, moved_to_now, lazy=True), burst) >= 79
    assert ours(rate, 40_000, burst) == 40


def test_a_thousand_looks_a_second_mint_nothing() -> None:
    rate, every_ms = Rate(100_000, 100_000, MINUTE_MS), range(1, 12_001)
    assert one_by_one(Naive(rate, 0, moved_by_what_arrived), every_ms) > 34
    assert ours(rate, 0, every_ms) == 20


def test_a_slow_limit_beside_busy_neighbours_gets_its_share() -> None:
    rate, an_hour = Rate(500_000, 500_000, DAY_MS), range(0, DAY_MS // 24 + 1, 100)
    assert one_by_one(Naive(rate, 0, moved_to_now), an_hour) == 0
    assert ours(rate, 0, an_hour) == 500 // 24


def test_two_spellings_of_one_configuration_do_not_refill_the_bucket() -> None:
    """Two pods take turns at one moment. A bucket made anew, full, whenever the hash of its
    configuration differs would admit every call."""
    spellings = [
        Terms((Limit.custom("rpm", 10, 10, 60).spec,), version=3),
        Terms((Limit.custom("rpm", 10, 20, 120).spec,), version=3),
    ]
    record: Record | None = None
    got = 0
    for turn in range(200):
        demand = Demand(BucketKey("ns", "e", "r"), spellings[turn % 2], (1_000,))
        verdict, (after,) = decide([demand], [record], 5_000)
        if verdict.allowed:
            record, got = after, got + 1
    assert got == 10


def test_two_callers_do_not_both_get_the_last_token() -> None:
    """Nor does a refusal by the second bucket leave half a demand in the first."""
    naive = {"one": 5, "two": 5, "everyone": 1}
    looked = [naive[user] > 0 and naive["everyone"] > 0 for user in ("one", "two")]
    assert looked == [True, True], "both look before either writes, and both get it"

    buckets = {name: one_limit(tokens) for name, tokens in naive.items()}
    assert [ask(buckets, user, "everyone") for user in ("one", "two")] == [True, False]
    assert [buckets[name][4] for name in buckets] == [4_000, 5_000, 0]


def one_limit(capacity: int) -> Record:
    return new_record(Terms((Limit.custom("rpm", capacity, 0, 60).spec,)), 0)


def ask(buckets: dict[str, Record], *names: str) -> bool:
    demands = [
        Demand(BucketKey("ns", name, "r"), buckets[name][0].core, (1_000,)) for name in names
    ]
    verdict, after = decide(demands, [buckets[name] for name in names], 0)
    buckets.update(zip(names, after, strict=True))
    return verdict.allowed
