"""RateLimiter: the face for asyncio."""

from __future__ import annotations

import asyncio
import functools
import inspect
import warnings
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, Self, TypeVar

from headgate.admin.operations import Operations
from headgate.core.decision import Verdict
from headgate.core.engine import Engine, Request
from headgate.core.errors import HeadgateError, RateLimiterClosed, ValidationError
from headgate.core.lease import LeaseAccount
from headgate.core.levels import Defaults, Explanation, OnUnavailable, parse_on_unavailable
from headgate.core.limits import Limit
from headgate.core.runtime import Clock, Observer
from headgate.core.store import Store
from headgate.layers.layer import Layer, Shadow
from headgate.layers.stack import Layering, add_layers
from headgate.repository import Repository, check_strict, layer_switches
from headgate.stores.memory.buckets import stand_in
from headgate.transport.gates import (
    finish,
    finish_shielded,
    gate_factory_for,
    is_cancelling,
    raise_if_cancelled,
)


class Lease(LeaseAccount):
    """What an acquire took. Leave its block to end it: normally it keeps its consumption, by an
    exception it is refunded (or kept, as the acquire chose)."""

    __slots__ = ()

    async def adjust(self, **changes: int) -> None:
        """Adds to (or, negative, gives back of) what was taken; may go into debt, never refuses."""
        await finish(self.settlements.adjust(self, changes))

    async def consume(self, **more: int) -> None:
        """Takes more if it fits, else raises RateLimitExceeded and takes nothing."""
        await finish(self.settlements.consume(self, more))

    async def release(self, **back: int) -> None:
        """Gives back part of what was taken."""
        await finish(self.settlements.release(self, back))

    async def settle(self, **actual: int) -> None:
        """Makes the lease hold exactly these amounts; saying it twice changes nothing. What is
        settled stays, however the block ends."""
        await finish(self.settlements.settle(self, actual))


@dataclass(slots=True, eq=False, repr=False)
class AcquireCall:
    """What an acquire asks for. It can be entered once: two blocks would share one lease.

    Entering it changes its class: one of the second class says that it was entered before, one of
    the first warns when it is dropped. So what is entered, as nearly all are, pays for neither: a
    `__del__` of every acquire would be one more call for each of them.
    """

    _engine: Engine
    _wants: list[Request]
    _on_unavailable: OnUnavailable | None
    _on_error: str
    _wait_s: float | None
    _lease: Any = field(init=False)

    def warn(self, _warn: Callable[..., None] = warnings.warn) -> None:
        """Of an acquire that took nothing. Bound early: the last ones go when modules are gone."""
        places = ", ".join(f"{want[0]!r} on {want[1]!r}" for want in self._wants)
        _warn(
            f"acquire({places}) was never entered, so nothing was taken and nothing is limited; "
            f"write `async with limiter.acquire(…):`, or `with` for a SyncRateLimiter",
            ResourceWarning,
            stacklevel=3,
            source=self,
        )


class EnteredAcquire(AcquireCall):
    """An acquire whose block is running or has ended."""

    __slots__ = ()

    async def __aenter__(self) -> Lease:
        raise already_entered_error()

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        lease: Lease = self._lease
        if lease.owed is None and (kind is None or lease.keep):
            lease.closed = True
        else:
            await finish_shielded(lease.settlements.leave(lease, kind is not None))


class PendingAcquire(EnteredAcquire):
    """An acquire on its way: `async with` gets the lease."""

    __slots__ = ()

    async def __aenter__(self) -> Lease:
        self.__class__ = EnteredAcquire  # type: ignore[assignment]
        if self._engine.is_local:
            local = self._engine.acquire_local(
                Lease, self._wants, self._on_unavailable, self._on_error, self._wait_s
            )
            if local is not None:
                self._lease = local
                return local
        try:
            self._lease = lease = await self._engine.acquire(
                Lease, self._wants, self._on_unavailable, self._on_error, self._wait_s
            )
        except HeadgateError:
            await raise_if_cancelled()
            raise
        if is_cancelling():
            await _undo_if_cancelled(lease)
        return lease

    def __del__(self) -> None:
        self.warn()


async def _undo_if_cancelled(lease: Lease) -> None:
    try:
        await raise_if_cancelled()
    except BaseException:
        lease.keep = False
        await finish_shielded(lease.settlements.leave(lease, True))
        raise


AnyCall = TypeVar("AnyCall", bound=AcquireCall)
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


