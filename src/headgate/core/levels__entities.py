"""What a catalog holds: entities, stored limits, namespaces."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.core.limits import Limit

HIDDEN = "$"  # metadata whose name begins so is kept; audits tell that it is there, not what it is


class OnUnavailable(enum.Enum):
    """What an acquire does while the store gives no answer."""

    ALLOW = "allow"
    BLOCK = "block"


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


@dataclass(frozen=True, slots=True)
class Stored:
    """The limits kept at one configuration level, and the version they were written at."""

    limits: tuple[Limit, ...] = ()
    version: int = 0
    on_unavailable: OnUnavailable | None = None
    mode: Mode = Mode.NORMAL


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
class Standing:
    """One entity's configuration for one resource, level by level."""

    entity_id: str
    entity: Entity | None
    own: Stored | None
    own_default: Stored | None
    resource: Stored | None
    system: Stored | None


@dataclass(frozen=True, slots=True)
class Lookup:
    """All that a plan needs from the catalog, read at one moment.

    `version` counts the namespace's configuration writes, deletions included, so whoever read
    later holds the higher number. `lineage` is the entity, then its parents while they cascade.
    """

    version: int
    lineage: tuple[Standing, ...]


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
