"""Writing what an export holds into a store: safe to repeat, and to go on with after a break."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.admin.export import ExportedItem, ExportedLevel, ExportedUsage
from headgate.core.errors import EntityExistsError, HeadgateError
from headgate.core.history import WindowUsage, nonzero, parse_principal
from headgate.core.levels import Entity, Mode, Plan, StoredLevel, check_parent, parents_first
from headgate.core.refill.bucket import MILLI
from headgate.repository import Repository

BATCH = 500
KINDS = ("plan", "entity", "level", "usage")
COMPARED_FIELDS = ("name", "parent_id", "cascade", "metadata", "mode", "plan")
NOTHING_STORED = {"limits": (), "on_unavailable": None, "mode": Mode.NORMAL}

Report = Callable[[int], None]


class Existing(enum.Enum):
    """What happens to things that are there already."""

    FAIL = "fail"
    SKIP = "skip"
    REPLACE = "replace"


class AlreadyStored(HeadgateError):
    """Something is there already, and the import was not told what to do with it."""

    title = "something else is there already"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is in this store already; --existing skip keeps it, --existing replace makes "
            f"it what the export says. What was imported before stays, and is not imported twice"
        )


@dataclass
class ImportCounts:
    """What became of the lines."""

    written: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    skipped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))

    def count(self, kind: str, written: bool) -> None:
        (self.written if written else self.skipped)[kind] += 1

    @property
    def lines(self) -> int:
        return sum(self.written.values()) + sum(self.skipped.values())


async def import_lines(
    repository: Repository,
    moved: Iterable[ExportedItem],
    *,
    existing: Existing = Existing.FAIL,
    principal: str | None = None,
    report: Report = lambda done: None,
) -> ImportCounts:
    """How many of each kind were written and how many skipped.

    Plans come first, then entities in any order, then the rest. Each line is one write, and parents
    are written before their children: so an import that is cut short leaves nothing half done, and
    the same import again goes on where it ended. Stores without `add_usage` keep no usage of
    elsewhere: its lines are skipped.
    """
    parse_principal(principal)
    namespace = await repository.configs.namespace_id()
    found, _ = await repository.get_usage_snapshots(limit=1)
    importer = _Importer(repository, existing, principal, namespace, bool(found), report)
    for one in moved:
        if not isinstance(one, Entity) or one.id in importer.entities:
            await importer.write_entities()
        if isinstance(one, Plan):
            await importer.plan(one)
        elif isinstance(one, Entity):
            importer.entities[one.id] = one
        elif isinstance(one, ExportedLevel):
            await importer.level(one)
        else:
            await importer.usage(one)
    await importer.finish()
    return importer.counts


@dataclass
class _Importer:
    repository: Repository
    existing: Existing
    principal: str | None
    namespace: str
    has_usage: bool  # whether this store has some already
    report: Report
    counts: ImportCounts = field(default_factory=ImportCounts)
    entities: dict[str, Entity] = field(default_factory=dict)  # read, but not yet written
    _pending: list[ExportedUsage] = field(default_factory=list)

    async def write_entities(self) -> None:
        """Writes those that were read, if all of them can have the parents they say."""
        waiting, self.entities = self.entities, {}
        parents = {entity.id: entity.parent_id for entity in waiting.values()}
        known = dict(waiting)
        for parent_id in {*parents.values()} - {None, *parents}:
            found = await self.repository.get_entity(str(parent_id))
            known |= {} if found is None else {found.id: found}
        for entity in waiting.values():
            check_parent(entity.id, entity.parent_id, known.get)
        for entity_id in parents_first(parents):
            await self._entity(waiting[entity_id])

    async def _entity(self, entity: Entity) -> None:
        try:
            await self.repository._create_entity(entity, self.principal)
        except EntityExistsError:
            found = await self.repository.get_entity(entity.id)
            changes = {
                name: wanted
                for name in COMPARED_FIELDS
                if getattr(found, name) != (wanted := getattr(entity, name))
            }
            if self._is_kept("entity", not changes, f"another entity {entity.id!r}"):
                return
            await self.repository._change_entity(entity.id, changes, self.principal)
        self._count("entity", True)

    async def plan(self, plan: Plan) -> None:
        found = await self.repository.get_plan(plan.name)
        if found is not None:
            same = (found.limits, found.resources) == (plan.limits, plan.resources)
            if self._is_kept("plan", same, f"another plan {plan.name!r}"):
                return
        catalog, now_ms = self.repository.backend.catalog, self.repository.clock()
        await catalog.replace_plan(self.namespace, plan, self.principal, now_ms)
        self._count("plan", True)

    async def level(self, moved: ExportedLevel) -> None:
        catalog = self.repository.backend.catalog
        stored = await catalog.get_stored(self.namespace, moved.level)
        names = ("limits", "on_unavailable", "mode")
        told = {name: getattr(moved, name) for name in names}
        held = {name: getattr(stored or StoredLevel(), name) for name in names}
        if held != NOTHING_STORED:
            what = f"what is stored for {moved.level.audit_id}"
            if self._is_kept("level", held == told, what):
                return
        await self.repository._change_level(moved.level, told, self.principal)
        self._count("level", True)

    async def usage(self, moved: ExportedUsage) -> None:
        if not hasattr(self.repository.backend.ledger, "add_usage"):
            self._count("usage", False)
            return
        self._pending.append(moved)
        if len(self._pending) >= BATCH:
            await self._flush()

    async def finish(self) -> None:
        await self.write_entities()
        await self._flush()
        self.repository.configs.invalidate()

    def _is_kept(self, kind: str, same: bool, what: str) -> bool:
        """Whether what is there already stays; AlreadyStored where nobody said what to do."""
        if not same and self.existing is Existing.FAIL:
            raise AlreadyStored(what) from None
        kept = same or self.existing is Existing.SKIP
        if kept:
            self._count(kind, False)
        return kept

    def _count(self, kind: str, written: bool) -> None:
        self.counts.count(kind, written)
        self.report(self.counts.lines)

    async def _flush(self) -> None:
        held, self._pending = self._pending, []
        groups: dict[tuple[str, str], list[WindowUsage]] = {}
        for moved in held:
            usage = await self._missing(moved) if self.has_usage else moved.usage
            self._count("usage", usage is not None)
            if usage is not None:
                groups.setdefault((moved.entity_id, moved.resource), []).append(usage)
        ledger: Any = self.repository.backend.ledger
        for (entity_id, resource), usages in groups.items():
            await ledger.add_usage(self.namespace, entity_id, resource, usages)

    async def _missing(self, moved: ExportedUsage) -> WindowUsage | None:
        """What has to be added so that the window holds what the line says; None for nothing."""
        usage = moved.usage
        start_ms = usage.window_start_ms
        found, _ = await self.repository.get_usage_snapshots(
            moved.entity_id, moved.resource, usage.window_type, start_ms, start_ms + 1, limit=1
        )
        if not found:
            return usage
        [shot] = found
        more = WindowUsage(
            usage.window_type,
            start_ms,
            _difference(usage.counters_milli, shot.counters),
            usage.events - shot.total_events,
            _difference(usage.cascaded_milli, shot.from_children) if moved.tells_cascaded else {},
            usage.cascaded_events - shot.events_from_children if moved.tells_cascaded else 0,
        )
        counters = more.counters_milli or more.cascaded_milli
        if not (counters or more.events or more.cascaded_events):
            return None
        if self.existing is Existing.FAIL:
            where = f"{moved.entity_id} on {moved.resource} from {shot.window_start}"
            raise AlreadyStored(f"other usage of {where} ({usage.window_type})")
        if self.existing is Existing.SKIP:
            return None
        return more


def _difference(wanted_milli: Mapping[str, int], there: Mapping[str, int]) -> dict[str, int]:
    """What is missing by limit, in millitokens; what is there is in whole tokens."""
    names = sorted({*there, *wanted_milli})
    return nonzero({name: wanted_milli.get(name, 0) - there.get(name, 0) * MILLI for name in names})
