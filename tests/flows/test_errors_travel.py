"""What a worker raised arrives whole in the process that waits for it."""

from __future__ import annotations

import asyncio
import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from headgate import Limit, RateLimiter, RateLimitExceeded, SyncRateLimiter
from headgate.client.answers import CheckAnswer, RateLimited, Unavailable
from headgate.core import errors
from headgate.core.errors import HeadgateError
from headgate.layers.breaker import BreakerOpen
from tests.flows.conftest import spend

RAISED: list[HeadgateError] = [
    errors.ValidationError("capacity", -1, "must be at least 1"),
    errors.InvalidNameError("resource", "a b", "has a space"),
    errors.DemandTooLarge("user-1", "api", "rpm", 11, 10),
    errors.DisabledError("entity", "user-1"),
    errors.RateLimiterUnavailable(errors.Throttled("slow", 7), "user-1", "api"),
    errors.LeaseExpiredError(),
    errors.EntityNotFoundError("user-1"),
    errors.EntityExistsError("user-1"),
    errors.PlanNotFoundError("pro"),
    errors.PlanInUseError("pro", 7, ["a", "b"]),
    errors.NamespaceNotFoundError("eu"),
    errors.NamespaceStateError("eu", "deleted", "recover it"),
    errors.VersionMismatchError("the head", 3, 4),
    errors.IncompatibleSchemaError(2, "1", "upgrade headgate"),
    errors.Unreachable("no answer"),
    BreakerOpen(1500, 5, errors.Unreachable("no answer")),
    RateLimited(CheckAnswer(False, 0, 10, 5, 250, ("rpm",), "rate_limited")),
    Unavailable("no answer", maybe_applied=True, code="unavailable", retry_after_ms=5),
]


def same(one: HeadgateError, other: HeadgateError) -> bool:
    if type(one) is not type(other) or (str(one), repr(one)) != (str(other), repr(other)):
        return False
    mine, theirs = vars(one), vars(other)
    return mine.keys() == theirs.keys() and all(
        same(value, theirs[name]) if isinstance(value, HeadgateError) else value == theirs[name]
        for name, value in mine.items()
    )


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_after_its_way(error: HeadgateError) -> None:
    assert same(pickle.loads(pickle.dumps(error)), error)
    assert same(copy.copy(error), error)


def refused() -> RateLimitExceeded:
    async def ask() -> None:
        async with RateLimiter(limits=[Limit.per_hour("rpm", 1)]) as limiter:
            for _ in range(2):
                await spend(limiter, "user-1", "api", rpm=1)

    with pytest.raises(RateLimitExceeded) as caught:
        asyncio.run(ask())
    return caught.value


def test_a_refusal_says_the_same_in_every_way_it_is_read_and_after_its_way() -> None:
    error = refused()
    for read_before in (False, True):
        copied = pickle.loads(pickle.dumps(error))
        assert copied.verdict is None, "the bucket's record stays where it is"
        assert copied.asked_by == "user-1"
        assert copied.as_dict() == error.as_dict(), read_before
        assert copied.statuses == error.statuses
    sentence = str(error)
    assert sentence.startswith("user-1 on api: rpm has 0 of 1, 1 asked; retry after ")
    assert repr(error) == f"RateLimitExceeded({sentence!r})"
    assert f"{error}" == error.as_dict()["message"] == sentence


def test_one_without_statuses_can_be_logged() -> None:
    """As somebody's test may make it."""
    assert "no limit is named" in str(RateLimitExceeded([]))


def _work() -> None:
    with SyncRateLimiter(limits=[Limit.per_hour("rpm", 1)]) as limiter:
        for _ in range(2):
            with limiter.acquire("user-1", "api", {"rpm": 1}):
                pass


def test_a_pool_of_processes_hands_a_refusal_on_and_goes_on_working() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for _ in range(2):
            with pytest.raises(RateLimitExceeded, match="user-1 on api: rpm has 0 of 1"):
                pool.submit(_work).result(timeout=60)
