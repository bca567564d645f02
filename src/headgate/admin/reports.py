"""What operators do to buckets, and what they read of buckets and history."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from headgate.core.decision import Demand
from headgate.core.errors import ValidationError
from headgate.core.history import (
    AuditEvent,
    AuditQuery,
    BucketState,
    EntityCapacity,
    ResourceCapacity,
    UsageQuery,
    UsageSnapshot,
    UsageSummary,
    audit_event,
    event_border,
    event_time_ms,
    parse_audit_cursor,
    parse_audit_query,
    parse_principal,
    parse_time_ms,
    parse_window_type,
    summarize,
)
from headgate.core.levels import NO_DEFAULTS, Level
from headgate.core.limits import (
    parse_amount,
    parse_entity_id,
    parse_limit_name,
    parse_resource,
)
from headgate.core.plan_cache import Configs
from headgate.core.record import BucketKey, Record, cell_of, cells_of
from headgate.core.refill.bucket import MILLI
from headgate.core.runtime import Clock
from headgate.stores.catalog import Backend

# --------------------------------------------------------------------------------------------------
# What every operator flow stands on: a backend, its configuration cache, a clock.

PAGE_MAX = 1000
Item = TypeVar("Item")


class AdminBase:
    """The flows of one namespace of one backend."""

    backend: Backend
    configs: Configs
    clock: Clock
    drives_time: bool
    defaults = NO_DEFAULTS  # a limiter has its own

    def _bind(self, backend: Backend, configs: Configs, clock: Clock, *, drives_time: bool) -> None:
        self.backend = backend
        self.configs = configs
        self.clock = clock
        self.drives_time = drives_time

    def _store_ms(self) -> int | None:
        """The time to pass to a store: ours if we drive it, else its own."""
        return self.clock() if self.drives_time else None

    async def _change_level(
        self, level: Level, changes: Mapping[str, Any], principal: str | None
    ) -> None:
        """Some of limits, on_unavailable and mode of one level are other ones from now on."""
        parse_principal(principal)
        namespace = await self.configs.namespace_id()
        await self.backend.catalog.update_stored(namespace, level, changes, principal, self.clock())
        self.configs.invalidate()


def parse_page(limit: object) -> int:
    if type(limit) is not int or not 1 <= limit <= PAGE_MAX:
        raise ValidationError("limit", limit, f"must be an int from 1 to {PAGE_MAX}")
    return limit


ONCE_LENGTH_MAX = 128
AUDIT_LOOKED_MAX = 5000  # events that a page of the audit log looks at
SUMMARY_MAX = 100_000


class Reports(AdminBase):
    """Buckets and history, for people."""

    async def reset_bucket(
        self, entity_id: str, resource: str, principal: str | None = None
    ) -> None:
        """The bucket is as if never used: full, debt forgiven. An operator's act, audited."""
        parse_entity_id(entity_id)
        parse_resource(resource)
        parse_principal(principal)
        key = BucketKey(await self.configs.namespace_id(), entity_id, resource)
        await self.backend.store.forget([key])
        await self._append_audit("bucket_reset", entity_id, principal, resource)

    async def top_up(
        self,
        entity_id: str,
        resource: str,
        amounts: Mapping[str, int],
        idempotency_key: str | None = None,
        principal: str | None = None,
    ) -> bool:
        """Grants tokens up to capacity; False if this idempotency key was used within a day."""
        once = _parse_once(idempotency_key)
        parse_principal(principal)
        plan = await self.configs.plan(entity_id, resource, self.defaults, None, self.clock())
        slot = plan.slots[0]
        if not amounts or any(name not in slot.terms.index for name in amounts):
            raise ValidationError(
                "amounts", amounts, f"must name some of the limits {', '.join(slot.names)}"
            )
        parsed = {name: parse_amount(name, amount, least=1) for name, amount in amounts.items()}
        line = tuple(-parsed[name] * MILLI if name in parsed else None for name in slot.names)
        applied = await self.backend.store.adjust(
            [Demand(slot.key, slot.terms, line)], self._store_ms(), metered=False, once=once
        )
        if applied:
            await self._append_audit(
                "bucket_topped_up", entity_id, principal, resource, amounts=parsed
            )
        return applied

    async def get_buckets(self, entity_id: str, resource: str | None = None) -> list[BucketState]:
        """Every limit of the entity's buckets that exist."""
        parse_entity_id(entity_id)
        if resource is not None:
            parse_resource(resource)
        return [
            state
            async for key, record, now_ms in live_buckets(self, entity_id, resource)
            for state in bucket_states(key, record, now_ms)
        ]

    async def get_resource_capacity(
        self, resource: str, limit_name: str, parents_only: bool = False
    ) -> ResourceCapacity:
        """What one limit holds over all entities with a bucket on the resource; `parents_only`: of
        those without a parent, so that what cascades is counted once."""
        parse_resource(resource)
        parse_limit_name(limit_name)
        found = []
        async for key, record, now_ms in live_buckets(self, None, resource):
            cell = cell_of(record, limit_name)
            if cell is None or (parents_only and await self._has_parent(key.entity_id)):
                continue
            available = max(0, cell.level_milli(now_ms))
            found.append(
                EntityCapacity(key.entity_id, cell.spec.capacity_milli // MILLI, available // MILLI)
            )
        total = sum(one.capacity for one in found)
        available = sum(one.available for one in found)
        used_pct = 100 * (total - available) / total if total else 0.0
        return ResourceCapacity(resource, limit_name, total, available, used_pct, tuple(found))

    async def get_audit_events(
        self,
        entity_id: str | None = None,
        limit: int = 100,
        start_event_id: str | None = None,
        *,
        action: str | None = None,
        principal: str | None = None,
        resource: str | None = None,
        start_time: object = None,
        end_time: object = None,
    ) -> list[AuditEvent]:
        """Who changed what, newest first: of one entity, or of the whole namespace.

        `start_event_id` continues after that event. Config levels are kept under `$SYSTEM` and
        `$RESOURCE:name`, plans under `$PLAN:name`, refused callers under `$ACCESS`. Times are ISO
        8601, a datetime or ms.
        """
        query = parse_audit_query(entity_id, action, principal, resource, start_time, end_time)
        cursor = parse_audit_cursor("start_event_id", start_event_id)
        found, cursor = await self._audit_page(query, parse_page(limit), cursor)
        while cursor is not None and len(found) < limit:
            more, cursor = await self._audit_page(query, limit - len(found), cursor)
            found += more
        return found

    async def list_audit_events(
        self,
        entity_id: str | None = None,
        *,
        action: str | None = None,
        principal: str | None = None,
        resource: str | None = None,
        start_time: object = None,
        end_time: object = None,
        limit: int = 100,
        next_key: str | None = None,
    ) -> tuple[list[AuditEvent], str | None]:
        """A page of the same, and where the next begins. A page looks at AUDIT_LOOKED_MAX events at
        most, so one of a rare kind may hold less than `limit` and still have a next."""
        query = parse_audit_query(entity_id, action, principal, resource, start_time, end_time)
        cursor = parse_audit_cursor("next_key", next_key)
        return await self._audit_page(query, parse_page(limit), cursor)

    async def _audit_page(
        self, query: AuditQuery, limit: int, cursor: str | None
    ) -> tuple[list[AuditEvent], str | None]:
        """Stores tell events by subject and in order; the other filters are here, for all of them.

        Ids begin with the time, so the log is entered at the end of the time that is asked for, and
        left at its beginning.
        """
        namespace = await self.configs.namespace_id()
        before = cursor
        if query.end_ms is not None:
            border = event_border(query.end_ms)
            before = border if before is None else min(before, border)
        is_picky = any((query.action, query.principal, query.resource))
        size = PAGE_MAX if is_picky else limit + 1
        found: list[AuditEvent] = []
        for _ in range(AUDIT_LOOKED_MAX // PAGE_MAX):
            events = await self.backend.ledger.audit(
                namespace, query.entity_id, limit=size, before=before
            )
            found += [event for event in events if query.matches(event)]
            if len(found) > limit:
                return found[:limit], found[limit - 1].event_id
            if len(events) < size or _is_past(query, events[-1]):
                return found, None
            before = events[-1].event_id
        return found, before

    async def get_usage_snapshots(
        self,
        entity_id: str | None = None,
        resource: str | None = None,
        window_type: str | None = None,
        start_time: object = None,
        end_time: object = None,
        limit: int = 100,
        next_key: str | None = None,
    ) -> tuple[list[UsageSnapshot], str | None]:
        """Newest window first; `next_key` continues. Every decision made before is included."""
        query = _parse_query(entity_id, resource, window_type, start_time, end_time)
        return await self._usage(query, parse_page(limit), next_key)

    async def get_usage_summary(
        self,
        entity_id: str | None = None,
        resource: str | None = None,
        window_type: str = "hourly",
        start_time: object = None,
        end_time: object = None,
    ) -> UsageSummary:
        """Totals over all snapshots of one window type; at most SUMMARY_MAX of them.

        Each unit counts once, for the entity that asked. Of one entity it tells besides what its
        children used through it (`from_children`).
        """
        query = _parse_query(entity_id, resource, window_type, start_time, end_time)
        found: list[UsageSnapshot] = []
        async for page in pages(lambda cursor: self._usage(query, PAGE_MAX, cursor)):
            if len(found) >= SUMMARY_MAX:
                raise ValidationError(
                    "usage", len(found), "snapshots are too many to sum; narrow the time or entity"
                )
            found += page
        return summarize(found, one_entity=entity_id is not None)

    async def _usage(
        self, query: UsageQuery, limit: int, cursor: str | None
    ) -> tuple[list[UsageSnapshot], str | None]:
        namespace = await self.configs.namespace_id()
        asked = replace(query, limit=limit, cursor=cursor)
        page = await self.backend.ledger.usage(namespace, asked, self._store_ms())
        return list(page.items), page.cursor

    async def _has_parent(self, entity_id: str) -> bool:
        namespace = await self.configs.namespace_id()
        found = await self.backend.catalog.get_entity(namespace, entity_id)
        return found is not None and found.parent_id is not None

    async def _append_audit(
        self, action: str, entity_id: str, principal: str | None, resource: str, **details: Any
    ) -> None:
        event = audit_event(self.clock(), action, entity_id, principal, resource, **details)
        await self.backend.ledger.append(await self.configs.namespace_id(), event)


async def live_buckets(
    admin: AdminBase, entity_id: str | None, resource: str | None
) -> AsyncIterator[tuple[BucketKey, Record, int]]:
    """The buckets that exist, of one entity and resource or (None) of every one, each with the
    store's time when it was read."""
    async for keys in bucket_keys(admin, entity_id, resource):
        seen = await admin.backend.store.peek(keys, admin._store_ms())
        for key, record in zip(keys, seen.records, strict=True):
            if record is not None:
                yield key, record, seen.now_ms


async def bucket_keys(
    admin: AdminBase, entity_id: str | None, resource: str | None
) -> AsyncIterator[Sequence[BucketKey]]:
    """The keys of the same, page by page."""
    namespace = await admin.configs.namespace_id()
    asked = {"entity_id": entity_id, "resource": resource}

    async def fetch(cursor: str | None) -> tuple[Sequence[BucketKey], str | None]:
        page = await admin.backend.store.find(namespace, **asked, limit=PAGE_MAX, cursor=cursor)
        return page.items, page.cursor

    async for keys in pages(fetch):
        yield keys


async def pages(
    fetch: Callable[[str | None], Awaitable[tuple[Sequence[Item], str | None]]],
) -> AsyncIterator[Sequence[Item]]:
    """A listing page by page. `fetch` reads one from a cursor on; the last page has no cursor."""
    page, cursor = await fetch(None)
    yield page
    while cursor is not None:
        page, cursor = await fetch(cursor)
        yield page


def bucket_states(key: BucketKey, record: Record, now_ms: int) -> list[BucketState]:
    """Every limit of one bucket."""
    return [
        BucketState(
            key.entity_id,
            key.resource,
            cell.spec.name,
            cell.level_milli(now_ms),
            cell.epoch_ms,
            cell.spec.capacity_milli,
            cell.spec.amount_milli,
            cell.spec.period_ms,
            cell.consumed_milli,
            cell.spec.rate.resets,
            cell.reset_at_ms(now_ms),
        )
        for cell in cells_of(record)
    ]


def _parse_query(
    entity_id: str | None,
    resource: str | None,
    window_type: str | None,
    start_time: object,
    end_time: object,
) -> UsageQuery:
    return UsageQuery(
        None if entity_id is None else parse_entity_id(entity_id),
        None if resource is None else parse_resource(resource),
        parse_window_type(window_type),
        parse_time_ms("start_time", start_time),
        parse_time_ms("end_time", end_time),
    )


def _is_past(query: AuditQuery, event: AuditEvent) -> bool:
    """Whether this and all older events are from before the time that is asked for."""
    return query.start_ms is not None and event_time_ms(event) < query.start_ms


def _parse_once(key: object) -> str | None:
    if key is None:
        return None
    if not isinstance(key, str) or not 1 <= len(key) <= ONCE_LENGTH_MAX or not key.isprintable():
        raise ValidationError(
            "idempotency_key", key, f"must be 1 to {ONCE_LENGTH_MAX} printable characters"
        )
    return key


# --------------------------------------------------------------------------------------------------
# Buckets looked at again and again: how full each is, and how fast it is being used.

BUCKETS_MAX = 10_000


class LimitRate(NamedTuple):
    """One limit of one bucket; `rate` is tokens per second since the sample before."""

    state: BucketState
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class BucketSample:
    """The buckets of a namespace at one moment; `whole` unless there are too many."""

    now_ms: int
    rows: Sequence[BucketState]
    buckets: int
    whole: bool


async def sample_buckets(admin: AdminBase, resource: str | None = None) -> BucketSample:
    """Every bucket in use, BUCKETS_MAX at most."""
    rows: list[BucketState] = []
    buckets, now_ms = 0, admin.clock()
    async for key, record, now_ms in live_buckets(admin, None, resource):
        if buckets == BUCKETS_MAX:
            return BucketSample(now_ms, rows, buckets, False)
        buckets += 1
        rows += bucket_states(key, record, now_ms)
    return BucketSample(now_ms, rows, buckets, True)


def busiest(now: BucketSample, before: BucketSample | None, count: int) -> list[LimitRate]:
    """Those used fastest since the sample before; without one, or alike, the emptiest first."""
    rows = [LimitRate(state) for state in now.rows] if before is None else _rates(now, before)
    return sorted(rows, key=_rank)[:count]


def _rank(row: LimitRate) -> tuple[float, float, tuple[str, str, str]]:
    return -(row.rate or 0), row.state.available / row.state.capacity, _key(row.state)


def _rates(now: BucketSample, before: BucketSample) -> list[LimitRate]:
    was = {_key(state): state.consumed for state in before.rows}
    passed_ms = max(1, now.now_ms - before.now_ms)
    return [
        LimitRate(state, (state.consumed - was.get(_key(state), 0)) * 1000 / passed_ms)
        for state in now.rows
    ]


def _key(state: BucketState) -> tuple[str, str, str]:
    return state.entity_id, state.resource, state.limit_name
