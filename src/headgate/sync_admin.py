"""Operator flows in blocking form: one thin method per flow of Operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from headgate.admin.operations import Operations
from headgate.admin.reports import BucketState
from headgate.core.history import AuditEvent, ResourceCapacity, UsageSnapshot, UsageSummary
from headgate.core.levels import Entity, Namespace, OnUnavailable
from headgate.core.limits import DEFAULT_NAMESPACE, DEFAULT_RESOURCE, Limit
from headgate.core.plan_cache import CacheStats
from headgate.core.runtime import Clock, run
from headgate.core.store import Capabilities
from headgate.repository import CACHE_TTL_S, BuilderOptions, Repository


class SyncAdmin:
    """Entities, stored limits, buckets and history for blocking code."""

    @property
    def core(self) -> Operations:
        """The flows that are run."""
        raise NotImplementedError

    def create_entity(
        self,
        entity_id: str,
        name: str | None = None,
        parent_id: str | None = None,
        cascade: bool = False,
        metadata: Mapping[str, Any] | None = None,
        principal: str | None = None,
    ) -> Entity:
        return run(
            self.core.create_entity(entity_id, name, parent_id, cascade, metadata, principal)
        )

    def get_entity(self, entity_id: str) -> Entity | None:
        return run(self.core.get_entity(entity_id))

    def delete_entity(self, entity_id: str, principal: str | None = None) -> None:
        run(self.core.delete_entity(entity_id, principal))

    def list_entities(
        self, limit: int = 100, cursor: str | None = None
    ) -> tuple[list[Entity], str | None]:
        return run(self.core.list_entities(limit, cursor))

    def get_children(self, parent_id: str) -> list[Entity]:
        return run(self.core.get_children(parent_id))

    def set_parent(
        self,
        entity_id: str,
        parent_id: str | None,
        cascade: bool | None = None,
        principal: str | None = None,
        version: int | None = None,
    ) -> Entity:
        return run(self.core.set_parent(entity_id, parent_id, cascade, principal, version))

    def disable(
        self,
        entity_id: str | None = None,
        *,
        resource: str | None = None,
        principal: str | None = None,
    ) -> None:
        run(self.core.disable(entity_id, resource=resource, principal=principal))

    def enable(
        self,
        entity_id: str | None = None,
        *,
        resource: str | None = None,
        principal: str | None = None,
    ) -> None:
        run(self.core.enable(entity_id, resource=resource, principal=principal))

    def bypass(
        self,
        entity_id: str | None = None,
        *,
        resource: str | None = None,
        principal: str | None = None,
    ) -> None:
        run(self.core.bypass(entity_id, resource=resource, principal=principal))

    def set_limits(
        self,
        entity_id: str,
        limits: Sequence[Limit],
        resource: str = DEFAULT_RESOURCE,
        principal: str | None = None,
    ) -> None:
        run(self.core.set_limits(entity_id, limits, resource, principal))

    def get_limits(self, entity_id: str, resource: str = DEFAULT_RESOURCE) -> list[Limit]:
        return run(self.core.get_limits(entity_id, resource))

    def delete_limits(
        self, entity_id: str, resource: str = DEFAULT_RESOURCE, principal: str | None = None
    ) -> None:
        run(self.core.delete_limits(entity_id, resource, principal))

    def set_resource_defaults(
        self, resource: str, limits: Sequence[Limit], principal: str | None = None
    ) -> None:
        run(self.core.set_resource_defaults(resource, limits, principal))

    def get_resource_defaults(self, resource: str) -> list[Limit]:
        return run(self.core.get_resource_defaults(resource))

    def delete_resource_defaults(self, resource: str, principal: str | None = None) -> None:
        run(self.core.delete_resource_defaults(resource, principal))

    def set_system_defaults(
        self,
        limits: Sequence[Limit],
        on_unavailable: OnUnavailable | None = None,
        principal: str | None = None,
    ) -> None:
        run(self.core.set_system_defaults(limits, on_unavailable, principal))

    def get_system_defaults(self) -> tuple[list[Limit], OnUnavailable | None]:
        return run(self.core.get_system_defaults())

    def delete_system_defaults(self, principal: str | None = None) -> None:
        run(self.core.delete_system_defaults(principal))

    def list_resources_with_defaults(self) -> list[str]:
        return run(self.core.list_resources_with_defaults())

    def list_resources_with_entity_configs(self) -> list[str]:
        return run(self.core.list_resources_with_entity_configs())

    def list_entities_with_custom_limits(
        self, resource: str, limit: int | None = None, cursor: str | None = None
    ) -> tuple[list[str], str | None]:
        return run(self.core.list_entities_with_custom_limits(resource, limit, cursor))

    def reset_bucket(self, entity_id: str, resource: str, principal: str | None = None) -> None:
        run(self.core.reset_bucket(entity_id, resource, principal))

    def top_up(
        self,
        entity_id: str,
        resource: str,
        amounts: Mapping[str, int],
        idempotency_key: str | None = None,
        principal: str | None = None,
    ) -> bool:
        return run(self.core.top_up(entity_id, resource, amounts, idempotency_key, principal))

    def get_buckets(self, entity_id: str, resource: str | None = None) -> list[BucketState]:
        return run(self.core.get_buckets(entity_id, resource))

    def get_resource_capacity(
        self, resource: str, limit_name: str, parents_only: bool = False
    ) -> ResourceCapacity:
        return run(self.core.get_resource_capacity(resource, limit_name, parents_only))

    def get_audit_events(
        self, entity_id: str, limit: int = 100, start_event_id: str | None = None
    ) -> list[AuditEvent]:
        return run(self.core.get_audit_events(entity_id, limit, start_event_id))

    def get_usage_snapshots(
        self,
        entity_id: str | None = None,
        resource: str | None = None,
        window_type: str | None = None,
        start_time: object = None,
        end_time: object = None,
        limit: int = 100,
        next_key: str | None = None,
    ) -> tuple[list[UsageSnapshot], str | None]:
        return run(
            self.core.get_usage_snapshots(
                entity_id, resource, window_type, start_time, end_time, limit, next_key
            )
        )

    def get_usage_summary(
        self,
        entity_id: str | None = None,
        resource: str | None = None,
        window_type: str = "hourly",
        start_time: object = None,
        end_time: object = None,
    ) -> UsageSummary:
        return run(
            self.core.get_usage_summary(entity_id, resource, window_type, start_time, end_time)
        )


# --------------------------------------------------------------------------------------------------
# SyncRepository: Repository for blocking code.


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


class SyncBuilder(BuilderOptions):
    """`SyncRepository.builder().url("sqlite:///limits.db").namespace("eu").build()`"""

    def build(self) -> SyncRepository:
        return SyncRepository.open(
            self._url,
            namespace=self._namespace,
            config_cache_ttl=self._config_cache_ttl,
            clock=self._clock,
        )
