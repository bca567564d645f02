"""Writing what an export holds into a store: safe to repeat, and to go on with after a break."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.admin.export import ExportedItem, ExportedLevel, ExportedUsage
from headgate.core.bucket import MILLI
from headgate.core.errors import EntityExistsError, HeadgateError
from headgate.core.history import WindowUsage, nonzero
from headgate.core.levels import Entity, Mode
from headgate.repository import Repository

BATCH = 500
KINDS = ("entity", "level", "usage")
COMPARED_FIELDS = ("name", "parent_id", "cascade", "metadata", "mode")

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
            f"{what} is in this store already; choose --existing skip or --existing replace"
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

    Entities are made without parents and tied together at the end, whatever their order. Stores
    without `add_usage` keep no usage of elsewhere: its lines are skipped.
    """
    namespace = await repository.configs.namespace_id()
    found, _ = await repository.get_usage_snapshots(limit=1)
    importer = _Importer(repository, existing, principal, namespace, has_usage=bool(found))
    for one in moved:
        if isinstance(one, Entity):
            await importer.entity(one)
        elif isinstance(one, ExportedLevel):
            await importer.level(one)
        else:
            await importer.usage(one)
        report(importer.counts.lines)
    await importer.finish()
    report(importer.counts.lines)
    return importer.counts


@dataclass
class _Importer:
    repository: Repository
    existing: Existing
    principal: str | None
    namespace: str
    has_usage: bool  # whether this store has some already
    counts: ImportCounts = field(default_factory=ImportCounts)
    _orphans: list[Entity] = field(default_factory=list)
    _pending: list[ExportedUsage] = field(default_factory=list)

    async def entity(self, entity: Entity) -> None:
        try:
            await self.repository.create_entity(
                entity.id, entity.name, None, False, entity.metadata, self.principal
            )
        except EntityExistsError:
            found = await self.repository.get_entity(entity.id)
            same = found is not None and all(
                getattr(found, name) == getattr(entity, name) for name in COMPARED_FIELDS
            )
            if self._is_kept("entity", same, f"another entity {entity.id!r}"):
                return
        await self._update(entity, {"name": entity.name, "metadata": entity.metadata})
        self._orphans.append(entity)
        self.counts.count("entity", True)

    async def level(self, moved: ExportedLevel) -> None:
        catalog = self.repository.backend.catalog
        stored = await catalog.get_stored(self.namespace, moved.level)
        if stored is not None and (stored.limits or stored.mode is not Mode.NORMAL):
            same = (stored.limits, stored.mode) == (moved.limits, moved.mode)
            if self._is_kept("level", same, f"what is stored for {moved.level.audit_id}"):
                return
        changes: dict[str, Any] = {"limits": moved.limits, "mode": moved.mode}
        if moved.on_unavailable is not None:
            changes["on_unavailable"] = moved.on_unavailable
        await self.repository._change_level(moved.level, changes, self.principal)
        self.counts.count("level", True)

    async def usage(self, moved: ExportedUsage) -> None:
        if not hasattr(self.repository.backend.ledger, "add_usage"):
            self.counts.count("usage", False)
            return
        self._pending.append(moved)
        if len(self._pending) >= BATCH:
            await self._flush()

    async def finish(self) -> None:
        await self._flush()
        for entity in self._orphans:
            tied = {"parent_id": entity.parent_id, "cascade": entity.cascade, "mode": entity.mode}
            await self._update(entity, tied)
        self.repository.configs.invalidate()

    def _is_kept(self, kind: str, same: bool, what: str) -> bool:
        """Whether what is there already stays; AlreadyStored where nobody said what to do."""
        if not same and self.existing is Existing.FAIL:
            raise AlreadyStored(what) from None
        kept = same or self.existing is Existing.SKIP
        if kept:
            self.counts.count(kind, False)
        return kept

    async def _update(self, entity: Entity, changes: dict[str, Any]) -> None:
        """Writes what is different, so that a repeated import leaves no trace in the audit."""
        catalog = self.repository.backend.catalog
        found = await catalog.get_entity(self.namespace, entity.id)
        changed = {key: value for key, value in changes.items() if getattr(found, key) != value}
        if changed:
            await self.repository._change_entity(entity.id, changed, self.principal)

    async def _flush(self) -> None:
        held, self._pending = self._pending, []
        groups: dict[tuple[str, str], list[WindowUsage]] = {}
        for moved in held:
            usage = await self._missing(moved) if self.has_usage else moved.usage
            self.counts.count("usage", usage is not None)
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
