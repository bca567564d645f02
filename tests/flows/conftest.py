"""Every flow on every embedded store, async and blocking, through one async-shaped face."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headgate import RateLimiter, SyncRateLimiter, SyncRepository
from headgate.core.store import Store
from headgate.testing import FakeClock, RecordingStore
from headgate.transport.gates import wait_finished

STORES = {
    "memory": lambda folder: "memory://",
    "sqlite": lambda folder: f"sqlite:///{folder}/flows.db",
}


class Blocking:
    """A blocking object whose methods can be awaited, so that one test serves both colours."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            if name in ("acquire", "acquire_many"):
                return BlockingAcquire(value(*args, **kwargs))
            return _done(value(*args, **kwargs))

        return call


class BlockingAcquire:
    def __init__(self, acquiring: Any) -> None:
        self.acquiring = acquiring

    async def __aenter__(self) -> Any:
        return Blocking(self.acquiring.__enter__())

    async def __aexit__(self, *error: Any) -> Any:
        return self.acquiring.__exit__(*error)


async def _done(value: Any) -> Any:
    return value


class World:
    """A store, a clock that stands still, and limiters of one colour on it."""

    def __init__(self, url: str, blocking: bool) -> None:
        self.url = url
        self.blocking = blocking
        self.clock = FakeClock()
        self._open: list[Any] = []
        self._home: Any = None

    def limiter(self, **options: Any) -> Any:
        """A limiter; those of one world share its store (memory has no name to share by)."""
        kind: Any = SyncRateLimiter if self.blocking else RateLimiter
        if self._home is not None:
            made = kind(self._home, **options)
        elif self.blocking:
            made = kind(self.url, clock=self.clock, **options)
            self._home = SyncRepository(_core=made.core.repository)
        else:
            made = kind(self.url, clock=self.clock, **options)
            self._home = made.repository
        self._open.append(made)
        return Blocking(made) if self.blocking else made

    @property
    def repository(self) -> Any:
        return Blocking(self._home) if self.blocking else self._home

    async def close(self) -> None:
        for made in self._open:
            closing = made.close()
            if not self.blocking:
                await closing


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return STORES[request.param](tmp_path)


@pytest.fixture(params=["async", "blocking"])
def world(request: pytest.FixtureRequest, url: str) -> World:
    return World(url, request.param == "blocking")


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs tests that are coroutines, and closes the world of those that have one."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    given = {name: pyfuncitem.funcargs[name] for name in names}

    async def whole() -> None:
        try:
            await pyfuncitem.obj(**given)
        finally:
            if "world" in given:
                await given["world"].close()

    asyncio.run(whole())
    return True


class SlowStore(RecordingStore):
    """A store some turns of the loop away, as ports have it: once a call was sent, it runs to its
    end. With `queues` a call waits for its turn before that, and can be called off then."""

    def __init__(self, store: Store, *, queues: bool = False) -> None:
        super().__init__(store)
        self.queues = queues

    async def _send(self, call: Callable[..., Awaitable[Any]], *args: Any, **how: Any) -> Any:
        async def work() -> Any:
            await asyncio.sleep(0)
            result = await call(*args, **how)
            await asyncio.sleep(0)
            return result

        if self.queues:
            await asyncio.sleep(0)
        return await wait_finished(asyncio.ensure_future(work()))

    async def consume(self, *args: Any) -> Any:
        return await self._send(super().consume, *args)

    async def adjust(self, *args: Any, **how: Any) -> Any:
        return await self._send(super().adjust, *args, **how)

    async def peek(self, *args: Any) -> Any:
        return await self._send(super().peek, *args)


async def spend(limiter: Any, entity_id: str, resource: str, **amounts: int) -> None:
    async with limiter.acquire(entity_id, resource, amounts):
        pass


def take(limiter: SyncRateLimiter, *args: Any, **options: Any) -> None:
    with limiter.acquire(*args, **options):
        pass
