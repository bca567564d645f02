"""What a store implements so that `headgate.stores.catalog` can run on it.

A namespace holds documents: entities by their id, stored limits by their level, and plans by their
name. A change reads
a snapshot of some of them, decides in Python, and commits: all of its documents and its audit
event, or nothing if what it was decided on has changed in the meantime. So the rules about parents
and versions exist once, and no store needs to know them.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from headgate.core.errors import Contended, NamespaceNotFoundError, NamespaceStateError
from headgate.core.history import AuditEvent
from headgate.core.levels import (
    Entity,
    EntityConfig,
    Level,
    Lookup,
    Namespace,
    Page,
    Plan,
    StoredLevel,
)
from headgate.core.levels import lineage as find_lineage
from headgate.core.limits import DEFAULT_RESOURCE

ACTIVE, DELETED = "active", "deleted"
PURGING = "purging"  # a namespace that is half gone can be purged again but not recovered
ATTEMPTS_MAX = 16


@dataclass(frozen=True, slots=True)
class PlanKey:
    """A plan by its name."""

    name: str


DocumentKey = str | Level | PlanKey  # an entity by its id, where limits are stored, or a plan
Document = Entity | StoredLevel | Plan
Changes = Mapping[DocumentKey, Document | None]  # what documents become; None: they are gone

Item = TypeVar("Item")
Result = TypeVar("Result")
Params = ParamSpec("Params")


class RecordsChanged(Exception):
    """Somebody changed what this change was decided on; nothing was written."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Documents of an active namespace as they were at one moment.

    `evidence` is what the store wants to see again, unchanged, when a change is committed.
    """

    namespace: str
    version: int
    documents: Mapping[DocumentKey, Document]
    evidence: Any = None

    def entity(self, entity_id: str) -> Entity | None:
        found = self.documents.get(entity_id)
        assert found is None or isinstance(found, Entity)
        return found

    def stored(self, level: Level) -> StoredLevel | None:
        found = self.documents.get(level)
        assert found is None or isinstance(found, StoredLevel)
        return found

    def plan(self, name: str) -> Plan | None:
        found = self.documents.get(PlanKey(name))
        assert found is None or isinstance(found, Plan)
        return found


class EntityFamily(NamedTuple):
    """All that goes or changes with an entity, or as much of it as one commit can take."""

    seen: Snapshot  # of the entity and of these children
    children: Sequence[Entity]
    levels: Sequence[Level]  # where limits of its own are stored
    is_complete: bool


class PlanFamily(NamedTuple):
    """A plan and as many of its entities as one commit can change."""

    seen: Snapshot  # of the plan and of these entities
    entities: Sequence[Entity]
    total: int  # how many refer to it


class Records(Protocol):
    """The documents and namespaces of one store.

    Methods that are given a namespace's id raise NamespaceNotFoundError or NamespaceStateError
    unless it is active (see `check_active`), except for those about namespaces themselves.
    """

    async def within(self, work: ChangeWork[Result]) -> Result:
        """Runs a change. A store with transactions runs it in one, so that it never meets another;
        a store without runs it as it is, and tells from the evidence whether it has."""
        ...

    async def pause(self, attempt: int) -> None:
        """Waits before a change that met another one is tried again."""
        ...

    async def read(self, namespace: str, *keys: DocumentKey, ancestors: bool = False) -> Snapshot:
        """These documents; with `ancestors`, also everybody above the entities among them."""
        ...

    async def read_family(self, namespace: str, entity_id: str) -> EntityFamily:
        """An entity with its children and levels; levels also where it was never registered."""
        ...

    async def read_plan_family(self, namespace: str, name: str) -> PlanFamily:
        """A plan with its entities."""
        ...

    async def commit(self, seen: Snapshot, changes: Changes, event: AuditEvent | None) -> int:
        """The namespace's next version, which has these changes; RecordsChanged if the documents of
        the snapshot, or a family that was read, are not as they were.

        Stored limits and plans, and the event that tells of them, carry `seen.version + 1`. A store
        that lets other commits pass in between writes the version that it really came to be.
        """
        ...

    async def entities(
        self, namespace: str, parent_id: str | None, limit: int, cursor: str | None
    ) -> Page:
        """Entities by id: all, or the children of one."""
        ...

    async def entities_with_limits(
        self, namespace: str, resource: str, limit: int, cursor: str | None
    ) -> Page:
        """The ids of those who have limits of their own for a resource."""
        ...

    async def resources(self, namespace: str, *, of_entities: bool) -> list[str]:
        """Resources with defaults or a switch, or with limits of some entity; in order."""
        ...

    async def get_plan(self, namespace: str, name: str) -> Plan | None:
        """The plan, with how many entities refer to it."""
        ...

    async def plans(self, namespace: str, limit: int, cursor: str | None) -> Page:
        """Plans by name, each with how many entities refer to it."""
        ...

    async def entities_on_plan(
        self, namespace: str, name: str, limit: int, cursor: str | None
    ) -> Page:
        """The ids of those who refer to a plan."""
        ...

    async def find_namespace(self, name: str) -> Namespace | None:
        """The active namespace of that name."""
        ...

    async def get_namespace(self, namespace_id: str) -> Namespace | None:
        """The namespace, in whatever state."""
        ...

    async def namespaces(self) -> list[Namespace]:
        """All of them, in whatever state and order."""
        ...

    async def transition(
        self, before: Namespace | None, after: Namespace, event: AuditEvent | None
    ) -> Namespace:
        """The namespace in its next state (None before: it is new), recovered at its next version.

        RecordsChanged if it is not as it was `before`, or if another one holds its name. A store
        that cannot do this in one step finishes what was cut short, and returns what came of it.
        """
        ...

    async def purge(self, namespace_id: str) -> int:
        """Everything of a namespace in state PURGING is gone, itself last; how many records."""
        ...


ChangeWork = Callable[[Records], Coroutine[Any, Any, Result]]


async def retry_if_changed(
    work: Callable[[], Awaitable[Result]], pause: Callable[[int], Awaitable[None]]
) -> Result:
    """Runs the work, again when others were faster; Contended if they always are."""
    for attempt in range(ATTEMPTS_MAX):
        try:
            return await work()
        except RecordsChanged:
            await pause(attempt)
    raise contended(ATTEMPTS_MAX)


class RecordsFlows:
    """What the flows of a catalog stand on."""

    def __init__(self, records: Records) -> None:
        self.records = records


FlowsT = TypeVar("FlowsT", bound=RecordsFlows)


def change(
    flow: Callable[Concatenate[FlowsT, Records, Params], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[FlowsT, Params], Coroutine[Any, Any, Result]]:
    """A method that reads and commits; it is begun again when others were faster."""

    @functools.wraps(flow)
    async def method(self: FlowsT, /, *args: Params.args, **kwargs: Params.kwargs) -> Result:
        records = self.records
        return await retry_if_changed(
            lambda: records.within(lambda bound: flow(self, bound, *args, **kwargs)),
            records.pause,
        )

    return method


def contended(attempts: int) -> Contended:
    return Contended(
        f"others changed the same records {attempts} times in a row while this change was being "
        f"made; nothing was written: repeat it, with fewer writers at a time"
    )


def check_active(namespace_id: str, state: str | None, name: str) -> None:
    """Raises unless the namespace may be used; None is the state of one that does not exist."""
    if state is None:
        raise NamespaceNotFoundError(namespace_id)
    if state != ACTIVE:
        raise NamespaceStateError(
            name, state, f"recover_namespace('{namespace_id}') brings it back"
        )


def sendable(cursor: str | None) -> str | None:
    """A cursor that every store can encode: callers send any text, also half of a surrogate pair.
    Names have none, and what stands in for it sorts behind them as it does."""
    if cursor is None:
        return None
    return cursor.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def first_page(found: Sequence[Item], limit: int, name: Callable[[Item], str]) -> Page:
    """A page of `limit` items, given one more than that if there are more."""
    return Page(tuple(found[:limit]), name(found[limit - 1]) if len(found) > limit else None)


def build_lookup(
    version: int,
    entity_id: str,
    resource: str,
    get_entity: Callable[[str], Entity | None],
    get_stored: Callable[[Level], StoredLevel | None],
    get_plan: Callable[[str], Plan | None],
) -> Lookup:
    """The configuration of an entity and those it cascades to, where each read costs little."""
    of_resource, of_system = get_stored(Level(None, resource)), get_stored(Level())
    return Lookup(
        version,
        tuple(
            EntityConfig(
                name,
                entity,
                get_stored(Level(name, resource)),
                get_stored(Level(name, DEFAULT_RESOURCE)),
                of_resource,
                of_system,
                None if entity is None or entity.plan is None else get_plan(entity.plan),
            )
            for name, entity in find_lineage(entity_id, get_entity)
        ),
    )
