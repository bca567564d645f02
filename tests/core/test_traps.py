"""Known traps: the rule that was measured to be wrong, and ours, in the same story.

Each test shows first that the naive rule breaks the promise, so the story is known to bite.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from headgate.core.bucket import Rate
from headgate.core.decision import Demand, decide
from headgate.core.errors import ValidationError
from headgate.core.limits import Limit, parse_amount, parse_entity_id
from headgate.core.record import BucketKey, Record, Terms, new_record
from tests.core.kit import DAY_MS, Kept

MINUTE_MS = 60_000
KEY = BucketKey("ns", "key-1", "gpt-4")

Rule = Callable[[int, int], bool]


def admitted(rule: Rule, times_ms: range | list[int], wanted: int) -> int:
    return sum(rule(now_ms, wanted) for now_ms in times_ms)


class Ours:
    """One limit kept by headgate's own arithmetic."""

    def __init__(self, rate: Rate, tokens_milli: int | None = None) -> None:
        self.kept = Kept.full(rate)
        if tokens_milli is not None:
            self.kept = Kept(rate, tokens_milli, 0)

    def take(self, now_ms: int, wanted: int) -> bool:
        allowed, self.kept, _ = self.kept.take(now_ms, wanted)
        return allowed


class SpendsFirstRefillsLater:
    """Trap 1: a conditional ADD on the stored tokens; refill only once they run out."""

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self.tokens, self.refilled_ms = rate.capacity_milli, 0

    def take(self, now_ms: int, wanted: int) -> bool:
        if self.tokens < wanted:
            arrived = (now_ms - self.refilled_ms) * self.rate.amount_milli // self.rate.period_ms
            self.tokens = min(self.rate.capacity_milli, self.tokens + arrived)
            self.refilled_ms = now_ms
        if self.tokens < wanted:
            return False
        self.tokens -= wanted
        return True


def test_idling_does_not_double_the_burst() -> None:
    rate = Rate(40_000, 40_000, MINUTE_MS)
    burst = [MINUTE_MS] * 200
    assert admitted(SpendsFirstRefillsLater(rate).take, burst, 1_000) >= 79
    assert admitted(Ours(rate).take, burst, 1_000) == 40


class MovesTheEpochByWholeTokens:
    """Trap 2: `rf += tokens * rp // ra` rounds the time it has paid for down, and pays it again."""

    def __init__(self, rate: Rate, tokens_milli: int = 0) -> None:
        self.rate = rate
        self.tokens, self.epoch_ms = tokens_milli, 0

    def take(self, now_ms: int, wanted: int) -> bool:
        arrived = (now_ms - self.epoch_ms) * self.rate.amount_milli // self.rate.period_ms
        self.tokens = min(self.rate.capacity_milli, self.tokens + arrived)
        self.epoch_ms += arrived * self.rate.period_ms // self.rate.amount_milli
        return self.spend(wanted)

    def spend(self, wanted: int) -> bool:
        if self.tokens < wanted:
            return False
        self.tokens -= wanted
        return True


class MovesTheEpochToNow(MovesTheEpochByWholeTokens):
    """Trap 2, the other way: `rf = now` on every write drops what is under way."""

    def take(self, now_ms: int, wanted: int) -> bool:
        arrived = (now_ms - self.epoch_ms) * self.rate.amount_milli // self.rate.period_ms
        self.tokens = min(self.rate.capacity_milli, self.tokens + arrived)
        self.epoch_ms = now_ms
        return self.spend(wanted)


def test_a_thousand_looks_a_second_mint_nothing() -> None:
    rate = Rate(100_000, 100_000, MINUTE_MS)
    every_ms = range(1, MINUTE_MS + 1)
    assert admitted(MovesTheEpochByWholeTokens(rate).take, every_ms, 1_000) > 170
    assert admitted(Ours(rate, 0).take, every_ms, 1_000) == 100


