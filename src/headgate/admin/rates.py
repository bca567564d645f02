"""Buckets looked at again and again: how full each is, and how fast it is being used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headgate.admin.reports import PAGE_MAX
from headgate.core.bucket import MILLI
from headgate.core.record import cells_of
from headgate.repository import Repository

BUCKETS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class LimitRate:
    """One limit of one bucket; `rate` is tokens per second since the look before."""

    entity_id: str
    resource: str
    limit_name: str
    available: int
    capacity: int
    consumed: int
    rate: float | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.entity_id, self.resource, self.limit_name

    @property
    def used(self) -> float:
        """The part of the capacity that is taken: 0 full, 1 empty, more in debt."""
        return 1 - self.available / self.capacity


@dataclass(frozen=True, slots=True)
class BucketSample:
    """The buckets of a namespace at one moment; `whole` unless there are too many."""

    now_ms: int
    rows: Sequence[LimitRate]
    buckets: int
    whole: bool


async def sample_buckets(repository: Repository, resource: str | None = None) -> BucketSample:
    """Every bucket in use, BUCKETS_MAX at most."""
    namespace = await repository.configs.namespace_id()
    store = repository.backend.store
    asked_ms = repository.clock() if repository.drives_time else None
    rows: list[LimitRate] = []
    buckets, now_ms = 0, repository.clock()
    cursor: str | None = None
    while True:
        page = await store.find(namespace, resource=resource, limit=PAGE_MAX, cursor=cursor)
        seen = await store.peek(page.items, asked_ms)
        now_ms = seen.now_ms
        for key, record in zip(page.items, seen.records, strict=True):
            if record is None:
                continue
            buckets += 1
            rows += [
                LimitRate(
                    key.entity_id, key.resource, cell.spec.name,
                    cell.level_milli(now_ms) // MILLI,
                    cell.spec.capacity_milli // MILLI,
                    cell.consumed_milli // MILLI,
                )
                for cell in cells_of(record)
            ]  # fmt: skip
        if page.cursor is None or buckets >= BUCKETS_MAX:
            return BucketSample(now_ms, rows, buckets, page.cursor is None)
        cursor = page.cursor


def busiest(now: BucketSample, before: BucketSample | None, count: int) -> list[LimitRate]:
    """Those used fastest since the look before; without one, or alike, the emptiest first."""
    rows = now.rows if before is None else _with_rates(now, before)
    return sorted(rows, key=lambda row: (-(row.rate or 0), -row.used, row.key))[:count]


def _with_rates(now: BucketSample, before: BucketSample) -> list[LimitRate]:
    was: Mapping[tuple[str, str, str], int] = {row.key: row.consumed for row in before.rows}
    passed_ms = max(1, now.now_ms - before.now_ms)
    return [
        LimitRate(
            row.entity_id, row.resource, row.limit_name, row.available, row.capacity, row.consumed,
            (row.consumed - was.get(row.key, 0)) * 1000 / passed_ms,
        )
        for row in now.rows
    ]  # fmt: skip
