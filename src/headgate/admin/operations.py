"""What operators do to entities and stored limits.

Everything is parsed here, before the catalog sees it; nothing is written on bad input.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headgate.admin.plans import PlanAdmin
from headgate.admin.reports import (
    PAGE_MAX,
    AdminBase,
    Reports,
    bucket_keys,
    pages,
    parse_page,
)
from headgate.core.errors import EntityNotFoundError, ValidationError
from headgate.core.history import audit_event, parse_principal
from headgate.core.levels import Entity, Level, Mode, OnUnavailable, parse_on_unavailable
from headgate.core.limits import (
    DEFAULT_RESOURCE,
    Limit,
    parse_config_resource,
    parse_entity_id,
    parse_limits,
    parse_plan_name,
    parse_resource,
)

METADATA_BYTES_MAX = 4096
NAME_LENGTH_MAX = 256


class EntityAdmin(AdminBase):
    """Who is limited. `principal` says by whom a change was made; it goes into the audit."""

    async def create_entity(
        self,
        entity_id: str,
        name: str | None = None,
        parent_id: str | None = None,
        cascade: bool = False,
        metadata: Mapping[str, Any] | None = None,
        principal: str | None = None,
        plan: str | None = None,
    ) -> Entity:
        """A new entity; EntityExistsError where the id is taken."""
        entity = parse_entity(entity_id, name, parent_id, cascade, metadata, plan)
        return await self._create_entity(entity, principal)

    async def _create_entity(self, entity: Entity, principal: str | None) -> Entity:
        parse_principal(principal)
        namespace = await self.configs.namespace_id()
        made = await self.backend.catalog.create_entity(namespace, entity, principal, self.clock())
        self.configs.invalidate()
        return made

    async def get_entity(self, entity_id: str) -> Entity | None:
        """The entity, or None."""
        parse_entity_id(entity_id)
        return await self.backend.catalog.get_entity(await self.configs.namespace_id(), entity_id)

    async def delete_entity(self, entity_id: str, principal: str | None = None) -> None:
        """The entity, its limits and its buckets are gone; history stays. It need not have been
        registered: EntityNotFoundError where there is nothing of it."""
        parse_entity_id(entity_id)
        parse_principal(principal)
        namespace = await self.configs.namespace_id()
        missing: EntityNotFoundError | None = None
        try:
            await self.backend.catalog.delete_entity(namespace, entity_id, principal, self.clock())
        except EntityNotFoundError as error:
            missing = error
        buckets = 0
        async for keys in bucket_keys(self, entity_id, None):
            await self.backend.store.forget(keys)
            buckets += len(keys)
        self.configs.invalidate()
        if missing is None:
            return
        if not buckets:
            raise missing
        event = audit_event(self.clock(), "entity_deleted", entity_id, principal,
                            before=None, after=None)  # fmt: skip
        await self.backend.ledger.append(namespace, event)

    async def list_entities(
        self, limit: int = 100, cursor: str | None = None
    ) -> tuple[list[Entity], str | None]:
        """A page of entities in the order of their ids, and where the next begins."""
        page = await self.backend.catalog.list_entities(
            await self.configs.namespace_id(),
            parent_id=None,
            limit=parse_page(limit),
            cursor=cursor,
        )
        return list(page.items), page.cursor

    async def get_children(self, parent_id: str) -> list[Entity]:
        """The entities whose parent this is."""
        parse_entity_id(parent_id, "parent_id")
        namespace = await self.configs.namespace_id()

        async def fetch(cursor: str | None) -> tuple[Sequence[Entity], str | None]:
            page = await self.backend.catalog.list_entities(
                namespace, parent_id=parent_id, limit=PAGE_MAX, cursor=cursor
            )
            return page.items, page.cursor

        return [entity async for page in pages(fetch) for entity in page]

    async def set_parent(
        self,
        entity_id: str,
        parent_id: str | None,
        cascade: bool | None = None,
        principal: str | None = None,
        version: int | None = None,
    ) -> Entity:
        """Moves the entity below another one, or with None out of its tree; circles are refused."""
        changes: dict[str, Any] = {
            "parent_id": None if parent_id is None else parse_entity_id(parent_id, "parent_id")
        }
        if cascade is not None:
            changes["cascade"] = _parse_flag("cascade", cascade)
        return await self._change_entity(entity_id, changes, principal, version)

    async def disable(
        self,
        entity_id: str | None = None,
        *,
        resource: str | None = None,
        principal: str | None = None,
    ) -> None:
        """Every acquire of the entity, or on the resource, raises DisabledError. Leases that are
        open, and charges for what was used, still take what they must."""
        await self._set_mode(Mode.DISABLED, entity_id, resource, principal)

    async def enable(
        self,
        entity_id: str | None = None,
        *,
        resource: str | None = None,
        principal: str | None = None,
    ) -> None:
        """Back to normal after disable or bypass."""
        await self._set_mode(Mode.NORMAL, entity_id, resource, principal)

    async def bypass(
        self,
        entity_id: str | None = None,
        *,
        resource: str | None = None,
        principal: str | None = None,
    ) -> None:
        """Every acquire of the entity, or on the resource, passes and takes nothing."""
        await self._set_mode(Mode.BYPASS, entity_id, resource, principal)

    async def _set_mode(
        self, mode: Mode, entity_id: str | None, resource: str | None, principal: str | None
    ) -> None:
        parse_principal(principal)
        if (entity_id is None) == (resource is None):
            raise ValidationError(
                "entity_id", entity_id, "and resource: name exactly one of them to switch"
            )
        if entity_id is not None:
            if await self.get_entity(entity_id) is None:
                await self.create_entity(entity_id, principal=principal)
            await self._change_entity(entity_id, {"mode": mode}, principal)
            return
        level = Level(None, parse_resource(resource))
        await self._change_level(level, {"mode": mode}, principal)

    async def _change_entity(
        self,
        entity_id: str,
        changes: Mapping[str, Any],
        principal: str | None,
        version: int | None = None,
    ) -> Entity:
        """Some of name, parent_id, cascade, metadata, mode and plan are other ones from now on."""
        parse_entity_id(entity_id)
        parse_principal(principal)
        namespace = await self.configs.namespace_id()
        after = await self.backend.catalog.update_entity(
            namespace, entity_id, changes, principal, self.clock(), version=version
        )
        self.configs.invalidate()
        return after


class LimitAdmin(AdminBase):
    """What is stored at these levels: entity, entity default, resource, system."""

    async def set_limits(
        self,
        entity_id: str,
        limits: Sequence[Limit],
        resource: str = DEFAULT_RESOURCE,
        principal: str | None = None,
    ) -> None:
        """The entity's own limits for a resource, or for every one, instead of those before."""
        level = Level(parse_entity_id(entity_id), parse_config_resource(resource))
        await self._change_level(level, {"limits": parse_limits(limits)}, principal)

    async def get_limits(self, entity_id: str, resource: str = DEFAULT_RESOURCE) -> list[Limit]:
        """The entity's own limits for a resource, not those it inherits."""
        return await self._limits_at(
            Level(parse_entity_id(entity_id), parse_config_resource(resource))
        )

    async def delete_limits(
        self, entity_id: str, resource: str = DEFAULT_RESOURCE, principal: str | None = None
    ) -> None:
        """Removes the entity's own limits; what is below them counts again."""
        level = Level(parse_entity_id(entity_id), parse_config_resource(resource))
        await self._delete_level(level, principal)

    async def set_resource_defaults(
        self, resource: str, limits: Sequence[Limit], principal: str | None = None
    ) -> None:
        """Limits of a resource for everybody who has none of their own."""
        level = Level(None, parse_resource(resource))
        await self._change_level(level, {"limits": parse_limits(limits)}, principal)

    async def get_resource_defaults(self, resource: str) -> list[Limit]:
        """The limits set for a resource."""
        return await self._limits_at(Level(None, parse_resource(resource)))

    async def delete_resource_defaults(self, resource: str, principal: str | None = None) -> None:
        """Removes the limits of a resource; what is below them counts again."""
        await self._delete_level(Level(None, parse_resource(resource)), principal)

    async def set_system_defaults(
        self,
        limits: Sequence[Limit],
        on_unavailable: OnUnavailable | None = None,
        principal: str | None = None,
    ) -> None:
        """Limits for everything else, and what to do while the store is away."""
        changes: dict[str, Any] = {"limits": parse_limits(limits)}
        if on_unavailable is not None:
            changes["on_unavailable"] = parse_on_unavailable(on_unavailable)
        await self._change_level(Level(), changes, principal)

    async def get_system_defaults(self) -> tuple[list[Limit], OnUnavailable | None]:
        """The limits for everything else, and the rule for outages."""
        namespace = await self.configs.namespace_id()
        stored = await self.backend.catalog.get_stored(namespace, Level())
        return ([], None) if stored is None else (list(stored.limits), stored.on_unavailable)

    async def delete_system_defaults(self, principal: str | None = None) -> None:
        """Removes the limits for everything else and the rule for outages."""
        await self._delete_level(Level(), principal)

    async def list_resources_with_defaults(self) -> list[str]:
        """The resources that have limits of their own, or that are disabled or let pass."""
        namespace = await self.configs.namespace_id()
        return await self.backend.catalog.list_resources(namespace, of_entities=False)

    async def list_resources_with_entity_configs(self) -> list[str]:
        """The resources for which some entity has limits of its own."""
        namespace = await self.configs.namespace_id()
        return await self.backend.catalog.list_resources(namespace, of_entities=True)

    async def list_entities_with_custom_limits(
        self, resource: str, limit: int | None = None, cursor: str | None = None
    ) -> tuple[list[str], str | None]:
        """A page of entities with limits of their own for a resource, and where the next begins."""
        page = await self.backend.catalog.list_entities_with_limits(
            await self.configs.namespace_id(),
            parse_config_resource(resource),
            limit=parse_page(PAGE_MAX if limit is None else limit),
            cursor=cursor,
        )
        return list(page.items), page.cursor

    async def _limits_at(self, level: Level) -> list[Limit]:
        stored = await self.backend.catalog.get_stored(await self.configs.namespace_id(), level)
        return [] if stored is None else list(stored.limits)

    async def _delete_level(self, level: Level, principal: str | None) -> None:
        """The limits of one level and its rule for outages are gone."""
        parse_principal(principal)
        namespace = await self.configs.namespace_id()
        await self.backend.catalog.delete_stored(namespace, level, principal, self.clock())
        self.configs.invalidate()


