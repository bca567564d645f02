"""headgate on each of its stores, as `bench peers` asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from bench.peers_gate import (
    DYNAMODB,
    MEMORY,
    REDIS,
    SQLITE,
    Answer,
    Place,
    Rate,
    RealTime,
    Subject,
    Take,
    Time,
)
from headgate import Limit, RateLimitExceeded, SyncRateLimiter, SyncRepository
from headgate.testing import FakeClock

LIBRARY = "headgate"
REGION = "us-east-1"


@contextmanager
def opened(
    store: str, rates: Sequence[Rate], place: Place, time: Time, **options: Any
) -> Iterator[Take]:
    limits = [Limit.custom(rate.name, rate.limit, rate.limit, rate.period_s) for rate in rates]
    clock = None if isinstance(time, RealTime) else _Moved(time)
    repository = SyncRepository.open(_url(store, place), clock=clock)
    with repository, SyncRateLimiter(repository, limits=limits, **options) as limiter:
        prefix = place.fresh()

        def take(key: str, amounts: Mapping[str, Any]) -> Answer:
            try:
                with limiter.acquire(f"{prefix}-{key}", "api", amounts):
                    return Answer(True)
            except RateLimitExceeded as refused:
                return Answer(False, refused.retry_after_ms)

        yield take


class _Moved(FakeClock):
    """A clock of headgate's that the probe moves."""

    def __init__(self, time: Time) -> None:
        super().__init__(time.now_ms())
        self._time = time

    def __call__(self) -> int:
        return self._time.now_ms()


def _url(store: str, place: Place) -> str:
    if store == SQLITE:
        return f"sqlite:///{place.folder / (place.spot or 'ours')}.db"
    if store == REDIS:
        return place.redis_url
    if store == DYNAMODB:
        return f"dynamodb://ours{place.spot}?region={REGION}&endpoint={place.endpoint}"
    return "memory://"


SUBJECTS = [
    Subject(
        LIBRARY,
        "token bucket",
        store,
        partial(opened, store),
        together=True,
        virtual=store != REDIS,  # it keeps time by the server
    )
    for store in (MEMORY, SQLITE, REDIS, DYNAMODB)
]
