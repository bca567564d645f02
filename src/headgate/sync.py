"""SyncRateLimiter and SyncRepository: the same flows for threads, without `await`.

They run the coroutines of the async classes to their end, over blocking connections. A method that
only does that is made by `blocking()`: it has the signature, the defaults and the docstring of the
coroutine it runs.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Self

from headgate.admin.operations import Operations
from headgate.core.decision import Verdict
from headgate.core.lease import LeaseAccount
from headgate.core.levels import OnUnavailable
from headgate.core.limits import DEFAULT_NAMESPACE, Limit
from headgate.core.plan import CacheStats
from headgate.core.runtime import Clock, Observer, blocking, run
from headgate.core.store import Capabilities
from headgate.limiter import (
    AcquireCall,
    Acquiring,
    AnyFunction,
    RateLimiter,
    already_entered_error,
    not_decorated_error,
    parse_requests,
)
from headgate.repository import CACHE_TTL_S, BuilderOptions, Repository


class SyncAdmin:
    """Entities, stored limits, buckets and history for blocking code."""

    core: Operations  # the flows that are run

    create_entity = blocking(Operations.create_entity)
    get_entity = blocking(Operations.get_entity)
    delete_entity = blocking(Operations.delete_entity)
    list_entities = blocking(Operations.list_entities)
    get_children = blocking(Operations.get_children)
    set_parent = blocking(Operations.set_parent)
    disable = blocking(Operations.disable)
    enable = blocking(Operations.enable)
    bypass = blocking(Operations.bypass)
    set_limits = blocking(Operations.set_limits)
    get_limits = blocking(Operations.get_limits)
    delete_limits = blocking(Operations.delete_limits)
    set_resource_defaults = blocking(Operations.set_resource_defaults)
    get_resource_defaults = blocking(Operations.get_resource_defaults)
    delete_resource_defaults = blocking(Operations.delete_resource_defaults)
    set_system_defaults = blocking(Operations.set_system_defaults)
    get_system_defaults = blocking(Operations.get_system_defaults)
    delete_system_defaults = blocking(Operations.delete_system_defaults)
    list_resources_with_defaults = blocking(Operations.list_resources_with_defaults)
    list_resources_with_entity_configs = blocking(Operations.list_resources_with_entity_configs)
    list_entities_with_custom_limits = blocking(Operations.list_entities_with_custom_limits)
    set_plan = blocking(Operations.set_plan)
    get_plan = blocking(Operations.get_plan)
    list_plans = blocking(Operations.list_plans)
    list_entities_on_plan = blocking(Operations.list_entities_on_plan)
    delete_plan = blocking(Operations.delete_plan)
    assign_plan = blocking(Operations.assign_plan)
    reset_bucket = blocking(Operations.reset_bucket)
    top_up = blocking(Operations.top_up)
    get_buckets = blocking(Operations.get_buckets)
    get_resource_capacity = blocking(Operations.get_resource_capacity)
    get_audit_events = blocking(Operations.get_audit_events)
    list_audit_events = blocking(Operations.list_audit_events)
    get_usage_snapshots = blocking(Operations.get_usage_snapshots)
    get_usage_summary = blocking(Operations.get_usage_summary)


class SyncRepository(SyncAdmin):
    """All that is stored, seen from one namespace; see Repository."""

    core: Repository

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        config_cache_ttl: float = CACHE_TTL_S,
        clock: Clock | None = None,
        _core: Repository | None = None,
    ) -> None:
        self.core = _core or Repository(
            url,
            namespace=namespace,
            config_cache_ttl=config_cache_ttl,
            clock=clock,
            _blocking=True,
        )

    @classmethod
    def open(
        cls,
        url: str | None = None,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        config_cache_ttl: float = CACHE_TTL_S,
        clock: Clock | None = None,
    ) -> Self:
        made = cls(url, namespace=namespace, config_cache_ttl=config_cache_ttl, clock=clock)
        run(made.core._make_ready())
        return made

    @classmethod
    def builder(cls) -> SyncBuilder:
        return SyncBuilder()

    @property
    def namespace_name(self) -> str:
        return self.core.namespace_name

    def namespace(self, name: str) -> SyncRepository:
        return SyncRepository(_core=self.core.namespace(name))

    @property
    def capabilities(self) -> Capabilities:
        return self.core.capabilities

    register_namespace = blocking(Repository.register_namespace)
    register_namespaces = blocking(Repository.register_namespaces)
    get_namespace = blocking(Repository.get_namespace)
    list_namespaces = blocking(Repository.list_namespaces)
    list_orphan_namespaces = blocking(Repository.list_orphan_namespaces)
    delete_namespace = blocking(Repository.delete_namespace)
    recover_namespace = blocking(Repository.recover_namespace)
    purge_namespace = blocking(Repository.purge_namespace)
    trim_history = blocking(Repository.trim_history)
    resolve_limits = blocking(Repository.resolve_limits)
    create_table = blocking(Repository.create_table)
    upgrade = blocking(Repository.upgrade)
    delete_table = blocking(Repository.delete_table)
    ping = blocking(Repository.ping)
    get_version_record = blocking(Repository.get_version_record)
    set_version_record = blocking(Repository.set_version_record)
    close = blocking(Repository.close)

    def invalidate_config_cache(self) -> None:
        self.core.invalidate_config_cache()

    def get_cache_stats(self) -> CacheStats:
        return self.core.get_cache_stats()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class SyncBuilder(BuilderOptions):
    """`SyncRepository.builder().url("sqlite:///limits.db").namespace("eu").build()`"""

    def build(self) -> SyncRepository:
        return SyncRepository.open(**self._options)


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


class SyncEnteredAcquire(AcquireCall):
    """An acquire whose block is running or has ended."""

    __slots__ = ()

    def __enter__(self) -> SyncLease:
        raise already_entered_error()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        lease: SyncLease = self._lease
        if kind is None and lease.owed is None:
            lease.closed = True
        else:
            run(lease.settlements.leave(lease, kind is not None))


class SyncPendingAcquire(SyncEnteredAcquire):
    """An acquire on its way: `with` gets the lease."""

    __slots__ = ()

    def __enter__(self) -> SyncLease:
        self.__class__ = SyncEnteredAcquire  # type: ignore[assignment]
        lease = None
        if self._engine.is_local:
            lease = self._engine.acquire_local(
                SyncLease, self._wants, self._on_unavailable, self._on_error, self._wait_s
            )
        if lease is None:
            lease = run(
                self._engine.acquire(
                    SyncLease, self._wants, self._on_unavailable, self._on_error, self._wait_s
                )
            )
        self._lease = lease
        return lease

    def __del__(self) -> None:
        self.warn()


def limited(function: AnyFunction, pending: Callable[..., SyncPendingAcquire]) -> AnyFunction:
    """The function, or generator, in the block of an acquire."""
    call: Callable[..., Any]
    if inspect.isgeneratorfunction(function):

        def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            with pending(args, kwargs):
                return (yield from function(*args, **kwargs))

    elif inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise not_decorated_error(function, "is async; a RateLimiter limits it")
    else:

        def call(*args: Any, **kwargs: Any) -> Any:
            with pending(args, kwargs):
                return function(*args, **kwargs)

    return functools.wraps(function)(call)  # type: ignore[return-value]


class SyncRateLimiter(Acquiring[SyncPendingAcquire], SyncAdmin):
    """RateLimiter for blocking code; safe to share between threads."""

    core: RateLimiter
    _call = SyncPendingAcquire
    _limited = staticmethod(limited)

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
        self.core = RateLimiter(
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
        self.engine = self.core.engine

    def take(
        self,
        entity_id: str,
        resource: str,
        amounts: Mapping[str, int],
        limits: Sequence[Limit] | None = None,
        on_unavailable: OnUnavailable | None = None,
        *,
        wait: float | None = None,
    ) -> Verdict:
        request = entity_id, resource, amounts, limits
        if self.engine.is_local and on_unavailable is None and wait is None:
            verdict = self.engine.take_local(request)
            if verdict is not None:
                return verdict
        return run(self.engine.take(request, on_unavailable, wait))

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

    explain = blocking(RateLimiter.explain)
    available = blocking(RateLimiter.available)
    time_until_available = blocking(RateLimiter.time_until_available)
    close = blocking(RateLimiter.close)

    def is_available(self, timeout: float = 1.0) -> bool:
        if self.core.is_closed:
            return False
        answers: list[bool] = []
        asking = threading.Thread(
            target=lambda: answers.append(run(self.core.repository.ping())), daemon=True
        )
        asking.start()
        asking.join(timeout)
        return answers == [True]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
