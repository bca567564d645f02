"""headgate on DynamoDB: the limiter as it comes, with its limits stored in the table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.dynamodb_jobs import PARENT, REGION, RESOURCE, Acquire, Contestant, Workload
from headgate import Limit, RateLimiter, RateLimitExceeded, Repository

OURS = "headgate acquire + lease"


@asynccontextmanager
async def lease(endpoint: str, table: str, workload: Workload) -> AsyncIterator[Acquire]:
    """Usage is left to who reads the stream, as the peer leaves it to its Lambda function."""
    url = f"dynamodb://{table}?region={REGION}&endpoint={endpoint}&timeout_ms=10000&usage=stream"
    limits = [
        Limit.custom(rate.name, rate.capacity, rate.refill, rate.period_s)
        for rate in workload.rates
    ]
    async with await Repository.open(url) as repository, RateLimiter(repository) as limiter:
        await repository.set_resource_defaults(RESOURCE, limits)
        if workload.cascade:
            await repository.create_entity(PARENT)
            await repository.create_entity(workload.entity(0, 0), parent_id=PARENT, cascade=True)
        amounts = workload.amounts

        async def acquire(entity: str) -> bool:
            try:
                async with limiter.acquire(entity, RESOURCE, amounts):
                    return True
            except RateLimitExceeded:
                return False

        yield acquire


CONTESTANT = Contestant(OURS, lease)
