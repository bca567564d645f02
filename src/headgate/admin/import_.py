"""Writing what an export holds into a store: safe to repeat, and to go on with after a break."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headgate.admin.export import ExportedItem, ExportedLevel
from headgate.core.bucket import MILLI
from headgate.core.errors import EntityExistsError, HeadgateError
from headgate.core.history import UsageSnapshot, WindowUsage, parse_time_ms, window_around
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


class UsageSink(Protocol):
    """A ledger that usage counted elsewhere can be added to."""

    async def add_usage(
        self, namespace: str, entity_id: str, resource: str, usages: Iterable[WindowUsage]
    ) -> None: ...


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


def silent(done: int) -> None:
    return None


async def import_lines(
    repository: Repository,
    moved: Iterable[ExportedItem],
    *,
    existing: Existing = Existing.FAIL,
    principal: str | None = None,
    report: Report = silent,
) -> ImportCounts:
    """How many of each kind were written and how many skipped.

    Entities are made without parents and tied together at the end, whatever their order. Stores
    without `add_usage` keep no usage of elsewhere: its lines are skipped.
    """
    importer = _Importer(repository, existing, principal)
    await importer.begin()
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


class _Importer:
    def __init__(self, repository: Repository, existing: Existing, principal: str | None) -> None:
        self.repository = repository
        self.existing = existing
        self.principal = principal
        self.counts = ImportCounts()
        self.namespace = ""
        self._orphans: list[Entity] = []
        self._pending: list[UsageSnapshot] = []
        self._has_usage = True
        self._ledger: UsageSink | None = None

    async def begin(self) -> None:
        self.namespace = await self.repository.configs.namespace_id()
        ledger: Any = self.repository.backend.ledger
        self._ledger = ledger if hasattr(ledger, "add_usage") else None
        found, _ = await self.repository.get_usage_snapshots(limit=1)
        self._has_usage = bool(found)

    async def entity(self, entity: Entity) -> None:
        try:
            await self.repository.create_entity(
                entity.id, entity.name, None, False, entity.metadata, self.principal
            )
        except EntityExistsError:
            same = await self._is_same(entity)
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

    async def usage(self, shot: UsageSnapshot) -> None:
        if self._ledger is None:
            self.counts.count("usage", False)
            return
        self._pending.append(shot)
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

    async def _is_same(self, entity: Entity) -> bool:
        found = await self.repository.get_entity(entity.id)
        return found is not None and all(
            getattr(found, name) == getattr(entity, name) for name in COMPARED_FIELDS
        )

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
        for shot in held:
            usage = await self._missing(shot) if self._has_usage else _usage_of(shot)
            self.counts.count("usage", usage is not None)
            if usage is not None:
                groups.setdefault((shot.entity_id, shot.resource), []).append(usage)
        assert self._ledger is not None or not groups
        for (entity_id, resource), usages in groups.items():
            if self._ledger is not None:
                await self._ledger.add_usage(self.namespace, entity_id, resource, usages)

    async def _missing(self, shot: UsageSnapshot) -> WindowUsage | None:
        """What has to be added so that the window holds what the line says; None for nothing."""
        start_ms = parse_time_ms("window_start", shot.window_start)
        assert start_ms is not None
        found, _ = await self.repository.get_usage_snapshots(
            shot.entity_id, shot.resource, shot.window_type, start_ms, start_ms + 1, limit=1
        )
        if not found:
            return _usage_of(shot)
        there = found[0]
        if there.counters == shot.counters and there.total_events == shot.total_events:
            return None
        if self.existing is Existing.FAIL:
            where = f"{shot.entity_id} on {shot.resource} from {shot.window_start}"
            raise AlreadyStored(f"other usage of {where} ({shot.window_type})")
        if self.existing is Existing.SKIP:
            return None
        names: Sequence[str] = sorted({*there.counters, *shot.counters})
        more = {name: shot.counters.get(name, 0) - there.counters.get(name, 0) for name in names}
        return _usage(shot, more, shot.total_events - there.total_events)


def _usage_of(shot: UsageSnapshot) -> WindowUsage:
    return _usage(shot, shot.counters, shot.total_events)


def _usage(shot: UsageSnapshot, counters: Any, events: int) -> WindowUsage:
    start_ms = parse_time_ms("window_start", shot.window_start)
    assert start_ms is not None
    milli = {name: amount * MILLI for name, amount in counters.items() if amount}
    window_start_ms, _ = window_around(shot.window_type, start_ms)
    return WindowUsage(shot.window_type, window_start_ms, milli, events)
