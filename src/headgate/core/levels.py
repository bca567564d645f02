"""Which limits apply: entity > entity default > resource > system > the limiter's own.

Levels override limit by limit: an entity with its own `tpm` keeps the resource's `rpm`, so adding
a limit at one level never switches another one off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from headgate.core.levels__entities import Mode, OnUnavailable, Standing
from headgate.core.limits import Limit

LEVELS = ("entity", "entity_default", "resource", "system", "limiter")


@dataclass(frozen=True, slots=True)
class Given:
    """One limit, which level gave it, and what the levels below would have given."""

    limit: Limit
    level: str
    source: str
    version: int
    overrides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resolution:
    """The limits of one entity on one resource, each with its source."""

    given: tuple[Given, ...]
    on_unavailable: OnUnavailable | None
    mode: Mode
    mode_source: str

    @property
    def limits(self) -> tuple[Limit, ...]:
        return tuple(given.limit for given in self.given)

    @property
    def source(self) -> str | None:
        """The highest stored level that gave a limit."""
        levels = [given.level for given in self.given if given.level != "limiter"]
        return min(levels, key=LEVELS.index, default=None)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an entity has the limits it has on a resource; `parents` are those it cascades to."""

    entity_id: str
    resource: str
    limits: tuple[Given, ...]
    on_unavailable: OnUnavailable | None
    mode: Mode
    mode_source: str
    version: int
    parents: tuple[Explanation, ...] = ()

    def __str__(self) -> str:
        head = f"{self.entity_id} on {self.resource}"
        rows = [
            f"  {given.limit}  <- {given.source}"
            + (f" (over {', '.join(given.overrides)})" if given.overrides else "")
            for given in self.limits
        ]
        switch = [f"  {self.mode.value} by {self.mode_source}"] if self.mode_source else []
        tail = [f"cascades to {parent}" for parent in self.parents]
        return "\n".join([head, *(rows or ["  no limits"]), *switch, *tail])


def explain(
    lineage: Sequence[Standing],
    resource: str,
    defaults: Sequence[Limit],
    version: int,
    *,
    whole: bool = False,
) -> Explanation:
    parts = []
    for standing in lineage:
        found = resolve(standing, resource, defaults, whole=whole)
        parts.append(
            Explanation(
                standing.entity_id,
                resource,
                found.given,
                found.on_unavailable,
                found.mode,
                found.mode_source,
                version,
            )
        )
    return replace(parts[0], parents=tuple(parts[1:]))


def resolve(
    standing: Standing, resource: str, defaults: Sequence[Limit] = (), *, whole: bool = False
) -> Resolution:
    """Every limit that some level names, taken from the highest level that names it. Defaults that
    serve as a `whole` count only where no level names any."""
    found: dict[str, list[tuple[str, str, int, Limit]]] = {}
    for level, source, version, limits in _ladder(standing, resource, defaults):
        if whole and found and level == "limiter":
            break
        for limit in limits:
            found.setdefault(limit.name, []).append((level, source, version, limit))
    given = tuple(
        Given(rungs[0][3], rungs[0][0], rungs[0][1], rungs[0][2], tuple(r[1] for r in rungs[1:]))
        for rungs in found.values()
    )
    mode, mode_source = _mode(standing, resource)
    rule = standing.system.on_unavailable if standing.system else None
    return Resolution(given, rule, mode, mode_source)


def _ladder(
    standing: Standing, resource: str, defaults: Sequence[Limit]
) -> Iterator[tuple[str, str, int, Sequence[Limit]]]:
    name = standing.entity_id
    rungs = (
        ("entity", f"entity {name} for {resource}", standing.own),
        ("entity_default", f"entity {name} for every resource", standing.own_default),
        ("resource", f"resource {resource}", standing.resource),
        ("system", "system defaults", standing.system),
    )
    for level, source, stored in rungs:
        if stored is not None:
            yield level, source, stored.version, stored.limits
    yield "limiter", "the limiter's own defaults", 0, defaults


def _mode(standing: Standing, resource: str) -> tuple[Mode, str]:
    """An entity's switch goes before its resource's, except that disabled always wins."""
    switches = [
        (standing.entity.mode if standing.entity else Mode.NORMAL, f"entity {standing.entity_id}"),
        (standing.resource.mode if standing.resource else Mode.NORMAL, f"resource {resource}"),
    ]
    for wanted in (Mode.DISABLED, Mode.BYPASS):
        for mode, source in switches:
            if mode is wanted:
                return mode, source
    return Mode.NORMAL, ""
