"""Which limits apply: entity > entity default > plan for the resource > plan > resource > system >
the limiter's own.

Levels override limit by limit: an entity with its own `tpm` keeps the resource's `rpm`, so adding
a limit at one level never switches another one off.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any, NamedTuple

from headgate.core.errors import EntityNotFoundError, ValidationError, VersionMismatchError
from headgate.core.limits import Limit, parse_limits

# --------------------------------------------------------------------------------------------------
# What a catalog holds: entities, stored limits, namespaces.

HIDDEN = "$"  # metadata whose name begins so is kept; audits tell that it is there, not what it is


class OnUnavailable(enum.Enum):
    """What an acquire does while the store gives no answer."""

    ALLOW = "allow"
    BLOCK = "block"


def parse_on_unavailable(rule: object) -> OnUnavailable:
    if not isinstance(rule, OnUnavailable):
        raise ValidationError("on_unavailable", rule, "must be OnUnavailable.ALLOW or .BLOCK")
    return rule


class Mode(enum.Enum):
    """An operator's switch on an entity or a resource."""

    NORMAL = "normal"
    DISABLED = "disabled"
    BYPASS = "bypass"


@dataclass(frozen=True, slots=True)
class Entity:
    """Who is limited. With `cascade`, what it consumes its parent consumes too."""

    id: str
    name: str | None = None
    parent_id: str | None = None
    cascade: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    mode: Mode = Mode.NORMAL
    version: int = 1
    created_ms: int = 0
    plan: str | None = None


@dataclass(frozen=True, slots=True)
class StoredLevel:
    """The limits kept at one configuration level, and the version they were written at."""

    limits: tuple[Limit, ...] = ()
    version: int = 0
    on_unavailable: OnUnavailable | None = None
    mode: Mode = Mode.NORMAL

    @property
    def is_listed(self) -> bool:
        """Whether lists of what is stored name it: for its limits, or for an operator's switch."""
        return bool(self.limits) or self.mode is not Mode.NORMAL


@dataclass(frozen=True, slots=True)
class Level:
    """Where limits are stored: system (no names), a resource, or an entity for a resource."""

    entity_id: str | None = None
    resource: str | None = None

    @property
    def audit_id(self) -> str:
        if self.entity_id is not None:
            return self.entity_id
        return "$SYSTEM" if self.resource is None else f"$RESOURCE:{self.resource}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A named set of limits that entities refer to: for every resource, and others for some.

    `entities` is how many refer to it, where that was asked for.
    """

    name: str
    limits: tuple[Limit, ...] = ()
    resources: Mapping[str, tuple[Limit, ...]] = field(default_factory=dict)
    version: int = 0
    entities: int = field(default=0, compare=False)

    @property
    def audit_id(self) -> str:
        return f"$PLAN:{self.name}"

    def limits_for(self, resource: str | None) -> tuple[Limit, ...]:
        """Those for a resource alone, or with None those for every one."""
        return self.limits if resource is None else self.resources.get(resource, ())


@dataclass(frozen=True, slots=True)
class EntityConfig:
    """One entity's configuration for one resource, level by level."""

    entity_id: str
    entity: Entity | None
    own: StoredLevel | None
    own_default: StoredLevel | None
    resource: StoredLevel | None
    system: StoredLevel | None
    plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class CommonLevels:
    """What entities share for a resource, as it was at a version of the configuration.

    Without `is_whole` only the plans are known.
    """

    version: int
    resource: StoredLevel | None
    system: StoredLevel | None
    plans: Mapping[str, Plan] = field(default_factory=dict)
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Lookup:
    """All that a plan needs from the catalog, read at one moment.

    `version` counts the namespace's configuration writes, deletions included, so whoever read
    later holds the higher number. `lineage` is the entity, then its parents while they cascade.
    """

    version: int
    lineage: tuple[EntityConfig, ...]