class Acquiring(Generic[AnyCall]):
    """How work is asked for, by tasks or by threads: what is returned is what to enter."""

    engine: Engine
    _call: type[AnyCall]
    _limited: Callable[[Any, Callable[..., AnyCall]], Any]  # how a function is decorated

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
    ) -> AnyCall:
        """A lease on the amounts for a `with` block, or RateLimitExceeded with nothing consumed.

        `limits` replaces what is stored. `wait` queues for up to that many seconds instead of
        refusing. `also` takes from more resources of the entity, all or none. `on_error="keep"`
        does not refund when the block raises.
        """
        wants: list[Request] = [(entity_id, resource, consume, limits)]
        if also is not None:
            wants += also_requests(entity_id, also, limits)
        return self._call(self.engine, wants, on_unavailable, on_error, wait)

    def acquire_many(
        self,
        requests: Sequence[tuple[Any, ...]],
        on_unavailable: OnUnavailable | None = None,
        *,
        on_error: str = "refund",
        wait: float | None = None,
    ) -> AnyCall:
        """One lease on several `(entity_id, resource, consume[, limits])`: all of them or none."""
        return self._call(self.engine, parse_requests(requests), on_unavailable, on_error, wait)

    def limit(
        self,
        entity_id: str | Callable[..., str],
        resource: str | Callable[..., str],
        consume: Mapping[str, int] | Callable[..., Mapping[str, int]],
        limits: Sequence[Limit] | None = None,
        on_unavailable: OnUnavailable | None = None,
        *,
        on_error: str = "refund",
        wait: float | None = None,
    ) -> Callable[[AnyFunction], AnyFunction]:
        """Decorates a function: each of its calls runs in the block of an acquire.

        `entity_id`, `resource` and `consume` may be functions of the call's arguments. A generator
        takes when its first item is asked for, and keeps the lease until it ends.
        """

        asked: tuple[Any, ...] = (entity_id, resource, consume)

        def pending(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AnyCall:
            entity, name, amounts = (
                one(*args, **kwargs) if callable(one) else one for one in asked
            )
            return self.acquire(
                entity, name, amounts, limits, on_unavailable, on_error=on_error, wait=wait
            )

        return lambda function: self._limited(function, pending)


def limited(function: AnyFunction, pending: Callable[..., PendingAcquire]) -> AnyFunction:
    """The async function, or async generator, in the block of an acquire."""
    call: Callable[..., Any]
    if inspect.isasyncgenfunction(function):

        async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            async with pending(args, kwargs), aclosing(function(*args, **kwargs)) as inner:
                step = inner.asend(None)
                while True:
                    try:
                        item = await step
                    except StopAsyncIteration:
                        return
                    try:
                        step = inner.asend((yield item))
                    except Exception as error:  # noqa: BLE001  # thrown in: the function's to see
                        step = inner.athrow(error)

    elif inspect.iscoroutinefunction(function):

        async def call(*args: Any, **kwargs: Any) -> Any:
            async with pending(args, kwargs):
                return await function(*args, **kwargs)

    else:
        raise not_decorated_error(function, "must be `async def`; a SyncRateLimiter limits others")
    return functools.wraps(function)(call)  # type: ignore[return-value]


def not_decorated_error(function: object, reason: str) -> ValidationError:
    return ValidationError("function", getattr(function, "__qualname__", function), reason)


class RateLimiter(Acquiring[PendingAcquire], Operations):
    """Decides, for many processes at once, whether work may run now.

    `limits` are its own defaults, below everything stored. `strict` takes from several buckets in
    one step, or refuses a store that cannot. `clock` (milliseconds) drives time in tests and
    simulations. `observer` is called with one Event for everything that happens.
    """

    _call = PendingAcquire
    _limited = staticmethod(limited)

    def __init__(
        self,
        repository_or_url: Repository | str | None = None,
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
        _blocking: bool = False,
    ) -> None:
        self.defaults = Defaults(limits)
        self.repository = _open_repository(repository_or_url, namespace, clock, _blocking, strict)
        self._owns = not isinstance(repository_or_url, Repository)
        self.is_closed = False
        home = self.repository
        if home.backend.check_limits is not None:
            home.backend.check_limits(self.defaults.limits)
        layering = Layering(breaker, rejections, prefetch or False, shadow)
        layering = layering.for_store(home.backend.capabilities).override(layer_switches(home.url))
        pace = gate_factory_for(clock or home.given_clock, blocking=_blocking)
        store = add_layers(
            home.backend.store,
            clock=home.clock,
            pace=pace,
            on_change=lambda state: self.engine.notify("breaker", "", "", state.value),
            on_refusal=self._report_shadowed,
            **asdict(layering),
        )
        fallback: Store = stand_in(home.clock)
        if layering.shadow:
            fallback = Shadow(fallback, on_refusal=self._report_shadowed)
        backend = replace(home.backend, store=store)  # so that top_up and reset pass the layers
        self._bind(backend, home.configs, home.clock, drives_time=home.drives_time)
        self.engine = Engine(
            store,
            fallback,
            home.configs,
            home.clock,
            pace,
            drives_time=home.drives_time,
            defaults=self.defaults,
            on_unavailable=parse_on_unavailable(on_unavailable),
            observer=observer,
        )

    async def take(
        self,
        entity_id: str,
        resource: str,
        amounts: Mapping[str, int],
        limits: Sequence[Limit] | None = None,
        on_unavailable: OnUnavailable | None = None,
        *,
        wait: float | None = None,
    ) -> Verdict:
        """Takes the amounts or nothing, without a lease: `if await limiter.take(…):`.

        A refusal raises nothing: it is a verdict that is false, with the wait and the limits to
        read from it. What was taken stays taken. `wait` queues for up to that many seconds.
        """
        request = entity_id, resource, amounts, limits
        if self.engine.is_local and on_unavailable is None and wait is None:
            verdict = self.engine.take_local(request)
            if verdict is not None:
                return verdict
        return await finish(self.engine.take(request, on_unavailable, wait))

    async def check(
        self,
        entity_id: str,
        resource: str,
        consume: Mapping[str, int],
        limits: Sequence[Limit] | None = None,
    ) -> Verdict:
        """What an acquire would be told now, parents included; consumes nothing."""
        wants = ((entity_id, resource, consume, limits),)
        told = self.engine.check_local(wants)
        return await finish(self.engine.check(wants)) if told is None else told

    async def check_many(self, requests: Sequence[tuple[Any, ...]]) -> Verdict:
        """What acquire_many would be told now; consumes nothing."""
        return await finish(self.engine.check(parse_requests(requests)))

    async def explain(self, entity_id: str, resource: str) -> Explanation:
        """Which level gave each limit and why, for the entity and the parents it cascades to."""
        return await self.engine.explain(entity_id, resource)

    async def available(
        self, entity_id: str, resource: str, limits: Sequence[Limit] | None = None
    ) -> dict[str, int]:
        """Whole tokens that can be taken now, by limit; the least over the entity and its
        parents; negative in debt."""
        return await self.engine.available(entity_id, resource, limits)

    async def time_until_available(
        self,
        entity_id: str,
        resource: str,
        needed: Mapping[str, int],
        limits: Sequence[Limit] | None = None,
    ) -> float:
        """Seconds until that much can be taken if nobody else acts; 0.0 if now."""
        verdict = await self.engine.check(((entity_id, resource, needed, limits),))
        return verdict.retry_after_seconds

    async def is_available(self, timeout: float = 1.0) -> bool:  # noqa: ASYNC109
        """Whether the store answers within the time; never raises."""
        if self.is_closed:
            return False
        try:
            return await asyncio.wait_for(self.repository.ping(), timeout)
        except TimeoutError:
            return False

    async def close(self) -> None:
        """Gives back what was prefetched; closes the store if this limiter opened it. Whatever is
        asked of the limiter afterwards raises RateLimiterClosed."""
        self.engine.close()
        self.is_closed = True
        closed: Any = _Closed()
        self._bind(closed, closed, closed, drives_time=self.drives_time)
        if self._owns:
            await self.engine.store.close()
        elif isinstance(self.engine.store, Layer):
            await self.engine.store.detach()  # prefetched tokens go back

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _report_shadowed(self, refusal: Verdict) -> None:
        key = refusal.demands[0].key
        self.engine.notify("shadowed", key.entity_id, key.resource)


class _Closed:
    """What a closed limiter has in the places of its store, its configuration and its clock."""

    def __getattr__(self, name: str) -> Any:
        raise RateLimiterClosed

    def __call__(self) -> int:
        raise RateLimiterClosed


def already_entered_error() -> ValidationError:
    return ValidationError(
        "acquire", "it", "was entered before; call limiter.acquire(…) anew for each block"
    )


def also_requests(entity_id: str, also: object, limits: Sequence[Limit] | None) -> list[Request]:
    if not isinstance(also, Mapping):
        raise ValidationError("also", also, "must map resources to {limit: amount}")
    return [(entity_id, resource, consume, limits) for resource, consume in also.items()]


def parse_requests(requests: object) -> list[Request]:
    if isinstance(requests, (str, bytes, Mapping)) or not isinstance(requests, Sequence):
        raise ValidationError(
            "requests", requests, "must be a list of (entity_id, resource, consume[, limits])"
        )
    for request in requests:
        if not isinstance(request, tuple) or len(request) not in (3, 4):
            raise ValidationError(
                "requests", request, "must be a tuple (entity_id, resource, consume[, limits])"
            )
    return [(*request, None) if len(request) == 3 else request for request in requests]


def _open_repository(
    repository_or_url: object,
    namespace: str | None,
    clock: Clock | None,
    blocking: bool,
    strict: bool,
) -> Repository:
    if isinstance(repository_or_url, Repository):
        if strict:
            check_strict(repository_or_url.backend)
        if clock is not None:
            raise ValidationError("clock", clock, "belongs to the repository; give it there")
        if repository_or_url.blocking is not blocking:
            raise ValidationError(
                "repository", "it",
                "is of the other kind: RateLimiter takes a Repository, SyncRateLimiter a "
                "SyncRepository",
            )  # fmt: skip
        return repository_or_url if namespace is None else repository_or_url.namespace(namespace)
    if repository_or_url is not None and not isinstance(repository_or_url, str):
        raise ValidationError("repository_or_url", repository_or_url, "must be a URL or Repository")
    return Repository(
        repository_or_url,
        namespace=namespace or "default",
        clock=clock,
        _blocking=blocking,
        _strict=strict,
    )
