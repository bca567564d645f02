"""SyncRateLimiter and SyncRepository: the faces for threads.

The same flows as the async faces, over blocking ports, run to their end by `bridge.run`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from headgate.core.decision import Verdict
from headgate.core.engine import Engine, Request
from headgate.core.lease import LeaseAccount
from headgate.core.levels import Explanation, OnUnavailable
from headgate.core.limits import Limit
from headgate.core.runtime import Clock, Observer, run
from headgate.limiter import RateLimiter, already_entered_error, also_requests, parse_requests
from headgate.sync_admin import SyncAdmin, SyncRepository


class SyncLease(LeaseAccount):
    """What an acquire took; see Lease."""

    __slots__ = ()

    def adjust(self, **changes: int) -> None:
        run(self.settlements.adjust(self, changes))

    def consume(self, **more: int) -> None:
        run(self.settlements.consume(self, more))

    def release(self, **back: int) -> None:
        run(self.settlements.release(self, back))

    def settle(self, **actual: int) -> None:
        run(self.settlements.settle(self, actual))


class SyncPendingAcquire:
    """An acquire on its way: `with` gets the lease."""

    __slots__ = ("_engine", "_lease", "_on_error", "_on_unavailable", "_wait_s", "_wants")

    def __init__(
        self,
        engine: Engine,
        wants: list[Request],
        on_unavailable: OnUnavailable | None,
        on_error: str,
        wait_s: float | None,
    ) -> None:
        self._engine: Engine | None = engine  # None once it was entered
        self._wants = wants
        self._on_unavailable = on_unavailable
        self._on_error = on_error
        self._wait_s = wait_s

    def __enter__(self) -> SyncLease:
        engine, self._engine = self._engine, None
        if engine is None:
            raise already_entered_error()
        self._lease = lease = run(
            engine.acquire(
                SyncLease, self._wants, self._on_unavailable, self._on_error, self._wait_s
            )
        )
        return lease

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lease: SyncLease = self._lease
        if kind is None and lease.owed is None:
            lease.closed = True
        else:
            run(lease.settlements.leave(lease, kind is not None))


class SyncRateLimiter(SyncAdmin):
    """RateLimiter for blocking code; safe to share between threads."""

    def __init__(
        self,
        repository_or_url: SyncRepository | str | None = None,
        *,
        namespace: str | None = None,
        limits: Sequence[Limit] | None = None,
        on_unavailable: OnUnavailable = OnUnavailable.BLOCK,
        strict: bool = False,
        clock: Clock | None = None,
        observer: Observer | None = None,
        rejections: bool = True,
        prefetch: bool | None = None,
        breaker: bool = True,
        shadow: bool = False,
    ) -> None:
        home = repository_or_url
        self._core = RateLimiter(
            home.core if isinstance(home, SyncRepository) else home,
            namespace=namespace,
            limits=limits,
            on_unavailable=on_unavailable,
            strict=strict,
            clock=clock,
            observer=observer,
            rejections=rejections,
            prefetch=prefetch,
            breaker=breaker,
            shadow=shadow,
            _blocking=True,
        )
        self.engine = self._core.engine

    @property
    def core(self) -> RateLimiter:
        return self._core

    def acquire(
        self,
        entity_id: str,
        resource: str,
        consume: Mapping[str, int],
        limits: Sequence[Limit] | None = None,
        on_unavailable: OnUnavailable | None = None,
        *,
        on_error: str = "refund",
        wait: float | None = None,
        also: Mapping[str, Mapping[str, int]] | None = None,
    ) -> SyncPendingAcquire:
        wants: list[Request] = [(entity_id, resource, consume, limits)]
        if also is not None:
            wants += also_requests(entity_id, also, limits)
        return SyncPendingAcquire(self.engine, wants, on_unavailable, on_error, wait)

    def acquire_many(
        self,
        requests: Sequence[tuple[Any, ...]],
        on_unavailable: OnUnavailable | None = None,
        *,
        on_error: str = "refund",
        wait: float | None = None,
    ) -> SyncPendingAcquire:
        return SyncPendingAcquire(
            self.engine, parse_requests(requests), on_unavailable, on_error, wait
        )

    def check(
        self,
        entity_id: str,
        resource: str,
        consume: Mapping[str, int],
        limits: Sequence[Limit] | None = None,
    ) -> Verdict:
        wants = ((entity_id, resource, consume, limits),)
        told = self.engine.check_local(wants)
        return run(self.engine.check(wants)) if told is None else told

    def check_many(self, requests: Sequence[tuple[Any, ...]]) -> Verdict:
        return run(self.engine.check(parse_requests(requests)))

    def explain(self, entity_id: str, resource: str) -> Explanation:
        return run(self._core.explain(entity_id, resource))

    def available(
        self, entity_id: str, resource: str, limits: Sequence[Limit] | None = None
    ) -> dict[str, int]:
        return run(self._core.available(entity_id, resource, limits))

    def time_until_available(
        self,
        entity_id: str,
        resource: str,
        needed: Mapping[str, int],
        limits: Sequence[Limit] | None = None,
    ) -> float:
        return run(self._core.time_until_available(entity_id, resource, needed, limits))

    def is_available(self, timeout: float = 1.0) -> bool:
        answers: list[bool] = []
        asking = threading.Thread(
            target=lambda: answers.append(run(self._core.repository.ping())), daemon=True
        )
        asking.start()
        asking.join(timeout)
        return answers == [True]

    def close(self) -> None:
        run(self._core.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
