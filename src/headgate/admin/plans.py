"""What operators do to plans: named sets of limits ("free", "pro") that entities refer to.

Below what an entity has of its own and above what everybody has: see `headgate.core.levels`.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.admin.reports import AdminBase, parse_page
from headgate.core.errors import ValidationError
from headgate.core.history import parse_principal
from headgate.core.levels import Entity, Plan
from headgate.core.limits import (
    Limit,
    parse_entity_id,
    parse_limits,
    parse_plan_name,
    parse_resource,
)


class PlanAdmin(AdminBase):
    """Plans. `principal` says by whom a change was made; it goes into the audit."""

    async def set_plan(
        self,
        name: str,
        limits: Sequence[Limit],
        resource: str | None = None,
        principal: str | None = None,
    ) -> Plan:
        """The plan gives these limits for a resource, or for every one. What it gives for others
        stays, an empty list takes away what it gives, and a plan that is not there is made."""
        parse_plan_name(name)
        if resource is not None:
            parse_resource(resource)
        parse_principal(principal)
        parsed = parse_plan_limits(limits)
        namespace = await self.configs.namespace_id()
        found = await self.backend.catalog.set_plan(
            namespace, name, resource, parsed, principal, self.clock()
        )
        self.configs.invalidate()
        return found

    async def get_plan(self, name: str) -> Plan | None:
        """The plan, with how many entities refer to it, or None."""
        parse_plan_name(name)
        return await self.backend.catalog.get_plan(await self.configs.namespace_id(), name)

    async def list_plans(
        self, limit: int = 100, cursor: str | None = None
    ) -> tuple[list[Plan], str | None]:
        """A page of plans in the order of their names, and where the next begins."""
        page = await self.backend.catalog.list_plans(
            await self.configs.namespace_id(), limit=parse_page(limit), cursor=cursor
        )
        return list(page.items), page.cursor

    async def list_entities_on_plan(
        self, name: str, limit: int = 100, cursor: str | None = None
    ) -> tuple[list[str], str | None]:
        """A page of the entities that refer to a plan, and where the next begins."""
        page = await self.backend.catalog.list_entities_on_plan(
            await self.configs.namespace_id(),
            parse_plan_name(name),
            limit=parse_page(limit),
            cursor=cursor,
        )
        return list(page.items), page.cursor

    async def delete_plan(
        self, name: str, *, unassign: bool = False, principal: str | None = None
    ) -> int:
        """The plan is gone. PlanInUseError where entities refer to it, unless they are to be
        `unassign`ed: then they are on no plan. How many those were."""
        parse_plan_name(name)
        if not isinstance(unassign, bool):
            raise ValidationError("unassign", unassign, "must be True or False")
        parse_principal(principal)
        namespace = await self.configs.namespace_id()
        freed = await self.backend.catalog.delete_plan(
            namespace, name, principal, self.clock(), unassign=unassign
        )
        self.configs.invalidate()
        return freed

    async def assign_plan(
        self,
        entity_id: str,
        plan: str | None,
        principal: str | None = None,
        version: int | None = None,
    ) -> Entity:
        """Puts the entity on a plan, or with None on none. What its buckets hold goes along."""
        parse_entity_id(entity_id)
        parse_principal(principal)
        namespace = await self.configs.namespace_id()
        changes = {"plan": None if plan is None else parse_plan_name(plan)}
        after = await self.backend.catalog.update_entity(
            namespace, entity_id, changes, principal, self.clock(), version=version
        )
        self.configs.invalidate()
        return after


def parse_plan_limits(limits: object) -> tuple[Limit, ...]:
    """Limits as everywhere, but an empty list is one, too: the plan then leaves them to others."""
    return () if isinstance(limits, (list, tuple)) and not limits else parse_limits(limits)