@dataclass(frozen=True, slots=True)
class Namespace:
    """A tenant: a name for people, an opaque id in every key."""

    id: str
    name: str
    state: str
    created_ms: int
    deleted_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A bounded part of a listing; `cursor` continues it, None at the end."""

    items: tuple[Any, ...]
    cursor: str | None


# Levels of an entity that somebody chose for it, rather than for everybody.
OWN_LEVELS = ("entity", "entity_default", "plan_resource", "plan")
LEVELS = (*OWN_LEVELS, "resource", "system", "limiter")
RESOURCE_LEVELS = ("entity", "plan_resource", "resource")  # whose limits name the resource


@dataclass(frozen=True, slots=True)
class SourcedLimit:
    """One limit, which level gave it, and what the levels below would have given."""

    limit: Limit
    level: str
    source: str
    version: int
    overrides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resolution:
    """The limits of one entity on one resource, each with its source."""

    given: tuple[SourcedLimit, ...]
    on_unavailable: OnUnavailable | None
    mode: Mode
    mode_source: str
    bypass: bool = False  # whether a switch lets it pass, also where another one disables it

    @property
    def limits(self) -> tuple[Limit, ...]:
        return tuple(given.limit for given in self.given)

    @property
    def source(self) -> str | None:
        """The highest stored level that gave a limit."""
        levels = [given.level for given in self.given if given.level != "limiter"]
        return min(levels, key=LEVELS.index, default=None)


class NearestLimit(NamedTuple):
    """A limit, and the entity whose it is."""

    entity_id: str
    given: SourcedLimit

    @property
    def pace(self) -> Fraction:
        return pace_of(self.given.limit)


def pace_of(limit: Limit) -> Fraction:
    """Tokens per second, exactly; of a quota on average."""
    if limit.resets is not None:
        return Fraction(limit.capacity, limit.resets.average_s)
    return Fraction(limit.refill_amount, limit.refill_period_seconds)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an entity has the limits it has on a resource; `parents` are those it cascades to."""

    entity_id: str
    resource: str
    limits: tuple[SourcedLimit, ...]
    on_unavailable: OnUnavailable | None
    mode: Mode
    mode_source: str
    version: int
    parents: tuple[Explanation, ...] = ()
    plan: str | None = None

    @property
    def nearest(self) -> tuple[NearestLimit, ...]:
        """For each name of a limit whose it is that full buckets meet first: the smallest of the
        entity's and of those it cascades to. Soft limits refuse nothing and are left out."""
        found = []
        for own in self.limits:
            held = [
                NearestLimit(one.entity_id, given)
                for one in (self, *self.parents)
                for given in one.limits
                if given.limit.name == own.limit.name and not given.limit.soft
            ]
            if held:
                found.append(min(held, key=lambda one: (one.given.limit.capacity, one.pace)))
        return tuple(found)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Parents whom nobody set limits for, where their defaults cap the entity's own limits."""
        own = {one.limit.name: one.limit for one in self.limits if one.level in OWN_LEVELS}
        return tuple(
            f"{parent.entity_id} has {given.limit} by default, from {given.source}, which caps "
            f"{self.entity_id}'s own {own[given.limit.name]}; give {parent.entity_id} limits of "
            f"its own"
            for parent in self.parents
            for given in parent.limits
            if given.level not in OWN_LEVELS
            and given.limit.name in own
            and _is_lower(given.limit, own[given.limit.name])
        )

    def __str__(self) -> str:
        head = f"{self.entity_id} on {self.resource}"
        if self.plan is not None:
            head += f" (plan {self.plan})"
        rows = [
            f"  {given.limit}  <- {given.source}"
            + (f" (over {', '.join(given.overrides)})" if given.overrides else "")
            for given in self.limits
        ]
        switch = [f"  {self.mode.value} by {self.mode_source}"] if self.mode_source else []
        tail = [f"cascades to {parent}" for parent in self.parents]
        if self.parents:
            near = [f"{one.given.limit.name} of {one.entity_id}" for one in self.nearest]
            tail += [f"nearest: {', '.join(near)}"] if near else []
        tail += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join([head, *(rows or ["  no limits"]), *switch, *tail])


def _is_lower(limit: Limit, other: Limit) -> bool:
    """Whether it refuses what the other one would admit; not soft, and smaller or slower."""
    return not limit.soft and (limit.capacity < other.capacity or pace_of(limit) < pace_of(other))


NO_SOURCES: Mapping[str, str] = MappingProxyType({})


class Defaults:
    """A limiter's own limits, the lowest level; told apart by identity, which costs no hashing.

    With `whole` they serve as they are where nothing at all is stored, and not limit by limit.
    `sources` names what gave each limit, where somebody else did.
    """

    __slots__ = ("limits", "sources", "whole")

    def __init__(
        self,
        limits: Sequence[Limit] | None,
        sources: Mapping[str, str] = NO_SOURCES,
        *,
        whole: bool = False,
    ) -> None:
        self.limits = parse_limits(limits) if limits else ()
        self.sources = sources
        self.whole = whole


NO_DEFAULTS = Defaults(None)


def explain(
    lineage: Sequence[EntityConfig], resource: str, defaults: Defaults, version: int
) -> Explanation:
    parts = []
    for standing in lineage:
        found = resolve(standing, resource, defaults)
        rules = (found.given, found.on_unavailable, found.mode, found.mode_source)
        plan = None if standing.plan is None else standing.plan.name
        parts.append(Explanation(standing.entity_id, resource, *rules, version, plan=plan))
    return replace(parts[0], parents=tuple(parts[1:]))


