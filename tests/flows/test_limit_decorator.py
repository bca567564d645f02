"""`@limiter.limit(…)`: functions, coroutines and generators in the block of an acquire."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from headgate import Limit, RateLimiter, RateLimitExceeded, SyncRateLimiter, ValidationError
from headgate.testing import FakeClock

RPM = Limit.per_minute("rpm", 10)
ONE = {"rpm": 1}


@pytest.fixture
def limiter() -> SyncRateLimiter:
    return SyncRateLimiter("memory://", limits=[RPM], clock=FakeClock())


@pytest.fixture
def tasks() -> RateLimiter:
    return RateLimiter("memory://", limits=[RPM], clock=FakeClock())


def left(limiter: SyncRateLimiter, entity_id: str = "user:7") -> int:
    return limiter.available(entity_id, "api")["rpm"]


async def left_for_tasks(tasks: RateLimiter) -> int:
    return (await tasks.available("user:7", "api"))["rpm"]


def test_a_function_keeps_its_name_and_its_calls_are_limited(limiter: SyncRateLimiter) -> None:
    @limiter.limit("user:7", "api", {"rpm": 5})
    def add(one: int, other: int = 1) -> int:
        """Adds."""
        return one + other

    assert (add.__name__, add.__doc__) == ("add", "Adds.")
    assert list(inspect.signature(add).parameters) == ["one", "other"]
    assert [add(1), add(1, other=2)] == [2, 3]
    with pytest.raises(RateLimitExceeded, match="user:7 on api"):
        add(1)


def test_who_and_how_much_may_come_from_the_arguments(limiter: SyncRateLimiter) -> None:
    class Model:
        @limiter.limit(
            lambda self, user, prompt: f"user:{user}",
            lambda self, user, prompt: self.resource,
            lambda self, user, prompt: {"rpm": len(prompt)},
        )
        def ask(self, user: int, prompt: str) -> str:
            return prompt.upper()

        resource = "api"

    assert Model().ask(7, prompt="four") == "FOUR"
    assert left(limiter) == 6
    assert left(limiter, "user:8") == 10


def test_a_call_that_fails_gives_back_unless_it_shall_keep(limiter: SyncRateLimiter) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    for on_error, expected in (("refund", 10), ("keep", 9)):
        with pytest.raises(ZeroDivisionError):
            limiter.limit("user:7", "api", ONE, on_error=on_error)(fail)()
        assert left(limiter) == expected


def test_a_generator_takes_when_it_begins_and_keeps_until_it_ends(limiter: SyncRateLimiter) -> None:
    @limiter.limit("user:7", "api", ONE)
    def count(to: int) -> Iterator[int]:
        got = yield from range(to)
        return got

    assert inspect.isgeneratorfunction(count)
    numbers = count(3)
    assert left(limiter) == 10
    assert next(numbers) == 0
    assert left(limiter) == 9
    assert list(numbers) == [1, 2]
    assert left(limiter) == 9
    closed = count(3)
    next(closed)
    assert left(limiter) == 8
    closed.close()  # type: ignore[attr-defined]
    assert left(limiter) == 9, "as the block of an acquire: what is called off is given back"


def test_what_is_sent_and_thrown_into_a_generator_reaches_it(tasks: RateLimiter) -> None:
    ended: list[str] = []

    @tasks.limit("user:7", "api", ONE)
    async def echo() -> AsyncIterator[Any]:
        said: Any = "begin"
        try:
            while said != "end":
                try:
                    said = yield said
                except KeyError:
                    said = "caught"
        finally:
            ended.append("closed")

    async def talk() -> None:
        stream: Any = echo()
        assert await left_for_tasks(tasks) == 10
        assert await anext(stream) == "begin"
        assert await left_for_tasks(tasks) == 9
        assert await stream.asend("more") == "more"
        assert await stream.athrow(KeyError()) == "caught"
        with pytest.raises(StopAsyncIteration):
            await stream.asend("end")
        assert await left_for_tasks(tasks) == 9
        assert ended == ["closed"]
        called_off: Any = echo()
        await anext(called_off)
        await called_off.aclose()
        assert ended == ["closed", "closed"]
        assert await left_for_tasks(tasks) == 9
        failing: Any = echo()
        await anext(failing)
        with pytest.raises(ZeroDivisionError):
            await failing.athrow(ZeroDivisionError())
        assert await left_for_tasks(tasks) == 9

    asyncio.run(talk())


def test_a_coroutine_is_limited_and_may_wait(tasks: RateLimiter) -> None:
    @tasks.limit(lambda name: f"user:{name}", "api", {"rpm": 10})
    async def work(name: int) -> int:
        await asyncio.sleep(0)
        return name

    async def both() -> None:
        assert inspect.iscoroutinefunction(work)
        assert await work(7) == 7
        with pytest.raises(RateLimitExceeded):
            await work(7)
        assert await work(8) == 8

    asyncio.run(both())


def test_each_limiter_decorates_functions_of_its_own_kind(
    limiter: SyncRateLimiter, tasks: RateLimiter
) -> None:
    async def coroutine() -> None: ...

    async def stream() -> AsyncIterator[int]:
        yield 1

    for function in (coroutine, stream):
        with pytest.raises(ValidationError, match="is async; a RateLimiter limits it"):
            limiter.limit("user:7", "api", ONE)(function)
    with pytest.raises(ValidationError, match="must be `async def`"):
        tasks.limit("user:7", "api", ONE)(lambda: None)


def test_a_wrong_amount_is_told_at_the_call_and_the_function_does_not_run(
    limiter: SyncRateLimiter,
) -> None:
    @limiter.limit("user:7", "api", {"tpm": 1})
    def never() -> None:
        raise AssertionError

    with pytest.raises(ValidationError, match="tpm"):
        never()