def parse_entity(
    entity_id: object,
    name: object,
    parent_id: object,
    cascade: object,
    metadata: object,
    plan: object = None,
) -> Entity:
    """A new entity of what a caller says about it, every part of it checked."""
    return Entity(
        parse_entity_id(entity_id),
        _parse_title(name),
        None if parent_id is None else parse_entity_id(parent_id, "parent_id"),
        _parse_flag("cascade", cascade),
        _parse_metadata(metadata),
        plan=None if plan is None else parse_plan_name(plan),
    )


def _parse_title(name: object) -> str | None:
    if name is not None and not isinstance(name, str):
        raise ValidationError("name", name, f"must be a str, not {type(name).__name__}")
    if name is not None and not 1 <= len(name) <= NAME_LENGTH_MAX:
        raise ValidationError("name", name, f"must have 1 to {NAME_LENGTH_MAX} characters")
    return name


def _parse_flag(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValidationError(field, value, "must be True or False")
    return value


def _parse_metadata(metadata: object) -> dict[str, Any]:
    """A JSON object of bounded size."""
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise ValidationError("metadata", metadata, "must be a mapping of JSON values")
    try:
        text = json.dumps(dict(metadata), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValidationError("metadata", metadata, f"must be JSON: {error}") from error
    if len(text) > METADATA_BYTES_MAX:
        raise ValidationError(
            "metadata", f"{len(text)} bytes", f"is too large; at most {METADATA_BYTES_MAX} bytes"
        )
    found: dict[str, Any] = json.loads(text)
    return found


# --------------------------------------------------------------------------------------------------
# All operator flows together: what a limiter and a repository both offer.


class Operations(EntityAdmin, LimitAdmin, PlanAdmin, Reports):
    """Entities, stored limits, plans, buckets and history of one namespace."""
