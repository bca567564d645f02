"""Namespaces and the backend as a whole: what a repository offers beyond limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from headgate.admin.reports import AdminBase
from headgate.core.errors import HeadgateError, ValidationError
from headgate.core.history import DAY_MS, audit_event, parse_principal, window_around
from headgate.core.levels import Namespace, OnUnavailable, resolve
from headgate.core.limits import DEFAULT_NAMESPACE, Limit, parse_namespace, parse_namespace_id
from headgate.core.plan import CacheStats
from headgate.core.store import Capabilities

DAYS_MAX = 36_500


class NamespaceAdmin(AdminBase):
    """Namespaces, configuration lookups and upkeep."""

    @property
    def capabilities(self) -> Capabilities:
        return self.backend.capabilities

    async def register_namespace(self, name: str, principal: str | None = None) -> str:
        """The namespace's opaque id; registering what exists returns the same."""
        parse_namespace(name)
        parse_principal(principal)
        found = await self.backend.catalog.register_namespace(name, principal, self.clock())
        return found.id

    async def register_namespaces(
        self, names: Sequence[str], principal: str | None = None
    ) -> dict[str, str]:
        """Makes sure that all of them exist."""
        for name in names:
            parse_namespace(name)
        parse_principal(principal)
        return {name: await self.register_namespace(name, principal) for name in names}

    async def get_namespace(self, name: str) -> Namespace | None:
        """The namespace of that name, or None."""
        return await self.backend.catalog.get_namespace(parse_namespace(name))

    async def list_namespaces(self) -> list[Namespace]:
        """The namespaces that are in use."""
        return await self.backend.catalog.list_namespaces(state="active")

    async def list_orphan_namespaces(self) -> list[Namespace]:
        """Deleted namespaces whose data is still there."""
        return await self.backend.catalog.list_namespaces(state="deleted")

    async def delete_namespace(self, name: str, principal: str | None = None) -> None:
        """The name is free; the data stays until purge_namespace, recover_namespace brings it
        back."""
        parse_namespace(name)
        parse_principal(principal)
        await self.backend.catalog.delete_namespace(name, principal, self.clock())
        self.configs.invalidate(namespace=True)

    async def recover_namespace(self, namespace_id: str, principal: str | None = None) -> Namespace:
        """Brings a deleted namespace back with all that it had."""
        parse_namespace_id(namespace_id)
        parse_principal(principal)
        found = await self.backend.catalog.recover_namespace(namespace_id, principal, self.clock())
        self.configs.invalidate(namespace=True)
        return found

    async def purge_namespace(self, namespace_id: str, principal: str | None = None) -> int:
        """Everything of a deleted namespace is gone for good; how many records that were.

        Its audit goes with it, so this is noted in the namespace at hand, or in the default one.
        """
        parse_namespace_id(namespace_id)
        parse_principal(principal)
        catalog, now_ms = self.backend.catalog, self.clock()
        orphans = await catalog.list_namespaces(state="deleted")
        before = next((asdict(one) for one in orphans if one.id == namespace_id), None)
        gone = await catalog.purge_namespace(namespace_id, principal, now_ms)
        home = await catalog.get_namespace(self.configs.namespace)
        home = home or await catalog.get_namespace(DEFAULT_NAMESPACE)
        if home is not None:
            event = audit_event(
                now_ms, "namespace_purged", "$SYSTEM", principal,
                before=before, after=None, records=gone,
            )  # fmt: skip
            await self.backend.ledger.append(home.id, event)
        return gone

    async def trim_history(
        self,
        *,
        usage_days: int | None = None,
        audit_days: int | None = None,
        principal: str | None = None,
    ) -> int:
        """History older than so many days is gone, of every namespace; how many records that were.

        Usage goes by whole months, so that the months and days that stay are whole on every store.
        """
        if usage_days is None and audit_days is None:
            raise ValidationError("usage_days", None, "must be given, or audit_days, or both")
        parse_principal(principal)
        now_ms = self.clock()
        usage_ms = audit_ms = 0
        if usage_days is not None:
            border_ms = now_ms - _parse_days("usage_days", usage_days) * DAY_MS
            usage_ms, _ = window_around("monthly", max(0, border_ms))
        if audit_days is not None:
            audit_ms = max(0, now_ms - _parse_days("audit_days", audit_days) * DAY_MS)
        namespace = await self.configs.namespace_id()
        gone = await self.backend.ledger.trim(usage_before_ms=usage_ms, audit_before_ms=audit_ms)
        event = audit_event(
            now_ms, "history_trimmed", "$SYSTEM", principal,
            usage_days=usage_days, audit_days=audit_days, records=gone,
        )  # fmt: skip
        await self.backend.ledger.append(namespace, event)
        return gone

    async def resolve_limits(
        self, entity_id: str, resource: str
    ) -> tuple[list[Limit] | None, OnUnavailable | None, str | None]:
        """The stored limits that apply, the outage rule, and the highest level that gave one."""
        cached_lookup = await self.configs.cached_lookup(entity_id, resource, self.clock())
        found = resolve(cached_lookup.lookup.lineage[0], resource)
        return list(found.limits) or None, found.on_unavailable, found.source

    def invalidate_config_cache(self) -> None:
        """Forgets what is cached: the next acquire reads limits anew."""
        self.configs.invalidate(namespace=True)

    def get_cache_stats(self) -> CacheStats:
        """How often the cache of limits was asked and had the answer."""
        return self.configs.cache.stats()

    async def create_table(self) -> None:
        """The store's own structures exist; doing it again changes nothing."""
        await self.backend.catalog.prepare()

    async def upgrade(
        self, *, dry_run: bool = False, report: Callable[[Any], None] | None = None
    ) -> list[Any]:
        """The steps that moved the store on from an older schema; none where it is up to date.

        `report` is called with each step's progress. A dry run changes nothing and tells what
        would be. Stores that move on by themselves have no steps.
        """
        moving = getattr(self.backend.catalog, "upgrade", None)
        if moving is None:
            return []
        steps: list[Any] = await moving(dry_run=dry_run, report=report)
        return steps

    async def delete_table(self) -> None:
        """Everything of every namespace is gone."""
        await self.backend.catalog.destroy()
        self.configs.invalidate(namespace=True)

    async def ping(self) -> bool:
        """Whether the store answers; never raises for one that does not."""
        try:
            await self.backend.catalog.get_version_record()
        except HeadgateError:
            return False
        return True

    async def get_version_record(self) -> Mapping[str, Any]:
        """Which layout the store has and who wrote it last."""
        return await self.backend.catalog.get_version_record()

    async def set_version_record(self, values: Mapping[str, Any]) -> None:
        """Notes which layout the store has; for upgrades."""
        await self.backend.catalog.set_version_record(values)


def _parse_days(field: str, days: object) -> int:
    if type(days) is not int or not 1 <= days <= DAYS_MAX:
        raise ValidationError(field, days, f"must be an int from 1 to {DAYS_MAX}")
    return days