def test_a_slow_limit_beside_busy_neighbours_gets_its_share() -> None:
    rate = Rate(500_000, 500_000, DAY_MS)
    two_hours = range(0, DAY_MS // 12 + 1, 100)
    assert admitted(MovesTheEpochToNow(rate).take, two_hours, 1_000) == 0
    assert admitted(Ours(rate, 0).take, two_hours, 1_000) == 500 // 12


class ResetsOnAnotherHash:
    """Trap 5: a bucket whose configuration hash differs is made anew, full."""

    def __init__(self) -> None:
        self.seen: str | None = None
        self.tokens = 0

    def take(self, config: str, wanted: int) -> bool:
        if config != self.seen:
            self.seen, self.tokens = config, int(float(config)) * 1000
        if self.tokens < wanted:
            return False
        self.tokens -= wanted
        return True


def test_two_spellings_of_one_configuration_do_not_refill_the_bucket() -> None:
    """Two pods take turns at one moment: 2 000 calls on a capacity of 10."""
    naive = ResetsOnAnotherHash()
    assert sum(naive.take(config, 1_000) for config in ("10", "10.0") * 1000) == 2_000

    spellings = [
        Terms((Limit.custom("rpm", 10, 10, 60).spec,), version=3),
        Terms((Limit.custom("rpm", 10, 20, 120).spec,), version=3),
    ]
    record: Record | None = None
    got = 0
    for turn in range(2_000):
        demand = Demand(KEY, spellings[turn % 2], (1_000,))
        verdict, (after,) = decide([demand], [record], 5_000)
        if verdict.allowed:
            record = after
            got += 1
    assert got == 10


class ChecksThenConsumes:
    """Trap 6: look at every bucket first, write to each afterwards."""

    def __init__(self, **tokens: int) -> None:
        self.tokens = tokens

    def check(self, *names: str) -> bool:
        return all(self.tokens[name] > 0 for name in names)

    def consume(self, *names: str) -> None:
        for name in names:
            self.tokens[name] -= 1


def test_two_callers_do_not_both_get_the_last_token() -> None:
    naive = ChecksThenConsumes(user_1=5, user_2=5, everyone=1)
    looked = [naive.check(user, "everyone") for user in ("user_1", "user_2")]
    for user, allowed in zip(("user_1", "user_2"), looked, strict=True):
        if allowed:
            naive.consume(user, "everyone")
    assert naive.tokens["everyone"] == -1, "both looked before either wrote"

    buckets = {name: new_record(one_limit(5), 0) for name in ("user_1", "user_2")}
    buckets["everyone"] = new_record(one_limit(1), 0)
    verdicts = [ask(buckets, user, "everyone") for user in ("user_1", "user_2")]
    assert verdicts == [True, False]
    assert [buckets[name][4] for name in buckets] == [4_000, 5_000, 0]


def test_a_refusal_by_the_second_bucket_takes_nothing_from_the_first() -> None:
    naive = ChecksThenConsumes(user_1=5, everyone=0)
    for name in ("user_1", "everyone"):
        if not naive.check(name):
            break
        naive.consume(name)
    assert naive.tokens["user_1"] == 4, "one after the other leaves half a demand behind"

    buckets = {"user_1": new_record(one_limit(5), 0), "everyone": new_record(one_limit(1), 0)}
    assert ask(buckets, "everyone")
    before = dict(buckets)
    assert not ask(buckets, "user_1", "everyone")
    assert buckets == before


def one_limit(capacity: int) -> Terms:
    return Terms((Limit.custom("rpm", capacity, 0, 60).spec,))


def ask(buckets: dict[str, Record], *names: str) -> bool:
    demands = [
        Demand(BucketKey("ns", name, "r"), buckets[name][0].core, (1_000,)) for name in names
    ]
    verdict, after = decide(demands, [buckets[name] for name in names], 0)
    buckets.update(zip(names, after, strict=True))
    return verdict.allowed


def test_a_trailing_newline_is_not_part_of_a_name() -> None:
    assert re.match(r"^[a-zA-Z0-9][a-zA-Z0-9_.\-:@]*$", "admin\n")
    with pytest.raises(ValidationError):
        parse_entity_id("admin\n")


def test_true_is_not_one_token() -> None:
    assert isinstance(True, int)
    with pytest.raises(ValidationError):
        parse_amount("rpm", True)
    with pytest.raises(ValidationError):
        Limit.per_minute("rpm", True)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e3", "1.0", "true"])
def test_what_json_calls_a_number_is_not_an_amount(text: str) -> None:
    """NaN passes `amount < 0` and `amount > most` alike: a check by comparison lets it in."""
    parsed = json.loads(f'{{"capacity": {text}}}')["capacity"]
    if text == "NaN":
        assert not parsed < 0
        assert not parsed > 2**53
    limit = {"name": "rpm", "capacity": parsed, "refill_amount": 1, "refill_period_seconds": 1}
    with pytest.raises(ValidationError):
        Limit.from_dict(limit)