def resolve(standing: EntityConfig, resource: str, defaults: Defaults = NO_DEFAULTS) -> Resolution:
    """Every limit that some level names, taken from the highest level that names it. Defaults that
    serve as a `whole` count only where no level names any."""
    found: dict[str, tuple[Limit, str, str, int]] = {}
    overrides: dict[str, tuple[str, ...]] = {}
    for level, source, version, limits in _ladder(standing, resource, defaults.limits):
        if defaults.whole and found and level == "limiter":
            break
        for limit in limits:
            giver = defaults.sources.get(limit.name, source) if level == "limiter" else source
            if limit.name in found:
                overrides[limit.name] = (*overrides.get(limit.name, ()), giver)
            else:
                found[limit.name] = (limit, level, giver, version)
    given = tuple(SourcedLimit(*one, overrides.get(name, ())) for name, one in found.items())
    rule = standing.system.on_unavailable if standing.system else None
    bypass = Mode.BYPASS in _switches(standing)
    return Resolution(given, rule, *_mode(standing, resource), bypass)


def _ladder(
    standing: EntityConfig, resource: str, defaults: Sequence[Limit]
) -> Iterator[tuple[str, str, int, Sequence[Limit]]]:
    name, plan = standing.entity_id, standing.plan
    rungs = (
        ("entity", f"entity {name} for {resource}", standing.own),
        ("entity_default", f"entity {name} for every resource", standing.own_default),
        *(
            ()
            if plan is None
            else (
                ("plan_resource", f"plan {plan.name} for {resource}", _plan_level(plan, resource)),
                ("plan", f"plan {plan.name} for every resource", _plan_level(plan, None)),
            )
        ),
        ("resource", f"resource {resource}", standing.resource),
        ("system", "system defaults", standing.system),
    )
    for level, source, stored in rungs:
        if stored is not None:
            yield level, source, stored.version, stored.limits
    yield "limiter", "the limiter's own defaults", 0, defaults


def _plan_level(plan: Plan, resource: str | None) -> StoredLevel:
    return StoredLevel(plan.limits_for(resource), plan.version)


def _mode(standing: EntityConfig, resource: str) -> tuple[Mode, str]:
    """An entity's switch goes before its resource's, except that disabled always wins."""
    sources = (f"entity {standing.entity_id}", f"resource {resource}")
    for wanted in (Mode.DISABLED, Mode.BYPASS):
        for mode, source in zip(_switches(standing), sources, strict=True):
            if mode is wanted:
                return mode, source
    return Mode.NORMAL, ""


def _switches(standing: EntityConfig) -> tuple[Mode, Mode]:
    switched = (standing.entity, standing.resource)
    entity, resource = (Mode.NORMAL if one is None else one.mode for one in switched)
    return entity, resource


# --------------------------------------------------------------------------------------------------
# Rules about parents that every catalog applies before it writes.

LINEAGE_MAX = 8

GetEntity = Callable[[str], Entity | None]


def lineage(entity_id: str, get: GetEntity) -> list[tuple[str, Entity | None]]:
    """The entity, then its parents while each cascades; at most LINEAGE_MAX of them."""
    found: list[tuple[str, Entity | None]] = []
    wanted: str | None = entity_id
    while wanted is not None and len(found) < LINEAGE_MAX:
        entity = get(wanted)
        found.append((wanted, entity))
        wanted = entity.parent_id if entity is not None and entity.cascade else None
    return found


def check_parent(entity_id: str, parent_id: str | None, get: GetEntity) -> None:
    """A parent must exist, must not descend from its child, and must not lie too deep."""
    ancestor = parent_id
    for depth in range(LINEAGE_MAX):
        if ancestor is None:
            return
        if ancestor == entity_id:
            raise ValidationError(
                "parent_id", parent_id, f"descends from {entity_id}; a parent cannot be below it"
            )
        entity = get(ancestor)
        if entity is None:
            if depth == 0:
                raise EntityNotFoundError(ancestor, "parent_id")
            return
        ancestor = entity.parent_id
    raise ValidationError(
        "parent_id", parent_id, f"has {LINEAGE_MAX} generations above it; attach it higher up"
    )


def parents_first(parents: Mapping[str, str | None]) -> list[str]:
    """These entities, each after its parent where that is one of them; a ring stays as it is."""
    found: dict[str, None] = {}
    for entity_id in parents:
        line: list[str] = []
        wanted: str | None = entity_id
        while wanted in parents and wanted not in found and wanted not in line:
            assert wanted is not None
            line.append(wanted)
            wanted = parents[wanted]
        found.update(dict.fromkeys(reversed(line)))
    return list(found)


def change_entity(entity: Entity, changes: dict[str, Any], expected: int | None) -> Entity:
    """The entity after a guarded change, at its next version."""
    if expected is not None and expected != entity.version:
        raise VersionMismatchError(f"entity {entity.id!r}", expected, entity.version)
    return replace(entity, **changes, version=entity.version + 1)


def change_stored(stored: StoredLevel | None, changes: dict[str, Any], version: int) -> StoredLevel:
    return replace(stored or StoredLevel(), **changes, version=version)
