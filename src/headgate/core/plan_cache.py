"""The configuration a limiter works with: looked up once, cached for a while, turned into plans.

A warm acquire must not ask the catalog. So what was looked up for an (entity, resource) is kept,
and with it the plans that were made from it: one for the limiter's own defaults, and one for each
set of limits that callers passed. After the TTL an entry is not read again but confirmed: every
change moves the namespace's version on, so what was looked up at the version that stands now is
still true. One small read of the version per TTL confirms all entries of a process together.

Other processes' changes are noticed in two ways: that read tells another version, and entries are
read again as they are asked for; or a bucket turns out to be kept under a newer version and the
store says so (`verdict.outdated`), which drops the entry and the confirmation at once. While the
store is away an entry serves past its end, because limits that were right a minute ago are better
than none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headgate.core.decision import Demand
from headgate.core.errors import (
    DisabledError,
    NamespaceNotFoundError,
    NoLimitsError,
    StoreDenied,
    StoreTrouble,
    ValidationError,
)
from headgate.core.levels import (
    CommonLevels,
    Defaults,
    EntityConfig,
    Lookup,
    Mode,
    Plan,
    resolve,
)
from headgate.core.limits import (
    DEFAULT_NAMESPACE,
    Limit,
    parse_entity_id,
    parse_namespace,
    parse_resource,
)
from headgate.core.plan import Cache, RequestPlan, SharedRequestPlans, Slot
from headgate.core.record import BucketKey, Terms
from headgate.core.runtime import Clock
from headgate.core.store import Catalog, Guard
from headgate.transport.gates import GateFactory, SingleRead

VARIANTS_MAX = 16
TERMS_MAX = 1024
TTL_SECONDS_MAX = 24 * 3600
ERA_MS = 24 * 3600 * 1000  # then all is read anew, although its version still stands
RESOURCES_MAX = 1024  # whose levels are kept beside the version
PLANS_MAX = 1024  # that are kept there, too
TURNS_MAX = 8  # reads of others that a caller waits for before it makes its own
WAIT_MS = 5000  # for one of them; a store's own deadline ends it before that
AWAY_MS = 1000  # after a read that failed, what is known serves for this long without another

Variant = object
LookupKey = tuple[str, str]  # an entity and a resource


@dataclass(slots=True, eq=False)
class CachedLookup:
    """One lookup, when it began, and the plans made from it, by the limits they were made for."""

    lookup: Lookup
    at_ms: int = 0
    plans: dict[Variant, RequestPlan] = field(default_factory=dict)


class ConfirmedVersion(NamedTuple):
    """The version of the configuration that a read told, when that began, and until when it counts.

    `levels` are what all entities share at this version, by resource, and `plans` what those of one
    plan share. Replaced as a whole, so that no thread sees half of a change.

    Nothing that was looked up before `since_ms` counts. A store that lost its last changes (Redis
    in a failover, a table that was restored) counts the same versions a second time, for other
    changes; who saw them the first time must not go by those for ever.
    """

    version: int
    at_ms: int
    until_ms: int
    since_ms: int
    levels: dict[str, CommonLevels]
    plans: dict[str, Plan]

    def known(self, resource: str, now_ms: int) -> CommonLevels | None:
        """What a lookup need not read at this version. Plans alone only while it would not begin
        to count anew with that very lookup."""
        levels = self.levels.get(resource)
        if levels is None and self.plans and now_ms < self.since_ms + ERA_MS:
            return CommonLevels(self.version, None, None, self.plans, is_whole=False)
        return levels

    def note(self, lookup: Lookup, resource: str) -> None:
        """Keeps what all entities share of a lookup at this version."""
        if len(self.levels) >= RESOURCES_MAX:
            self.levels.clear()
        first = lookup.lineage[0]
        levels = CommonLevels(self.version, first.resource, first.system, self.plans)
        self.levels[resource] = levels

    def note_plans(self, lookup: Lookup) -> None:
        """Keeps the plans of a lookup at this version."""
        for standing in lookup.lineage:
            if standing.plan is not None and standing.plan.name not in self.plans:
                if len(self.plans) >= PLANS_MAX:
                    self.plans.clear()
                self.plans[standing.plan.name] = standing.plan

    def vouches_for(self, cached_lookup: CachedLookup | None) -> bool:
        return (
            cached_lookup is not None
            and cached_lookup.lookup.version == self.version
            and cached_lookup.at_ms >= self.since_ms
        )


class Configs:
    """Plans for one namespace, at most `ttl_s` behind what is stored.

    Without a pace nobody waits for another's read.
    """

    def __init__(
        self,
        catalog: Catalog,
        namespace: str,
        ttl_s: float,
        clock: Clock,
        pace: GateFactory | None = None,
    ) -> None:
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
        self._seen: ConfirmedVersion | None = None
        self._single_read = SingleRead(pace)
        self._last_change = object()  # of what this process changed itself
        self.revision = 0  # moves on when anything that was told fresh is not any more
        self._terms: dict[Terms, Terms] = {}
        self._shared_plans = SharedRequestPlans()
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
    ) -> RequestPlan | None:
        """The plan if it is at hand and fresh: no call, no waiting."""
        cached_lookup = self._cached((entity_id, resource), now_ms)
        return None if cached_lookup is None else cached_lookup.plans.get(variant)

    def kept_plan(
        self, entity_id: str, resource: str, variant: Variant, now_ms: int
    ) -> tuple[int, int, RequestPlan] | None:
        """The same, to be kept: good for this `revision`, and until that time."""
        revision = self.revision  # before the look: what changes meanwhile makes it worthless
        plan = self.cached_plan(entity_id, resource, variant, now_ms)
        until_ms = 0 if plan is None else self.cache.until_ms((entity_id, resource))
        return None if plan is None else (revision, until_ms, plan)

    async def plan(
        self,
        entity_id: str,
        resource: str,
        defaults: Defaults,
        override: tuple[Limit, ...] | None,
        now_ms: int,
        *,
        charged: bool = False,
    ) -> RequestPlan:
        """The plan, looked up where it must be; an outage is served from what was known. With
        `charged` there is one for who is disabled, too: what was used is owed all the same."""
        known = await self.cached_lookup(entity_id, resource, now_ms)
        home = await self.namespace_id()
        return self._plan(home, resource, known, defaults, override, charged=charged)

    def _plan(
        self,
        namespace: str,
        resource: str,
        cached_lookup: CachedLookup,
        defaults: Defaults,
        override: tuple[Limit, ...] | None,
        *,
        charged: bool = False,
    ) -> RequestPlan:
        variant = defaults if override is None else variant_of(override)
        plan = cached_lookup.plans.get(variant)
        if plan is not None:
            return plan
        if override is None:
            plan = self._shared_plans.copy(namespace, resource, cached_lookup.lookup, defaults)
        if plan is None:
            plan = make_request_plan(
                namespace, resource, cached_lookup.lookup, defaults, override, self._terms,
                charged=charged,
            )  # fmt: skip
            self._intern(plan)
            if plan.is_disabled:  # for this charge alone: a plan that is kept serves takes
                return plan
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
        *,
        charged: bool = False,
    ) -> RequestPlan | None:
        """The plan as far as it is known here, however old, else from the caller's own limits, for
        buckets of this process only; None without. Nothing is asked for."""
        known, home = self.cache.stale((entity_id, resource)), self._namespace_id
        if known is not None and home is not None:
            return self._plan(home, resource, known, defaults, override, charged=charged)
        if not defaults.limits and not override:
            return None
        nothing = EntityConfig(entity_id, None, None, None, None, None)
        lookup = Lookup(0, (nothing,))
        return make_request_plan("-", resource, lookup, defaults, override, self._terms)

    async def cached_lookup(self, entity_id: str, resource: str, now_ms: int) -> CachedLookup:
        """What is known and fresh or confirmed, else read; an outage is served from what was."""
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
            return await self._confirmed_lookup(key, now_ms)
        except StoreTrouble as trouble:
            if stale is None or isinstance(trouble, StoreDenied):
                raise  # what was known is for an outage, which ends by itself
            self._known_until_ms = self.clock() + AWAY_MS
            return stale

    async def _confirmed_lookup(self, key: LookupKey, now_ms: int) -> CachedLookup:
        """The lookup at a version that was confirmed less than a TTL ago.

        Where that is longer ago, one caller reads for all of this process. Before anything was
        confirmed nobody waits: each has its own levels to read, and is told the version with them.
        """
        for _ in range(TURNS_MAX):
            seen = self._seen
            if seen is None or now_ms < seen.until_ms:
                break
            failures = self._single_read.failures
            gate = self._single_read.join()
            if gate is None:
                return await self._read_for_all(key, seen)
            if not await gate.wait(WAIT_MS):
                break
            now_ms = self.clock()
            if self._single_read.failures > failures:
                stale = self.cache.stale(key)
                if stale is not None and now_ms < self._known_until_ms:
                    return stale
                break
        return await self._serve_or_read(key, now_ms)

    async def _read_for_all(self, key: LookupKey, seen: ConfirmedVersion) -> CachedLookup:
        """Confirms the version by the smallest read that serves the caller, too."""
        failed = False
        try:
            stale = self.cache.stale(key)
            if not seen.vouches_for(stale):
                return await self._read(key)  # which tells the version as well
            await self._read_version()
        except Exception as error:
            failed = True
            if isinstance(error, StoreTrouble) and not isinstance(error, StoreDenied):
                self._known_until_ms = self.clock() + AWAY_MS
            raise
        finally:
            self._single_read.end(failed=failed)
        return await self._serve_or_read(key, self.clock())

    async def _serve_or_read(self, key: LookupKey, now_ms: int) -> CachedLookup:
        """What is known, if the version it is of was confirmed; else it is read."""
        begun, seen = self._last_change, self._seen
        if seen is None or now_ms >= seen.until_ms:
            return await self._read(key)
        stale = self.cache.stale(key)
        if stale is None or not seen.vouches_for(stale):
            return await self._read(key, seen)
        # It was true when the version was confirmed, not now: its time counts from then. Plans are
        # made anew, since callers take one as a sign that the entity was let in a moment ago.
        confirmed = CachedLookup(stale.lookup, stale.at_ms)
        self.cache.put(key, confirmed, seen.at_ms)
        self._drop_if_changed(begun, key)
        return confirmed

    async def _read_version(self) -> None:
        at_ms, begun = self.clock(), self._last_change

        async def read() -> int:
            return await self.catalog.version(await self.namespace_id())

        try:
            version = await self._guarded(read)
        except NamespaceNotFoundError:  # a lookup finds out where it is now
            self.invalidate(namespace=True)
            return
        if self._is_current(begun):
            self._confirm(version, at_ms)
            self._drop_if_changed(begun)

    async def _read(self, key: LookupKey, seen: ConfirmedVersion | None = None) -> CachedLookup:
        """Looks up all of it, or what the confirmed version does not bring along.

        A namespace that is gone under the id it had (a store that lost everything, or it was
        purged) may be there under another: its name is looked up once more.
        """
        remembered, begun, at_ms = self._namespace_id, self._last_change, self.clock()
        known = None if seen is None else seen.known(key[1], at_ms)

        async def read() -> Lookup:
            return await self.catalog.lookup(await self.namespace_id(), *key, known)

        try:
            lookup: Lookup = await self._guarded(read)
        except NamespaceNotFoundError:
            if remembered is None:
                raise
            self.invalidate(namespace=True)
            return await self._read(key)
        cached_lookup = CachedLookup(lookup, at_ms)
        if self._is_current(begun):  # else it may be older than what was changed here
            whole = known is not None and known.is_whole and lookup.version == known.version
            if seen is not None and whole:
                at_ms = seen.at_ms  # the levels that were known are as old as that
            else:
                seen = self._confirm(lookup.version, at_ms)
                if seen is not None and seen.version == lookup.version:
                    seen.note(lookup, key[1])
            if seen is not None and seen.version == lookup.version:
                seen.note_plans(lookup)
            self.cache.put(key, cached_lookup, at_ms)
            self._drop_if_changed(begun, key)
        return cached_lookup

    def _is_current(self, begun: object) -> bool:
        return begun is self._last_change

    def _drop_if_changed(self, begun: object, key: LookupKey | None = None) -> None:
        """Another thread may have changed something after the last look, before this was kept; one
        that does so from now on drops it itself."""
        if not self._is_current(begun):
            self._seen = None
            self.cache.drop(key)
            self.revision += 1

    async def _guarded(self, read: Callable[[], Awaitable[Any]]) -> Any:
        return await (read() if self.guard is None else self.guard(read))

    def _confirm(self, version: int, at_ms: int) -> ConfirmedVersion | None:
        """Notes what a read that began then told, unless a later one was heard before."""
        if self.cache.ttl_ms <= 0:
            return None
        seen = self._seen
        if seen is None or (at_ms, version) >= (seen.at_ms, seen.version):
            since_ms, levels, plans = at_ms, dict[str, CommonLevels](), dict[str, Plan]()
            if seen is not None and seen.version == version and at_ms < seen.since_ms + ERA_MS:
                since_ms, levels, plans = seen.since_ms, seen.levels, seen.plans
            until_ms = at_ms + self.cache.ttl_ms
            seen = ConfirmedVersion(version, at_ms, until_ms, since_ms, levels, plans)
            self._seen = seen
        return seen

    def forget(self, demands: Sequence[Demand]) -> None:
        """A bucket is kept under a newer configuration than these demands were made with: they are
        planned anew, and so is the version confirmed, unless both has happened since."""
        version = max((demand.terms.version for demand in demands), default=0)
        for demand in demands:
            key = (demand.key.entity_id, demand.key.resource)
            cached_lookup = self.cache.stale(key)
            if cached_lookup is not None and cached_lookup.lookup.version <= version:
                self.cache.drop(key)
        self.revision += 1
        seen = self._seen
        if seen is not None and seen.version <= version:
            self._seen = seen._replace(at_ms=self.clock(), until_ms=0)

    def invalidate(self, *, namespace: bool = False) -> None:
        """What was looked up is read again; with `namespace`, also which id the name has."""
        self._last_change = object()
        self._seen = None
        self.cache.invalidate()
        self.revision += 1
        if namespace:
            self._namespace_id = None

    def _intern(self, plan: RequestPlan) -> None:
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


def make_request_plan(
    namespace: str,
    resource: str,
    lookup: Lookup,
    defaults: Defaults,
    override: tuple[Limit, ...] | None,
    intern: Mapping[Terms, Terms],
    *,
    charged: bool = False,
) -> RequestPlan:
    """The plan for a looked-up entity; an override replaces the entity's limits as a whole, and
    serves its parents where they have none. Whoever is disabled is only `charged`."""
    fallback = override or defaults.limits
    resolutions = tuple(resolve(one, resource, defaults) for one in lookup.lineage)
    own, disabled = resolutions[0], [one for one in resolutions if one.mode is Mode.DISABLED]
    if disabled and not charged:
        raise DisabledError(*disabled[0].mode_source.split(" ", 1))
    bypass = own.bypass or (bool(disabled) and not own.given and not override)
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
        elif bypass:
            terms = Terms((), lookup.version)
        else:
            raise NoLimitsError(standing.entity_id, resource)
        slots.append(Slot(key, intern.get(terms, terms)))
    return RequestPlan(
        tuple(slots), resolutions, lookup.version, own.on_unavailable, bypass, bool(disabled)
    )
