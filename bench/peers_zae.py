"""zae-limiter on a DynamoDB engine, as `bench peers` asks.

Its table is made as its own definition says, without its CloudFormation stack; its Lambda function,
which would refill busy buckets ahead and count usage, does not run.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from bench.peers_gate import DYNAMODB, Answer, Place, Rate, Subject, Take, Time

LIBRARY = "zae-limiter"
REGION = "us-east-1"


@contextmanager
def opened(rates: Sequence[Rate], place: Place, time: Time) -> Iterator[Take]:
    from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter, SyncRepository

    with time.reign(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the other ways make a stack
        repository = SyncRepository(f"zae{place.spot}", REGION, place.endpoint)
        repository.create_table()
        limiter = SyncRateLimiter(repository=repository)
        limits = [Limit(rate.name, rate.limit, rate.limit, rate.period_s) for rate in rates]
        prefix = place.fresh()
        resource = f"r{prefix}"
        repository.set_resource_defaults(resource, limits)

        def take(key: str, amounts: Mapping[str, Any]) -> Answer:
            try:
                with limiter.acquire(f"{prefix}-{key}", resource, dict(amounts)):
                    return Answer(True)
            except RateLimitExceeded as refused:
                return Answer(False, refused.retry_after_seconds * 1000)

        yield take
        limiter.close()


SUBJECTS = [Subject(LIBRARY, "token bucket", DYNAMODB, opened, together=True)]
