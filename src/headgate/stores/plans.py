"""Plans: named sets of limits that entities refer to; the part of a catalog that is about them.

A plan is one document. It is not deleted while entities refer to it, which the store counts.
"""

from __future__ import annotations

from dataclasses import replace

from headgate.admin.documents import plan_as_json
from headgate.core.errors import Contended, PlanInUseError, PlanNotFoundError, ValidationError
from headgate.core.history import audit_event
from headgate.core.levels import Page, Plan
from headgate.core.limits import Limit
from headgate.stores.records import (
    Document,
    DocumentKey,
    PlanKey,
    Records,
    RecordsFlows,
    Snapshot,
    change,
    sendable,
)

# Of one deletion. A step takes as much as a commit of the store, so this is for a family that
# grows as fast as it is taken apart, not for a large one.
DELETE_STEPS_MAX = 10_000
PLAN_LIMITS_MAX = 256  # on all resources together; a plan is one document
SHOWN_MAX = 5  # entities that an error names


class PlanCatalog(RecordsFlows):
    """Every change leaves its audit event in the same step, and is a new version."""

    @change
    async def set_plan(
        self,
        records: Records,
        namespace: str,
        name: str,
        resource: str | None,
        limits: tuple[Limit, ...],
        principal: str | None,
        now_ms: int,
    ) -> Plan:
        """The plan gives these limits for a resource, or with None for every one; what it gives for
        others stays. It is made where there is none; no limits takes away those of a resource."""
        seen = await records.read(namespace, PlanKey(name))
        before = seen.plan(name)
        if before is None and resource is not None and not limits:
            raise PlanNotFoundError(name)
        after = before or Plan(name)
        if resource is None:
            after = replace(after, limits=limits)
        else:
            others = {one: given for one, given in after.resources.items() if one != resource}
            after = replace(after, resources={**others, **({resource: limits} if limits else {})})
        return await _commit_plan(records, seen, after, resource, principal, now_ms)

    @change
    async def replace_plan(
        self, records: Records, namespace: str, plan: Plan, principal: str | None, now_ms: int
    ) -> Plan:
        """The plan gives this and nothing else, whatever it gave before."""
        seen = await records.read(namespace, PlanKey(plan.name))
        return await _commit_plan(records, seen, plan, None, principal, now_ms)

    async def get_plan(self, namespace: str, name: str) -> Plan | None:
        """The plan, with how many entities refer to it."""
        return await self.records.get_plan(namespace, name)

    async def list_plans(self, namespace: str, *, limit: int, cursor: str | None) -> Page:
        return await self.records.plans(namespace, limit, sendable(cursor))

    async def list_entities_on_plan(
        self, namespace: str, name: str, *, limit: int, cursor: str | None
    ) -> Page:
        return await self.records.entities_on_plan(namespace, name, limit, sendable(cursor))

    async def delete_plan(
        self,
        namespace: str,
        name: str,
        principal: str | None,
        now_ms: int,
        *,
        unassign: bool = False,
    ) -> int:
        """The plan is gone; how many entities were on it, who are on none now. PlanInUseError where
        there are some, unless they are to be `unassign`ed; many of them go in steps before it."""
        freed = 0
        for _ in range(DELETE_STEPS_MAX):
            more, is_done = await self._delete_plan(
                namespace, name, principal, now_ms, freed, unassign=unassign
            )
            freed += more
            if is_done:
                return freed
        raise Contended(
            f"plan {name!r} still has entities after {DELETE_STEPS_MAX} steps of its deletion; "
            f"those of the steps are on no plan now: see who keeps adding some, and repeat it"
        )

    @change
    async def _delete_plan(
        self,
        records: Records,
        namespace: str,
        name: str,
        principal: str | None,
        now_ms: int,
        freed: int,
        *,
        unassign: bool,
    ) -> tuple[int, bool]:
        """How many entities were taken off it in this step, and whether the plan is gone."""
        seen, entities, count = await records.read_plan_family(namespace, name)
        before = seen.plan(name)
        if before is None:
            raise PlanNotFoundError(name)
        if count and not unassign:
            raise PlanInUseError(name, count, sorted(one.id for one in entities)[:SHOWN_MAX])
        changes: dict[DocumentKey, Document | None] = {
            one.id: replace(one, plan=None, version=one.version + 1) for one in entities
        }
        if count > len(entities):
            await records.commit(seen, changes, None)
            return len(entities), False
        changes[PlanKey(name)] = None
        total = freed + len(entities)
        event = audit_event(now_ms, "plan_deleted", before.audit_id, principal,
                            before=plan_as_json(before), after=None, unassigned=total)  # fmt: skip
        await records.commit(seen, changes, event)
        return len(entities), True


def check_plan_size(plan: Plan) -> None:
    count = len(plan.limits) + sum(map(len, plan.resources.values()))
    if count > PLAN_LIMITS_MAX:
        reason = f"are too many for one plan; it has {PLAN_LIMITS_MAX} at most, on all resources"
        raise ValidationError("limits", count, reason)


async def _commit_plan(
    records: Records,
    seen: Snapshot,
    wanted: Plan,
    resource: str | None,
    principal: str | None,
    now_ms: int,
) -> Plan:
    """The plan as it is stored; `resource` is the one that the change is about."""
    check_plan_size(wanted)
    before = seen.plan(wanted.name)
    after = replace(wanted, version=seen.version + 1, entities=0)
    event = audit_event(now_ms, "plan_set", after.audit_id, principal, resource,
                        before=plan_as_json(before), after=plan_as_json(after))  # fmt: skip
    version = await records.commit(seen, {PlanKey(after.name): after}, event)
    return replace(after, version=version)
