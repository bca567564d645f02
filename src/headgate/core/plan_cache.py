"""The configuration a limiter works with: looked up once, cached for a while, turned into plans.

A warm acquire must not ask the catalog. So what was looked up for an (entity, resource) is kept for
a few seconds, and with it the plans that were made from it: one for the limiter's own defaults, and
one for each set of limits that callers passed. Other processes' changes are noticed in two ways:
the entry ends, or a bucket turns out to be kept under a newer version and the store says so
(`verdict.outdated`), which drops the entry at once. While the store is away an entry serves past
its end, because limits that were right a minute ago are better than none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headgate.core.errors import (
    DisabledError,
    NamespaceNotFoundError,
    NoLimitsError,
    StoreDenied,
    StoreTrouble,
    ValidationError,
)
from headgate.core.levels import EntityConfig, Lookup, Mode, resolve
from headgate.core.limits import (
    DEFAULT_NAMESPACE,
    Limit,
    parse_entity_id,
    parse_limits,
    parse_namespace,
    parse_resource,
)
from headgate.core.plan import Cache, CacheStats, Plan, Slot
from headgate.core.record import BucketKey, Terms
from headgate.core.runtime import Clock
from headgate.core.store import Catalog, Guard

VARIANTS_MAX = 16
SHARED_PLANS_MAX = 1024
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


@dataclass(slots=True, eq=False)
class CachedLookup:
    """One lookup and the plans made from it, by the limits they were made for."""

    lookup: Lookup
    plans: dict[Variant, Plan] = field(default_factory=dict)


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


# --------------------------------------------------------------------------------------------------
# How plans are made.


class SharedPlans:
    """Plans to copy for entities that have nothing of their own: the last one of each resource.

    Most entities only have defaults, so their plans differ in the key of one bucket. Working out
    which level gives each limit takes much longer than copying the outcome, and copies share one
    Terms object, by whose identity stores recognise a bucket's limits. A copy is made only where
    the new lookup holds the very objects that the plan was made from (compared by identity: the
    catalog hands out the same ones until somebody changes them), the same configuration version
    and the same defaults; in every other case a plan is made from the start.
    """

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[str, tuple[str, Lookup, object, Plan]] = {}

    def copy(self, namespace: str, resource: str, lookup: Lookup, variant: object) -> Plan | None:
        kept = self._kept.get(resource)
        if kept is None or not _is_common(lookup):
            return None
        of, like, by, plan = kept
        [standing], [model] = lookup.lineage, like.lineage
        if (
            standing.resource is not model.resource
            or standing.system is not model.system
            or (of, like.version) != (namespace, lookup.version)
            or by is not variant
        ):
            return None
        [slot] = plan.slots
        key = BucketKey(namespace, standing.entity_id, resource)
        slots = (Slot(key, slot.terms, slot),)
        return Plan(slots, plan.resolutions, plan.version, plan.on_unavailable, plan.bypass)

    def keep(
        self, namespace: str, resource: str, lookup: Lookup, variant: object, plan: Plan
    ) -> None:
        if _is_common(lookup) and plan.slots:
            if len(self._kept) >= SHARED_PLANS_MAX:
                self._kept.clear()
            self._kept[resource] = (namespace, lookup, variant, plan)


def _is_common(lookup: Lookup) -> bool:
    """Whether its plan would be the same for any other entity."""
    standing = lookup.lineage[0]
    return (
        len(lookup.lineage) == 1
        and standing.own is None
        and standing.own_default is None
        and (standing.entity is None or standing.entity.mode is Mode.NORMAL)
    )


def make_plan(
    namespace: str,
    resource: str,
    lookup: Lookup,
    defaults: Sequence[Limit],
    override: tuple[Limit, ...] | None,
    intern: Mapping[Terms, Terms],
    *,
    whole: bool = False,
) -> Plan:
    """The plan for a looked-up entity; an override replaces the entity's limits as a whole, and
    serves its parents where they have none."""
    fallback = override or defaults
    resolutions = tuple(resolve(one, resource, defaults, whole=whole) for one in lookup.lineage)
    own = resolutions[0]
    for one in resolutions:
        if one.mode is Mode.DISABLED:
            raise DisabledError(*one.mode_source.split(" ", 1))
    slots = []
    for place, (standing, resolution) in enumerate(zip(lookup.lineage, resolutions, strict=True)):
        key = BucketKey(namespace, standing.entity_id, resource)
        if override and place == 0:
            terms = Terms(tuple(limit.spec for limit in override), own=True)
        elif resolution.given:
            terms = Terms(
                tuple(limit.spec for limit in resolution.limits),
                lookup.version,
                sources=tuple(given.level for given in resolution.given),
            )
        elif place and fallback:
            terms = Terms(tuple(limit.spec for limit in fallback), own=True)
        elif place:
            continue
        elif own.mode is Mode.BYPASS:
            terms = Terms((), lookup.version)
        else:
            raise NoLimitsError(standing.entity_id, resource)
        slots.append(Slot(key, intern.get(terms, terms)))
    return Plan(
        tuple(slots), resolutions, lookup.version, own.on_unavailable, own.mode is Mode.BYPASS
    )
