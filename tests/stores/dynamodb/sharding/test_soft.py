"""Soft limits of divided buckets: what was only counted in some shard never becomes tokens."""

from __future__ import annotations

import random

import pytest

from headgate.core.decision import credits_of
from headgate.core.errors import RateLimitExceeded
from headgate.core.lease import refusal_error
from headgate.core.limits import Limit
from headgate.core.runtime import run
from headgate.stores.dynamodb.store import DynamoStore
from tests.stores.dynamodb.sharding.kit import Bucket

SOFT = Limit.custom("x", 40, 0, 1, soft=True)  # never refills: every token can be counted
HARD = Limit.custom("y", 4000, 0, 1)


def state(bucket: Bucket) -> tuple[int, ...]:
    bucket.store._cache.drop(bucket.key)  # as the table has it, not as it was guessed here
    return tuple(find(name) for name in ("x", "y") for find in (bucket.level, bucket.consumed))


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_what_is_taken_and_undone_leaves_no_trace(store: DynamoStore, shards: int) -> None:
    rng = random.Random(shards)
    bucket = Bucket(store, [SOFT, HARD])
    bucket.take(x=0, y=0)
    bucket.split_to(shards)
    for step in range(60):
        before = state(bucket)
        verdict = bucket.take(x=rng.choice((0, 1, 3, 7, 25, 90)), y=rng.randint(0, 30))
        assert verdict.allowed
        if step % 5:
            run(store.adjust(credits_of(verdict), bucket.now_ms))
            assert state(bucket) == before
        elif step % 10:
            bucket.adjust(x=rng.choice((-6, 2, 9)))  # also into debt: one shard's level differs


def test_a_soft_limit_is_passed_where_all_shards_together_have_too_little(
    store: DynamoStore,
) -> None:
    """Also where one of them has enough while another owes."""
    bucket = Bucket(store, [SOFT, HARD])
    bucket.take(x=0)
    bucket.split_to(2)
    bucket.adjust(x=35)
    level, consumed, *_ = state(bucket)
    verdict = bucket.take(x=39, y=2500)  # y is gathered from both
    assert verdict.allowed
    assert verdict.untaken == [(0, "x")]
    assert state(bucket)[:2] == (level, consumed + 39_000)
    run(store.adjust(credits_of(verdict), bucket.now_ms))
    assert state(bucket) == (level, consumed, 4_000_000, 0)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_refusal_of_a_divided_bucket_is_of_its_hard_limits_only(
    store: DynamoStore, shards: int
) -> None:
    bucket = Bucket(store, [SOFT, Limit.per_second("y", 40)])
    bucket.take(x=0, y=0)
    bucket.split_to(shards)
    assert bucket.take(x=40, y=40).allowed
    verdict = bucket.take(x=30, y=30)
    error = refusal_error(verdict)
    assert isinstance(error, RateLimitExceeded)
    assert {status.limit_name for status in error.violations} == {"y"}
    assert error.retry_after_ms == verdict.retry_after_ms == 750
    bucket.now_ms += 749
    assert not bucket.take(x=30, y=30).allowed
    bucket.now_ms += 1
    assert bucket.take(x=30, y=30).allowed
