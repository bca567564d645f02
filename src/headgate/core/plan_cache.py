"""The configuration a limiter works with: looked up once, cached for a while, turned into plans.

A warm acquire must not ask the catalog. So what was looked up for an (entity, resource) is kept for
a few seconds, and with it the plans that were made from it: one for the limiter's own defaults, and
one for each set of limits that callers passed. Other processes' changes are noticed in two ways:
the entry ends, or a bucket turns out to be kept under a newer version and the store says so
(`verdict.outdated`), which drops the entry at once. While the store is away an entry serves past
its end, because limits that were right a minute ago are better than none.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from headgate.core.errors import NamespaceNotFoundError, StoreDenied, StoreTrouble, ValidationError
from headgate.core.levels import EntityConfig, Lookup
from headgate.core.limits import (
    DEFAULT_NAMESPACE,
    Limit,
    parse_entity_id,
    parse_limits,
    parse_namespace,
    parse_resource,
)
from headgate.core.plan import Plan, SharedPlans, make_plan
from headgate.core.record import Terms
from headgate.core.runtime import Clock
from headgate.core.store import Catalog, Guard

# --------------------------------------------------------------------------------------------------
# A bounded cache whose entries live for a while; the clock is passed in.

Value = TypeVar("Value")

ENTRIES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class CacheStats:
    """How often the cache of limits was asked, how often it had the answer, and what it holds."""

    hits: int
    misses: int
    size: int
    ttl_seconds: float


class Cache(Generic[Value]):
    """At most `entries_max` values, each for `ttl_ms`; the oldest entry makes room.

    What was looked up and not found is a value like any other (a negative entry).
    """

    __slots__ = ("_entries", "entries_max", "hits", "misses", "ttl_ms")

    def __init__(self, ttl_ms: int, entries_max: int = ENTRIES_MAX) -> None:
        self.ttl_ms = ttl_ms
        self.entries_max = entries_max
        self.hits = 0
        self.misses = 0
        self._entries: dict[Hashable, tuple[int, Value]] = {}

    def get(self, key: Hashable, now_ms: int) -> Value | None:
        entry = self._entries.get(key)
        if entry is not None and now_ms < entry[0]:
            self.hits += 1
            return entry[1]
        self.misses += 1
        return None

    def stale(self, key: Hashable) -> Value | None:
        """The value even past its time: better than nothing while its source is away."""
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    def put(self, key: Hashable, value: Value, now_ms: int) -> None:
        if self.ttl_ms <= 0 or self.entries_max <= 0:
            return
        self._entries.pop(key, None)
        if len(self._entries) >= self.entries_max:
            self._make_room()
        self._entries[key] = (now_ms + self.ttl_ms, value)

    def _make_room(self) -> None:
        """The oldest sixteenth goes, at least one: the head of a dict is slow to find singly."""
        for key in list(self._entries)[: max(1, self.entries_max // 16)]:
            self._entries.pop(key, None)

    def drop(self, key: Hashable) -> None:
        self._entries.pop(key, None)

    def invalidate(self) -> None:
        self._entries.clear()

    def stats(self) -> CacheStats:
        return CacheStats(self.hits, self.misses, len(self._entries), self.ttl_ms / 1000)


VARIANTS_MAX = 16
TERMS_MAX = 1024
TTL_SECONDS_MAX = 24 * 3600
AWAY_MS = 1000  # after a read that failed, what is known serves for this long without another

Variant = object


class Defaults:
    """A limiter's own limits, the lowest level; told apart by identity, which costs no hashing.

    With `whole` they serve as they are where nothing at all is stored, and not limit by limit.
    """

    __slots__ = ("limits", "whole")

    def __init__(self, limits: Sequence[Limit] | None, *, whole: bool = False) -> None:
        self.limits = parse_limits(limits) if limits else ()
        self.whole = whole


NO_DEFAULTS = Defaults(None)


class CachedLookup:
    """One lookup and the plans made from it, by the limits they were made for."""

    __slots__ = ("lookup", "plans")

    def __init__(self, lookup: Lookup) -> None:
        self.lookup = lookup
        self.plans: dict[Variant, Plan] = {}


class Configs:
    """Plans for one namespace, at most `ttl_s` behind what is stored."""

    def __init__(self, catalog: Catalog, namespace: str, ttl_s: float, clock: Clock) -> None:
        if isinstance(ttl_s, bool) or not isinstance(ttl_s, (int, float)):
            raise ValidationError("config_cache_ttl", ttl_s, "must be a number of seconds")
        if not 0 <= ttl_s <= TTL_SECONDS_MAX:
            raise ValidationError(
                "config_cache_ttl", ttl_s, f"must be between 0 (no cache) and {TTL_SECONDS_MAX}"
            )
        self.catalog = catalog
        self.namespace = parse_namespace(namespace)
        self.clock = clock
        self.cache: Cache[CachedLookup] = Cache(int(ttl_s * 1000))
        self._cached = self.cache.get
        self.guard: Guard | None = None  # of the latest limiter that has a breaker
        self._known_until_ms = 0
        self._terms: dict[Terms, Terms] = {}
        self._shared_plans = SharedPlans()
        self._namespace_id: str | None = None

    async def namespace_id(self) -> str:
        """The namespace's opaque id; the default namespace is made where it is missing."""
        if self._namespace_id is None:
            found = await self.catalog.get_namespace(self.namespace)
            if found is None and self.namespace == DEFAULT_NAMESPACE:
                found = await self.catalog.register_namespace(self.namespace, None, self.clock())
            if found is None:
                raise NamespaceNotFoundError(self.namespace)
            self._namespace_id = found.id
        return self._namespace_id

    def cached_plan(
        self, entity_id: str, resource: str, variant: Variant, now_ms: int
    ) -> Plan | None:
        """The plan if it is at hand and fresh: no call, no waiting."""
        cached_lookup = self._cached((entity_id, resource), now_ms)
        return None if cached_lookup is None else cached_lookup.plans.get(variant)

    async def plan(
        self,
        entity_id: str,
        resource: str,
        defaults: Defaults,
        override: tuple[Limit, ...] | None,
        now_ms: int,
    ) -> Plan:
        """The plan, looked up where it must be; an outage is served from what was known."""
        cached_lookup = await self.cached_lookup(entity_id, resource, now_ms)
        return self._plan(await self.namespace_id(), resource, cached_lookup, defaults, override)

    def _plan(
        self,
        namespace: str,
        resource: str,
        cached_lookup: CachedLookup,
        defaults: Defaults,
        override: tuple[Limit, ...] | None,
    ) -> Plan:
        variant = defaults if override is None else variant_of(override)
        plan = cached_lookup.plans.get(variant)
        if plan is not None:
            return plan
        if override is None:
            plan = self._shared_plans.copy(namespace, resource, cached_lookup.lookup, defaults)
        if plan is None:
            plan = make_plan(
                namespace, resource, cached_lookup.lookup, defaults.limits, override, self._terms,
                whole=defaults.whole,
            )  # fmt: skip
            self._intern(plan)
            if override is None:
                self._shared_plans.keep(namespace, resource, cached_lookup.lookup, defaults, plan)
        if len(cached_lookup.plans) >= VARIANTS_MAX:
            cached_lookup.plans.clear()
        cached_lookup.plans[variant] = plan
        return plan

    def plan_without_catalog(
        self,
        entity_id: str,
        resource: str,
        defaults: Defaults,
        override: tuple[Limit, ...] | None,
    ) -> Plan | None:
        """The plan as far as it is known here, however old, else from the caller's own limits, for
        buckets of this process only; None without. Nothing is asked for."""
        cached_lookup = self.cache.stale((entity_id, resource))
        if cached_lookup is not None and self._namespace_id is not None:
            return self._plan(self._namespace_id, resource, cached_lookup, defaults, override)
        if not defaults.limits and not override:
            return None
        nothing = EntityConfig(entity_id, None, None, None, None, None)
        lookup = Lookup(0, (nothing,))
        return make_plan("-", resource, lookup, defaults.limits, override, self._terms)

    async def cached_lookup(self, entity_id: str, resource: str, now_ms: int) -> CachedLookup:
        parse_entity_id(entity_id)
        parse_resource(resource)
        key = (entity_id, resource)
        cached_lookup = self.cache.get(key, now_ms)
        if cached_lookup is not None:
            return cached_lookup
        stale = self.cache.stale(key)
        if stale is not None and now_ms < self._known_until_ms:
            return stale
        try:
            cached_lookup = await self._read(entity_id, resource)
        except StoreTrouble as trouble:
            if stale is None or isinstance(trouble, StoreDenied):
                raise  # what was known is for an outage, which ends by itself
            self._known_until_ms = self.clock() + AWAY_MS
            return stale
        self.cache.put(key, cached_lookup, now_ms)
        return cached_lookup

    async def _read(self, entity_id: str, resource: str) -> CachedLookup:
        async def read() -> CachedLookup:
            return CachedLookup(await self._lookup(entity_id, resource))

        if self.guard is None:
            return await read()
        found: CachedLookup = await self.guard(read)
        return found

    async def _lookup(self, entity_id: str, resource: str) -> Lookup:
        """A namespace that is gone under the id it had (a store that lost everything, or it was
        purged) may be there under another: its name is looked up once more."""
        remembered = self._namespace_id
        try:
            return await self.catalog.lookup(await self.namespace_id(), entity_id, resource)
        except NamespaceNotFoundError:
            if remembered is None:
                raise
        self.invalidate(namespace=True)
        return await self.catalog.lookup(await self.namespace_id(), entity_id, resource)

    def outdated(self, entity_id: str, resource: str) -> None:
        self.cache.drop((entity_id, resource))

    def invalidate(self, *, namespace: bool = False) -> None:
        """What was looked up is read again; with `namespace`, also which id the name has."""
        self.cache.invalidate()
        if namespace:
            self._namespace_id = None

    def stats(self) -> CacheStats:
        return self.cache.stats()

    def _intern(self, plan: Plan) -> None:
        """Equal terms become one object. Stores compare the terms of a bucket with those of a
        demand at each decision, and two names for one object are compared in no time."""
        if len(self._terms) >= TERMS_MAX:
            self._terms.clear()
        for slot in plan.slots:
            self._terms.setdefault(slot.terms, slot.terms)


def variant_of(override: Sequence[Limit]) -> Variant:
    """What tells a plan with these limits of the caller's apart from one with stored limits."""
    return ("override", *override)
