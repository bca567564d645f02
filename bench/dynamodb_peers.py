"""The library headgate is measured beside on DynamoDB; it may be missing."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.dynamodb_jobs import PARENT, REGION, RESOURCE, Acquire, Contestant, Workload

PEER = "zae-limiter acquire + lease"
NOTES = (
    "zae-limiter: its table is made as its own definition says, without its CloudFormation stack; "
    "its Lambda function, which would refill busy buckets ahead and count usage, does not run",
)


@asynccontextmanager
async def zae(endpoint: str, table: str, workload: Workload) -> AsyncIterator[Acquire]:
    from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository

    with warnings.catch_warnings():  # other ways to open one make a stack, or ask for one
        warnings.simplefilter("ignore", DeprecationWarning)
        repository = Repository(table, REGION, endpoint)
        await repository.create_table()
        limiter = RateLimiter(repository=repository)
        limits = [
            Limit(rate.name, rate.capacity, rate.refill, rate.period_s) for rate in workload.rates
        ]
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

        await limiter.is_available(timeout=10)
        yield acquire
        await limiter.close()


def contestants() -> list[Contestant]:
    if importlib.util.find_spec("zae_limiter") is None:
        print("\nleft out: zae-limiter. To compare: pip install headgate[bench]")
        return []
    return [Contestant(PEER, zae, peer=True)]
