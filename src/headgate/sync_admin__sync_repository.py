"""SyncRepository: Repository for blocking code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from headgate.core.levels__entities import Namespace, OnUnavailable
from headgate.core.limits import Limit
from headgate.core.limits__names import DEFAULT_NAMESPACE
from headgate.core.plan_cache__cache import CacheStats
from headgate.core.runtime import run
from headgate.core.runtime__clock import Clock
from headgate.core.store import Capabilities
from headgate.repository import CACHE_TTL_S, Repository, Steps
from headgate.sync_admin import SyncAdmin


class SyncRepository(SyncAdmin):
    """All that is stored, seen from one namespace; see Repository."""

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        config_cache_ttl: float = CACHE_TTL_S,
        clock: Clock | None = None,
        _core: Repository | None = None,
    ) -> None:
        self._core = _core or Repository(
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
        core = run(
            Repository.open(
                url,
                namespace=namespace,
                config_cache_ttl=config_cache_ttl,
                clock=clock,
                _blocking=True,
            )
        )
        return cls(_core=core)

    @classmethod
    def builder(cls) -> SyncBuilder:
        return SyncBuilder()

    @property
    def core(self) -> Repository:
        return self._core

    @property
    def namespace_name(self) -> str:
        return self._core.namespace_name

    def namespace(self, name: str) -> SyncRepository:
        return SyncRepository(_core=self._core.namespace(name))

    @property
    def capabilities(self) -> Capabilities:
        return self.core.capabilities

    def register_namespace(self, name: str, principal: str | None = None) -> str:
        return run(self.core.register_namespace(name, principal))

    def register_namespaces(
        self, names: Sequence[str], principal: str | None = None
    ) -> dict[str, str]:
        return run(self.core.register_namespaces(names, principal))

    def get_namespace(self, name: str) -> Namespace | None:
        return run(self.core.get_namespace(name))

    def list_namespaces(self) -> list[Namespace]:
        return run(self.core.list_namespaces())

    def list_orphan_namespaces(self) -> list[Namespace]:
        return run(self.core.list_orphan_namespaces())

    def delete_namespace(self, name: str, principal: str | None = None) -> None:
        run(self.core.delete_namespace(name, principal))

    def recover_namespace(self, namespace_id: str, principal: str | None = None) -> Namespace:
        return run(self.core.recover_namespace(namespace_id, principal))

    def purge_namespace(self, namespace_id: str, principal: str | None = None) -> int:
        return run(self.core.purge_namespace(namespace_id, principal))

    def trim_history(
        self,
        *,
        usage_days: int | None = None,
        audit_days: int | None = None,
        principal: str | None = None,
    ) -> int:
        return run(
            self.core.trim_history(
                usage_days=usage_days, audit_days=audit_days, principal=principal
            )
        )

    def resolve_limits(
        self, entity_id: str, resource: str
    ) -> tuple[list[Limit] | None, OnUnavailable | None, str | None]:
        return run(self.core.resolve_limits(entity_id, resource))

    def invalidate_config_cache(self) -> None:
        self.core.invalidate_config_cache()

    def get_cache_stats(self) -> CacheStats:
        return self.core.get_cache_stats()

    def create_table(self) -> None:
        run(self.core.create_table())

    def upgrade(
        self, *, dry_run: bool = False, report: Callable[[Any], None] | None = None
    ) -> list[Any]:
        return run(self.core.upgrade(dry_run=dry_run, report=report))

    def delete_table(self) -> None:
        run(self.core.delete_table())

    def ping(self) -> bool:
        return run(self.core.ping())

    def get_version_record(self) -> Mapping[str, Any]:
        return run(self.core.get_version_record())

    def set_version_record(self, values: Mapping[str, Any]) -> None:
        run(self.core.set_version_record(values))

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


class SyncBuilder(Steps):
    """`SyncRepository.builder().url("sqlite:///limits.db").namespace("eu").build()`"""

    def build(self) -> SyncRepository:
        return SyncRepository.open(
            self._url,
            namespace=self._namespace,
            config_cache_ttl=self._config_cache_ttl,
            clock=self._clock,
        )
