"""Buckets looked at again and again: how full each is, and how fast it is being used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headgate.admin.reports import bucket_states, live_buckets
from headgate.core.history import BucketState
from headgate.repository import Repository

BUCKETS_MAX = 10_000


class LimitRate(NamedTuple):
    """One limit of one bucket; `rate` is tokens per second since the sample before."""

    state: BucketState
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class BucketSample:
    """The buckets of a namespace at one moment; `whole` unless there are too many."""

    now_ms: int
    rows: Sequence[BucketState]
    buckets: int
    whole: bool


async def sample_buckets(repository: Repository, resource: str | None = None) -> BucketSample:
    """Every bucket in use, BUCKETS_MAX at most."""
    rows: list[BucketState] = []
    buckets, now_ms = 0, repository.clock()
    async for key, record, now_ms in live_buckets(repository, None, resource):
        if buckets == BUCKETS_MAX:
            return BucketSample(now_ms, rows, buckets, False)
        buckets += 1
        rows += bucket_states(key, record, now_ms)
    return BucketSample(now_ms, rows, buckets, True)


def busiest(now: BucketSample, before: BucketSample | None, count: int) -> list[LimitRate]:
    """Those used fastest since the sample before; without one, or alike, the emptiest first."""
    rows = [LimitRate(state) for state in now.rows] if before is None else _rates(now, before)
    return sorted(rows, key=_rank)[:count]


def _rank(row: LimitRate) -> tuple[float, float, tuple[str, str, str]]:
    return -(row.rate or 0), row.state.available / row.state.capacity, _key(row.state)


def _rates(now: BucketSample, before: BucketSample) -> list[LimitRate]:
    was = {_key(state): state.consumed for state in before.rows}
    passed_ms = max(1, now.now_ms - before.now_ms)
    return [
        LimitRate(state, (state.consumed - was.get(_key(state), 0)) * 1000 / passed_ms)
        for state in now.rows
    ]


def _key(state: BucketState) -> tuple[str, str, str]:
    return state.entity_id, state.resource, state.limit_name
